"""The files of a workspace that start-up scripts and hooks call."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.host.called_files import MAX_SCRIPT_BYTES, called_files
from paddock.host.git.file_snapshot import FileSnapshot

FILES = ("env/x.sh", "scripts/lint.sh", "data.lock")


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def called(top: Path, *others: Path) -> set[str]:
    remarks: list[str] = []
    paths = list(called_files(str(top), map(str, others), FileSnapshot(), remarks))
    assert remarks == []
    return {str(Path(path).relative_to(top)) for path in paths}


@pytest.mark.parametrize(
    ("script", "text", "expected"),
    [
        (".envrc", "source ./env/x.sh", {"env/x.sh"}),
        (".envrc", "source_env env\nwatch_file data.lock\n# scripts/lint.sh", set()),
        (".envrc", 'source "$PWD/env/x.sh"; dotenv missing.sh', {"env/x.sh"}),
        (".husky/pre-push", '. "$(dirname "$0")/../scripts/lint.sh"', {"scripts/lint.sh"}),
        (
            "lefthook.yml",
            "run: sh 'env/x.sh' && ./scripts/lint.sh",
            {"env/x.sh", "scripts/lint.sh"},
        ),
        (".envrc", "source ../outside.sh", set()),
        ("run.sh", "./scripts/lint.sh", set()),
    ],
)
def test_words_that_are_paths_of_files_count(
    tmp_path: Path, script: str, text: str, expected: set[str]
) -> None:
    top = tmp_path / "top"
    put(tmp_path / "outside.sh")
    for name in FILES:
        put(top / name)
    put(top / script, text)
    assert called(top) == expected


def test_hooks_outside_of_the_workspace_are_read_and_samples_are_not(tmp_path: Path) -> None:
    top, hooks = tmp_path / "top", tmp_path / "hooks"
    for name in FILES:
        put(top / name)
    put(hooks / "pre-commit", "./scripts/lint.sh")
    put(hooks / "commit-msg.sample", "env/x.sh")
    put(hooks / "program", "env/x.sh\n" + " " * MAX_SCRIPT_BYTES)
    assert called(top, hooks) == {"scripts/lint.sh"}


def test_a_script_that_can_not_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddock.errors import PolicyError

    def refuse(snapshot: FileSnapshot, path: str) -> str:
        raise PolicyError("cannot be read", where=path)

    put(tmp_path / ".envrc", "source x")
    monkeypatch.setattr(FileSnapshot, "text", refuse)
    remarks: list[str] = []
    assert list(called_files(str(tmp_path), (), FileSnapshot(), remarks)) == []
    (remark,) = remarks
    assert "are not listed" in remark
    assert f"{tmp_path}/.envrc" in remark
