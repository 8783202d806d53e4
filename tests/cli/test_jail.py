"""The options, errors and output of paddock jail. No container is started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jail as jails
from tests.support.features import need, need_program
from tests.support.installation import Installation
from tests.support.jail import Jail, Word
from tests.support.tester import Outcome, Tester
from tests.support.tree import ProjectTree


@pytest.fixture
def jail(
    tester: Tester, installation: Installation, tree: ProjectTree, host: dict[str, Any]
) -> Iterator[Jail]:
    need("userns", host["namespaces"]["usable"], str(host["namespaces"]))
    with jails.of_tester(tester, installation, tree.root) as made:
        yield made


def asked(jail: Jail, *words: Word) -> Outcome:
    return jail.raw([jail.installation.paddock, "jail", *words])


def refused(jail: Jail, *words: Word) -> str:
    outcome = asked(jail, *words)
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert outcome.stderr.startswith("paddock: "), str(outcome)
    assert "Traceback" not in outcome.stderr
    return outcome.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-U", "nobody", "--", "true"), "a container needs a rootdir"),  # C-141
        (("--rootdir", "/srv", "--", "true"), "a container needs a username"),  # C-144
        (
            ("--rootdir", "/srv", "-U", "no-such-user", "--", "true"),
            "this machine has no user 'no-such-user'",
        ),  # C-126
        (
            ("--cap-allow", "CAP_NOPE", "--", "true"),
            "unknown capability 'CAP_NOPE'",
        ),  # C-151
        (("--rootdir", "/", "-U", "nobody", "--", "true"), "the root directory / overlaps"),
        (
            ("--rootdir", "/no/such", "-U", "nobody", "--", "true"),
            "cannot open the root directory /no/such",
        ),
        (
            ("--rootdir", "/etc", "-U", "nobody", "--", "true"),
            "the root directory /etc overlaps /etc/paddock",
        ),
        (("--rootdir", "/usr/share", "-U", "nobody", "--", "true"), "has no directory /dev"),
        (("-u", "x", "--", "true"), "not a user id"),
        (("--hostname", "a b", "--", "true"), "not a plain name"),
        (("--cow", "--rootdir", "/srv", "-U", "nobody", "--", "true"), "--cow"),
        (("--rootdir", "/srv", "-U", "nobody"), "put -- before the command"),
        (("--rootdir", "/srv", "-U", "nobody", "--"), "the command is empty"),
        (("--json", "--rootdir", "/srv", "-U", "nobody", "--", "true"), "--json needs --dry-run"),
    ],
)
def test_bad_input_is_refused_with_its_name(
    jail: Jail, words: tuple[str, ...], message: str
) -> None:
    assert message in refused(jail, *words)


def test_a_root_directory_behind_a_link_is_refused(jail: Jail) -> None:
    """A command in an earlier container could have planted the link."""
    link = jail.rootdir.parent / "link"
    link.symlink_to(jail.rootdir)
    assert "without symlinks" in refused(jail, "--rootdir", link, "-U", "nobody", "--", "true")


def test_the_steps_are_printed_numbered_and_nothing_is_made(jail: Jail) -> None:
    """C-124, C-147"""
    need_program("strace")
    log = jail.rootdir.parent / "strace"
    traced: list[Word] = ["strace", "-f", "-o", log, "-e", "trace=clone,clone3,pivot_root,execve"]
    outcome = jail.raw(
        [*traced, *jail.command(["/bin/touch", "/srv/ran"], "--dry-run", "-l", "--hostname", "web")]
    )
    assert outcome.exit_code == 0, str(outcome)
    numbered = [line for line in outcome.stdout.splitlines() if line[:2].strip().isdigit()]
    assert [int(line[:2]) for line in numbered] == list(range(1, 14))
    shown = [
        "profile base", "user: uid 65534", "journal",
        "new namespaces: user, mount, pid, ipc, uts, cgroup, network", f"65534 → {jail.tester.uid}",
        str(jail.rootdir), "own /dev", "host name web; loopback up", "capabilities: none",
        "gid 65534, uid 65534", "environment: set HOME=", "seccomp denies",
        "/bin/touch /srv/ran",
    ]  # fmt: skip
    assert all(text in line for text, line in zip(shown, numbered, strict=True)), outcome.stdout
    assert not (jail.rootdir / "srv" / "ran").exists()
    # The features of the machine are tried in a namespace that ends at once. No container is made.
    calls = log.read_text()
    assert "CLONE_NEWNET" not in calls
    assert "pivot_root" not in calls
    assert not jail.journal.exists()


def test_a_dry_run_finds_wrong_mount_paths(jail: Jail) -> None:
    assert "/nowhere does not exist" in refused(
        jail,
        "--rootdir",
        jail.rootdir,
        "-U",
        "nobody",
        "--mount-mask",
        "/nowhere",
        "--dry-run",
        "--",
        "true",
    )


def test_json_dry_run_prints_the_plan(jail: Jail) -> None:
    outcome = jail.inside(
        ["true"], "--dry-run", "--json", "--cap-allow", "cap_chown", "--cap-allow", "CAP_KILL"
    )
    answer = json.loads(outcome.stdout)
    assert answer["command"] == ["true"]
    assert answer["plan"]["container"]["rootdir"] == str(jail.rootdir)
    assert answer["plan"]["container"]["capabilities"] == ["CAP_CHOWN", "CAP_KILL"]


def test_one_profile_serves_both_commands(jail: Jail, tree: ProjectTree) -> None:
    """C-003"""
    profile = tree.put(tree.root / "both.conf", "ro /bin\nrw /tmp\nblock mlock\nenv-deny SOME_*\n")
    run = jail.raw(
        [jail.installation.paddock, "run", "--profile", profile, "--dry-run", "--", "true"]
    )
    assert run.exit_code == 0, str(run)
    inside = jail.inside(["true"], "--profile", profile, "--dry-run")
    assert inside.exit_code == 0, str(inside)
    assert "allow /tmp" in inside.stdout


def test_run_refuses_a_containers_profile_and_names_the_directive(
    jail: Jail, tree: ProjectTree
) -> None:
    """C-153"""
    sample = Path(__file__).parents[2] / "examples" / "container.conf"
    profile = tree.put(tree.root / "container.conf", sample.read_text())
    outcome = jail.raw([jail.installation.paddock, "run", "--profile", profile, "--", "true"])
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert "rootdir applies to containers" in outcome.stderr
    assert "paddock jail" in outcome.stderr


def test_help_lists_the_flags(jail: Jail) -> None:
    outcome = asked(jail, "--help")
    assert outcome.exit_code == 0
    flags = (
        "--rootdir -u -g -U -l --netns --cgroup --cap-allow --mount-mask --hostname --profile "
        "--audit --dry-run"
    )
    assert all(f" {flag}" in outcome.stdout for flag in flags.split())
