"""Another machine, by OpenSSH: one connection for all commands (a control master), which ends with
this process.

The data of a command goes through its stdin, not through arguments that other users could read: a
line that the remote shell decodes and runs. With a terminal it must be an argument.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from paddock.executors.exec_server import ExecServerProcess
from paddock.executors.host_program import HostClient
from paddock.executors.interface import (
    FIND_SHELL,
    CommandLine,
    Failure,
    NotStarted,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
    shell_words,
)
from paddock.executors.private_dir import make_private_dir
from paddock.executors.remote_client import (
    MARK,
    ClientProcess,
    new_exit_marker,
    new_mark,
    scripted,
    signalling,
    with_exit_report,
)
from paddock.executors.run import run
from paddock.shell.dialect import Dialect

_PASSED = ("PATH", "HOME", "SSH_AUTH_SOCK", "USER", "LOGNAME", "LANG")
_CONNECT_TIMEOUT_S = 30.0
_MAX_SESSIONS = 4  # of ten: some sessions end later there than here, and signals need their own
_DECODE = 'IFS= read -r given && eval "$(printf %s "$given" | base64 -d)"'


@dataclass(slots=True)
class _Master:
    """A connection. A server accepts ten sessions on each by default (MaxSessions)."""

    process: ExecServerProcess
    options: tuple[str, ...]
    commands: list[ClientProcess] = field(default_factory=list)

    def has_room(self) -> bool:
        self.commands = [one for one in self.commands if not one.gone]
        return self.process.returncode is None and len(self.commands) < _MAX_SESSIONS


class SshExecutor:
    """``destination`` and ``options`` as ssh takes them. ``exec_cwd``: the working directory on the
    other machine. No variable of this machine is sent: commands have the environment of the remote
    account, and ``env``.
    """

    confines_writes = False  # depends on the other machine

    def __init__(
        self,
        destination: str,
        *,
        exec_cwd: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        shell: Sequence[str] | None = None,
    ) -> None:
        self.name = f"ssh: {destination}"
        self._destination = destination
        self._exec_cwd = exec_cwd
        self._options = tuple(options)
        self._env = checked_environment(env)
        self._shell = None if shell is None else tuple(shell)
        self._client = HostClient(("ssh",), _PASSED)
        self._directory = make_private_dir("paddock-ssh-")
        self._session = new_mark()
        self._starting = asyncio.Lock()
        self._masters: list[_Master] = []

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> ClientProcess:
        if isinstance(command, str):
            await self.measure()
        words, given = checked_words(command, self._shell or ()), checked_environment(env)
        mark = new_mark(self._session)
        script = scripted(
            words, os.path.join(self._exec_cwd, cwd or ""), {**self._env, **given, MARK: mark}
        )
        exit_marker = new_exit_marker()
        async with self._starting:
            master = await self._free()
            argv = [
                *master.options,
                "-tt" if tty else "-T",
                self._destination,
                "--",
                script if tty else _DECODE,
            ]
            client = await self._client.spawn(argv, stdin=True, tty=tty)
            send_remote_signal = partial(self._signal, mark)
            process = ClientProcess(
                client, send_remote_signal, None if tty else exit_marker.encode()
            )
            master.commands.append(process)
        if not tty:
            assert client.stdin is not None
            client.stdin.write(
                base64.b64encode(
                    with_exit_report(script, exit_marker).encode("utf-8", "surrogateescape")
                )
                + b"\n"
            )
            if not stdin:
                client.stdin.close()
        return process

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self._shell or ("sh",))

    async def measure(self) -> None:
        """Finds out which shell the other machine has."""
        if self._shell is None:
            found = await run(self, ["sh", "-c", FIND_SHELL], timeout_s=_CONNECT_TIMEOUT_S)
            if not found.ok:
                output = found.error or found.stderr.strip() or "no shell was found"
                raise NotStarted(f"{self.name}: {output}", failure=Failure.UNAVAILABLE)
            self._shell = shell_words(found.stdout.strip())

    async def dispose(self) -> tuple[str, ...]:
        async with self._starting:
            commands = [one for master in self._masters for one in master.commands]
            for process in commands:
                await process.settled()
            if any(master.process.returncode is None for master in self._masters):
                # Also processes that outlived their command.
                await self._signal(self._session, signal.SIGKILL)
            for process in commands:
                process.close()
            for master in self._masters:
                master.process.close()
            self._masters.clear()
            left = await self._client.dispose()
            self._directory.cleanup()
            return left

    async def _signal(self, mark: str, number: int) -> bool:
        """On any connection: one session more than commands may use is reserved for this."""
        for master in self._masters:
            remote = ["-T", self._destination, "--", signalling(mark, number)]
            argv = [*master.options, *remote]
            if (
                master.process.returncode is None
                and (await run(self._client, argv, timeout_s=_CONNECT_TIMEOUT_S)).ok
            ):
                return True
        return False

    async def _free(self) -> _Master:
        for master in self._masters:
            if master.has_room():
                return master
        path = os.path.join(self._directory.name, str(len(self._masters)))
        options = (
            "-o",
            "BatchMode=yes",
            "-o",
            "LogLevel=ERROR",
            "-o",
            f"ControlPath={path}",
            *self._options,
        )
        master = _Master(await self._connect(path, options), options)
        self._masters.append(master)
        return master

    async def _connect(self, path: str, options: Sequence[str]) -> ExecServerProcess:
        master = await self._client.spawn([*options, "-M", "-N", "-T", self._destination])
        check = [*options, "-O", "check", self._destination]
        assert master.stderr is not None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                while master.returncode is None:
                    if os.path.exists(path) and (await run(self._client, check)).ok:
                        return master
                    await asyncio.sleep(0.02)
                output = (await master.stderr.read(4096)).decode(errors="replace").strip()
        except TimeoutError:
            output = f"no connection within {_CONNECT_TIMEOUT_S:.0f} s"
        except BaseException:
            master.close()
            raise
        master.close()
        raise NotStarted(
            f"{self.name}: {output or 'the connection failed'}", failure=Failure.UNAVAILABLE
        )
