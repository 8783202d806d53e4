"""The end of commands, and of the executor with all of them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time

from paddock.executors.run import Outcome, run
from paddock.testing.executor_under_test import (
    CHECK_TIMEOUT_S,
    ExecutorUnderTest,
    beating,
    beats,
    check,
    size_of,
    soon,
    still,
    wait_for,
)


@check
async def a_time_limit_ends_it_and_keeps_its_output(subject: ExecutorUnderTest) -> None:
    result = await subject.run(
        f"echo partial; {beating('limit')}", timeout_s=soon(subject), grace_s=2
    )
    assert (result.outcome, result.exit_code, result.timed_out) == (Outcome.TIMED_OUT, 124, True), (
        result
    )
    assert result.stdout.startswith("partial\n"), result
    await still(subject, "limit")


@check
async def a_time_limit_ends_its_children(subject: ExecutorUnderTest) -> None:
    line = f"({beating('child')}) & {beating('parent')}"
    assert (await subject.run(line, timeout_s=soon(subject), grace_s=2)).timed_out
    await still(subject, "child")
    await still(subject, "parent")


@check
async def a_time_limit_ends_processes_of_other_sessions(subject: ExecutorUnderTest) -> None:
    away = f"setsid sh -c {shlex.quote('(' + beating('away') + ') &')}"
    assert (
        await subject.run(f"{away}; {beating('stayed')}", timeout_s=soon(subject), grace_s=2)
    ).timed_out
    await still(subject, "away")


@check
async def a_time_limit_ends_processes_that_ignore_signals(subject: ExecutorUnderTest) -> None:
    line = f"trap '' TERM INT HUP; {beating('deaf')}"
    assert (await subject.run(line, timeout_s=soon(subject), grace_s=0.3)).timed_out
    await still(subject, "deaf")


@check
async def an_idle_limit_ends_a_silent_command(subject: ExecutorUnderTest) -> None:
    result = await subject.run(
        f"echo word; {beating('silent')}", idle_timeout_s=soon(subject), grace_s=2
    )
    assert result.timed_out
    await still(subject, "silent")


@check
async def output_in_time_resets_the_idle_limit(subject: ExecutorUnderTest) -> None:
    line = "i=0; while [ $i -lt 4 ]; do echo $i; sleep 0.1; i=$((i+1)); done"
    assert (await subject.run(line, idle_timeout_s=10)).exit_code == 0


@check
async def cancelling_ends_the_whole_tree(subject: ExecutorUnderTest) -> None:
    line = f"({beating('cancelled-child')}) & {beating('cancelled')}"
    running = asyncio.create_task(run(subject.executor, line, cwd=subject.inside, grace_s=2))
    await beats(subject, "cancelled-child")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    await still(subject, "cancelled-child")
    await still(subject, "cancelled")


@check
async def cancelling_while_it_starts_leaves_nothing(subject: ExecutorUnderTest) -> None:
    for number in range(10):
        running = asyncio.create_task(
            run(subject.executor, beating("start"), cwd=subject.inside, grace_s=1)
        )
        await asyncio.sleep(number / 1000)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await still(subject, "start")


@check
async def a_held_pipe_does_not_delay_the_caller(subject: ExecutorUnderTest) -> None:
    started_at = time.monotonic()
    result = await subject.run("sleep 25 & echo done")
    assert (result.stdout, result.exit_code) == ("done\n", 0), result
    assert time.monotonic() - started_at < 20


@check
async def background_processes_survive_their_command(subject: ExecutorUnderTest) -> None:
    await subject.run(f"({beating('left')}) >/dev/null 2>&1 &")
    await beats(subject, "left")
    before = size_of(subject, "left")
    await wait_for(lambda: size_of(subject, "left") > before + 2)


@check
async def a_hundred_at_once(subject: ExecutorUnderTest) -> None:
    running = [run(subject.executor, f"echo {number}; exit {number}") for number in range(100)]
    results = await asyncio.wait_for(asyncio.gather(*running), 2 * CHECK_TIMEOUT_S)
    wrong = [result for number, result in enumerate(results) if result.exit_code != number]
    assert wrong == [], wrong[:3]
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]


@check
async def disposing_ends_everything_and_can_be_repeated(subject: ExecutorUnderTest) -> None:
    await subject.run(f"({beating('orphan')}) >/dev/null 2>&1 &")
    process = await subject.executor.spawn(beating("foreground"), cwd=subject.inside)
    await beats(subject, "orphan")
    await beats(subject, "foreground")
    assert await asyncio.wait_for(subject.executor.dispose(), CHECK_TIMEOUT_S) == ()
    await asyncio.wait_for(process.wait(), CHECK_TIMEOUT_S)
    assert await subject.executor.dispose() == ()
    await still(subject, "orphan")
    await still(subject, "foreground")
