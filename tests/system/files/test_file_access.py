"""Files outside the grants stay unchanged for every system call.

Each act is tried three times: in the workspace (allowed), in a neighbour of the workspace (refused,
and the host sees nothing changed), and on the neighbour without the sandbox (succeeds, so the act
itself is sound).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import core
from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tree import SECRET, ProjectTree, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    name: str
    words: tuple[str, ...]  # "@x" is x in the directory of the act
    flags: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ("EACCES",)

    def __str__(self) -> str:
        return self.name

    def on(self, directory: Path) -> list[str]:
        return [str(directory / word[1:]) if word.startswith("@") else word for word in self.words]


ACTS = (
    Act(name="read", words=("read", "@file.txt")),
    Act(name="list", words=("list", "@.")),
    Act(name="create", words=("create", "@new.txt")),
    Act(name="overwrite", words=("overwrite", "@file.txt")),
    Act(name="append", words=("append", "@file.txt")),
    Act(name="open-truncate", words=("open-truncate", "@file.txt")),
    Act(name="truncate", words=("truncate", "@file.txt")),
    Act(name="unlink", words=("unlink", "@file.txt")),
    Act(name="mkdir", words=("mkdir", "@new")),
    Act(name="rmdir", words=("rmdir", "@empty")),
    Act(name="mkfifo", words=("mkfifo", "@fifo")),
    Act(name="mksocket", words=("mksocket", "@socket"), flags=("--socket", "unix")),
    Act(name="symlink", words=("symlink", "/etc/passwd", "@link")),
    Act(name="rename", words=("rename", "@file.txt", "@renamed.txt")),
    Act(name="rename-over", words=("rename", "@tool", "@file.txt")),
    Act(name="exchange", words=("exchange", "@tool", "@file.txt")),
    Act(name="hard-link", words=("link", "@file.txt", "@second.txt")),
    Act(name="tmpfile", words=("tmpfile-link", "@.", "@from-nothing.txt")),
    Act(name="execute", words=("execute", "@tool")),
    Act(name="read-by-opath", words=("read-by-opath", "@.", "file.txt")),
    Act(name="reopen-opath", words=("reopen-opath", "@file.txt")),
    Act(name="chdir-read", words=("chdir-read", "@.", "file.txt")),
)


def fill_directory(tree: ProjectTree, directory: Path) -> None:
    tree.put(directory / "file.txt", SECRET + "\n")
    tree.put(directory / "tool", "#!/bin/sh\necho ok\n", mode=0o755)
    tree.make(directory / "empty")


def probe(sandbox: SandboxRunner, act: Act, directory: Path) -> list[Word]:
    return sandbox.probe(*act.on(directory))


@pytest.mark.parametrize("act", ACTS, ids=str)
def test_an_act_works_in_the_workspace_and_not_beside_it(
    sandbox: SandboxRunner, tree: ProjectTree, act: Act
) -> None:
    """C-029, C-021, F-090: every operation in every spelling."""
    fill_directory(tree, tree.project)
    fill_directory(tree, tree.outside)
    before = Snapshot.of(tree.outside)

    allowed = sandbox.inside(probe(sandbox, act, tree.project), *act.flags)
    denied = sandbox.inside(probe(sandbox, act, tree.outside), *act.flags)
    untouched = Snapshot.of(tree.outside)
    control = sandbox.outside(probe(sandbox, act, tree.outside))

    assert allowed.answer.startswith("ok"), str(allowed)
    assert denied.answer in act.refusals, str(denied)
    assert SECRET not in denied.stdout
    assert untouched == before
    assert control.answer.startswith("ok"), str(control)


@pytest.mark.parametrize(
    "act", [act for act in ACTS if act.name in ("read", "create", "unlink")], ids=str
)
def test_a_directory_whose_name_begins_like_the_workspace_is_not_the_workspace(
    sandbox: SandboxRunner, tree: ProjectTree, act: Act
) -> None:
    """``/proj`` and ``/proj-evil``: grants are directories, not text."""
    fill_directory(tree, tree.evil)
    before = Snapshot.of(tree.evil)
    denied = sandbox.inside(probe(sandbox, act, tree.evil))
    assert denied.answer == "EACCES", str(denied)
    assert Snapshot.of(tree.evil) == before
    assert sandbox.outside(probe(sandbox, act, tree.evil)).answer.startswith("ok")


@pytest.mark.parametrize(
    "detour",
    [
        "{project}/../outside/secret.txt",
        "/proc/self/root{outside}/secret.txt",
        "/proc/self/cwd/../outside/secret.txt",
        "/proc/thread-self/root{outside}/secret.txt",
        "{project}/link",
        "{project}/directory-link/secret.txt",
    ],
)
def test_no_spelling_of_a_path_leads_out(
    sandbox: SandboxRunner, tree: ProjectTree, detour: str
) -> None:
    (tree.project / "link").symlink_to(tree.secret)
    (tree.project / "directory-link").symlink_to(tree.outside)
    path = detour.format(project=tree.project, outside=tree.outside)
    own = sandbox.inside(
        sandbox.probe("read", path.replace("outside", "project").replace("secret", "own"))
    )
    denied = sandbox.inside(sandbox.probe("read", path))
    control = sandbox.outside(sandbox.probe("read", path))
    assert control.answer == f"ok {SECRET}"
    assert denied.answer == "EACCES", str(denied)
    assert "link" in detour or own.answer == "ok mine", str(own)


@pytest.mark.parametrize("via", ["link", "rename", "exchange"])
def test_a_file_cannot_be_carried_in_or_out(
    sandbox: SandboxRunner, tree: ProjectTree, via: str
) -> None:
    """Reads a secret after a link or a move into the workspace. Plants a file outside by a move."""
    before = Snapshot.of(tree.outside)
    carried = tree.project / "carried.txt"
    if via == "exchange":
        tree.put(carried, "bait\n")
    stolen = sandbox.inside(sandbox.probe(via, tree.secret, carried))
    planted = sandbox.inside(
        sandbox.probe(via, tree.project / "own.txt", tree.outside / "planted.txt")
    )
    if via == "exchange":
        planted = sandbox.inside(sandbox.probe(via, tree.project / "own.txt", tree.secret))
    assert stolen.answer in ("EACCES", "EXDEV"), str(stolen)
    assert planted.answer in ("EACCES", "EXDEV"), str(planted)
    assert Snapshot.of(tree.outside) == before
    assert sandbox.outside(sandbox.probe(via, tree.secret, carried)).answer == "ok"


def test_a_nameless_file_cannot_be_given_a_name_outside(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    before = Snapshot.of(tree.outside)
    allowed = sandbox.inside(
        sandbox.probe("tmpfile-link", tree.project, tree.project / "named.txt")
    )
    denied = sandbox.inside(sandbox.probe("tmpfile-link", tree.project, tree.outside / "named.txt"))
    assert allowed.answer == "ok", str(allowed)
    assert denied.answer in ("EACCES", "EXDEV"), str(denied)
    assert Snapshot.of(tree.outside) == before
    assert (
        sandbox.outside(
            sandbox.probe("tmpfile-link", tree.project, tree.outside / "named.txt")
        ).answer
        == "ok"
    )


@pytest.mark.parametrize(
    "reader",
    [
        ("sh", "-c", "echo started; cat {path}"),
        ("python3", "-c", "print('started', flush=True); print(open('{path}').read())"),
        ("perl", "-e", "$|=1; print qq(started\\n); open(F, '<', '{path}') or exit 1; print <F>"),
        ("{probe}", "read", "{path}"),
    ],
    ids=["shell", "python", "perl", "static-program"],
)
def test_shell_interpreter_and_static_program_get_the_same_denial(
    sandbox: SandboxRunner, tree: ProjectTree, reader: tuple[str, ...]
) -> None:
    """F-090."""
    if reader[0] == "perl":
        need_program("perl")

    def reading(path: Path) -> list[Word]:
        return [
            word.replace("{path}", str(path)).replace("{probe}", str(sandbox.programs.probe))
            for word in reader
        ]

    allowed = sandbox.inside(reading(tree.project / "own.txt"))
    denied = sandbox.inside(reading(tree.secret))
    control = sandbox.outside(reading(tree.secret))
    assert "mine" in allowed.stdout, str(allowed)
    assert denied.started, str(denied)
    assert SECRET not in denied.stdout, str(denied)
    assert denied.exit_code != 0
    assert SECRET in control.stdout


def test_a_directory_descriptor_is_not_inherited(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """An inherited descriptor of an outside directory would bypass every path rule."""
    directory = os.open(tree.outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        words = sandbox.probe("read-below", str(directory), "secret.txt")
        denied = sandbox.inside(words, pass_fds=[directory])
        held = sandbox.inside(sandbox.probe("descriptors"), pass_fds=[directory])
        control = sandbox.outside(words, pass_fds=[directory])
    finally:
        os.close(directory)
    assert denied.answer == "EBADF", str(denied)
    assert held.answer == "ok 0,1,2", str(held)
    assert control.answer == f"ok {SECRET}"


def test_a_directory_as_standard_input_is_refused(
    sandbox: SandboxRunner, tree: ProjectTree, host: dict[str, Any]
) -> None:
    """The core refuses it. On the command line the interpreter already refuses before that."""
    plan = core.plan_for(
        sandbox.tester,
        tree.project,
        landlock_abi=host["landlock_abi"],
        read=[sandbox.programs.directory],
    )
    words = sandbox.probe("read-below", "0", "secret.txt")
    directory = os.open(tree.outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        by_core = core.run_core(
            sandbox.tester, sandbox.installation.core, plan, words, stdin=directory
        )
        by_command_line = sandbox.inside(words, stdin=directory)
        control = sandbox.outside(words, stdin=directory)
    finally:
        os.close(directory)
    assert by_core.exit_code == 125, str(by_core)
    assert "directory" in by_core.stderr
    assert by_command_line.exit_code != 0, str(by_command_line)
    assert by_core.stdout == by_command_line.stdout == ""
    assert control.answer == f"ok {SECRET}"


def test_a_workspace_that_was_deleted_under_us_is_an_error(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    gone = tree.make(tree.root / "gone")
    script = f'rmdir {gone}; exec "$@"'
    words = ["sh", "-c", script, "sh", *sandbox.command(sandbox.probe("descriptors"))]
    refused = sandbox.outside(words, cwd=gone)
    assert refused.exit_code == 125, str(refused)
    assert refused.stdout == ""
    assert refused.stderr.startswith("paddock:")
    assert "Traceback" not in refused.stderr


def test_a_workspace_moved_away_before_the_start_is_the_one_that_is_granted(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """A stale path must not grant another directory that has the old name now."""
    moved = tree.root / "moved"
    script = f'mv {tree.project} {moved}; mv {tree.outside} {tree.project}; exec "$@"'
    words = sandbox.command(sandbox.probe("read", tree.project / "secret.txt"))
    denied = sandbox.outside(["sh", "-c", script, "sh", *words])
    assert denied.exit_code == 125 or denied.answer == "EACCES", str(denied)
    assert SECRET not in denied.stdout


def test_a_symlink_as_workspace_grants_what_it_points_to_and_nothing_beside(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    alias = tree.root / "alias"
    alias.symlink_to(tree.project)
    allowed = sandbox.inside(sandbox.probe("create", "new.txt"), cwd=alias)
    denied = sandbox.inside(sandbox.probe("read", "../outside/secret.txt"), cwd=alias)
    assert allowed.answer == "ok", str(allowed)
    assert (tree.project / "new.txt").exists()
    assert denied.answer == "EACCES", str(denied)


def test_a_grant_of_another_name_does_not_open_a_denied_file(
    sandbox: SandboxRunner, full: SandboxRunner
) -> None:
    """A rule is on the file itself: a grant by one name would open the denied name."""
    denied = sandbox.tree.put(sandbox.tree.outside / "denied", "secret\n")
    other = sandbox.tree.outside / "other"
    other.hardlink_to(denied)
    flags = ("--read", other, "--deny", denied)
    for tier in (sandbox, full):
        for name in (denied, other):
            assert tier.inside(tier.probe("read", name), *flags).answer in ("EACCES", "ENOENT")
            assert tier.inside(tier.probe("read", other), "--read", other).answer == "ok secret"
    assert sandbox.outside(sandbox.probe("read", denied)).answer == "ok secret"
