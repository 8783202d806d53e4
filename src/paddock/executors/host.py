"""The host without isolation. It has its own name, so that it is never chosen as a fallback."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paddock.core import process as core
from paddock.executors.exec_server import ExecServer, ExecServerProcess
from paddock.executors.interface import (
    CommandLine,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
    shell_here,
)


class HostExecutor:
    """Commands have the caller's environment and rights. ``env`` replaces the environment.
    ``grace_s``: time for running commands when this program is killed. ``shell``: the words before
    a line of shell; None: bash if it exists.
    """

    name = "host: no isolation"
    confines_writes = False

    def __init__(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        grace_s: int = 0,
        shell: Sequence[str] | None = None,
    ) -> None:
        self._cwd = os.path.abspath(cwd) if cwd is not None else os.getcwd()
        self._env = dict(os.environ) if env is None else checked_environment(env)
        self._grace_s = grace_s
        self._shell = shell_here() if shell is None else tuple(shell)
        self.dialect = dialect_of(self._shell)
        self._exec_server: ExecServer | None = None

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> ExecServerProcess:
        words, environment = checked_words(command, self._shell), checked_environment(env)
        if self._exec_server is None or not self._exec_server.alive:
            self._exec_server = ExecServer(
                lambda line: core.start_exec_server(
                    line.fileno(), self._env, grace_s=self._grace_s
                ),
                lambda: "",
            )
        where = self._cwd if cwd is None else os.path.join(self._cwd, cwd)
        return await self._exec_server.spawn(words, environment, cwd=where, stdin=stdin, tty=tty)

    async def dispose(self) -> tuple[str, ...]:
        exec_server, self._exec_server = self._exec_server, None
        if exec_server is None or await exec_server.close():
            return ()
        return (f"the exec server, process {exec_server.pid}, does not end",)
