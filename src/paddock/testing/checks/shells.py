"""Terminals, and background commands."""

from __future__ import annotations

from paddock.executors.background_shells import Shells, ShellStatus
from paddock.executors.interface import Size
from paddock.testing.executor_under_test import (
    CHECK_TIMEOUT_S,
    ExecutorUnderTest,
    beating,
    beats,
    check,
    shells_of,
    still,
    until,
)


@check
async def a_terminal_is_a_tty(subject: ExecutorUnderTest) -> None:
    if subject.has_terminals:
        result = await subject.run(
            "test -t 0 && test -t 1 && test -t 2 && stty size", tty=Size(rows=33, columns=77)
        )
        assert (result.stdout.strip(), result.exit_code) == ("33 77", 0), result


@check
async def a_terminal_can_be_typed_at_and_resized(subject: ExecutorUnderTest) -> None:
    if not subject.has_terminals:
        return
    shells = Shells(subject.executor)
    try:
        shell = await shells.start(
            "read line; echo got $line; until test \"$(stty size)\" = '50 132'; do sleep 0.05; "
            "done; exit 5",
            tty=Size(rows=20, columns=60),
        )
        await shell.write("hello\n")
        assert await shell.wait_for("got hello", CHECK_TIMEOUT_S), shell.peek()
        shell.resize(Size(rows=50, columns=132))
        assert (await shell.wait(CHECK_TIMEOUT_S), shell.exit_code) == (ShellStatus.COMPLETED, 5)
    finally:
        await shells.dispose(1)


@check
async def a_shell_is_read_with_a_cursor(subject: ExecutorUnderTest) -> None:
    async with shells_of(subject) as shells:
        shell = await shells.start(
            f"echo one; {until(subject, 'two')}; echo two; {until(subject, 'three')}",
            cwd=subject.inside,
        )
        assert shell.state is ShellStatus.RUNNING
        assert await shell.wait_for("one", CHECK_TIMEOUT_S)
        assert (
            shells.peek(shell.id).text,
            shells.read(shell.id).text,
            shells.read(shell.id).text,
        ) == (
            "one\n",
            "one\n",
            "",
        )
        (subject.workspace / "two").touch()
        assert await shell.wait_for("two", CHECK_TIMEOUT_S)
        assert shell.read().text == "two\n"
        (subject.workspace / "three").touch()
        assert (await shell.wait(CHECK_TIMEOUT_S), shell.exit_code) == (ShellStatus.COMPLETED, 0)
        assert [one.id for one in shells.list()] == [shell.id]
        assert shell.log.read_bytes() == b"one\ntwo\n"


@check
async def a_shell_keeps_its_last_output_and_its_log_all(subject: ExecutorUnderTest) -> None:
    async with shells_of(subject) as shells:
        shell = await shells.start(
            "head -c 3000000 /dev/zero | tr '\\0' x; echo end", cwd=subject.inside
        )
        assert await shell.wait(CHECK_TIMEOUT_S) is ShellStatus.COMPLETED
        output = shell.read()
        assert (len(output.data) + output.lost, output.data[-4:]) == (3000004, b"end\n")
        assert shell.log.stat().st_size == 3000004


@check
async def a_shell_is_killed_with_all_it_started(subject: ExecutorUnderTest) -> None:
    async with shells_of(subject) as shells:
        shell = await shells.start(
            f"trap '' TERM; ({beating('shell-child')}) & {beating('shell')}", cwd=subject.inside
        )
        await beats(subject, "shell-child")
        assert await shell.kill(0.3) is ShellStatus.KILLED
        await still(subject, "shell-child")
        await still(subject, "shell")


@check
async def a_shell_takes_input(subject: ExecutorUnderTest) -> None:
    async with shells_of(subject) as shells:
        shell = await shells.start("while read line; do echo got $line; done", cwd=subject.inside)
        await shells.write(shell.id, "a\n")
        assert await shell.wait_for("got a", CHECK_TIMEOUT_S)
        await shells.write(shell.id, b"b\n")
        assert await shell.wait_for("got b", CHECK_TIMEOUT_S)
        shell.close_stdin()
        assert await shell.wait(CHECK_TIMEOUT_S) is ShellStatus.COMPLETED


@check
async def a_shell_that_can_not_start_has_failed(subject: ExecutorUnderTest) -> None:
    if subject.tells_failures:
        async with shells_of(subject) as shells:
            shell = await shells.start(["no-such-program-anywhere"], cwd=subject.inside)
            assert (shell.state, bool(shell.error), bool(shell.read().data)) == (
                ShellStatus.FAILED,
                True,
                True,
            )


@check
async def shells_end_with_their_session(subject: ExecutorUnderTest) -> None:
    async with shells_of(subject) as shells:
        await shells.start(beating("session"), cwd=subject.inside)
        await beats(subject, "session")
    await still(subject, "session")
    await shells.dispose()
