"""A distribution of the Windows Subsystem for Linux, by ``wsl.exe -d DISTRO -- SHELL -c LINE``.

``wsl.exe --`` passes its line to the distribution's own shell, which parses it once more. So LINE
contains nothing that a shell would change between double quotes. The script goes through stdin, by
its exact size.

There is no sandbox: the user inside is root, the drives of Windows are mounted and the network is
open, unless the distribution was set up without them (distro.py). So commands here do not count as
confined.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Mapping
from functools import partial

from paddock.errors import UsageError
from paddock.executors.asyncio_process import PlainExecutor
from paddock.executors.interface import (
    KILL,
    CommandLine,
    Failure,
    NotStarted,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
    shell_words,
)
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
from paddock.text.path_compare import PathError, PathKind, folded, normal

DISTRO = "paddock-sandbox"
AUTOMOUNT = "/mnt"
# Variables that wsl.exe needs. WSLENV is not among them, because it would import variables of
# Windows.
_PASSED = (
    "SYSTEMROOT SYSTEMDRIVE WINDIR PATH USERPROFILE LOCALAPPDATA APPDATA TEMP TMP PROGRAMFILES "
    "PROGRAMDATA USERNAME"
)
_CALL_TIMEOUT_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SHELL = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9._/-]*")


class WslExecutor:
    """``workspace``: a directory of Windows, ``C:\\\\work``; commands run in it or below.
    ``automount``: the mount point of the drives (``automount.root`` in its wsl.conf). ``program``:
    another wsl.exe.
    """

    confines_writes = False

    def __init__(
        self,
        distro: str = DISTRO,
        *,
        workspace: str | os.PathLike[str] | None = None,
        shell: str = "sh",
        env: Mapping[str, str] | None = None,
        automount: str = AUTOMOUNT,
        program: str | None = None,
    ) -> None:
        self.name = f"wsl: {checked_distro(distro)}"
        self.distro = distro
        self._workspace = WslWorkspace(
            os.fspath(workspace) if workspace is not None else os.getcwd(), automount
        )
        self._shell = checked_shell(shell)
        self.dialect = dialect_of((self._shell,))
        self._env = checked_environment(env)
        self._program = program or wsl_program()
        self._client = PlainExecutor(cwd=os.path.abspath(os.sep), env=client_environment())
        self._session = new_mark()
        self._commands: set[ClientProcess] = set()
        self._checking = asyncio.Lock()
        self._found = False

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> ClientProcess:
        words, given = checked_words(command, shell_words(self._shell)), checked_environment(env)
        if tty is not None:
            raise NotStarted(
                f"{self.name}: this executor has no terminals", failure=Failure.UNAVAILABLE
            )
        where = self._workspace.inside(cwd)
        await self._check_distro()
        mark = new_mark(self._session)
        exit_marker = new_exit_marker()
        script = with_exit_report(
            scripted(words, where, {**self._env, **given, MARK: mark}), exit_marker
        )
        argv, sent = self._line(script)
        client = await self._client.spawn(argv, stdin=True)
        # There is no await from here to the end, so no cancellation separates a started process
        # from its owner.
        assert client.stdin is not None
        client.stdin.write(sent)
        if not stdin:
            client.stdin.close()
        process = ClientProcess(client, partial(self._signal, mark), exit_marker.encode())
        self._commands = {one for one in self._commands if not one.gone} | {process}
        return process

    async def dispose(self) -> tuple[str, ...]:
        commands, self._commands = self._commands, set()
        for process in commands:
            await process.settled()
        left: tuple[str, ...] = ()
        if self._found:
            self._found = False
            # Also processes that outlived their command.
            if not await self._signal(self._session, KILL):
                left = (f"{self.name}: cannot end the processes that still run there",)
        for process in commands:
            process.close()
        return (*left, *await self._client.dispose())

    def _line(self, script: str) -> tuple[list[str], bytes]:
        return in_distro(self.distro, self._shell, script, program=self._program)

    async def _signal(self, mark: str, number: int) -> bool:
        argv, sent = self._line(signalling(mark, number))
        return (await run(self._client, argv, stdin=sent, timeout_s=_CALL_TIMEOUT_S)).ok

    async def _check_distro(self) -> None:
        """wsl.exe reports a missing distribution like a failed command, so its existence is checked
        first.
        """
        async with self._checking:
            if self._found:
                return
            listed = await run(
                self._client, [self._program, "--list", "--quiet"], timeout_s=_CALL_TIMEOUT_S
            )
            if listed.error is not None:
                raise NotStarted(
                    f"{self.name}: {listed.error}",
                    failure=Failure.UNAVAILABLE,
                    hint="type `wsl --install` to install WSL",
                )
            names = decoded(bytes(listed.output["stdout"])).splitlines()
            if self.distro.casefold() not in [name.strip().casefold() for name in names]:
                raise NotStarted(
                    f"{self.name}: this distribution does not exist",
                    failure=Failure.UNAVAILABLE,
                    hint="type `paddock sandbox setup` to create it",
                )
            self._found = True


class WslWorkspace:
    """A directory of Windows as the distribution sees it, and the paths below it."""

    def __init__(self, windows: str, automount: str = AUTOMOUNT) -> None:
        try:
            kind, path = normal(windows, cwd="/", home="/", platform="win32")
        except PathError as error:
            raise UsageError(f"{windows}: {error}") from None
        if kind is not PathKind.DRIVE:
            raise UsageError(
                f"{windows}: a workspace for wsl must be on a drive",
                hint="give a path like C:\\work, not a share or a Linux path",
            )
        self.windows = windows
        self._automount = "/" + automount.strip("/")
        self._path = path
        self.linux = self._mounted(path)

    def inside(self, cwd: str | None) -> str:
        """The working directory for ``cwd``: a path of Windows or of the distribution, or one
        relative to the workspace. Raises NotStarted if it is outside.
        """
        if cwd is None:
            return self.linux
        try:
            kind, path = normal(cwd, cwd=self._path, home="/", platform="win32")
        except PathError as error:
            raise self._outside(cwd, str(error)) from None
        if kind is PathKind.DRIVE:
            if not _below(folded(path, "win32"), folded(self._path, "win32")):
                raise self._outside(cwd)
            return self._mounted(path)
        # No name on a drive of Windows contains a backslash.
        written = posixpath.normpath(posixpath.join(self.linux, cwd.replace("\\", "/")))
        if kind is PathKind.UNC or not _below(written, self.linux):
            raise self._outside(cwd)
        return written

    def _mounted(self, path: str) -> str:
        """/c:/A b → /mnt/c/A b"""
        return posixpath.normpath(f"{self._automount}/{path[1]}/{path[4:]}")

    def _outside(self, cwd: str, why: str = "is outside the workspace") -> NotStarted:
        return NotStarted(f"{cwd}: {why} {self.windows}", failure=Failure.NO_DIRECTORY)


def in_distro(
    distro: str, shell: str, script: str, *, program: str, user: str | None = None
) -> tuple[list[str], bytes]:
    """The command that starts a script there, and the beginning of its stdin. A truncated script
    does not run, because it is one compound command.
    """
    sent = f"exec 3<&-; {{ {script}\n}}\n".encode("utf-8", "surrogateescape")
    line = (
        f"{{ dd bs=1 count={len(sent)} 2>/dev/null | {shell} /proc/self/fd/3 3<&0 <&4 4<&-; }} 4<&0"
    )
    user_option = [] if user is None else ["-u", user]
    return [program, "-d", distro, *user_option, "--", shell, "-c", line], sent


def decoded(data: bytes) -> str:
    """wsl.exe writes UTF-16 without a byte order mark, unless it obeys WSL_UTF8."""
    return data.decode("utf-16-le" if b"\0" in data else "utf-8", "replace").lstrip("\ufeff")


def wsl_program() -> str:
    """The program of Windows itself, never one in the current directory."""
    if sys.platform == "win32":
        return os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "wsl.exe")
    return shutil.which("wsl.exe") or "wsl.exe"


def client_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED.split() if name in os.environ} | {
        "WSL_UTF8": "1"
    }


def checked_distro(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"not a name for a distribution: {name!r}", hint="use letters, digits, '.', '_' and '-'"
        )
    return name


def checked_shell(shell: str) -> str:
    if not _SHELL.fullmatch(shell):
        raise UsageError(
            f"not a shell: {shell!r}", hint="give one word, such as sh, bash or /bin/zsh"
        )
    return shell


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
