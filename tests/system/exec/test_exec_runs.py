"""The gate in a whole run: supervisor, terminal, nested runs, containers, copies of the
workspace.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import jail as jails
from tests.support import terminal
from tests.support.features import need_program, need_root
from tests.support.gate import Gate, rule
from tests.support.installation import REPOSITORY, Installation
from tests.support.jail import Jail
from tests.support.outside_targets import alive
from tests.support.sandbox import Word
from tests.support.tester import Tester
from tests.support.waiting import wait_for


def test_the_command_has_no_descriptor_of_the_gate(gate: Gate) -> None:
    inside = gate.inside(["ls", "/proc/self/fd"], gate.forbidding)
    assert (
        inside.stdout.split()
        == gate.without(["ls", "/proc/self/fd"]).stdout.split()
        == ["0", "1", "2", "3"]
    )


def descendants(pid: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [found for child in children for found in (child, *descendants(child))]


def test_when_the_supervisor_is_killed_nothing_starts_and_everything_ends(gate: Gate) -> None:
    """While an exec waits for an answer, and with a process in another session."""
    mark = gate.sandbox.programs.allowed
    text = (
        f"setsid sh -c 'touch apart; while :; do {mark} later; sleep 0.05; done' & "
        f"while :; do {mark} later; sleep 0.05; done & touch ready; wait"
    )
    policy = gate.policy(gate.forbidding)
    argv = gate.command(["sh", "-c", text], policy, "--quiet")
    with gate.sandbox.tester.starting(argv, cwd=gate.project) as process:
        wait_for(
            lambda: (gate.project / "ran").exists() and (gate.project / "apart").exists(), "it runs"
        )
        process_tree = descendants(process.pid)
        assert len(process_tree) >= 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(map(alive, process_tree)), "everything ended")
    count = len(gate.ran())
    assert count > 0
    # No process is left that could start another one.
    assert not any(gate.ran() for _ in range(3))


def test_a_call_that_waits_when_the_supervisor_is_killed_does_not_start(gate: Gate) -> None:
    """The supervisor is stopped, so that the call waits. Then the supervisor is killed."""
    mark = gate.sandbox.programs.allowed
    argv = gate.command(
        ["sh", "-c", f"touch ready; read line; {mark} late; touch after"],
        gate.policy(gate.forbidding),
    )
    with gate.sandbox.tester.starting(argv, cwd=gate.project, stdin=subprocess.PIPE) as process:
        wait_for((gate.project / "ready").exists, "it runs")
        process_tree = descendants(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()

        def waits() -> bool:
            """Whether a process is in execve(2): call 59 on x86_64 and 221 on aarch64."""
            found = set(process_tree) | {
                one for pid in process_tree if alive(pid) for one in descendants(pid)
            }
            return any(_call_of(pid) in ("59", "221") for pid in found)

        wait_for(waits, "the call waits")
        process_tree += [one for pid in process_tree if alive(pid) for one in descendants(pid)]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(map(alive, process_tree)), "everything ended")
    assert gate.ran() == []


def _call_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return ""


def test_the_end_of_the_command_ends_processes_that_start_programs_all_the_time(
    gate: Gate,
) -> None:
    """Some exec calls wait in the gate when the command ends."""
    mark = gate.sandbox.programs.allowed
    loops = "".join(f"(while :; do {mark} x; done) & " for _ in range(4))
    for _ in range(5):
        outcome = gate.shell(f"{loops} until [ -s ran ]; do :; done; exit 7", gate.forbidding)
        assert outcome.exit_code == 7, str(outcome)
        gate.ran()
    assert gate.ran() == []


def test_a_shell_under_rules_has_job_control(gate: Gate) -> None:
    programs = gate.sandbox.programs
    words = ["bash", "--norc", "--noprofile", "-i"]
    argv = [str(word) for word in gate.command(words, gate.policy(gate.forbidding), "--quiet")]
    with terminal.opened(gate.sandbox.tester, argv, cwd=gate.project) as screen:
        screen.line("PS1='ready$ '; echo up-$((40+2))")
        screen.shows("up-42")
        screen.line("echo go-$((1+1)); sh -c 'read x; echo got-$x'")
        screen.shows("go-2")
        screen.key("C-z")
        screen.prompts("ready$")
        screen.line("echo stopped-$?")
        screen.shows("stopped-148")
        screen.line(f"{programs.forbidden} 2> /dev/null; echo denied-$?")
        screen.shows("denied-126")
        screen.continues()
        screen.line("word")
        screen.shows("got-word")
        screen.line(f"{programs.allowed} & wait; echo after-$?")
        screen.shows("after-0")
        screen.line("echo go-$((2+1)); sleep 60")
        screen.shows("go-3")
        screen.key("C-c")
        screen.prompts("ready$")
        screen.line("echo status-$?")
        screen.shows("status-130")
    assert gate.ran() == ["allowed"]


def test_the_run_itself_can_be_suspended_and_goes_on_with_its_gate(gate: Gate) -> None:
    """Ctrl-Z, from a shell outside."""
    programs = gate.sandbox.programs
    inner = f"true; touch ready; read line; {programs.forbidden} x; {programs.allowed} $line"
    argv = gate.command(["sh", "-c", inner], gate.policy(gate.forbidding), "--quiet")
    gate.sandbox.tree.put(gate.project / "start", f"exec {shlex.join(map(str, argv))}\n")
    with terminal.opened(
        gate.sandbox.tester, ["bash", "--norc", "--noprofile", "-i"], cwd=gate.project
    ) as screen:
        screen.line("PS1='ready$ '; echo up-$((40+2))")
        screen.shows("up-42")
        screen.line("echo go-$((1+1)); bash ./start")
        screen.shows("go-2")
        wait_for((gate.project / "ready").exists, "it runs")
        screen.key("C-z")
        screen.prompts("ready$")
        screen.line("echo stopped-$?")
        screen.shows("stopped-148")
        screen.continues("echo ended-$?")
        screen.line("word")
        screen.shows("ended-0")
    assert gate.ran() == ["allowed word"]


def test_a_nested_run_is_refused_or_held_by_both_gates(gate: Gate) -> None:
    """A task has one listener. Without its own gate the inner run is an ordinary program."""
    programs = gate.sandbox.programs
    outer = gate.policy(gate.forbidding)
    inner = gate.sandbox.tree.put(
        gate.project / "inner.toml",
        '[meta]\ndefault_action = "allow"\n' + rule("x", "deny", exe="/nowhere/x"),
    )
    paddock = gate.sandbox.installation.paddock
    granted = [
        "-r",
        f"{gate.sandbox.installation.root}/**",
        "-x",
        f"{gate.sandbox.installation.root}/**",
    ]
    words: list[Word] = [
        paddock,
        "run",
        "--off",
        "audit",
        "--policy",
        inner,
        "--",
        programs.allowed,
        "x",
    ]
    argv = gate.command(words, outer, *granted)
    outcome = gate.sandbox.tester.run(argv, cwd=gate.project)
    assert gate.ran() == [], str(outcome)
    assert outcome.exit_code == 125, str(outcome)
    assert "paddock:" in outcome.stderr, str(outcome)
    assert "Traceback" not in outcome.stderr, str(outcome)


def test_a_copy_of_the_workspace_has_rules_and_renames_at_once(full_gate: Gate) -> None:
    gate, programs = full_gate, full_gate.sandbox.programs
    gate.sandbox.tree.put(gate.project / "old" / "file", "1")
    text = (
        f"mv old new && {programs.forbidden} x; {programs.allowed} y; mkdir a && mv a b && "
        f"rmdir b; cat new/file; "
        f"cp {programs.forbidden} copy; ./copy z; mv new old2; {programs.allowed} w; cat ran"
    )
    outcome = gate.shell(text, gate.forbidding, flags=["--cow"])
    assert outcome.stdout == "1allowed y\nallowed w\n", str(outcome)
    assert gate.ran() == []  # the file is in the copy
    assert (gate.project / "old" / "file").exists()
    denied = [event["exe"] for event in gate.execs() if event["action"] == "deny"]
    assert denied == [str(programs.forbidden), str(gate.project / "copy")]


@pytest.fixture
def full_gate(request: pytest.FixtureRequest) -> Gate:
    return Gate(sandbox=request.getfixturevalue("full"))


@pytest.fixture
def jail(tester: Tester, installation: Installation) -> Iterator[Jail]:
    need_root()
    with jails.of_root(tester, installation) as found:
        yield found


def test_a_container_does_not_start_with_rules_that_are_not_enforced(jail: Jail) -> None:
    policy = jail.work.parent / "gate.toml"
    policy.write_text(
        '[meta]\ndefault_action = "allow"\n' + rule("no-wc", "deny", exe_basename="wc")
    )
    policy.chmod(0o644)
    assert jail.shell("wc /etc/message").started
    outcome = jail.shell("wc /etc/message", "--policy", policy)
    assert outcome.exit_code == 125, str(outcome)
    assert outcome.stdout == "", str(outcome)
    assert "a container does not enforce rule" in outcome.stderr, str(outcome)


def test_the_documented_audit_command_lists_started_programs(gate: Gate) -> None:
    """F-076, F-077."""
    need_program("jq")
    text = (REPOSITORY / "docs/deny-a-command.md").read_text()
    ran, denied = re.findall(r"^paddock audit show --json (\| jq .*)$", text, re.M)
    gate.inside(
        ["sh", "-c", "env true; env true; cat own.txt; true"],
        rule("no-cat", "deny", exe_basename="cat"),
    )
    words: list[Word] = [
        gate.sandbox.installation.paddock,
        "audit",
        "show",
        "--json",
        "--dir",
        gate.sandbox.journal,
    ]
    shown = f"{shlex.join(map(str, words))} "
    reported = gate.sandbox.tester.run(["sh", "-c", shown + ran]).stdout
    counts = {line.split()[1]: int(line.split()[0]) for line in reported.splitlines()}
    assert counts[os.path.realpath("/usr/bin/env")] == 2, reported
    assert not any(path.endswith("/cat") for path in counts)
    reported = gate.sandbox.tester.run(["sh", "-c", shown + denied]).stdout
    assert set(reported.splitlines()) == {
        "no-cat\tcat own.txt"
    }  # once for each directory of PATH with the program


def test_a_verdict_that_comes_late_denies(gate: Gate) -> None:
    """F-055: hashing a large program takes longer than a short time limit."""
    programs = gate.sandbox.programs
    large = programs.directory / "large"
    large.write_bytes(programs.allowed.read_bytes())
    os.truncate(large, 512 << 20)  # the loader ignores what follows the program
    large.chmod(0o755)
    other = rule("other-content", "deny", exe_sha256="0" * 64)
    try:
        for limit_ms, expected in ((20, []), (60_000, ["allowed"])):
            policy = gate.sandbox.tree.put(
                gate.sandbox.tree.root / "late.toml",
                f'[meta]\ninherit = "ai-agent"\ndefault_action = "allow"\n'
                f"on_supervisor_timeout_ms = {limit_ms}\n"
                f'[filesystem]\nexec_globs = ["{programs.directory}/**"]\n{other}',
            )
            outcome = gate.sandbox.inside([large], "--policy", policy)
            assert gate.ran() == expected, str(outcome)
            if not expected:
                assert outcome.exit_code == 126
                reasons = [str(event["reason"]) for event in gate.execs()]
                assert any("takes too long" in reason for reason in reasons), reasons
    finally:
        large.unlink()
