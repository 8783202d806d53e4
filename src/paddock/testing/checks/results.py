"""The result and the output of a command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile

from paddock.executors.interface import NotStarted
from paddock.executors.run import Outcome
from paddock.testing.executor_under_test import (
    ExecutorUnderTest,
    beating,
    check,
    refused,
    still,
    until,
)


@check
async def success_is_0(subject: ExecutorUnderTest) -> None:
    result = await subject.run("true")
    assert (result.outcome, result.exit_code, result.ok) == (Outcome.EXITED, 0, True), result


@check
async def every_exit_code_comes_back(subject: ExecutorUnderTest) -> None:
    for code in (1, 2, 7, 42, 100):
        result = await subject.run(f"exit {code}")
        assert (result.outcome, result.exit_code, result.ok) == (Outcome.EXITED, code, False), (
            result
        )


@check
async def death_by_a_signal_is_not_success(subject: ExecutorUnderTest) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        result = await subject.run(["sh", "-c", f"kill -{int(number)} $$; sleep 20"])
        assert (result.outcome, result.signal, result.exit_code) == (
            Outcome.KILLED,
            number,
            128 + number,
        ), result


@check
async def a_missing_program_is_127(subject: ExecutorUnderTest) -> None:
    result = await subject.run(["no-such-program-anywhere"])
    assert result.exit_code == 127, result
    assert not subject.tells_failures or (result.outcome is Outcome.FAILED and result.error), result


@check
async def a_line_of_shell_with_an_unknown_program_is_127(subject: ExecutorUnderTest) -> None:
    result = await subject.run("no-such-program-anywhere")
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 127), result
    assert "no-such-program-anywhere" in result.stderr, result


@check
async def a_file_that_is_no_program_is_126(subject: ExecutorUnderTest) -> None:
    (subject.workspace / "plain").write_text("not for executing\n")
    result = await subject.run([f"{subject.inside}/plain"])
    assert result.exit_code == 126, result


@check
async def an_empty_command_is_refused(subject: ExecutorUnderTest) -> None:
    for command in ("", [], [""]):
        with contextlib.suppress(NotStarted):
            process = await subject.executor.spawn(command)
            assert command == "", f"{command!r} was started"
            await process.wait()


@check
async def a_nul_is_refused(subject: ExecutorUnderTest) -> None:
    with refused():
        await subject.executor.spawn(["echo", "a\0b"])


@check
async def stdout_and_stderr_are_apart(subject: ExecutorUnderTest) -> None:
    result = await subject.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n"), result


@check
async def no_output_is_empty(subject: ExecutorUnderTest) -> None:
    result = await subject.run("true")
    assert (result.stdout, result.stderr, result.truncated) == ("", "", False), result


@check
async def a_last_line_without_its_end_arrives(subject: ExecutorUnderTest) -> None:
    assert (await subject.run("printf abc")).stdout == "abc"


@check
async def the_order_of_a_stream_is_kept(subject: ExecutorUnderTest) -> None:
    result = await subject.run("i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); done")
    assert result.stdout.split() == [str(number) for number in range(500)]


@check
async def every_byte_arrives(subject: ExecutorUnderTest) -> None:
    data = bytes(range(256)) * 64
    (subject.workspace / "bytes").write_bytes(data)
    result = await subject.run(["cat", f"{subject.inside}/bytes"])
    assert bytes(result.output["stdout"]) == data


@check
async def output_that_is_not_utf8_becomes_text(subject: ExecutorUnderTest) -> None:
    result = await subject.run(r"printf 'a\377b'")
    assert result.stdout == "a\ufffdb", result


@check
async def ten_mebibytes_arrive(subject: ExecutorUnderTest) -> None:
    result = await subject.run("head -c 10485760 /dev/zero", cap=32 * 1024 * 1024)
    assert bytes(result.output["stdout"]) == b"\0" * 10485760
    assert not result.truncated


@check
async def output_over_the_cap_keeps_beginning_and_end(subject: ExecutorUnderTest) -> None:
    result = await subject.run(
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
async def the_whole_output_can_be_spooled(subject: ExecutorUnderTest) -> None:
    with tempfile.TemporaryDirectory() as directory:
        result = await subject.run(
            "head -c 300000 /dev/zero; echo err >&2", cap=1000, spool=directory
        )
        assert result.truncated
        assert result.spooled["stdout"].read_bytes() == b"\0" * 300000
        assert result.spooled["stderr"].read_bytes() == b"err\n"


@check
async def output_is_streamed_while_it_runs(subject: ExecutorUnderTest) -> None:
    heard = asyncio.Event()

    def hear(stream: str, chunk: bytes) -> None:
        heard.set()
        (subject.workspace / "go").touch()

    result = await subject.run(f"echo first; {until(subject, 'go')}; echo second", on_output=hear)
    assert heard.is_set()
    assert result.stdout == "first\nsecond\n", result


@check
async def a_callback_that_fails_ends_the_command(subject: ExecutorUnderTest) -> None:
    def fail(stream: str, chunk: bytes) -> None:
        raise LookupError("of the caller")

    try:
        await subject.run(f"echo word; {beating('callback')}", on_output=fail)
    except LookupError:
        await still(subject, "callback")
    else:
        raise AssertionError("the error was swallowed")
