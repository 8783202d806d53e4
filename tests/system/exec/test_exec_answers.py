"""The visible results of a decision: errno, a line on stderr, an event in the journal."""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.support.gate import Gate, rule
from tests.support.sandbox import Word


def test_denied_is_permission_denied_and_the_caller_lives_on(gate: Gate) -> None:
    programs = gate.sandbox.programs
    outcome = gate.shell(
        f"{programs.forbidden} a b; echo status $?; {programs.allowed} c; echo status $?",
        gate.forbidding,
    )
    assert outcome.stdout == "status 126\nstatus 0\n", str(outcome)
    assert "Permission denied" in outcome.stderr, str(outcome)
    assert gate.ran() == ["allowed c"]


def test_a_command_that_is_itself_denied_is_126(gate: Gate) -> None:
    outcome = gate.inside([gate.sandbox.programs.forbidden], gate.forbidding)
    assert outcome.exit_code == 126, str(outcome)
    assert "no-marker" in outcome.stderr, str(outcome)
    assert gate.ran() == []


def test_a_denial_is_one_line_on_stderr_and_none_with_quiet(gate: Gate) -> None:
    forbidden = gate.sandbox.programs.forbidden
    because = rule("no-marker", "deny", exe=str(forbidden), reason="leaves a mark")
    denial = f"paddock: denied: {forbidden} a\\x20b (rule no-marker: leaves a mark)"
    probe = gate.sandbox.probe("exec", forbidden, "a b")
    assert gate.inside(probe, because).stderr.splitlines() == [denial]
    assert gate.inside(probe, because, flags=["--quiet"]).stderr == ""
    # A caller that tries several directories, or tries again, is denied each time and reported
    # once.
    again = (
        f"import os\nfor _ in range(5):\n try: os.execv('{forbidden}', ['{forbidden}', "
        f"'a b'])\n"
        f" except OSError: pass"
    )
    outcome = gate.inside(["python3", "-c", again], because)
    assert outcome.stderr.splitlines() == [denial], str(outcome)
    # Many denials are reported less often. The journal has each of them.
    outcome = gate.shell(f"for i in $(seq 80); do {forbidden} $i 2> /dev/null; done", because)
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("paddock: denied")]
    assert 20 <= len(lines) < 60, len(
        lines
    )  # fewer lines if a write could block; the rest is reported at the end
    denied = [event for event in gate.execs() if event["action"] == "deny"]
    assert len(denied) == 1 + 1 + 5 + 80


def test_every_decision_is_an_event(gate: Gate) -> None:
    programs = gate.sandbox.programs
    because = rule("no-marker", "deny", exe=str(programs.forbidden), reason="leaves a mark")
    known = rule("marker", "allow", exe=str(programs.allowed))
    sub = gate.sandbox.tree.make(gate.project / "sub")
    script = (
        f"echo $$ $PPID; cd sub; {programs.forbidden} 1; {programs.allowed} 2 é; ./none; "
        f"cd ..; "
        f"exec true"
    )
    outcome = gate.shell(script, because, known)
    assert gate.ran(sub) == ["allowed 2 é"], str(outcome)
    events = [
        {key: event[key] for key in event if key not in ("seq", "prev", "ts", "session")}
        for event in gate.execs()
    ]
    assert len(events) == 4, events
    shell, denied, ran, last = events
    assert shell["argv"] == ["sh", "-c", script]
    assert (shell["action"], shell["ran"], shell["verified"], shell["rule_id"]) == (
        "allow",
        True,
        True,
        "default",
    )
    assert shell["exe"] == os.path.realpath("/bin/sh")
    assert denied == {
        "event": "exec", "pid": denied["pid"], "ppid": shell["pid"], "exe": str(programs.forbidden),
        "argv": [str(programs.forbidden), "1"], "cwd": str(sub), "action": "deny", "ran": False,
        "verified": False, "rule_id": "no-marker", "reason": "leaves a mark", "by": None,
        "asked_ms": None, "interpreter": None,
    }  # fmt: skip
    assert ran == {
        **denied, "pid": ran["pid"], "exe": str(programs.allowed),
        "argv": [str(programs.allowed), "2", "é"], "action": "allow", "ran": True, "verified": True,
        "rule_id": "marker", "reason": None,
    }  # fmt: skip
    assert (last["pid"], last["ppid"], last["cwd"]) == (
        shell["pid"],
        shell["ppid"],
        str(gate.project),
    )
    if gate.sandbox.tier == "landlock":  # the pids of the command are those of the host
        assert outcome.stdout == f"{shell['pid']} {shell['ppid']}\n"
    words: list[Word] = [
        gate.sandbox.installation.paddock,
        "audit",
        "verify",
        "--dir",
        gate.sandbox.journal,
    ]
    verified = gate.sandbox.outside(words)
    assert verified.exit_code == 0, str(verified)


