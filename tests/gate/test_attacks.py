"""Ways that somebody found who knew only the documents."""

from __future__ import annotations

import os

import pytest

from tests.support.gate import Gate, rule

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
answer = libc.syscall({call})
if answer == 0:
    os._exit(0)
print("ok" if answer > 0 else os.strerror(ctypes.get_errno()))
"""
# SIGCHLD, alone and with what two processes would share: CLONE_FS. (The numbers are x86_64's.)
FORK, SHARING_FORK = "56, 17, 0, 0, 0, 0", "56, 0x200 | 17, 0, 0, 0, 0"
# SECCOMP_SET_MODE_FILTER with NEW_LISTENER and no program.
LISTEN = "317, 1, 8, None"


@pytest.mark.parametrize(
    ("call", "without", "under_rules"),
    [
        (FORK, "ok", "ok"),
        (SHARING_FORK, "ok", "Operation not permitted"),
        (LISTEN, "Bad address", "Device or resource busy"),
    ],
)
def test_no_process_shares_its_directory_and_nobody_else_listens(
    gate: Gate, call: str, without: str, under_rules: str
) -> None:
    """What shares it could change it after an exec was verified; who listens last would answer."""
    words = ["python3", "-c", CALL.format(call=call)]
    assert gate.without(words).stdout.strip() == without
    outcome = gate.inside(words, gate.forbidding)
    assert outcome.stdout.strip() == under_rules, str(outcome)


def test_a_script_is_not_opened_again_by_a_way_that_the_command_can_change(gate: Gate) -> None:
    """The interpreter follows the link once more, when it may lead to another script. (ldd is one.)"""
    (gate.project / "link").symlink_to("/usr/bin")
    allowed = [rule("ldd", "allow", exe="/usr/bin/ldd"), rule("all", "allow", exe_glob="/**")]
    assert gate.without(["link/ldd", "--version"]).exit_code == 0
    for way in ("link/ldd", f"{gate.project}/link/ldd"):
        outcome = gate.inside(["sh", "-c", f"{way} --version"], *allowed, default="deny")
        assert outcome.exit_code == 126, str(outcome)
        assert "by a way that the command can change" in outcome.stderr
    # By its own path, from its own directory, and through links that no command can make.
    for way in ("/usr/bin/ldd", "cd /usr/bin && ./ldd", "/bin/ldd"):
        outcome = gate.inside(["sh", "-c", f"{way} --version"], *allowed, default="deny")
        assert outcome.exit_code == 0, str(outcome)


def test_a_busybox_that_is_told_to_be_itself_is_still_what_it_is_told(gate: Gate) -> None:
    denied = rule("no-id", "deny", exe_basename="id")
    assert gate.without(["busybox", "busybox", "id", "-u"]).exit_code == 0
    for words in (["busybox", "id"], ["busybox", "busybox", "id"], ["busybox", "busybox", "busybox", "id"]):
        assert gate.inside(words, denied).exit_code == 126
    assert gate.inside(["busybox", "busybox", "true"], denied).exit_code == 0


def test_a_limit_that_is_met_by_many_who_exec_ends_the_run(gate: Gate) -> None:
    """Those who are ended are stopped first; the supervisor does not stop with them."""
    hog = "import os, time; x = os.urandom(60 << 20); time.sleep(20)"
    busy = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done"
    script = f"for n in 1 2 3 4; do ({busy}) & python3 -c '{hog}' & done; wait"
    for _ in range(3):
        outcome = gate.inside(["sh", "-c", script], gate.forbidding, more="[limits]\nmemory_mb = 120\n", timeout_s=60)
        assert outcome.exit_code != 0, str(outcome)
        events = [event["event"] for event in gate.fence.events()]
        assert events[-1] == "session.end", str(outcome)
        assert "limit.exceeded" in events, str(outcome)


def test_a_run_ends_while_others_are_on_their_way_through_the_gate(gate: Gate) -> None:
    busy = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done"
    for number in range(8):
        words = ["sh", "-c", f"({busy}) & ({busy}) & sleep 0.0{number}"]
        assert gate.inside(words, gate.forbidding, timeout_s=20).exit_code == 0
    assert not any(name.isdigit() and _runs_true(name, gate.fence.tester.uid) for name in os.listdir("/proc"))


def _runs_true(pid: str, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid and os.readlink(f"/proc/{pid}/exe").endswith("/true")
    except OSError:
        return False
