"""The table of files that git reads, follows and executes, compared with the installed git."""

from __future__ import annotations

import re
import subprocess

import pytest

from paddock.policy.git_layout import Key, is_branch, is_part, is_written, key_of, layout, make_one
from tests.support.features import need_program

# Names of keys whose value is a program, a file or a directory.
_TELLING = re.compile(
    r"(command|cmd|program|prog|hook|hookspath|helper|driver|path|dir|file|editor|pager|"
    r"textconv|clean|smudge|process"
    r"|filter|external|proxy|tunnel|browser|httpd|askpass|fsmonitor|uploadpack|receivepack|"
    r"update|vcs)$"
)


def test_every_key_of_the_installed_git_that_may_name_a_program_is_in_the_table() -> None:
    need_program("git")
    listed = subprocess.run(
        ["git", "help", "--config"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    keys = [line.lower().split(".") for line in listed if re.fullmatch(r"[\w-]+(\.[^ ]+)+", line)]
    assert len(keys) > 500, "git lists its keys"
    telling = [(parts[0], parts[-1]) for parts in keys if _TELLING.search(parts[-1])]
    assert ("core", "hookspath") in telling
    assert ("gpg", "program") in telling
    unknown = sorted(f"{section}.{key}" for section, key in telling if key_of(section, key) is None)
    assert not unknown, "say in git.tsv what these keys name, or that they name nothing"


_RUN = (
    (
        "gc.recentobjectshook gpg.defaultkeycommand remote.uploadpack remote.receivepack "
        "submodule.update browser.cmd"
    ),
    "man.cmd guitool.cmd sendemail.tocmd sendemail.cccmd core.fsmonitor pager.log filter.process",
)


@pytest.mark.parametrize("name", " ".join(_RUN).split())
def test_a_key_that_runs_a_program_is_known(name: str) -> None:
    assert key_of(*name.split(".")) is Key.PROGRAM


def test_parts_of_a_git_directory() -> None:
    for inside in (
        "config",
        "hooks/pre-commit",
        "objects/info/alternates",
        "worktrees/n/commondir",
        "info/attributes",
    ):
        assert is_part(inside), inside
    for inside in (
        "modules/a/b/hooks/x",
        "worktrees/n/modules/m/config",
        "svn/x",
        "modules/m/objects/info/alternates",
        "sl/config",
        "worktrees/n/sl/config-git-user",
        "modules/m/sl/store/gitdir",
    ):
        assert is_part(inside), inside
    for inside in (
        "HEAD",
        "objects/00/1",
        "refs/heads/config",
        "logs/HEAD",
        "modules/svn/HEAD",
        "sl/dirstate",
        "sl/store/requires",
        "worktrees/n/index",
    ):
        assert not is_part(inside), inside
    assert {"HEAD", "objects", "refs", "commondir", "worktrees", "logs"} <= layout().parts


def test_a_repository_is_recognised_by_its_parts() -> None:
    assert make_one({"HEAD", "objects", "refs"}.__contains__)
    assert make_one({"HEAD", "commondir"}.__contains__)
    assert not make_one({"objects", "refs", "commondir"}.__contains__)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".git/modules/m/refs/heads/config", True),
        ("a/.git/modules/a/b/refs/tags/hooks/x", True),
        (".git/modules/m/logs/refs/heads/config", True),
        (".git/worktrees/n/modules/m/refs/remotes/origin/config", True),
        (".git/modules/refs/heads/config", False),
        (".git/modules/m/config", False),
        (".git/modules/m/refs/heads/.git/config", False),
        (".git/modules/m/refs/heads/.git", False),
        (".git/modules/m/refs/heads/.x/hooks", False),
        (".git/refs/heads/config", False),
    ],
)
def test_a_branch_of_a_submodule_may_be_called_like_a_part_of_git(
    path: str, expected: bool
) -> None:
    assert is_branch(path) is expected


def test_files_that_git_writes_differ_from_a_work_tree_in_a_git_directory() -> None:
    known = {".bare"}
    for directory in (".bare", ".bare/worktrees/n/logs", ".bare/objects/00", "x/.git/any/thing"):
        assert is_written(directory, known), directory
    for directory in (".bare/feature/src", ".bare2/logs", "x"):
        assert not is_written(directory, known), directory