RULES = {
    "parent_exe": (
        "parent_exe = '/usr/bin/python3'",
        "python3 -c 'import subprocess; subprocess.run([\"MARK\"])'",
        "sh -c 'MARK x; true'",
    ),
    "parent_argv": (
        "parent_argv = '^sh -c .*magic'",
        "sh -c 'MARK x; : magic'",
        "sh -c 'MARK x; : other'",
    ),
    "cwd_glob": ("cwd_glob = '<cwd>/sub'", "cd sub; MARK x", "MARK x"),
    "argv_host_in": ("argv_host_in = 'a.org'", "MARK --url=https://a.org/", "MARK https://b.org/"),
    "argv_host_in, all": (
        "argv_host_in = 'a.org'",
        "MARK https://a.org/",
        "MARK https://a.org/ http://b.org",
    ),
    "argv_contains": ("argv_contains = 'x'", "MARK y x", "MARK xx"),
    "argv_regex": (r"argv_regex = '/mark-a one two$'", "MARK one two", "MARK 'one two'"),
    "exe_glob": ("exe_glob = 'DIR/*-a'", "MARK", "exec -a mark-a OTHER"),
    "exe_basename": ("exe_basename = 'mark-a'", "MARK", "exec -a mark-a OTHER"),
    "exe_sha256": ("exe_sha256 = 'SHA'", "MARK", "OTHER"),
    "uid": ("uid = UID", "MARK", None),
    "uid, another": ("uid_not = UID", None, "MARK"),
}


@pytest.mark.parametrize("key", RULES)
def test_each_key_of_a_rule_is_enforced(gate: Gate, key: str) -> None:
    """The only rule that allows the marker program. All other programs but shells are denied."""
    programs = gate.sandbox.programs
    gate.sandbox.tree.make(gate.project / "sub")
    condition, good, bad = RULES[key]
    digest = hashlib.sha256(programs.allowed.read_bytes()).hexdigest()

    def filled(text: str) -> str:
        for name, value in (
            ("MARK", programs.allowed), ("OTHER", programs.forbidden), ("DIR", programs.directory),
            ("SHA", digest), ("UID", gate.sandbox.tester.uid),
        ):  # fmt: skip
            text = text.replace(name, str(value))
        return text

    rules = (
        rule("shells", "allow", exe=["/bin/sh", "/bin/bash", "/usr/bin/python3"]),
        f'[[rule]]\nid = "it"\naction = "allow"\n{filled(condition)}\n',
    )
    for text, runs in ((good, True), (bad, False)):
        if text is None:
            continue
        outcome = gate.inside(["bash", "-c", filled(text)], *rules, default="deny")
        ran = gate.ran(gate.project / "sub") + gate.ran()
        assert bool(ran) == runs, f"{ran} {outcome}"


def test_a_parent_rule_denies_a_program_whose_parent_has_ended(gate: Gate) -> None:
    """The program has no parent then. A call that cannot be judged is denied."""
    mark = gate.sandbox.programs.allowed
    rules = (rule("not-by-env", "deny", exe=str(mark), parent_exe="/usr/bin/env"),)
    assert gate.shell(f"{mark} x; true", *rules).exit_code == 0
    assert gate.ran() == ["allowed x"]
    text = (
        f"import os, time\nparent = os.getpid()\nif os.fork(): os._exit(0)\n"
        f"while os.getppid() == parent: time.sleep(0.01)\n"
        f"try: os.execv('{mark}', ['{mark}', 'x'])\n"
        "except OSError as error: open('answer', 'w').write(str(error.errno))"
    )
    gate.sandbox.tree.put(gate.project / "orphan.py", text)
    outcome = gate.shell(
        "python3 orphan.py; while [ ! -s answer ] && [ ! -e ran ]; do sleep 0.05; done", *rules
    )
    assert gate.ran() == [], str(outcome)
    assert (gate.project / "answer").read_text() == "13"
    assert "the parent is unknown" in outcome.stderr, str(outcome)


def test_an_unanswered_question_denies(gate: Gate) -> None:
    mark = gate.sandbox.programs.allowed
    outcome = gate.inside(gate.sandbox.probe("exec", mark, "x"), rule("ask", "ask", exe=str(mark)))
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []
    event = [event for event in gate.execs() if event["exe"] == str(mark)][-1]
    assert (event["action"], event["rule_id"]) == ("deny", "ask")
