"""The result and the output of a command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile

from paddock.executors.interface import NotStarted
from paddock.executors.run import Outcome
from paddock.testing.place import Place, beating, check, refused, still, until


@check
async def success_is_0(place: Place) -> None:
    result = await place.run("true")
    assert (result.outcome, result.exit_code, result.ok) == (Outcome.EXITED, 0, True), result


@check
async def every_exit_code_comes_back(place: Place) -> None:
    for code in (1, 2, 7, 42, 100):
        result = await place.run(f"exit {code}")
        assert (result.outcome, result.exit_code, result.ok) == (Outcome.EXITED, code, False), (
            result
        )


@check
async def death_by_a_signal_is_no_success(place: Place) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        result = await place.run(["sh", "-c", f"kill -{int(number)} $$; sleep 20"])
        assert (result.outcome, result.signal, result.exit_code) == (
            Outcome.KILLED,
            number,
            128 + number,
        ), result


@check
async def a_program_that_is_not_there_is_127(place: Place) -> None:
    result = await place.run(["no-such-program-anywhere"])
    assert result.exit_code == 127, result
    assert not place.tells_failures or (result.outcome is Outcome.FAILED and result.error), result


@check
async def a_line_of_shell_with_an_unknown_program_is_127(place: Place) -> None:
    result = await place.run("no-such-program-anywhere")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 127), result
    assert "no-such-program-anywhere" in result.stderr, result


@check
async def a_file_that_is_no_program_is_126(place: Place) -> None:
    (place.workspace / "plain").write_text("not for executing\n")
    result = await place.run([f"{place.inside}/plain"])
    assert result.exit_code == 126, result


@check
async def an_empty_command_is_refused(place: Place) -> None:
    for command in ("", [], [""]):
        with contextlib.suppress(NotStarted):
            process = await place.executor.spawn(command)
            assert command == "", f"{command!r} was started"
            await process.wait()


@check
async def a_nul_is_refused(place: Place) -> None:
    with refused():
        await place.executor.spawn(["echo", "a\0b"])


@check
async def stdout_and_stderr_are_apart(place: Place) -> None:
    result = await place.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n"), result


@check
async def no_output_is_empty(place: Place) -> None:
    result = await place.run("true")
    assert (result.stdout, result.stderr, result.truncated) == ("", "", False), result


@check
async def a_last_line_without_its_end_arrives(place: Place) -> None:
    assert (await place.run("printf abc")).stdout == "abc"


@check
async def the_order_of_a_stream_is_kept(place: Place) -> None:
    result = await place.run("i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done")
    assert result.stdout.split() == [str(number) for number in range(500)]


@check
async def every_byte_arrives(place: Place) -> None:
    data = bytes(range(256)) * 64
    (place.workspace / "bytes").write_bytes(data)
    result = await place.run(["cat", f"{place.inside}/bytes"])
    assert bytes(result.output["stdout"]) == data


@check
async def what_is_not_utf8_is_text_all_the_same(place: Place) -> None:
    result = await place.run(r"printf 'a\377b'")
    assert result.stdout == "a\ufffdb", result


@check
async def ten_mebibytes_arrive(place: Place) -> None:
    result = await place.run("head -c 10485760 /dev/zero", cap=32 * 1024 * 1024)
    assert bytes(result.output["stdout"]) == b"\0" * 10485760
    assert not result.truncated


@check
async def more_than_the_cap_keeps_beginning_and_end(place: Place) -> None:
    result = await place.run(
        "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last", cap=10_000
    )
    captured = result.output["stdout"]
    assert result.truncated, result.outcome
    assert captured.head.startswith(b"first\n"), captured.head[:20]
    assert captured.tail.endswith(b"last\n"), captured.tail[-20:]
    assert len(captured.head) + len(captured.tail) + captured.dropped == 3000000 + 12, (
        captured.dropped
    )
    assert str(captured.dropped) in captured.text


@check
async def all_of_it_can_be_kept_in_a_file(place: Place) -> None:
    with tempfile.TemporaryDirectory() as directory:
        result = await place.run(
            "head -c 300000 /dev/zero; echo err >&2", cap=1000, spool=directory
        )
        assert result.truncated
        assert result.spooled["stdout"].read_bytes() == b"\0" * 300000
        assert result.spooled["stderr"].read_bytes() == b"err\n"


@check
async def output_is_streamed_while_it_runs(place: Place) -> None:
    heard = asyncio.Event()

    def hear(stream: str, chunk: bytes) -> None:
        heard.set()
        (place.workspace / "go").touch()

    result = await place.run(f"echo first; {until(place, 'go')}; echo second", on_output=hear)
    assert heard.is_set()
    assert result.stdout == "first\nsecond\n", result


@check
async def a_callback_that_fails_ends_the_command(place: Place) -> None:
    def fail(stream: str, chunk: bytes) -> None:
        raise LookupError("of the caller")

    try:
        await place.run(f"echo word; {beating('callback')}", on_output=fail)
    except LookupError:
        await still(place, "callback")
    else:
        raise AssertionError("the error was swallowed")
