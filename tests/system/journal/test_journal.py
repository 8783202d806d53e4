"""The journal: its owner and mode, its protection from a hostile run, and its content."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
from pathlib import Path

import pytest

from tests.support.features import need_program, need_root
from tests.support.sandbox import SandboxRunner, Word, only
from tests.support.tester import Tester

ZERO = "0" * 64
NOBODY = 65534


def lines(directory: Path) -> list[bytes]:
    return [
        line
        for file in sorted(directory.glob("*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]


def assert_chained(directory: Path, count: int) -> None:
    """Checks the chain without paddock's verify: each line has the hash of the line before."""
    found, previous = lines(directory), ZERO
    assert len(found) == count
    for number, line in enumerate(found, start=1):
        event = json.loads(line)
        assert (event["seq"], event["prev"]) == (number, previous)
        previous = hashlib.sha256(line).hexdigest()


# ---- what it says


def test_a_run_leaves_a_start_and_an_end(sandbox: SandboxRunner) -> None:
    """C-080, C-090 to C-096."""
    assert sandbox.inside(["sh", "-c", "exit 7"]).exit_code == 7
    events = sandbox.events()
    assert [event["event"] for event in events] == ["session.start", "session.end"]
    start, end = events
    assert start["user"] == sandbox.tester.name
    assert start["uid"] == sandbox.tester.uid
    assert start["cwd"] == str(sandbox.tree.project)
    assert start["command"] == ["sh", "-c", "exit 7"]
    assert start["tty"] is None
    assert start["profile"] == "ai-agent"
    assert re.fullmatch("[0-9a-f]{64}", str(start["plan"]))
    assert start["session"] == end["session"]
    assert (end["exit_code"], end["signal"]) == (7, None)
    chain = start["ppid_chain"]
    assert isinstance(chain, list)
    assert chain[-1].endswith(":1")
    assert any(f":{os.getpid()}" in entry for entry in chain)


def test_a_deadly_signal_is_journaled(sandbox: SandboxRunner) -> None:
    sandbox.inside(sandbox.probe("die-by", "9"))
    end = only(sandbox.events(), "session.end")
    assert (end["exit_code"], end["signal"]) == (137, "SIGKILL")


def test_a_program_killed_by_the_filter_is_journaled(sandbox: SandboxRunner) -> None:
    sandbox.inside(sandbox.probe("x32", "39"))
    assert "syscall.killed" in [event["event"] for event in sandbox.events()]


def test_a_refused_program_is_journaled(sandbox: SandboxRunner) -> None:
    sandbox.tree.put(sandbox.tree.outside / "tool", "#!/bin/sh\n", mode=0o755)
    assert sandbox.inside([sandbox.tree.outside / "tool"]).exit_code == 126
    denied = only(sandbox.events(), "exec.denied")
    assert (denied["exe"], denied["errno"]) == (str(sandbox.tree.outside / "tool"), "EACCES")


def test_the_start_counts_what_was_really_applied(sandbox: SandboxRunner) -> None:
    """C-040, C-094: with one listed tree missing."""
    sandbox.inside(["true"], "-r", f"{sandbox.tree.root}/missing?")
    start = only(sandbox.events(), "session.start")
    requested, actual = start["requested"], start["actual"]
    assert isinstance(requested, dict)
    assert isinstance(actual, dict)
    assert actual["paths"] < requested["paths"]
    assert actual["landlock_abi"] == requested["landlock_abi"] > 0
    assert actual["blocked"] == requested["blocked"] >= 28
    assert actual["seccomp"]
    assert actual["no_new_privs"]
    assert actual["env_sanitize"]


def test_user_name_comes_from_the_uid_and_not_from_the_environment(sandbox: SandboxRunner) -> None:
    """C-091."""
    sandbox.inside(["true"], env={"USER": "root", "LOGNAME": "root"})
    assert only(sandbox.events(), "session.start")["user"] == sandbox.tester.name


def test_the_terminal_is_named(sandbox: SandboxRunner) -> None:
    """C-093."""
    need_program("script")
    command = shlex.join(map(str, sandbox.command(["true"])))
    sandbox.outside(["script", "-qec", command, "/dev/null"])
    assert str(only(sandbox.events(), "session.start")["tty"]).startswith("/dev/pts/")


