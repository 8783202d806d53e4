"""Denied names stay closed when the host moves directories below a copy, also where the copy shows
old entries.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cow import Cow
from tests.support.features import need_root
from tests.support.guard import wait_until_judged, wait_until_masked
from tests.support.outside_targets import state
from tests.support.waiting import wait_for
from tests.system.workspace import moves

DENY = ("--deny", "**/*.secret")
EXCHANGE = 2  # renameat2


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell inside that gets one line at a time."""

    process: subprocess.Popen[str]

    def does(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}; echo .done\n")
        self.process.stdin.flush()
        output = ""
        while (more := self.process.stdout.readline()) != ".done\n":
            assert more, f"it has ended after {output}"
            output += more
        return output

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Stops the guard for a while, as on a very busy machine."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: state(self.process.pid) == "T", "the supervisor is stopped")
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


def judged(cow: Cow) -> None:
    wait_until_judged(cow.tester, cow.workspace, cow.journal)


def closed(cow: Cow, path: str) -> None:
    wait_until_masked(cow.journal, cow.workspace / path)


@contextmanager
def shell(cow: Cow) -> Iterator[Shell]:
    known = cow.sessions()
    argv = cow.running("sh", flags=DENY)
    with cow.tester.starting(argv, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        inside = Shell(process)
        inside.does("true")
        cow.made.extend(cow.sessions() - known)
        yield inside
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0


def exchange(cow: Cow, one: str, other: str) -> None:
    moves.rename_flags(f"{cow.workspace}/{one}", f"{cow.workspace}/{other}", EXCHANGE)


def forget() -> None:
    """Drops the name cache of the kernel."""
    need_root()
    Path("/proc/sys/vm/drop_caches").write_text("2")


def reads(inside: Shell) -> str:
    return inside.does("cat */*.secret */*/*.secret 2>/dev/null")


def test_a_secret_is_closed_where_its_directory_was_for_an_instant(cow: Cow) -> None:
    cow.host("mkdir ../away; echo secret > ../away/a.secret; echo plain > ../away/b")
    away, there = cow.workspace.parent / "away", cow.workspace / "there"
    with shell(cow) as inside:
        with inside.unguarded():
            away.rename(there)
            assert "a.secret" in inside.does("ls there"), "the control: the copy has seen it"
            there.rename(away)
        closed(cow, "there/a.secret")
        assert inside.does("cat there/b") == "plain\n", "the control: the copy still has it"
        assert inside.does("cat there/a.secret 2>&1") == "cat: there/a.secret: Permission denied\n"
    assert cow.tester.run(["cat", away / "a.secret"]).stdout == "secret\n", "the control"


def test_a_new_secret_is_closed_in_a_directory_that_the_host_exchanged(cow: Cow) -> None:
    cow.host("mkdir one two; echo one > one/plain; echo two > two/plain")
    with shell(cow) as inside:
        assert inside.does("cat one/plain two/plain") == "one\ntwo\n"
        exchange(cow, "one", "two")
        judged(cow)
        assert inside.does("cat one/plain two/plain") == "one\ntwo\n", "the control: as it was"
        cow.put("two/a.secret", "secret\n")
        cow.put("two/b", "later\n")
        closed(cow, "one/a.secret")
        assert inside.does("cat one/b") == "later\n", (
            "the control: a new plain file appears in the copy"
        )
        assert reads(inside) == ""
        forget()
        assert inside.does("cat two/plain") == "one\n", "the control: the current state of the host"
        assert reads(inside) == ""


def test_a_name_looked_up_before_the_exchange_stays_closed(cow: Cow) -> None:
    """The copy has cached that the name is missing, and does not list it until the kernel drops its
    cache.
    """
    cow.host("mkdir one two")
    with shell(cow) as inside:
        inside.does("exec 8<one 9<two")
        exchange(cow, "one", "two")
        inside.does("cat one/a.secret two/a.secret one/b 2>/dev/null")
        cow.put("two/a.secret", "secret\n")
        cow.put("two/b", "later\n")
        judged(cow)
        forget()
        assert inside.does("cat one/b") == "later\n", "the control: the kernel dropped its cache"
        closed(cow, "one/a.secret")
        assert reads(inside) == ""


def test_a_secret_is_closed_in_a_replaced_directory(cow: Cow) -> None:
    cow.host("mkdir -p sub/deep; echo old > sub/plain")
    with shell(cow) as inside:
        assert inside.does("cat sub/plain; ls sub/deep") == "old\n"
        cow.host(
            "rm -r sub; mkdir -p sub/deep; echo secret > sub/a.secret; "
            "echo secret > sub/deep/a.secret"
        )
        cow.put("sub/plain", "new\n")
        judged(cow)
        assert reads(inside) == ""
        forget()
        assert inside.does("cat sub/plain") == "new\n", "the control: the kernel dropped its cache"
        assert reads(inside) == ""
        assert inside.does("echo own > sub/mine; cat sub/mine") == "own\n"
    assert cow.diff() == {"sub/mine": "added"}
    assert cow.paddock("apply").exit_code == 0
    assert (cow.workspace / "sub" / "a.secret").read_text() == "secret\n", (
        "the file of the owner stays"
    )


def test_a_new_secret_is_closed_in_a_directory_that_left_the_workspace(cow: Cow) -> None:
    cow.host("mkdir -p sub/deep; echo old > sub/plain")
    with shell(cow) as inside:
        assert inside.does("cat sub/plain; ls sub/deep") == "old\n"
        cow.host("mv sub ../sub; echo secret > ../sub/a.secret; echo later > ../sub/b")
        closed(cow, "sub/a.secret")
        assert inside.does("cat sub/b") == "later\n", "the control: the copy still shows it"
        assert reads(inside) == ""
        cow.host("mkdir ../sub/new; echo secret > ../sub/new/a.secret; echo later > ../sub/new/b")
        closed(cow, "sub/new/a.secret")
        assert inside.does("cat sub/new/b") == "later\n", "the control"
        assert reads(inside) == ""


def test_a_name_that_the_command_made_stays_open(cow: Cow) -> None:
    cow.host("mkdir one two")
    with shell(cow) as inside:
        inside.does("echo own > one/a.secret; mkdir -p one/d.secret new/d.secret")
        inside.does("for dir in */d.secret; do echo mine > $dir/f; done")
        exchange(cow, "one", "two")
        cow.put("two/b.secret", "secret\n")
        closed(cow, "one/b.secret")
        judged(cow)  # after a move the guard searches the whole copy for this name
        assert reads(inside) == "own\n"
        assert inside.does("cat */d.secret/f") == "mine\nmine\n"


@pytest.mark.parametrize("start", [True, False], ids=["as it starts", "while it runs"])
def test_a_secret_stays_closed_while_directories_are_renamed(cow: Cow, start: bool) -> None:
    names = [
        *(f"a{number}" for number in range(6)),
        "b",
        "empty",
        *(f"z{number}" for number in range(4)),
    ]
    for name in names[:7]:
        cow.put(f"{name}/.env", "secret\n")
        cow.put(f"{name}/a.secret", "secret\n")
    cow.host(
        "mkdir -p b/c empty; echo secret > b/c/.env; for i in 0 1 2 3; do mkdir -p z$i/y/x; done"
    )
    looks = "(while ls * >/dev/null 2>&1; do sleep 0.02; done) & looking=$!"
    script = f"{looks}; echo started; read x; kill $looking; cat */.env */*/.env */*.secret"
    chance = random.Random(7)
    for turn in range(12):
        known = cow.sessions()
        argv = cow.running("sh", "-c", script, flags=DENY)
        with cow.tester.starting(argv, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            text = "" if start else process.stdout.readline()
            until = time.monotonic() + chance.uniform(0.02, 0.2)
            while time.monotonic() < until:
                one, other = chance.sample(names, 2)
                exchange(cow, one, other)
                time.sleep(chance.uniform(0, 0.002))
            text = text or process.stdout.readline()
            # Names that exist before the start are covered without an event.
            wait_until_judged(
                cow.tester, cow.workspace, cow.journal, has_ended=lambda: process.poll() is not None
            )
            more, complaints = process.communicate("\n", timeout=60)
        cow.made.extend(cow.sessions() - known)
        # A start asks to be tried again, or shows no secret.
        assert text + more == ("" if process.returncode == 125 else "started\n"), turn
        assert (
            "Permission denied" in complaints
            or "No such file" in complaints
            or process.returncode == 125
        ), complaints
    assert "secret" in cow.tester.run(["sh", "-c", "cat */.env"], cwd=cow.workspace).stdout, (
        "the control"
    )


MOVES = {
    "moved in": "mv src d/src",
    "replaced": "mv d ../d; mv src d",
    "from outside": "mv src ../src; rm -r d; mv ../src d",
}
TAKES_AWAY = {
    "removed": "rm -r d",
    "made anew": "rm -r d; mkdir d; echo session > d/f",
    "a file": "rm -r d; echo session > d",
}


@pytest.mark.parametrize("noted", [True, False], ids=["as it began", "by its time"])
@pytest.mark.parametrize("session", TAKES_AWAY)
@pytest.mark.parametrize("move", MOVES)
def test_host_files_moved_over_removed_names_are_not_deleted(
    cow: Cow, session: str, move: str, noted: bool
) -> None:
    """Files in a moved directory have no trace of the move."""
    cow.host("mkdir -p d src/deep; echo old > d/f; echo only > src/f; echo only > src/deep/copy")
    before = {"f": "only\n", "deep/copy": "only\n"}
    done(cow, TAKES_AWAY[session], noted=noted)
    cow.host(MOVES[move])
    found = cow.workspace / ("d/src" if move == "moved in" else "d")
    for path in before:
        assert (
            cow.diff().get(str((found / path).relative_to(cow.workspace)), "").endswith("!conflict")
        ), path
    assert cow.paddock("apply").exit_code == 1
    assert {path: (found / path).read_text() for path in before} == before


@pytest.mark.parametrize("noted", [True, False], ids=["as it began", "by its time"])
@pytest.mark.parametrize(
    "write", ["echo session > one/f", "echo session > .t; mv .t one/f", "rm one/f"]
)
def test_a_file_of_an_exchanged_directory_is_not_overwritten(
    cow: Cow, write: str, noted: bool
) -> None:
    cow.host(
        "mkdir -p one/sub two/sub; echo one > one/f; echo two > two/f; echo 1 > one/sub/g; "
        "echo 2 > two/sub/g"
    )
    done(cow, f"{write}; echo session > one/sub/g", noted=noted)
    exchange(cow, "one", "two")
    assert all(output.endswith("!conflict") for output in cow.diff().values()), cow.diff()
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / "one/f").read_text() == "two\n"
    assert (cow.workspace / "one/sub/g").read_text() == "2\n"
    exchange(cow, "one", "two")
    if noted:
        assert cow.paddock("apply").exit_code == 0, "the control: it is as it was"


def test_directories_exchanged_between_two_applies_are_a_conflict(cow: Cow) -> None:
    cow.host("mkdir one two; for d in one two; do echo $d > $d/f; echo $d > $d/g; done")
    done(
        cow,
        "echo session > one/f; echo session > one/g; mkdir one/new; echo session > one/new/h",
        noted=True,
    )
    assert cow.paddock("apply", "one/f").exit_code == 0
    exchange(cow, "one", "two")
    assert cow.paddock("apply", "one/g").exit_code == 1
    assert (cow.workspace / "one/g").read_text() == "two\n"
    exchange(cow, "one", "two")
    assert cow.paddock("apply").exit_code == 0
    assert (
        (cow.workspace / "one/g").read_text()
        == (cow.workspace / "one/new/h").read_text()
        == "session\n"
    )


def test_a_directory_with_host_changes_is_no_conflict(cow: Cow) -> None:
    cow.host("mkdir -p one/sub; echo one > one/f; echo one > one/g; echo 1 > one/sub/h")
    done(cow, "echo session > .t; mv .t one/f; rm one/g; echo session > one/sub/h", noted=True)
    cow.host("echo host > one/other; echo host > .t; mv .t one/sub/other")
    assert cow.diff() == {"one/f": "changed", "one/g": "deleted", "one/sub/h": "changed"}
    assert cow.paddock("apply").exit_code == 0
    assert (cow.workspace / "one/f").read_text() == "session\n"


def done(cow: Cow, script: str, *, noted: bool) -> None:
    """An ended session, with or without its list of directories."""
    outcome = cow.run("sh", "-euc", script)
    assert outcome.exit_code == 0, outcome
    if not noted:
        (cow.store / cow.only_session() / "directories").write_bytes(b"")
