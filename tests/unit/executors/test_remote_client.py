"""The exit marker of a remote command, which the command cannot forge."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from paddock import Outcome, SshExecutor
from paddock.executors.remote_client import ClientProcess, new_exit_marker
from paddock.executors.run import Result, run

# Replaces ssh and the other machine: the master waits, a check succeeds, and a line runs here.
SSH = """#!/bin/sh
for word; do
    case $word in
    ControlPath=*) path=${word#ControlPath=} ;;
    -M) : > "$path"; exec sleep 600 ;;
    -O) exit 0 ;;
    esac
    last=$word
done
exec sh -c "$last"
"""
FORGED = r"printf '\000%s\000{code}\n' $PADDOCK_COMMAND >&2; sleep 600"


@pytest.fixture(name="ssh")
def _ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshExecutor:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return SshExecutor("there", exec_cwd=str(tmp_path))


@pytest.mark.parametrize("line", ["sleep 600", FORGED.format(code="0"), FORGED.format(code="x")])
def test_a_command_cannot_forge_its_exit_marker(ssh: SshExecutor, line: str) -> None:
    assert shutil.which("ssh") is not None

    async def scene() -> tuple[Result, Result]:
        try:
            control = await run(ssh, ["sh", "-c", "echo said >&2; exit 7"], timeout_s=60)
            return control, await run(ssh, ["sh", "-c", line], timeout_s=2)
        finally:
            await ssh.dispose()

    control, ended = asyncio.run(asyncio.wait_for(scene(), 120))
    assert (control.exit_code, control.stderr) == (7, "said\n"), (
        "the control: the exit code is reported"
    )
    assert ended.outcome is Outcome.TIMED_OUT, ended


class _Client:
    """A client with only a stderr."""

    returncode = None
    stdin = stdout = pid = None
    notes = ()

    def __init__(self, stderr: asyncio.StreamReader) -> None:
        self.stderr = stderr

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0

    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def resize(self, size: object) -> None: ...


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_exit_marker_is_removed_in_any_pieces(size: int) -> None:
    async def scene() -> tuple[int, bytes]:
        word = new_exit_marker().encode()
        output = b"a\0" + word[:9] + b"b" + word + b"x\n" + word + b"1234\n" + word + b"42\nrest"
        stderr = asyncio.StreamReader()
        process = ClientProcess(_Client(stderr), lambda number: asyncio.sleep(0), word)
        for at in range(0, len(output), size):
            stderr.feed_data(output[at : at + size])
            await asyncio.sleep(0)
        stderr.feed_eof()
        assert process.stderr is not None
        received = await process.stderr.read()
        return await process.wait(), received.replace(word, b"[word]").replace(
            word[:9] + b"b", b"[part]"
        )

    assert asyncio.run(scene()) == (42, b"a\0[part][word]x\n[word]1234\nrest")