def test_events_can_be_seen_as_they_happen(sandbox: SandboxRunner) -> None:
    """C-016: ``--audit`` prints what the file holds."""
    outcome = sandbox.inside(["true"], "--audit")
    shown = [
        line.removeprefix("paddock: audit ")
        for line in outcome.stderr.splitlines()
        if "paddock: audit" in line
    ]
    assert [line.encode() for line in shown] == lines(sandbox.journal)


def test_the_start_is_written_even_if_the_program_cannot_start(sandbox: SandboxRunner) -> None:
    """C-086."""
    assert sandbox.inside(["no-such-command-anywhere"]).exit_code == 127
    assert sandbox.events()[0]["event"] == "session.start"


def test_off_audit_writes_no_journal(sandbox: SandboxRunner) -> None:
    """C-052."""
    outcome = sandbox.inside(["echo", "ran"], "--off", "audit", journal=False)
    assert outcome.stdout == "ran\n"
    assert not sandbox.journal.exists()


def test_default_journal_is_under_var_tmp_with_the_uid_in_its_name(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    """C-081, C-083."""
    default = Path(f"/var/tmp/paddock-audit-{tester.uid}")
    before = len(lines(default)) if default.exists() else 0
    assert sandbox.inside(["true"], journal=False).exit_code == 0
    assert len(lines(default)) == before + 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\d\.jsonl", max(default.glob("*.jsonl")).name)


# ---- where it lies


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids=oct)
def test_permissions_do_not_depend_on_the_umask(sandbox: SandboxRunner, umask: int) -> None:
    """C-088."""
    outcome = sandbox.inside(["true"], umask=umask)
    assert outcome.exit_code == 0, str(outcome)
    assert stat.S_IMODE(sandbox.journal.stat().st_mode) == 0o700
    for file in sandbox.journal.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, str(file)
        assert file.stat().st_nlink == 1
        assert file.stat().st_uid == sandbox.tester.uid


def refused(sandbox: SandboxRunner) -> None:
    outcome = sandbox.inside(sandbox.probe("create", "ran"))
    assert outcome.exit_code == 125, str(outcome)
    assert outcome.stdout == ""
    assert not (sandbox.tree.project / "ran").exists()
    assert outcome.stderr.startswith("paddock:"), str(outcome)
    assert str(sandbox.journal) in outcome.stderr, str(outcome)


def test_a_journal_directory_of_another_user_is_refused(sandbox: SandboxRunner) -> None:
    """C-082."""
    need_root()
    sandbox.journal.mkdir(mode=0o777)
    sandbox.journal.chmod(0o777)
    os.chown(sandbox.journal, NOBODY, NOBODY)
    refused(sandbox)
    assert list(sandbox.journal.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o500, 0o1777], ids=oct)
def test_a_journal_directory_that_others_can_enter_is_refused(
    sandbox: SandboxRunner, mode: int
) -> None:
    sandbox.tree.make(sandbox.journal)
    sandbox.journal.chmod(mode)
    refused(sandbox)
    assert stat.S_IMODE(sandbox.journal.stat().st_mode) == mode


def test_a_symlink_as_journal_directory_is_refused(sandbox: SandboxRunner) -> None:
    """C-082."""
    target = sandbox.tree.make(sandbox.tree.root / "target")
    target.chmod(0o700)
    sandbox.journal.symlink_to(target)
    refused(sandbox)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["today", "head"])
@pytest.mark.parametrize("trap", ["symlink", "fifo", "directory", "hard-link", "open-to-others"])
def test_a_journal_file_that_is_no_regular_file_is_refused(
    sandbox: SandboxRunner, trap: str, name: str
) -> None:
    victim = sandbox.tree.put(sandbox.tree.outside / "victim", "untouched\n", mode=0o600)
    assert sandbox.inside(["true"]).exit_code == 0
    file = sandbox.journal / "head" if name == "head" else next(sandbox.journal.glob("*.jsonl"))
    content = file.read_bytes()
    file.rename(file.with_suffix(".kept"))
    match trap:
        case "symlink":
            file.symlink_to(victim)
        case "fifo":
            os.mkfifo(file, 0o600)
        case "directory":
            file.mkdir(0o700)
        case "hard-link":
            file.hardlink_to(victim)
        case "open-to-others":
            file.write_bytes(content)
            file.chmod(0o666)
    if not file.is_symlink():
        sandbox.tester.give(file)
    refused(sandbox)
    assert victim.read_text() == "untouched\n"


