"""A command that fills the disk of the journal hides nothing: lost events are counted, and `verify`
reports them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need_root
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import small_disk
from tests.system.journal.test_journal import assert_chained

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"
on_supervisor_timeout_ms = 10000

[[rule]]
id = "no-touching"
action = "deny"
exe = ["/usr/bin/touch"]
"""
TRIES = 40
# More lines than fit into the allocated last block of the journal. Its other lines are not exec
# events.
TRYING = f"""
i=0; while [ $i -lt {TRIES} ]; do /usr/bin/touch x; /usr/bin/true; i=$((i+1)); done 2>/dev/null
"""
FILL = "/usr/bin/cat /dev/zero > fill 2>/dev/null"
FREE = ": > fill"
EXECS = 1 + 1 + 2 * TRIES + 1  # sh, cat, both programs in each try, and the last program


@pytest.fixture(params=["landlock", "full"])
def crowded(request: pytest.FixtureRequest) -> Iterator[SandboxRunner]:
    """A sandbox whose workspace and journal share a small disk."""
    need_root()
    sandbox: SandboxRunner = request.getfixturevalue(
        "sandbox" if request.param == "landlock" else "full"
    )
    with small_disk(sandbox.tree, sandbox.tree.project, sandbox.journal):
        yield sandbox


def run(sandbox: SandboxRunner, script: str) -> Outcome:
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    done = sandbox.inside(["/usr/bin/sh", "-c", f"echo started\n{script}"], "--policy", policy)
    assert done.started, str(done)
    return done


def audit(sandbox: SandboxRunner, *words: Word) -> Outcome:
    return sandbox.outside(
        [sandbox.installation.paddock, "audit", *words, "--dir", sandbox.journal],
        cwd=sandbox.tree.root,
    )


def kinds(events: list[dict[str, object]]) -> list[object]:
    return [event["event"] for event in events]


def missing(events: list[dict[str, object]]) -> int:
    return sum(int(str(event["count"])) for event in events if event["event"] == "journal.lost")


def test_control_no_event_is_lost_with_free_disk(crowded: SandboxRunner) -> None:
    """The control."""
    run(crowded, f"/usr/bin/cat /dev/null\n{TRYING}\n/usr/bin/true after")
    events = crowded.events()
    assert kinds(events) == ["session.start", *["exec"] * EXECS, "session.end"]
    assert sum(event.get("action") == "deny" for event in events) == TRIES
    verified = audit(crowded, "verify")
    assert (verified.exit_code, verified.stderr) == (0, ""), str(verified)


def test_events_lost_on_a_full_disk_are_counted_when_there_is_room(
    crowded: SandboxRunner,
) -> None:
    run(crowded, f"{FILL}\n{TRYING}\n{FREE}\n/usr/bin/true after")
    events = crowded.events()
    assert_chained(crowded.journal, len(events))
    count = missing(events)
    assert TRIES < count <= 2 * TRIES + 1
    assert kinds(events).count("exec") + count == EXECS
    # The file system can find room for a line in between, so there can be several gaps.
    reported = len(events) - 1 - kinds(events)[::-1].index("journal.lost")
    assert events[reported]["reason"] == "ENOSPC"
    assert kinds(events)[reported + 1 :].count("exec") == 1, "the event is at the last gap"
    assert kinds(events)[-1] == "session.end"

    session = str(events[0]["session"])
    verified = audit(crowded, "verify")
    assert (verified.exit_code, verified.stdout) == (125, ""), str(verified)
    assert f"events of session {session} are missing: ENOSPC" in verified.stderr
    assert "the chain is complete" in verified.stderr
    assert "altered" not in verified.stderr
    answer = json.loads(audit(crowded, "verify", "--json").stdout)
    assert (answer["sound"], answer["problems"]) == (False, [])
    assert {one["session"] for one in answer["lost"]} == {session}
    assert sum(one["count"] for one in answer["lost"]) == count
    report = audit(crowded, "report")
    assert report.exit_code == 125, str(report)
    assert f"{count} events of session {session} are missing" in report.stdout


