"""The repository of a directory, found without git."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import MAX_FILE_BYTES, FileSnapshot
from paddock.host.git.repository import Repository, repository_of
from tests.unit.host.git.real_repositories import git, repository, worktree


def found(top: Path) -> Repository | None:
    return repository_of(str(top), FileSnapshot())


def test_a_plain_repository_is_its_own(tmp_path: Path) -> None:
    top = repository(tmp_path / "r")
    here = found(top)
    assert here
    assert (here.git_dir, here.common_dir, here.elsewhere, here.linked) == (
        f"{top}/.git",
        f"{top}/.git",
        False,
        False,
    )


def test_a_linked_worktree_leads_to_its_entry_and_to_the_main_repository(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    here = found(worktree(main, tmp_path / "elsewhere"))
    assert here
    assert here.linked
    assert (here.git_dir, here.common_dir) == (f"{main}/.git/worktrees/elsewhere", f"{main}/.git")


def test_a_submodule_has_its_own_repository_elsewhere(tmp_path: Path) -> None:
    main, part = repository(tmp_path / "r"), repository(tmp_path / "part")
    git(
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        part,
        "libs/part",
        cwd=main,
    )
    here = found(main / "libs" / "part")
    assert here
    assert (here.elsewhere, here.linked) == (True, False)
    assert here.git_dir == f"{main}/.git/modules/libs/part"


def test_a_link_in_place_of_the_directory_is_elsewhere(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".git").symlink_to(main / ".git")
    here = found(tmp_path / "other")
    assert here
    assert (here.git_dir, here.elsewhere) == (f"{main}/.git", True)


@pytest.mark.parametrize("text", ["", "gitdir:/x\n", "something else\n", "\0"])
def test_a_file_that_git_would_not_follow_leads_nowhere(tmp_path: Path, text: str) -> None:
    (tmp_path / ".git").write_text(text)
    assert found(tmp_path) is None


def test_a_directory_without_git_has_no_repository(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    assert found(tmp_path / "not" / "there") is None


def test_a_planted_common_directory_is_seen(tmp_path: Path) -> None:
    top = repository(tmp_path / "r")
    (top / ".git" / "commondir").write_text("../evil\n")
    here = found(top)
    assert here
    assert here.common_dir == f"{top}/evil"
    assert not here.linked, "it is no worktree, and opens nothing"


def test_files_that_were_read_are_recorded_with_their_state(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    top = worktree(main, tmp_path / "w")
    looked = FileSnapshot()
    repository_of(str(top), looked)
    assert looked.files[f"{top}/.git"]
    assert looked.files[f"{main}/.git/worktrees/w/commondir"]
    plain = FileSnapshot()
    repository_of(str(main), plain)
    assert f"{main}/.git" in plain.directories
    assert plain.files[f"{main}/.git/commondir"] is None, "what is absent may appear"


def test_a_file_that_cannot_be_read_as_git_would_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(PolicyError, match="longer than"):
        FileSnapshot().text(str(tmp_path / "long"))
    with pytest.raises(PolicyError, match="not a regular file"):
        FileSnapshot().text("/dev/null")
    (tmp_path / "loop").symlink_to("loop")
    assert FileSnapshot().text(str(tmp_path / "loop")) is None