def test_a_journal_directory_that_cannot_be_created_is_refused(sandbox: SandboxRunner) -> None:
    sandbox.tree.root.chmod(0o555)
    try:
        refused(sandbox)
    finally:
        sandbox.tree.root.chmod(0o755)


def test_a_journal_inside_a_writable_grant_is_refused(sandbox: SandboxRunner) -> None:
    """C-085."""
    place = sandbox.tree.project / "journal"
    outcome = sandbox.inside(sandbox.probe("create", "ran"), "--audit-log", place, journal=False)
    assert outcome.exit_code == 125, str(outcome)
    assert outcome.stdout == "", str(outcome)
    assert not place.exists()
    assert not (sandbox.tree.project / "ran").exists()


# ---- out of the command's reach


@pytest.mark.parametrize("granted_above", [False, True], ids=["default", "read-grant-above"])
def test_command_cannot_read_list_or_change_the_journal(
    sandbox: SandboxRunner, granted_above: bool
) -> None:
    """C-084: also when a grant lies above it."""
    flags = ("-r", f"{sandbox.tree.root}/**") if granted_above else ()
    assert sandbox.inside(["true"]).exit_code == 0
    today = next(sandbox.journal.glob("*.jsonl"))
    before = today.read_bytes()
    acts = (
        ("read", today),
        ("list", sandbox.journal),
        ("append", today),
        ("open-truncate", today),
        ("truncate", today),
        ("unlink", today),
        ("create", sandbox.journal / "x"),
        ("rename", sandbox.journal, sandbox.tree.root / "moved"),
        ("read", sandbox.journal / "head"),
        ("overwrite", sandbox.journal / "head"),
    )
    script = "\n".join(f"{sandbox.programs.probe} {' '.join(map(str, act))}" for act in acts)
    denied = sandbox.inside(["sh", "-c", script], *flags)
    answers = denied.stdout.split()[1::2]
    assert len(answers) == len(acts), str(denied)
    assert set(answers) <= {"EACCES", "EXDEV"}, str(denied)
    assert today.read_bytes().startswith(before)
    assert_chained(sandbox.journal, 4)
    assert sandbox.outside(sandbox.probe("read", today)).answer.startswith("ok")


def test_command_does_not_inherit_the_journal_descriptor(sandbox: SandboxRunner) -> None:
    """C-087."""
    held = sandbox.inside(sandbox.probe("descriptors"))
    assert held.answer == "ok 0,1,2", str(held)
    through_proc = sandbox.inside(
        ["sh", "-c", "echo started; for fd in 3 4 5 6 7 8 9 10; do cat /proc/$PPID/fd/$fd; done"]
    )
    assert through_proc.stdout == "started\n"


def test_the_order_is_journal_then_landlock_then_filter_then_exec(sandbox: SandboxRunner) -> None:
    """C-086, F-089, by watching the calls."""
    need_program("strace")
    log = sandbox.tree.root / "strace"
    calls = "openat,write,pwrite64,writev,landlock_restrict_self,seccomp,prctl,execve"
    words = [
        "strace",
        "-f",
        "-s",
        "4096",
        "-o",
        log,
        "-e",
        f"trace={calls}",
        *sandbox.command(["/bin/true"]),
    ]
    traced = sandbox.outside(words)
    assert traced.exit_code == 0, str(traced)
    # Before the core opens the journal, another process of it tries what this machine can filter.
    text = re.split(r'openat\(.*\d{4}-\d\d-\d\d\.jsonl"', log.read_text(), maxsplit=1)[1]

    def at(pattern: str) -> int:
        found = re.search(pattern, text)
        assert found, f"{pattern}\n{text[-4000:]}"
        return found.start()

    positions = [
        at(r"write\w*\(.*session\.start"),
        at(r"landlock_restrict_self\("),
        at(r"SECCOMP_SET_MODE_FILTER|PR_SET_SECCOMP"),
        at(r"execve\(.* = 0"),  # strace can not read the name: init's memory is closed to it
        at(r"write\w*\(.*session\.end"),
    ]
    assert positions == sorted(positions)


# ---- hostile text


