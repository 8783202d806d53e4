"""Finds all files that a configuration makes git execute or obey."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.host.git import trusted_paths
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.host.git.repository import repository_of
from paddock.host.git.trusted_paths import MAX_CONFIG_FILES, trusted_by
from tests.unit.host.git.real_repositories import repository


@pytest.fixture(autouse=True)
def no_system_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_paths, "SYSTEM_CONFIG", str(tmp_path / "gitconfig"))


@pytest.fixture(name="top")
def _top(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return repository(tmp_path / "r")


def trusted(top: Path, environ: dict[str, str] | None = None) -> set[str]:
    looked = FileSnapshot()
    home = str(top.parent / "home")
    own = {trusted_paths.SYSTEM_CONFIG, f"{home}/.gitconfig", f"{home}/.config/git/config"}
    found = {
        one.path
        for one in trusted_by(
            repository_of(str(top), looked), str(top), home, looked, environ=environ
        )
    }
    assert own <= found, "the person's own configuration is obeyed everywhere"
    return found - own


def configure(top: Path, text: str) -> None:
    with (top / ".git" / "config").open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    "written",
    [
        r'"\"my tools/clean\" %f"',
        r"sh my\\ tools/clean",
        "'my tools/clean'",
        r"""sh -c 'cat | \"my tools/clean\"'""",
    ],
)
def test_a_name_may_have_blanks(top: Path, written: str) -> None:
    configure(top, f'[filter "x"]\nclean = {written}\n')
    assert f"{top}/my tools/clean" in trusted(top)


def test_a_fresh_repository_trusts_nothing(top: Path) -> None:
    assert trusted(top) == set()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[core]\nhooksPath = .husky/_\n", "{top}/.husky/_"),
        ("[core]\nhooksPath = /srv/hooks\n", "/srv/hooks"),
        ("[core]\nattributesFile = ~/attributes\n", "{home}/attributes"),
        ("[core]\nexcludesFile = ignore\n", "{top}/ignore"),
        ("[core]\nfsmonitor = ./tools/monitor\n", "{top}/tools/monitor"),
        ("[init]\ntemplateDir = templates\n", "{top}/templates"),
        ('[filter "x"]\nclean = tools/clean %f\n', "{top}/tools/clean"),
        ('[filter "x"]\nsmudge = "python3 tools/smudge.py"\n', "{top}/tools/smudge.py"),
        ('[filter "x"]\nprocess = sh -c \'"tools/process" -v\'\n', "{top}/tools/process"),
        ('[diff "x"]\ntextconv = tools/text\n', "{top}/tools/text"),
        ('[diff "x"]\ncommand = $HOME/tools/diff\n', "{home}/tools/diff"),
        ('[diff "x"]\ncommand = "\\"${HOME}/tools/diff\\""\n', "{home}/tools/diff"),
        ('[merge "x"]\ndriver = ./merge.sh %O %A %B\n', "{top}/merge.sh"),
        ("[credential]\nhelper = !./helper\n", "{top}/helper"),
        ('[credential "https://x"]\nhelper = /srv/helper\n', "/srv/helper"),
        ("[gpg]\nprogram = tools/gpg\n", "{top}/tools/gpg"),
        ('[gpg "ssh"]\nprogram = tools/sign\n', "{top}/tools/sign"),
        ("[pager]\nlog = tools/pager\n", "{top}/tools/pager"),
        ('[hook "x"]\ncommand = tools/hook\n', "{top}/tools/hook"),
        ("[unheard]\nof = tools/of\n", "{top}/tools/of"),
        ("[include]\npath = ../team.inc\n", "{top}/team.inc"),
        ('[includeIf "gitdir:/never/"]\npath = ~/work.inc\n', "{home}/work.inc"),
    ],
)
def test_a_path_that_a_key_names_is_found(top: Path, text: str, path: str) -> None:
    configure(top, text)
    assert trusted(top) == {path.format(top=top, home=top.parent / "home")}


@pytest.mark.parametrize(
    "text",
    [
        "[core]\nfsmonitor = true\n",
        "[core]\neditor = vim\n",
        "[core]\npager = less -R\n",
        "[credential]\nhelper = store\n",
        '[filter "lfs"]\nclean = git-lfs clean -- %f\nprocess = git-lfs filter-process\n',
        "[user]\nname = a/b\n",
        '[remote "origin"]\nurl = git@host:a/b\nfetch = +refs/heads/*:refs/remotes/origin/*\n',
        "[unheard]\nof = true\n",
        "[core]\nhooksPath = ~somebody/hooks\n",
        "[core]\nhooksPath\n",
    ],
)
def test_a_value_that_names_no_file_is_ignored(top: Path, text: str) -> None:
    configure(top, text)
    assert trusted(top) == set()


def test_a_file_among_the_arguments_counts_and_a_directory_does_not(top: Path) -> None:
    (top / "src").mkdir()
    (top / "clean.py").write_text("")
    configure(top, '[filter "x"]\nclean = python3 clean.py src/ %f missing.py\n')
    assert trusted(top) == {f"{top}/clean.py"}


@pytest.mark.parametrize(
    "command",
    [
        r"\"$(git rev-parse --show-toplevel)/tools/clean.py\"",
        "$PWD/tools/clean.py",
        "cd tools && ./clean.py",
        "PATH=./tools:$PATH clean.py",
        "python3 -m tools.clean",
        "cd tools; python3 -m clean",
    ],
)
def test_a_file_in_a_shell_value_is_found(top: Path, command: str) -> None:
    (top / "tools").mkdir()
    (top / "tools" / "clean.py").touch()
    (top / "tools" / "other").touch()
    for key in ('[filter "x"]\nclean = ', "[alias]\nfmt = !"):
        configure(top, f'{key}"{command}"\n')
        assert str(top / "tools" / "clean.py") in trusted(top)
        assert str(top / "tools" / "other") not in trusted(top)
        (top / ".git" / "config").write_text("")


def test_an_included_file_is_read_in_turn(top: Path) -> None:
    (top / "team.inc").write_text("[core]\nhooksPath = hooks\n[include]\npath = more.inc\n")
    (top / "more.inc").write_text("[core]\nfsmonitor = ./watch\n")
    configure(top, "[include]\npath = ../team.inc\n")
    assert trusted(top) == {f"{top}/team.inc", f"{top}/hooks", f"{top}/more.inc", f"{top}/watch"}


def test_files_that_include_each_other_come_to_an_end(top: Path) -> None:
    (top / "a.inc").write_text("[include]\npath = b.inc\n")
    (top / "b.inc").write_text(
        "[include]\npath = a.inc\n" + "".join(f"[include]\npath = {n}\n" for n in range(50))
    )
    configure(top, "[include]\npath = ../a.inc\n")
    assert len(trusted(top)) == 52


def test_more_included_files_than_are_read_are_refused(top: Path) -> None:
    """The files that git would obey by the next included file are unknown."""
    configure(top, "".join(f"[include]\npath = {n}\n" for n in range(MAX_CONFIG_FILES)))
    with pytest.raises(
        PolicyError,
        match=f"includes more than {MAX_CONFIG_FILES} files .*/r/.git/config: include.path",
    ):
        trusted(top)


@pytest.mark.parametrize(
    "environ",
    [
        {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "Core.HooksPath",
            "GIT_CONFIG_VALUE_0": "hooks",
            "GIT_CONFIG_KEY_1": "include.path",
            "GIT_CONFIG_VALUE_1": "{top}/team.inc",
        },
        {"GIT_CONFIG_PARAMETERS": "'core.hookspath'='hooks' 'include.path={top}/team.inc'"},
    ],
)
def test_git_configuration_in_variables_is_read(top: Path, environ: dict[str, str]) -> None:
    (top / "team.inc").write_text("[core]\nfsmonitor = ./watch\n")
    given = {name: value.replace("{top}", str(top)) for name, value in environ.items()}
    assert trusted(top, given) == {f"{top}/hooks", f"{top}/team.inc", f"{top}/watch"}
    asked = ["git", "-C", str(top), "config", "--includes", "core.fsmonitor"]
    answer = subprocess.run(
        asked, env={"PATH": os.environ["PATH"], **given}, capture_output=True, text=True
    )
    assert answer.stdout == "./watch\n", "the control: git obeys it"


@pytest.mark.parametrize("count", ["", "x", "-1", "1"])
def test_variables_that_git_refuses_configure_nothing(top: Path, count: str) -> None:
    assert trusted(top, {"GIT_CONFIG_COUNT": count, "GIT_CONFIG_KEY_0": "core.hooksPath"}) == set()


def test_the_persons_own_configuration_and_that_of_the_worktree_count(top: Path) -> None:
    home = top.parent / "home"
    (home / ".gitconfig").write_text("[core]\nhooksPath = .githooks\n")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "config").write_text("[core]\nattributesFile = attributes\n")
    (top / ".git" / "config.worktree").write_text("[core]\nfsmonitor = ./watch\n")
    assert trusted(top) == {f"{top}/.githooks", f"{top}/attributes", f"{top}/watch"}
