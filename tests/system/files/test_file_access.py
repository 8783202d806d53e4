"""Files outside the grants stay as they were, whichever call is used to reach them.

Each act is tried three times: in the workspace (allowed), in a neighbour of the workspace (refused,
and the host sees nothing changed), and on the neighbour without the fence (succeeds, so the act
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
from tests.support.fence import Fence, Word
from tests.support.test_tree import SECRET, Ground, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    name: str
    words: tuple[str, ...]  # "@x" is x in the directory acted on
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


def furnish(ground: Ground, directory: Path) -> None:
    ground.put(directory / "file.txt", SECRET + "\n")
    ground.put(directory / "tool", "#!/bin/sh\necho ok\n", mode=0o755)
    ground.make(directory / "empty")


def probe(fence: Fence, act: Act, directory: Path) -> list[Word]:
    return fence.probe(*act.on(directory))


@pytest.mark.parametrize("act", ACTS, ids=str)
def test_an_act_works_in_the_workspace_and_not_beside_it(
    fence: Fence, ground: Ground, act: Act
) -> None:
    """C-029, C-021, F-090: every operation, however spelled."""
    furnish(ground, ground.project)
    furnish(ground, ground.outside)
    before = Snapshot.of(ground.outside)

    allowed = fence.inside(probe(fence, act, ground.project), *act.flags)
    denied = fence.inside(probe(fence, act, ground.outside), *act.flags)
    untouched = Snapshot.of(ground.outside)
    control = fence.outside(probe(fence, act, ground.outside))

    assert allowed.answer.startswith("ok"), str(allowed)
    assert denied.answer in act.refusals, str(denied)
    assert SECRET not in denied.stdout
    assert untouched == before
    assert control.answer.startswith("ok"), str(control)


@pytest.mark.parametrize(
    "act", [act for act in ACTS if act.name in ("read", "create", "unlink")], ids=str
)
def test_a_directory_whose_name_begins_like_the_workspace_is_not_the_workspace(
    fence: Fence, ground: Ground, act: Act
) -> None:
    """``/proj`` and ``/proj-evil``: grants are directories, not text."""
    furnish(ground, ground.evil)
    before = Snapshot.of(ground.evil)
    denied = fence.inside(probe(fence, act, ground.evil))
    assert denied.answer == "EACCES", str(denied)
    assert Snapshot.of(ground.evil) == before
    assert fence.outside(probe(fence, act, ground.evil)).answer.startswith("ok")


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
def test_no_spelling_of_a_path_leads_out(fence: Fence, ground: Ground, detour: str) -> None:
    (ground.project / "link").symlink_to(ground.secret)
    (ground.project / "directory-link").symlink_to(ground.outside)
    path = detour.format(project=ground.project, outside=ground.outside)
    own = fence.inside(
        fence.probe("read", path.replace("outside", "project").replace("secret", "own"))
    )
    denied = fence.inside(fence.probe("read", path))
    control = fence.outside(fence.probe("read", path))
    assert control.answer == f"ok {SECRET}"
    assert denied.answer == "EACCES", str(denied)
    assert "link" in detour or own.answer == "ok mine", str(own)


@pytest.mark.parametrize("via", ["link", "rename", "exchange"])
def test_a_file_can_not_be_carried_in_or_out(fence: Fence, ground: Ground, via: str) -> None:
    """Reading a secret after linking or moving it into the workspace; planting a file outside by
    moving it there.
    """
    before = Snapshot.of(ground.outside)
    carried = ground.project / "carried.txt"
    if via == "exchange":
        ground.put(carried, "bait\n")
    stolen = fence.inside(fence.probe(via, ground.secret, carried))
    planted = fence.inside(
        fence.probe(via, ground.project / "own.txt", ground.outside / "planted.txt")
    )
    if via == "exchange":
        planted = fence.inside(fence.probe(via, ground.project / "own.txt", ground.secret))
    assert stolen.answer in ("EACCES", "EXDEV"), str(stolen)
    assert planted.answer in ("EACCES", "EXDEV"), str(planted)
    assert Snapshot.of(ground.outside) == before
    assert fence.outside(fence.probe(via, ground.secret, carried)).answer == "ok"


def test_a_nameless_file_can_not_be_given_a_name_outside(fence: Fence, ground: Ground) -> None:
    before = Snapshot.of(ground.outside)
    allowed = fence.inside(
        fence.probe("tmpfile-link", ground.project, ground.project / "named.txt")
    )
    denied = fence.inside(fence.probe("tmpfile-link", ground.project, ground.outside / "named.txt"))
    assert allowed.answer == "ok", str(allowed)
    assert denied.answer in ("EACCES", "EXDEV"), str(denied)
    assert Snapshot.of(ground.outside) == before
    assert (
        fence.outside(
            fence.probe("tmpfile-link", ground.project, ground.outside / "named.txt")
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
def test_shell_interpreter_and_static_program_meet_the_same_wall(
    fence: Fence, ground: Ground, reader: tuple[str, ...]
) -> None:
    """F-090."""
    if reader[0] == "perl":
        need_program("perl")

    def reading(path: Path) -> list[Word]:
        return [
            word.replace("{path}", str(path)).replace("{probe}", str(fence.programs.probe))
            for word in reader
        ]

    allowed = fence.inside(reading(ground.project / "own.txt"))
    denied = fence.inside(reading(ground.secret))
    control = fence.outside(reading(ground.secret))
    assert "mine" in allowed.stdout, str(allowed)
    assert denied.started, str(denied)
    assert SECRET not in denied.stdout, str(denied)
    assert denied.exit_code != 0
    assert SECRET in control.stdout


def test_a_directory_descriptor_does_not_come_along(fence: Fence, ground: Ground) -> None:
    """An inherited descriptor of an outside directory would be a way around every path rule."""
    directory = os.open(ground.outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        words = fence.probe("read-below", str(directory), "secret.txt")
        denied = fence.inside(words, pass_fds=[directory])
        held = fence.inside(fence.probe("descriptors"), pass_fds=[directory])
        control = fence.outside(words, pass_fds=[directory])
    finally:
        os.close(directory)
    assert denied.answer == "EBADF", str(denied)
    assert held.answer == "ok 0,1,2", str(held)
    assert control.answer == f"ok {SECRET}"


def test_a_directory_as_standard_input_is_refused(
    fence: Fence, ground: Ground, host: dict[str, Any]
) -> None:
    """By the core with its own words; the command line does not even get that far, as the
    interpreter refuses first.
    """
    plan = core.plan_for(
        fence.tester,
        ground.project,
        landlock_abi=host["landlock_abi"],
        read=[fence.programs.directory],
    )
    words = fence.probe("read-below", "0", "secret.txt")
    directory = os.open(ground.outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        by_core = core.run_core(fence.tester, fence.installation.core, plan, words, stdin=directory)
        by_command_line = fence.inside(words, stdin=directory)
        control = fence.outside(words, stdin=directory)
    finally:
        os.close(directory)
    assert by_core.exit_code == 125, str(by_core)
    assert "directory" in by_core.stderr
    assert by_command_line.exit_code != 0, str(by_command_line)
    assert by_core.stdout == by_command_line.stdout == ""
    assert control.answer == f"ok {SECRET}"


def test_a_workspace_that_was_deleted_under_us_is_an_error(fence: Fence, ground: Ground) -> None:
    gone = ground.make(ground.root / "gone")
    script = f'rmdir {gone}; exec "$@"'
    words = ["sh", "-c", script, "sh", *fence.command(fence.probe("descriptors"))]
    refused = fence.outside(words, cwd=gone)
    assert refused.exit_code == 125, str(refused)
    assert refused.stdout == ""
    assert refused.stderr.startswith("paddock:")
    assert "Traceback" not in refused.stderr


def test_a_workspace_moved_away_before_the_start_is_the_one_that_is_granted(
    fence: Fence, ground: Ground
) -> None:
    """A stale path must not hand out whatever lies under the old name now."""
    moved = ground.root / "moved"
    script = f'mv {ground.project} {moved}; mv {ground.outside} {ground.project}; exec "$@"'
    words = fence.command(fence.probe("read", ground.project / "secret.txt"))
    denied = fence.outside(["sh", "-c", script, "sh", *words])
    assert denied.exit_code == 125 or denied.answer == "EACCES", str(denied)
    assert SECRET not in denied.stdout


def test_a_symlink_as_workspace_grants_what_it_points_to_and_nothing_beside(
    fence: Fence, ground: Ground
) -> None:
    alias = ground.root / "alias"
    alias.symlink_to(ground.project)
    allowed = fence.inside(fence.probe("create", "new.txt"), cwd=alias)
    denied = fence.inside(fence.probe("read", "../outside/secret.txt"), cwd=alias)
    assert allowed.answer == "ok", str(allowed)
    assert (ground.project / "new.txt").exists()
    assert denied.answer == "EACCES", str(denied)


def test_a_grant_of_another_name_does_not_open_a_denied_file(fence: Fence, full: Fence) -> None:
    """A rule is on the file itself: granted by one name, it would be open by the denied one."""
    denied = fence.ground.put(fence.ground.outside / "denied", "secret\n")
    other = fence.ground.outside / "other"
    other.hardlink_to(denied)
    flags = ("--read", other, "--deny", denied)
    for tier in (fence, full):
        for name in (denied, other):
            assert tier.inside(tier.probe("read", name), *flags).answer in ("EACCES", "ENOENT")
            assert tier.inside(tier.probe("read", other), "--read", other).answer == "ok secret"
    assert fence.outside(fence.probe("read", denied)).answer == "ok secret"