def test_a_directory_name_cannot_forge_a_journal_line(sandbox: SandboxRunner) -> None:
    """C-095."""
    name = 'a","event":"session.end","x":"\n{"seq":1,"event":"FAKE"}\n\x1b[31m\u202e'
    place = sandbox.tree.make(sandbox.tree.project / name)
    assert sandbox.inside(["true"], cwd=place).exit_code == 0
    found = lines(sandbox.journal)
    assert len(found) == 2
    start = json.loads(found[0])
    assert start["cwd"] == str(place)
    assert start["event"] == "session.start"
    assert all(0x20 <= byte < 0x7F for line in found for byte in line)


def test_arguments_cannot_forge_a_journal_line(sandbox: SandboxRunner) -> None:
    words: list[Word] = [
        "true",
        '"},\n{"event":"FAKE"}',
        "\r\x00"[:1],
        b"\xff\xfe\n",
        "\x1b]0;x\x07",
        "\u202e",
    ]
    assert sandbox.inside(words).exit_code == 0
    found = lines(sandbox.journal)
    assert len(found) == 2
    assert all(0x20 <= byte < 0x7F for line in found for byte in line)
    assert_chained(sandbox.journal, 2)


@pytest.mark.parametrize("size", [5_000, 100_000])
def test_a_long_command_stays_one_short_line(sandbox: SandboxRunner, size: int) -> None:
    """C-089."""
    assert sandbox.inside(["true", "x" * size, "\n" * size, *["y"] * 2000]).exit_code == 0
    found = lines(sandbox.journal)
    assert len(found) == 2
    assert max(map(len, found)) < 4096
    assert_chained(sandbox.journal, 2)


# ---- many at once


def test_fifty_runs_at_once_make_one_unbroken_chain(sandbox: SandboxRunner) -> None:
    """C-089. Started by one shell, so that they really overlap."""
    command = shlex.join(map(str, sandbox.command(["true"])))
    script = "\n".join([*[f"{command} &"] * 50, "wait"])
    sandbox.tester.run(["sh", "-c", script], cwd=sandbox.tree.project)
    assert_chained(sandbox.journal, 100)
    verified = sandbox.outside(
        [sandbox.installation.paddock, "audit", "verify", "--dir", sandbox.journal]
    )
    assert verified.exit_code == 0, str(verified)


@pytest.mark.parametrize("harm", ["edit", "remove", "reorder", "cut", "append"])
def test_verify_finds_a_line_that_was_tampered_with(sandbox: SandboxRunner, harm: str) -> None:
    for _ in range(3):
        sandbox.inside(["true"])
    verify: list[Word] = [sandbox.installation.paddock, "audit", "verify", "--dir", sandbox.journal]
    assert sandbox.outside(verify).exit_code == 0
    today = next(sandbox.journal.glob("*.jsonl"))
    found = today.read_bytes().splitlines(keepends=True)
    match harm:
        case "edit":
            found[2] = found[2].replace(b"true", b"rm -")
        case "remove":
            del found[2]
        case "reorder":
            found[2], found[3] = found[3], found[2]
        case "cut":
            del found[-1]
        case "append":
            found.append(found[-1])
    today.write_bytes(b"".join(found))
    broken = sandbox.outside(verify)
    assert broken.exit_code != 0, str(broken)
    assert "Traceback" not in broken.stderr, str(broken)


def test_a_torn_last_line_does_not_stop_the_next_run(sandbox: SandboxRunner) -> None:
    """Power loss in the middle of a write."""
    sandbox.inside(["true"])
    today = next(sandbox.journal.glob("*.jsonl"))
    with today.open("ab") as file:
        file.write(b'{"seq":3,"prev":"torn')
    assert sandbox.inside(["true"]).exit_code == 0
    assert_chained(sandbox.journal, 4)


def test_a_journal_in_memory_is_warned_about(sandbox: SandboxRunner) -> None:
    """C-083"""
    place = Path("/dev/shm") / f"paddock-journal-{os.getpid()}"
    place.mkdir(mode=0o700)
    sandbox.tester.give(place)
    try:
        for directory, warned in ((place, True), (sandbox.tree.root / "on-disk", False)):
            words: list[Word] = [
                "run",
                "--only",
                "--read",
                "/usr",
                "--audit-log",
                directory,
                "--dry-run",
                "--",
                "true",
            ]
            shown = sandbox.tester.run(
                [sandbox.installation.paddock, *words], cwd=sandbox.tree.project
            )
            assert shown.exit_code == 0, str(shown)
            assert ("a reboot removes it" in shown.stdout) == warned, str(shown)
    finally:
        place.rmdir()