def test_verify_and_the_next_run_report_events_lost_on_a_full_disk(
    crowded: SandboxRunner,
) -> None:
    done = run(crowded, f"{FILL}\n{TRYING}\n/usr/bin/true after")
    assert "cannot write" in done.stderr, str(done)
    before = crowded.events()
    session = str(before[0]["session"])
    assert "session.end" not in kinds(before)
    assert "journal.lost" not in kinds(before)
    count = EXECS + 1 - kinds(before).count("exec")
    verified = audit(crowded, "verify")
    assert verified.exit_code == 125, str(verified)
    assert f"{count} events of session {session} are missing" in verified.stderr

    refused = crowded.inside(["true"])
    assert refused.exit_code == 125, "a call that cannot be journaled does not start"
    (crowded.tree.project / "fill").unlink()
    assert crowded.inside(["true"]).exit_code == 0
    lost, start, end = crowded.events()[len(before) :]
    assert (lost["event"], lost["session"], lost["count"]) == ("journal.lost", session, count)
    assert (start["event"], end["event"]) == ("session.start", "session.end")
    assert start["session"] != session
    assert_chained(crowded.journal, len(before) + 3)
    again = audit(crowded, "verify")
    assert again.exit_code == 125, str(again)
    assert again.stderr.count("are missing: ") == 1


@pytest.mark.parametrize("crowded", ["landlock"], indirect=True)
def test_lost_events_are_counted_although_the_mode_changed(crowded: SandboxRunner) -> None:
    """A command can not change the mode. Another program of the user can: the open descriptor
    stays writable although writes failed.
    """
    crowded.inside(["true"])
    today = next(Path(crowded.journal).glob("*.jsonl"))
    policy = crowded.tree.put(crowded.tree.root / "p.toml", POLICY)
    script = (
        f"{FILL}\n{TRYING}\n/usr/bin/chmod 644 {today} 2>&1\nread answer\n{FREE}\n"
        "/usr/bin/true after"
    )
    words = ["/usr/bin/sh", "-c", script]
    with crowded.starting(words, "--policy", policy, stdin=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert "Read-only file system" in running.stdout.readline()
        assert crowded.outside(["chmod", "644", today]).exit_code == 0
        running.communicate("go on\n", timeout=120)
    assert today.stat().st_mode & 0o777 == 0o644
    assert missing(crowded.events()) > TRIES
    assert kinds(crowded.events())[-1] == "session.end"


CALLS = """
import sys
from paddock import JournalError, open_journal

def told(event):
    try:
        recorder.record(event)
    except JournalError:
        return False
    return True

def until_it_is_lost(event):
    number = 1
    while told(event):
        number += 1
    return number

started = {"event": "tool", "call": 1, "tool": "bash", "action": "allow", "asked": False, "by": \
None,
           "rule_id": "allow", "reason": "x" * 500, "subject": None, "cwd": "/"}
ended = {"event": "tool.end", "call": 1, "tool": "bash", "outcome": "ok", "exit_code": 0, "bytes": \
0, "ms": 1}
with open_journal(place=sys.argv[1]) as recorder, open("fill", "wb", buffering=0) as fill:
    assert told(started)
    try:
        while fill.write(bytes(4096)):
            pass
    except OSError:
        pass
    print(1 + until_it_is_lost(started), until_it_is_lost(ended))
    fill.truncate(0)
    assert not told(started), "no other call is made"
    assert told(ended)
"""


def test_the_end_of_a_tool_call_is_journaled_or_counted(sandbox: SandboxRunner) -> None:
    need_root()
    with small_disk(sandbox.tree, sandbox.tree.project, sandbox.journal):
        program = sandbox.tree.put(sandbox.tree.root / "calls.py", CALLS)
        done = sandbox.outside(
            [sandbox.installation.paddock.with_name("python"), program, sandbox.journal]
        )
        assert (done.exit_code, done.stderr) == (0, ""), str(done)
        starts, ends = map(int, done.stdout.split())
        events = sandbox.events()
        assert kinds(events).count("tool") == starts - 1
        assert kinds(events).count("tool.end") == ends - 1 + 1
        assert missing(events) == 2
        assert_chained(sandbox.journal, len(events))
