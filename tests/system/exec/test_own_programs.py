"""Programs that the command could have made, under a default of allow: they run, and a copy of a
denied program stays denied.
"""

from __future__ import annotations

import os
import shlex
import shutil

import pytest

from tests.support.features import need_program
from tests.support.gate import Gate, rule
from tests.support.sandbox import Word

ROUNDS = 60


def test_what_one_builds_runs_under_a_default_of_allow(gate: Gate) -> None:
    touch = need_program("touch")
    script = (
        f"cp {touch} a.out && ./a.out built\n"
        "printf '#!/bin/sh\\ntouch script\\n' > s && chmod +x s && ./s\n"
        f"ln -s {touch} link && ./link linked\n"
    )
    denying = rule("no-push", "deny", exe_basename="git", argv_regex="^git push( |$)")
    for rules in ((), (denying,)):
        outcome = gate.shell(script, *rules)
        assert outcome.exit_code == 0, str(outcome)
        for name in ("built", "script", "linked"):
            (gate.project / name).unlink()
        (gate.project / "link").unlink()
    refused = gate.shell(script, denying, rule("sh", "allow", exe_glob="/**/bin/*"), default="deny")
    assert "paddock: denied: ./a.out built" in refused.stderr, str(refused)
    assert not (gate.project / "built").exists(), "a default of deny stays as it is"


def test_a_copy_of_a_denied_program_stays_denied(gate: Gate) -> None:
    forbidden = shlex.quote(str(gate.sandbox.programs.forbidden))
    script = (
        f"i=0; while [ $i -lt {ROUNDS} ]; do i=$((i+1))\n"
        f"cp {forbidden} c$i; ./c$i copy\n"
        "ln c$i h$i; ./h$i hardlink\n"
        "mv c$i r$i; ./r$i renamed\n"
        'printf "#!$PWD/r$i\\n" > s$i; chmod +x s$i; ./s$i script\n'
        "done; echo finished > end"
    )
    gate.without(["sh", "-c", script])
    assert len(gate.ran()) == 4 * ROUNDS
    (gate.project / "end").unlink()
    for pattern in ("c", "h", "r", "s"):
        for path in gate.project.glob(f"{pattern}[0-9]*"):
            path.unlink()
    outcome = gate.shell(script, gate.forbidding)
    assert (gate.project / "end").exists(), str(outcome)
    assert gate.ran() == []
    denied = [event for event in gate.execs() if event["action"] == "deny"]
    assert len(denied) == 4 * ROUNDS
    assert {event["rule_id"] for event in denied} == {"no-marker"}


def test_a_copy_of_a_program_that_a_rule_names_by_a_link_is_denied(gate: Gate) -> None:
    shell = "/bin/sh"
    if os.path.basename(os.path.realpath(shell)) == "sh":
        pytest.skip("/bin/sh is no link to another name here")
    script = f"cp {shell} copied && ./copied -c 'touch made'"
    gate.without(["bash", "-c", script])
    (gate.project / "made").unlink()
    outcome = gate.inside(["bash", "-c", script], rule("no-sh", "deny", exe_basename="sh"))
    assert (gate.project / "copied").exists(), str(outcome)
    assert not (gate.project / "made").exists(), str(outcome)
    assert "no-sh" in {event["rule_id"] for event in gate.execs() if event["action"] == "deny"}


def test_a_changed_copy_is_another_program(gate: Gate) -> None:
    """A limit of SECURITY.md."""
    forbidden = shlex.quote(str(gate.sandbox.programs.forbidden))
    outcome = gate.shell(f"cp {forbidden} c; ./c same; echo x >> c; ./c changed", gate.forbidding)
    assert len(gate.ran()) == 1, str(outcome)


SWAP = """
import os, subprocess, sys
denied = open(sys.argv[1], "rb").read()
script = b"#!/bin/true\\n#"
others = [open("/bin/true", "rb").read(), script + b"x" * (len(denied) - len(script))]
def put(name, content):
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o755)
    os.write(file, content)
    os.close(file)
put("p", others[0])
pid = os.fork()
if pid == 0:
    turn = 0
    while True:
        turn += 1
        try:
            if turn % 2:
                put("p", denied if turn % 3 else others[turn // 2 % 2])
            else:
                put("q", others[turn // 2 % 2] if turn % 4 else denied)
                os.rename("q", "p")
        except OSError:
            pass
started = 0
for _ in range(int(sys.argv[2])):
    try:
        started += subprocess.call(["./p", "x"]) == 0
    except OSError:
        pass
os.kill(pid, 9)
os.waitpid(pid, 0)
open("end", "w").write(str(started))
"""


def test_a_copy_that_is_exchanged_while_it_is_started_stays_denied(gate: Gate) -> None:
    words: list[Word] = ["python3", "-c", SWAP, gate.sandbox.programs.forbidden, "200"]
    gate.without(words)
    assert gate.ran() != []
    (gate.project / "end").unlink()
    outcome = gate.inside(words, gate.forbidding)
    assert (gate.project / "end").read_text() != "", str(outcome)
    assert gate.ran() == [], str(outcome)


def test_a_copy_of_a_writable_program_stays_denied_after_the_program_is_moved(gate: Gate) -> None:
    tools = gate.sandbox.tree.make(gate.project / "tools")
    forbidden = gate.sandbox.programs.forbidden
    script = f"mv {tools}/denied other && ./other x; echo finished > end"
    denying = rule("no-denied", "deny", exe=str(tools / "denied"))
    for rules, count in (((rule("none", "deny", exe="/nowhere"),), 1), ((denying,), 0)):
        shutil.copy(forbidden, tools / "denied")
        gate.sandbox.tester.give(tools)
        outcome = gate.shell(script, *rules)
        assert (gate.project / "end").exists(), str(outcome)
        assert len(gate.ran()) == count, str(outcome)


def test_a_program_of_git_is_judged_as_the_command_of_git(gate: Gate) -> None:
    need_program("git")
    for denying in (
        rule("no-push", "deny", exe_basename="git", argv_regex="^git push( |$)"),
        rule("no-push", "deny", exe_basename="git-push"),
    ):
        for line, code in (
            ("$(git --exec-path)/git-push", 126),
            ("git push", 126),
            ("cp $(command -v git) g && ./g push", 126),
            ("$(git --exec-path)/git-var -l", 0),
            ("cp $(command -v git) g && ./g var -l", 0),
        ):
            without = gate.without(["sh", "-c", line])
            assert without.exit_code != 126, str(without)
            outcome = gate.shell(line, denying)
            assert outcome.exit_code == code, str(outcome)


@pytest.mark.parametrize(
    "line", ["busybox touch made", "cp $(command -v busybox) b && exec -a busybox ./b touch made"]
)
def test_an_applet_is_judged_as_the_program(gate: Gate, line: str) -> None:
    need_program("busybox")
    made = gate.project / "made"
    assert gate.without(["bash", "-c", line]).exit_code == 0
    made.unlink()
    outcome = gate.inside(["bash", "-c", line], rule("no-touch", "deny", exe_basename="touch"))
    assert (outcome.exit_code, made.exists()) == (126, False), str(outcome)
