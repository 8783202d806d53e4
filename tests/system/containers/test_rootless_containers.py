"""Containers without root: outside, every user of the container is the caller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jail as jails
from tests.support.features import need, need_program, need_root
from tests.support.installation import Installation
from tests.support.jail import MESSAGE, Jail, status
from tests.support.tester import Tester, subordinate_numbers
from tests.support.tree import SECRET, ProjectTree

NOBODY = 65534


@pytest.fixture
def jail(
    tester: Tester, installation: Installation, tree: ProjectTree, host: dict[str, Any]
) -> Iterator[Jail]:
    need("userns", host["namespaces"]["usable"], str(host["namespaces"]))
    with jails.of_tester(tester, installation, tree.root) as made:
        yield made


def test_files_of_the_container_user_belong_to_the_caller_outside(jail: Jail) -> None:
    outcome = jail.shell(
        "cat /etc/message; id -u; id -g; touch /srv/made; cat /proc/self/uid_map; exit 7"
    )
    assert outcome.exit_code == 7, str(outcome)
    words = outcome.stdout.removeprefix(f"started\n{MESSAGE}\n").split()
    assert words == [str(NOBODY), str(NOBODY), str(NOBODY), str(jail.tester.uid), "1"], str(outcome)
    made = (jail.rootdir / "srv" / "made").stat()
    assert (made.st_uid, made.st_gid) == (jail.tester.uid, jail.tester.gid)


def test_files_of_the_caller_outside_the_container_are_not_reached(
    jail: Jail, tree: ProjectTree
) -> None:
    control = jail.raw(["cat", tree.secret])
    assert control.stdout == SECRET + "\n"
    outcome = jail.shell(
        f"cat {tree.secret} /proc/1/root{tree.secret} /proc/self/cwd/..{tree.secret}"
    )
    assert outcome.stdout == "started\n", str(outcome)


def test_capabilities_reach_no_further_than_the_container(jail: Jail) -> None:
    allowed = ("-l", "--cap-allow", "CAP_NET_BIND_SERVICE")
    bind = "nc -l -p 80 -w 1 < /dev/null; true"
    assert "Permission denied" not in jail.shell(bind, *allowed).stderr
    assert "Permission denied" in jail.shell(bind, "-l").stderr
    with jail.running("-u", "0", "-g", "0") as running:
        assert status(running.command, "CapBnd").strip("0") == ""
        assert status(running.command, "Uid").split() == [str(jail.tester.uid)] * 4


def test_directories_above_a_mask_cannot_be_renamed(jail: Jail) -> None:
    """If it was moved, the hidden file would have another name in the next container."""
    made = (
        "mkdir -p /srv/a/b /srv/free/b; echo secret > /srv/a/b/key; echo secret > /srv/free/b/key"
    )
    assert jail.shell(made).exit_code == 0
    move = (
        "for d in a/b a free/b free; do mv /srv/$d /srv/$d-moved; done; touch /srv/a/b/other; "
        "find /srv -name key"
    )
    mask = ("--mount-mask", "/srv/a/b/key")
    moved = jail.shell(move, *mask)
    assert set(moved.stdout.split()) == {
        "started",
        "/srv/free-moved/b-moved/key",
        "/srv/a/b/key",
    }, str(moved)
    assert (jail.rootdir / "srv/a/b/other").exists(), "it can be written"
    assert jail.shell("cat /srv/a/b/key", *mask).stdout == "started\n"
    assert jail.shell("cat /srv/a/b/key").stdout == "started\nsecret\n", "the control"


def test_a_mask_through_a_symlink_is_refused(jail: Jail) -> None:
    """A command of an earlier container can change the link, and the mask covers another file."""
    made = (
        "mkdir -p /srv/real /srv/other; echo secret > /srv/real/key; echo x > /srv/other/key; "
        "ln -sfn real /srv/link; ln -sfn real/key /srv/last"
    )
    assert jail.shell(made).exit_code == 0
    assert jail.shell("ln -sfn other /srv/link; ln -sfn other/key /srv/last").exit_code == 0
    read = "cat /srv/real/key; touch /srv/ran"
    for name in ("/srv/link/key", "/srv/last"):
        for flag in (("--mount-mask", name), ("--deny", name), ("--deny", f"{name}?")):
            outcome = jail.shell(read, *flag)
            assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
            assert "symlink" in outcome.stderr.partition("hint:")[2], str(outcome)
            assert not (jail.rootdir / "srv" / "ran").exists()
    hidden = jail.shell("cat /srv/real/key", "--mount-mask", "/srv/real/key")
    assert hidden.stdout == "started\n", str(hidden)
    assert jail.shell("cat /srv/real/key").stdout == "started\nsecret\n", "the control"


def test_grants_are_enforced_inside(jail: Jail) -> None:
    """C-139"""
    assert jail.shell("touch /srv/a /tmp/a").exit_code == 0
    outcome = jail.shell(
        "touch /srv/b && echo wrote; touch /tmp/b", "-r", "/bin", "-r", "/srv", "-a", "/tmp"
    )
    assert outcome.stdout == "started\n", str(outcome)
    assert (jail.rootdir / "srv" / "a").exists()
    assert not (jail.rootdir / "srv" / "b").exists()
    assert (jail.rootdir / "tmp" / "b").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--netns", "blue"), "netns needs root"),
        (("--id-map", "identity"), "id-map identity needs root"),
        (
            ("--cgroup", "/sys/fs/cgroup/pids"),
            "cannot enter the control group /sys/fs/cgroup/pids",
        ),
    ],
    ids=["netns", "id-map", "cgroup"],
)
def test_a_key_that_needs_root_is_refused_by_name(
    jail: Jail, flags: tuple[str, ...], named: str
) -> None:
    """C-001"""
    if "--cgroup" in flags:
        need(
            "cgroup",
            Path(flags[1], "cgroup.procs").exists(),
            "no control groups of the first version",
        )
    outcome = jail.shell("touch /srv/ran", *flags)
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert named in outcome.stderr
    assert "root" in outcome.stderr.partition("hint:")[2]
    assert not (jail.rootdir / "srv" / "ran").exists()


def test_subordinate_numbers_give_the_container_more_users(jail: Jail) -> None:
    need_root()
    need_program("newuidmap")
    need_program("newgidmap")
    with subordinate_numbers(jail.tester, 900000):
        outcome = jail.shell(
            "id -u; cat /proc/self/uid_map; grep Groups: /proc/self/status", "-u", "5", "-g", "6"
        )
        rows = [line.split() for line in outcome.stdout.splitlines()[1:]]
        assert rows == [
            ["5"],
            ["0", "900000", "5"],
            ["5", str(jail.tester.uid), "1"],
            ["6", "900005", "65530"],
            ["Groups:"],
        ], str(outcome)
        with jail.running("-u", "5", "-g", "6") as running:
            assert status(running.command, "Uid").split()[0] == str(jail.tester.uid)
        flags = ("-u", "0", "-g", "0", "--cap-allow", "CAP_CHOWN")
        assert jail.shell("touch /srv/given && chown 7:8 /srv/given", *flags).exit_code == 0
    given = (jail.rootdir / "srv" / "given").stat()
    assert (given.st_uid, given.st_gid) == (900006, 900007)
    os.unlink(jail.rootdir / "srv" / "given")


def test_a_root_directory_that_another_may_not_enter_is_refused(jail: Jail) -> None:
    closed = jail.rootdir.parent / "closed"
    closed.mkdir(mode=0o700)
    outcome = jail.raw(
        [
            jail.installation.paddock,
            "jail",
            "--rootdir",
            closed / "x",
            "-U",
            "nobody",
            "--off",
            "audit",
            "--",
            "true",
        ]
    )
    assert outcome.exit_code == 125, str(outcome)
    assert str(closed / "x") in outcome.stderr
