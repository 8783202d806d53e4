"""The executor interface works with any process that has its methods, for example one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from paddock import Action, ToolCall, ToolPolicy, Tools, UsageError
from paddock.executors.background_shells import Shells, ShellStatus
from paddock.executors.interface import KILL, TERM, CommandLine, Failure, Input, NotStarted, Size
from paddock.executors.run import Outcome, run


class Child:
    """Prints its output and ends, or stays until it is killed."""

    pid = None
    stdin: Input | None = None

    def __init__(self, words: bytes, code: int | None) -> None:
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.stdout.feed_data(words)
        self.returncode: int | None = None
        self.received: list[int] = []
        self._ended = asyncio.Event()
        if code is not None:
            self._end(code)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signal: int) -> None:
        self.received.append(signal)
        if self.returncode is None:
            self._end(-signal)

    def _end(self, code: int) -> None:
        self.returncode = code
        self.stdout.feed_eof()
        self.stderr.feed_eof()
        self._ended.set()


class Memory:
    name = "memory"
    confines_writes = True

    def __init__(
        self, words: bytes = b"", code: int | None = 0, failure: Failure | None = None
    ) -> None:
        self._words, self._code, self._failure = words, code, failure
        self.asked: list[tuple[CommandLine, str | None, dict[str, str], bool]] = []
        self.children: list[Child] = []

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> Child:
        self.asked.append((command, cwd, dict(env or {}), stdin))
        if self._failure is not None:
            raise NotStarted("not here", failure=self._failure)
        self.children.append(Child(self._words, self._code))
        return self.children[-1]

    async def dispose(self) -> tuple[str, ...]:
        return ()


def test_run_passes_all_arguments_and_results() -> None:
    """H-022, H-023"""

    async def scene() -> None:
        place = Memory(b"words", 3)
        result = await run(place, "make", cwd="/there", env={"A": "b"}, stdin=b"x")
        assert place.asked == [("make", "/there", {"A": "b"}, True)]
        assert (result.outcome, result.exit_code, result.stdout) == (Outcome.EXITED, 3, "words")

    asyncio.run(scene())


def test_stdin_of_another_type_is_refused_before_the_start() -> None:
    async def scene() -> None:
        place = Memory(b"", 0)
        with pytest.raises(UsageError, match="stdin is dict, not text or bytes"):
            await run(place, "cat", stdin={})  # type: ignore[arg-type]
        assert not place.asked

    asyncio.run(scene())


def test_bash_tool_accepts_the_executor(tmp_path: Any) -> None:
    """H-023"""

    async def scene() -> None:
        place = Memory(b"words", 0)
        tools = Tools(
            ToolPolicy(cwd=str(tmp_path), require_approval_for_execute=False), executor=place
        )
        result = await tools.call(ToolCall(name="bash", arguments={"command": "echo words"}))
        assert result.decision.action is Action.ALLOW, result
        assert getattr(result.content, "stdout", None) == b"words"
        assert [command for command, *_ in place.asked] == ["echo words"]

    asyncio.run(scene())


def test_a_cancelled_run_ends_its_child_and_an_earlier_cancel_starts_none() -> None:
    """H-022, H-045"""

    async def scene() -> None:
        place = Memory(b"so far", None)
        running = asyncio.create_task(run(place, "serve"))
        while not place.children:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert place.children[0].received == [TERM, KILL]
        early = asyncio.create_task(run(place, "serve"))
        early.cancel()
        with pytest.raises(asyncio.CancelledError):
            await early
        assert len(place.children) == 1

    asyncio.run(scene())


def test_output_before_a_timeout_is_kept() -> None:
    async def scene() -> None:
        result = await run(Memory(b"so far", None), "serve", timeout_s=0.05)
        assert (result.outcome, result.exit_code, result.stdout) == (
            Outcome.TIMED_OUT,
            124,
            "so far",
        )

    asyncio.run(scene())


def test_a_limit_that_is_no_number_is_an_error_and_starts_nothing() -> None:
    place = Memory()
    for limit in ("timeout_s", "idle_timeout_s"):
        with pytest.raises(UsageError):
            asyncio.run(run(place, "true", **{limit: float("nan")}))  # type: ignore[arg-type]
    assert place.asked == []


def test_a_shell_without_an_executor_fails_and_runs_nothing() -> None:
    """H-037"""

    async def scene() -> None:
        place = Memory(failure=Failure.UNAVAILABLE)
        shells = Shells(place)
        shell = await shells.start("serve")
        assert (shell.state, len(place.asked)) == (ShellStatus.FAILED, 1)
        assert shell.error is not None
        assert "not here" in shell.error
        await shells.dispose()

    asyncio.run(scene())


def test_a_shell_in_memory_runs_until_it_is_killed() -> None:
    async def scene() -> None:
        place = Memory(b"ready\n", None)
        shells = Shells(place)
        shell = await shells.start("serve")
        await shell.wait_for("ready", timeout_s=60)
        assert (shell.state, shell.read().text) == (ShellStatus.RUNNING, "ready\n")
        await shell.kill()
        assert shell.state is ShellStatus.KILLED
        await shells.dispose()

    asyncio.run(scene())
