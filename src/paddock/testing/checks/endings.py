"""The end of commands, and of the executor with all of them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time

from paddock.executors.run import Outcome, run
from paddock.testing.place import (
    PATIENCE_S,
    Place,
    beating,
    beats,
    check,
    size_of,
    soon,
    still,
    wait_for,
)


@check
async def a_time_limit_ends_it_and_keeps_what_it_said(place: Place) -> None:
    result = await place.run(f"echo partial; {beating('limit')}", timeout_s=soon(place), grace_s=2)
    assert (result.outcome, result.exit_code, result.timed_out) == (Outcome.TIMED_OUT, 124, True), (
        result
    )
    assert result.stdout.startswith("partial\n"), result
    await still(place, "limit")


@check
async def a_time_limit_ends_its_children(place: Place) -> None:
    line = f"({beating('child')}) & {beating('parent')}"
    assert (await place.run(line, timeout_s=soon(place), grace_s=2)).timed_out
    await still(place, "child")
    await still(place, "parent")


@check
async def a_time_limit_ends_those_that_went_away(place: Place) -> None:
    away = f"setsid sh -c {shlex.quote('(' + beating('away') + ') &')}"
    assert (
        await place.run(f"{away}; {beating('stayed')}", timeout_s=soon(place), grace_s=2)
    ).timed_out
    await still(place, "away")


@check
async def a_time_limit_ends_those_that_do_not_listen(place: Place) -> None:
    line = f"trap '' TERM INT HUP; {beating('deaf')}"
    assert (await place.run(line, timeout_s=soon(place), grace_s=0.3)).timed_out
    await still(place, "deaf")


@check
async def silence_has_a_limit_too(place: Place) -> None:
    result = await place.run(
        f"echo word; {beating('silent')}", idle_timeout_s=soon(place), grace_s=2
    )
    assert result.timed_out
    await still(place, "silent")


@check
async def who_speaks_in_time_is_not_silent(place: Place) -> None:
    line = "i=0; while [ $i -lt 4 ]; do echo $i; sleep 0.1; i=$((i+1)); done"
    assert (await place.run(line, idle_timeout_s=10)).exit_code == 0


@check
async def cancelling_ends_the_whole_tree(place: Place) -> None:
    line = f"({beating('cancelled-child')}) & {beating('cancelled')}"
    running = asyncio.create_task(run(place.executor, line, cwd=place.inside, grace_s=2))
    await beats(place, "cancelled-child")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    await still(place, "cancelled-child")
    await still(place, "cancelled")


@check
async def cancelling_while_it_starts_leaves_nothing(place: Place) -> None:
    for number in range(10):
        running = asyncio.create_task(
            run(place.executor, beating("start"), cwd=place.inside, grace_s=1)
        )
        await asyncio.sleep(number / 1000)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await still(place, "start")


@check
async def whoever_keeps_the_pipe_does_not_keep_the_caller(place: Place) -> None:
    started_at = time.monotonic()
    result = await place.run("sleep 25 & echo done")
    assert (result.stdout, result.exit_code) == ("done\n", 0), result
    assert time.monotonic() - started_at < 20


@check
async def what_was_left_in_the_background_lives_on(place: Place) -> None:
    await place.run(f"({beating('left')}) >/dev/null 2>&1 &")
    await beats(place, "left")
    before = size_of(place, "left")
    await wait_for(lambda: size_of(place, "left") > before + 2)


@check
async def a_hundred_at_once(place: Place) -> None:
    running = [run(place.executor, f"echo {number}; exit {number}") for number in range(100)]
    results = await asyncio.wait_for(asyncio.gather(*running), 2 * PATIENCE_S)
    wrong = [result for number, result in enumerate(results) if result.exit_code != number]
    assert wrong == [], wrong[:3]
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]


@check
async def disposing_ends_everything_and_can_be_repeated(place: Place) -> None:
    await place.run(f"({beating('orphan')}) >/dev/null 2>&1 &")
    process = await place.executor.spawn(beating("foreground"), cwd=place.inside)
    await beats(place, "orphan")
    await beats(place, "foreground")
    assert await asyncio.wait_for(place.executor.dispose(), PATIENCE_S) == ()
    await asyncio.wait_for(process.wait(), PATIENCE_S)
    assert await place.executor.dispose() == ()
    await still(place, "orphan")
    await still(place, "foreground")
