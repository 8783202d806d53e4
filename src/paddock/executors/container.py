"""A container of docker or podman for each worktree, which is mounted into it.

Its first process reads a pipe that we hold: when we end, however, it does, and the engine removes
the container. If that is killed too, the next of us does (orphan_containers.py). Commands are
``exec``s in it, as the caller's user, without capabilities, with an environment made of what is
given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence

from paddock.executors.exec_server import AttendedProcess
from paddock.executors.host import HostExecutor
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
from paddock.executors.orphan_containers import LABEL, owner, remove_left
from paddock.executors.remote_client import MARK, ClientProcess, new_mark, signalling
from paddock.executors.run import run
from paddock.executors.workspace_covers import HeldNames, held_names, volumes
from paddock.policy import Request
from paddock.shell.dialect import Dialect

ENGINES = ("podman", "docker")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an engine's client needs of the caller's environment to find its engine.
_PASSED = (
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "TMPDIR",
)
# They mean nothing to a client: the mark, and what a shell keeps for itself and would not set.
_UNOBEYED = frozenset(
    (
        MARK, "_", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "DIRSTACK", "EUID", "FUNCNAME", "GROUPS", "LINENO", "OPTIND",
        "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "UID",
    )
)  # fmt: skip
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_START_S = 60.0
_TO_END_S = 5.0
_TO_REMOVE_S = 30


class ContainerExecutor:
    """``engine_options`` go before the engine's verb (``--root``, ``--runtime`` …), ``options``
    into ``run``. The network is none unless ``network`` names one: an engine's is not filtered.
    ``request``: the profile or policy whose protected and denied names are held in the workspace,
    as far as they are there when the container starts.

    ``confines_writes``: the container is up, and those names are held.
    """

    def __init__(
        self,
        image: str,
        *,
        workspace: str | os.PathLike[str],
        exec_cwd: str = "/work",
        engine: str | None = None,
        engine_options: Sequence[str] = (),
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        network: str = "none",
        memory_mb: int | None = 4096,
        processes: int | None = 1024,
        shell: Sequence[str] | None = None,
        request: Request | None = None,
    ) -> None:
        found = engine or next((name for name in ENGINES if shutil.which(name)), ENGINES[0])
        self.name = f"container: {os.path.basename(found)}"
        self.container = f"paddock-{secrets.token_hex(6)}"
        self._engine = (found, *engine_options)
        self._image = image
        self._workspace = os.path.realpath(workspace)
        self._exec_cwd = exec_cwd
        self._options = tuple(options)
        self._env = {"PATH": PATH, "HOME": exec_cwd, **checked_environment(env)}
        self._network = network
        self._limits = [*_limit("--memory", memory_mb, "m"), *_limit("--pids-limit", processes, "")]
        self._shell = None if shell is None else tuple(shell)
        client = {name: os.environ[name] for name in _PASSED if name in os.environ}
        # Its engine removes the container when we are killed, by processes that come from its
        # client.
        self._client = HostExecutor(cwd="/", env=client, grace_s=_TO_REMOVE_S)
        self._request = request or Request(profiles=("ai-agent",), command="/bin/sh")
        self._held: HeldNames | None = None
        self._empty: tempfile.TemporaryDirectory[str] | None = None
        self._starting = asyncio.Lock()
        self._first: AttendedProcess | None = None
        self._sweeping: asyncio.Task[tuple[str, ...]] | None = None
        self._commands: set[ClientProcess] = set()

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> ClientProcess:
        await self._started()
        words = checked_words(command, self._shell or ())
        mark = new_mark()
        environment = {**self._env, **checked_environment(env), MARK: mark}
        # By name: what stands in an argument, every user of the machine can read.
        spelled = {name: value for name, value in environment.items() if name in _PASSED}
        disguises, words = _disguised([name for name in environment if name not in spelled], words)
        theirs = {
            disguises.get(name, name): value
            for name, value in environment.items()
            if name not in spelled
        }
        given = [*(f"{name}={value}" for name, value in spelled.items()), *theirs]
        names = [word for one in given for word in ("--env", one)]
        flags = [*(["--interactive"] if stdin or tty else []), *(["--tty"] if tty else [])]
        where = os.path.join(self._exec_cwd, cwd or "")
        argv = [
            *self._engine,
            "exec",
            *flags,
            "--workdir",
            where.rstrip("/") or "/",
            *names,
            self.container,
            *words,
        ]
        client = await self._client.spawn(argv, env=theirs, stdin=stdin, tty=tty)
        process = ClientProcess(
            client, lambda number: self._exec(signalling(mark, number)), notes=self._notes
        )
        self._commands = {one for one in self._commands if one.returncode is None} | {process}
        return process

    @property
    def confines_writes(self) -> bool:
        return self._held is not None and self._held.unheld is None

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self._shell or ("sh",))

    @property
    def _notes(self) -> tuple[str, ...]:
        return () if self._held is None else (self._held.note,)

    async def measure(self) -> None:
        await self._started()

    async def dispose(self) -> tuple[str, ...]:
        """Never raises: what is left is said."""
        async with self._starting:
            first, self._first = self._first, None
            await self.swept()
            for process in self._commands:
                await process.settled()
            self._commands.clear()
            left: tuple[str, ...] = ()
            if first is not None:
                # By itself, with its pipe: engines are slow to kill what does not listen.
                assert first.stdin is not None
                first.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(first.wait(), _TO_END_S)
                removed = await run(
                    self._client,
                    [*self._engine, "rm", "--force", self.container],
                    timeout_s=_START_S,
                )
                gone = removed.ok or "no such container" in removed.stderr.lower()
                left = (
                    ()
                    if gone
                    else (f"container {self.container}: {removed.stderr.strip() or removed.error}",)
                )
                left = (*left, *await asyncio.to_thread(self._appeared))
            if self._empty is not None:
                self._empty.cleanup()
                self._empty = None
            return (*left, *await self._client.dispose())

    def _appeared(self) -> tuple[str, ...]:
        """Names that nothing held, because they were not there at the start."""
        if self._held is None or self._held.unheld is not None:
            return ()
        try:
            now = held_names(self._request, self._workspace, self._exec_cwd, to_run=False)
        except NotStarted as error:
            return (
                f"{self._workspace}: cannot find the protected names that appeared: "
                f"{error.message}",
            )
        new = sorted(now.paths - self._held.paths)
        links = sorted(now.links - self._held.links)
        return (
            *(f"{path}: appeared during the session, and nothing protected it" for path in new),
            *(
                f"{path}: this link to {said} appeared in a git directory, and git writes through "
                "it; remove it before git runs"
                for path, said in links
            ),
        )

    async def swept(self) -> tuple[str, ...]:
        """Until what dead owners left is removed: its names."""
        return () if self._sweeping is None else await asyncio.shield(self._sweeping)

    async def _exec(self, line: str) -> bool:
        return (
            await run(
                self._client,
                [*self._engine, "exec", self.container, "sh", "-c", line],
                timeout_s=_START_S,
            )
        ).ok

    async def _started(self) -> None:
        async with self._starting:
            if self._first is not None and self._first.returncode is None:
                return
            if self._first is not None:
                raise NotStarted(
                    f"container {self.container} has ended", failure=Failure.UNAVAILABLE
                )
            self._first = await self._start()
            self._sweeping = asyncio.create_task(remove_left(self._client, self._engine))

    async def _start(self) -> AttendedProcess:
        held = await asyncio.to_thread(
            held_names, self._request, self._workspace, self._exec_cwd, to_run=True
        )
        if self._empty is None:
            self._empty = tempfile.TemporaryDirectory(prefix="paddock-empty-")
        covered = [
            word for volume in volumes(held, self._empty.name) for word in ("--volume", volume)
        ]
        user = f"{os.getuid()}:{os.getgid()}"
        argv = [*self._engine, "run", "--rm", "--interactive", "--name", self.container]
        argv += ["--label", f"{LABEL}={owner()}", "--user", user, "--cap-drop", "ALL"]
        argv += ["--security-opt", "no-new-privileges", "--network", self._network, *self._limits]
        if os.path.basename(self._engine[0]) == "podman" and os.getuid() != 0:
            argv += ["--userns", "keep-id"]  # else the caller's files belong to root inside
        argv += [
            "--volume",
            f"{self._workspace}:{self._exec_cwd}",
            *covered,
            "--workdir",
            self._exec_cwd,
            *self._options,
        ]
        # It says a word when it is there, and then waits for the end of its input. A shell, which
        # buries the orphans.
        argv += [self._image, "sh", "-c", f"echo ready `{FIND_SHELL}`; cat >/dev/null; exit"]
        first = await self._client.spawn(argv, stdin=True)
        assert first.stdout is not None
        assert first.stderr is not None
        try:
            async with asyncio.timeout(_START_S):
                ready = await first.stdout.readline()
                if ready.startswith(b"ready"):
                    self._held = held
                    found = ready.decode(errors="replace").split()
                    self._shell = self._shell or shell_words(found[1] if len(found) == 2 else "sh")
                    return first
                said = (await first.stderr.read(4096)).decode(errors="replace").strip()
        except TimeoutError:
            said = f"it did not answer for {_START_S:.0f} s"
        except BaseException:
            first.close()
            raise
        first.close()
        raise NotStarted(
            f"{self.name} does not start: {said or 'no reason was given'}",
            failure=Failure.UNAVAILABLE,
            hint="check that the engine runs and that the image exists",
        )


def _disguised(names: Sequence[str], words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The engine's client obeys variables that are meant for the command: where its configuration
    lies, what its loader loads. So it gets their values by names that mean nothing to it, and a
    shell in the container gives them their own.
    """
    hidden = [name for name in names if name not in _UNOBEYED]
    if not hidden:
        return {}, words
    word = secrets.token_hex(4).upper()
    disguises = {name: f"PADDOCK_{word}_{number}" for number, name in enumerate(hidden)}
    line = "".join(
        f'export {name}="${disguise}"; unset {disguise}; '
        for name, disguise in disguises.items()
        if _IDENTIFIER.fullmatch(name)
    )
    # No shell has a variable of such a name; the program `env` gives it all the same.
    others = {
        name: disguise for name, disguise in disguises.items() if not _IDENTIFIER.fullmatch(name)
    }
    # Options of env stand before its assignments.
    options = "".join(f" -u {disguise}" for disguise in others.values())
    assigned = "".join(f' {shlex.quote(name)}"=${disguise}"' for name, disguise in others.items())
    return disguises, [
        "sh",
        "-c",
        f'{line}exec{f" env{options}{assigned}" if others else ""} "$@"',
        "sh",
        *words,
    ]


def _limit(option: str, value: int | None, unit: str) -> list[str]:
    return [] if value is None else [option, f"{value}{unit}"]
