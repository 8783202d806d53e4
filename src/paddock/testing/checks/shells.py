"""Terminals, and background commands."""

from __future__ import annotations

from paddock.executors.interface import Size
from paddock.executors.shells import Shells, ShellStatus
from paddock.testing.place import PATIENCE_S, Place, beating, beats, check, shells_of, still, until


@check
async def a_terminal_is_one(place: Place) -> None:
    if place.has_terminals:
        result = await place.run(
            "test -t 0 && test -t 1 && test -t 2 && stty size", tty=Size(rows=33, columns=77)
        )
        assert (result.stdout.strip(), result.exit_code) == ("33 77", 0), result


@check
async def a_terminal_can_be_typed_at_and_resized(place: Place) -> None:
    if not place.has_terminals:
        return
    shells = Shells(place.executor)
    try:
        shell = await shells.start(
            "read line; echo got $line; until test \"$(stty size)\" = '50 132'; do sleep 0.05; "
            "done; exit 5",
            tty=Size(rows=20, columns=60),
        )
        await shell.write("hello\n")
        assert await shell.wait_for("got hello", PATIENCE_S), shell.peek()
        shell.resize(Size(rows=50, columns=132))
        assert (await shell.wait(PATIENCE_S), shell.exit_code) == (ShellStatus.COMPLETED, 5)
    finally:
        await shells.dispose(1)


@check
async def a_shell_is_read_with_a_cursor(place: Place) -> None:
    async with shells_of(place) as shells:
        shell = await shells.start(
            f"echo one; {until(place, 'two')}; echo two; {until(place, 'three')}", cwd=place.inside
        )
        assert shell.state is ShellStatus.RUNNING
        assert await shell.wait_for("one", PATIENCE_S)
        assert (
            shells.peek(shell.id).text,
            shells.read(shell.id).text,
            shells.read(shell.id).text,
        ) == (
            "one\n",
            "one\n",
            "",
        )
        (place.workspace / "two").touch()
        assert await shell.wait_for("two", PATIENCE_S)
        assert shell.read().text == "two\n"
        (place.workspace / "three").touch()
        assert (await shell.wait(PATIENCE_S), shell.exit_code) == (ShellStatus.COMPLETED, 0)
        assert [one.id for one in shells.list()] == [shell.id]
        assert shell.log.read_bytes() == b"one\ntwo\n"


@check
async def a_shell_keeps_the_end_and_its_log_all(place: Place) -> None:
    async with shells_of(place) as shells:
        shell = await shells.start(
            "head -c 3000000 /dev/zero | tr '\\0' x; echo end", cwd=place.inside
        )
        assert await shell.wait(PATIENCE_S) is ShellStatus.COMPLETED
        said = shell.read()
        assert (len(said.data) + said.lost, said.data[-4:]) == (3000004, b"end\n")
        assert shell.log.stat().st_size == 3000004


@check
async def a_shell_is_killed_with_all_it_started(place: Place) -> None:
    async with shells_of(place) as shells:
        shell = await shells.start(
            f"trap '' TERM; ({beating('shell-child')}) & {beating('shell')}", cwd=place.inside
        )
        await beats(place, "shell-child")
        assert await shell.kill(0.3) is ShellStatus.KILLED
        await still(place, "shell-child")
        await still(place, "shell")


@check
async def a_shell_takes_input(place: Place) -> None:
    async with shells_of(place) as shells:
        shell = await shells.start("while read line; do echo got $line; done", cwd=place.inside)
        await shells.write(shell.id, "a\n")
        assert await shell.wait_for("got a", PATIENCE_S)
        await shells.write(shell.id, b"b\n")
        assert await shell.wait_for("got b", PATIENCE_S)
        shell.close_stdin()
        assert await shell.wait(PATIENCE_S) is ShellStatus.COMPLETED


@check
async def a_shell_that_can_not_start_has_failed(place: Place) -> None:
    if place.tells_failures:
        async with shells_of(place) as shells:
            shell = await shells.start(["no-such-program-anywhere"], cwd=place.inside)
            assert (shell.state, bool(shell.error), bool(shell.read().data)) == (
                ShellStatus.FAILED,
                True,
                True,
            )


@check
async def the_end_of_the_session_is_that_of_its_shells(place: Place) -> None:
    async with shells_of(place) as shells:
        await shells.start(beating("session"), cwd=place.inside)
        await beats(place, "session")
    await still(place, "session")
    await shells.dispose()
