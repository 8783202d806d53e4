"""The host as it is: no isolation. A named place of its own, so that nobody gets it for want of
another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from paddock.core import process as core
from paddock.executors.exec_server import Attendant, AttendedProcess
from paddock.executors.interface import (
    CommandLine,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
    shell_here,
)


class HostExecutor:
    """Commands have the caller's environment and rights. ``env``: in its place. ``grace_s``: for
    what runs when this program is killed. ``shell``: the words before a line; bash where there is
    bash if None.
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
        self._attendant: Attendant | None = None

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> AttendedProcess:
        words, environment = checked_words(command, self._shell), checked_environment(env)
        if self._attendant is None or not self._attendant.alive:
            self._attendant = Attendant(
                lambda line: core.attend(line.fileno(), self._env, grace_s=self._grace_s),
                lambda: "",
            )
        where = self._cwd if cwd is None else os.path.join(self._cwd, cwd)
        return await self._attendant.spawn(words, environment, cwd=where, stdin=stdin, tty=tty)

    async def dispose(self) -> tuple[str, ...]:
        attendant, self._attendant = self._attendant, None
        if attendant is None or await attendant.close():
            return ()
        return (f"the exec server, process {attendant.pid}, does not end",)
