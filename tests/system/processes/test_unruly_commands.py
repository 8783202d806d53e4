"""Commands that attack their exec server or reaper. They gain nothing, and no process outlives the
session.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.sandbox import SandboxRunner
from tests.support.session_program import alive, gone, mark, play, playing
from tests.support.waiting import wait_for

ATTENDANT = "$(grep PPid: /proc/$PPID/status | cut -f2)"
LOOP = f"while :; do kill -STOP {ATTENDANT}; sleep 0.005; done"


@pytest.fixture(params=["landlock", "full"])
def sandboxed(request: pytest.FixtureRequest) -> SandboxRunner:
    found = request.getfixturevalue("sandbox" if request.param == "landlock" else "full")
    assert isinstance(found, SandboxRunner)
    return found


def test_stopping_the_exec_server_does_not_stop_the_session(sandboxed: SandboxRunner) -> None:
    """The kill is allowed, because its target is in the same sandbox."""
    reported = play(
        sandboxed,
        f"""
        async with Sandbox(**options) as box:
            stopped = await box.run('kill -STOP {ATTENDANT}; echo $?', timeout_s=60)
            after = await box.run("echo after", timeout_s=60)
            tell(stopped.stdout, after.outcome.value, after.stdout)
        """,
    )
    assert reported == [["0\n", "exited", "after\n"]]


def test_a_command_that_stops_the_exec_server_ends_with_the_session_owner(
    sandboxed: SandboxRunner,
) -> None:
    word = mark()
    body = f"""
        async with Sandbox(**options) as box:
            await box.shells.start("setsid sleep {word}")
            await box.shells.start('{LOOP}')
            tell("ready")
            await asyncio.sleep(600)
        """
    with playing(sandboxed, body) as process:
        wait_for(lambda: alive(word), "the command runs")
        os.kill(process.pid, signal.SIGKILL)
        gone(word)


def test_a_call_times_out_also_when_no_process_can_be_started(sandboxed: SandboxRunner) -> None:
    reported = play(
        sandboxed,
        f"""
        async with Sandbox(**options) as box:
            await box.shells.start('while :; do kill -STOP {ATTENDANT}; done')
            for _ in range(3):
                late = await asyncio.wait_for(box.run("sleep 86400", timeout_s=1), 60)
                tell(late.outcome.value, late.exit_code)
        """,
    )
    assert reported == [["timed out", 124]] * 3


def test_a_command_that_kills_its_reaper_ends_and_others_go_on(sandboxed: SandboxRunner) -> None:
    his, other = mark(), mark()
    body = f"""
        async with Sandbox(**options) as box:
            await box.shells.start("sleep {other}")
            away = "(setsid sh -c 'trap : TERM; sleep {his}; sleep {his}' &)"
            killed = await box.run(away + "; kill -9 $PPID; sleep {his}")
            assert killed.outcome is Outcome.KILLED, killed
            tell("ready")
            await until("go")
            tell((await box.run("echo on")).stdout)
        """
    with playing(sandboxed, body) as process:
        gone(his)
        assert alive(other), "an innocent process"
        sandboxed.tree.put(sandboxed.tree.project / "go", "")
        stdout, stderr = process.communicate(timeout=120)
        assert (stdout, stderr) == ('["on\\n"]\n', "")
    gone(other)


def test_a_command_that_stops_its_reaper_is_still_waited_for(sandboxed: SandboxRunner) -> None:
    reported = play(
        sandboxed,
        """
        async with Sandbox(**options) as box:
            stopped = await box.run("kill -STOP $PPID; exit 7", timeout_s=60)
            tell(stopped.outcome.value, stopped.exit_code)
        """,
    )
    assert reported == [["exited", 7]]


def test_the_end_of_the_block_is_the_end_of_its_command(sandboxed: SandboxRunner) -> None:
    word = mark()
    body = f"""
        async with Sandbox(**options) as box:
            async with box.spawn("(setsid sleep {word} &) ; kill -9 $PPID; sleep {word}") as \
process:
                await process.wait()
            tell("ready")
            await asyncio.sleep(600)
        """
    with playing(sandboxed, body):
        gone(word)


def test_variables_that_change_the_loader_are_refused(sandboxed: SandboxRunner) -> None:
    names = [
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "LOCPATH",
        "RES_OPTIONS",
        "HOSTALIASES",
        "BASH_FUNC_ls%%",
    ]
    reported = play(
        sandboxed,
        f"""
        async with Sandbox(**options) as box:
            for name in ["HARMLESS", *{names!r}]:
                result = await box.run("env", env={{name: "x"}})
                tell(result.outcome.value, f"{{name}}=x" in result.stdout.splitlines())
        """,
    )
    assert reported == [["exited", True], *[["denied", False]] * len(names)]
