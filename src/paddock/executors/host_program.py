"""Programs that an executor starts outside of the sandbox: the client of a container engine, ssh.

A sandboxed command may have put a program into a directory of PATH, also while the executor is in
use. So the program is searched before each start. Only a program that no sandboxed command could
write is started, and it gets an environment without such paths.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paddock.executors.exec_server import ExecServerProcess
from paddock.executors.host import HostExecutor
from paddock.executors.interface import CommandLine, Failure, NotStarted, Size
from paddock.policy import Origin
from paddock.policy.trust import host_commands
from paddock.text.path_walk import follow


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """``refusal``: why it must not be started, or that it does not exist."""

    path: str
    environ: Mapping[str, str]
    refusal: NotStarted | None = None


class HostClient:
    """Starts one program of the host, with the arguments that it gets as a command. ``names``: the
    first of these programs; it is chosen once. ``passed``: its variables. ``writable``: directories
    that commands of this executor can write.
    """

    confines_writes = False

    def __init__(
        self,
        names: Sequence[str],
        passed: Sequence[str],
        *,
        writable: Sequence[str] = (),
        grace_s: int = 0,
    ) -> None:
        self._passed, self._writable = tuple(passed), tuple(writable)
        found = find_host_program(names, passed, writable)
        self.name = os.path.basename(found.path)
        chosen = [name for name in names if os.path.basename(name) == self.name]
        self._names = (chosen or names)[:1]
        self._host = HostExecutor(cwd="/", env={}, grace_s=grace_s)

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> ExecServerProcess:
        program = await asyncio.to_thread(
            find_host_program, self._names, self._passed, self._writable
        )
        if program.refusal is not None:
            raise program.refusal
        argv = [program.path, *command]
        given = {**program.environ, **(env or {})}
        return await self._host.spawn(argv, cwd=cwd, env=given, stdin=stdin, tty=tty)

    async def dispose(self) -> tuple[str, ...]:
        return await self._host.dispose()


def find_host_program(
    names: Sequence[str], passed: Sequence[str], writable: Sequence[str] = ()
) -> HostProgram:
    """The first of these programs, with the variables ``passed``."""
    history = Origin.of_process().writable_history.including(map(follow, writable))
    refusal = NotStarted(f"{names[0]}: no such program", failure=Failure.NOT_FOUND)
    for name in names:
        try:
            found = host_commands.command([name], os.environ, history)
        except host_commands.Planted as planted:
            refusal = NotStarted(
                f"{name} is not started: a sandboxed command could have written {planted}",
                failure=Failure.DENIED,
            )
        except OSError:
            continue
        else:
            environ = {name: found.environ[name] for name in passed if name in found.environ}
            return HostProgram(path=found.argv[0], environ=environ)
    return HostProgram(path=names[0], environ={}, refusal=refusal)
