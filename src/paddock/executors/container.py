"""One docker or podman container for each worktree, which is mounted into it.

The first process of the container reads from a pipe that this process holds. So the container ends
with this process, however that ends, and the engine removes it. If the engine's helper is killed
too, the next start removes the container (orphan_containers.py). Commands are ``exec``s in the
container, with the caller's user, without capabilities, and with an environment built only from the
given variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Mapping, Sequence

from paddock.executors.container_covers import (
    CoveredNames,
    check_mounts,
    covered_names,
    identity_at,
    volumes,
)
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
from paddock.executors.orphan_containers import LABEL, owner, remove_left
from paddock.executors.remote_client import MARK, ClientProcess, new_mark, signalling
from paddock.executors.run import run
from paddock.policy import Origin, Request
from paddock.policy.trust.workspace_path import resolved_workspace
from paddock.shell.dialect import Dialect

ENGINES = ("podman", "docker")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that the client of an engine needs to find its engine.
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
# Variables that do not affect the client: the mark, and variables that a shell keeps for itself and
# would not set.
_UNOBEYED = frozenset(
    (
        MARK, "_", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "DIRSTACK", "EUID", "FUNCNAME", "GROUPS",
        "LINENO", "OPTIND",
        "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "UID",
    )
)  # fmt: skip
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_REMOVE_TIMEOUT_S = 30


class ContainerExecutor:
    """``engine_options`` go before the engine's verb (``--root``, ``--runtime`` …), ``options``
    into ``run``. There is no network unless ``network`` names one, because the network of an engine
    is not filtered.

    ``request``: the profile or policy whose protected and denied names are covered in the
    workspace, if they exist when the container starts.

    ``confines_writes``: the container runs, and those names are covered.
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
        self._workspace = resolved_workspace(workspace, Origin.of_process().writable_history)
        # If this process is killed, the engine removes the container by child processes of its
        # client.
        self._client = HostClient(
            ENGINES if engine is None else (engine,),
            _PASSED,
            writable=(self._workspace,),
            grace_s=_REMOVE_TIMEOUT_S,
        )
        self.name = f"container: {self._client.name}"
        self.container = f"paddock-{secrets.token_hex(6)}"
        self._engine = tuple(engine_options)
        self._image = image
        self._exec_cwd = exec_cwd
        self._options = tuple(options)
        self._env = {"PATH": PATH, "HOME": exec_cwd, **checked_environment(env)}
        self._network = network
        self._limits = [*_limit("--memory", memory_mb, "m"), *_limit("--pids-limit", processes, "")]
        self._shell = None if shell is None else tuple(shell)
        self._request = request or Request(profiles=("ai-agent",), command="/bin/sh")
        self._covered: CoveredNames | None = None
        self._empty: tempfile.TemporaryDirectory[str] | None = None
        self._starting = asyncio.Lock()
        self._first: ExecServerProcess | None = None
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
        # Passed by name, because every user of the machine can read arguments.
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
        return self._covered is not None and self._covered.uncovered is None

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self._shell or ("sh",))

    @property
    def _notes(self) -> tuple[str, ...]:
        return () if self._covered is None else (self._covered.note,)

    async def measure(self) -> None:
        await self._started()

    async def dispose(self) -> tuple[str, ...]:
        """Never raises: the result names what could not be removed."""
        async with self._starting:
            first, self._first = self._first, None
            await self.swept()
            for process in self._commands:
                await process.settled()
            self._commands.clear()
            left: tuple[str, ...] = ()
            if first is not None:
                # The container ends with its pipe, because engines are slow to kill a process that
                # ignores signals.
                assert first.stdin is not None
                first.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(first.wait(), _END_TIMEOUT_S)
                removed = await run(
                    self._client,
                    [*self._engine, "rm", "--force", self.container],
                    timeout_s=_START_TIMEOUT_S,
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
        """Names that nothing held, or that have become something else."""
        if self._covered is None:
            return ()
        try:
            now = covered_names(self._request, self._workspace, self._exec_cwd, to_run=False)
        except NotStarted as error:
            return (
                f"{self._workspace}: cannot find the protected names that appeared: "
                f"{error.message}",
            )
        before = self._covered.objects
        new = sorted(now.objects.keys() - before.keys())
        replaced = sorted(path for path, known in before.items() if identity_at(path) != known)
        links = sorted(now.links - self._covered.links)
        gone = sorted(self._covered.links - now.links)
        return (
            *(f"{path}: appeared during the session, and nothing protected it" for path in new),
            *(
                f"{path}: it was replaced or removed during the session: look at it"
                for path in replaced
            ),
            *(
                f"{path}: this link to {said} was replaced or removed: look at it"
                for path, said in gone
            ),
            *(
                f"{path}: this link to {output} appeared in a git directory, and git writes "
                "through it; remove it before git runs"
                for path, output in links
            ),
        )

    async def swept(self) -> tuple[str, ...]:
        """Waits until the containers of dead owners are removed, and returns their names."""
        return () if self._sweeping is None else await asyncio.shield(self._sweeping)

    async def _exec(self, line: str) -> bool:
        return (
            await run(
                self._client,
                [*self._engine, "exec", self.container, "sh", "-c", line],
                timeout_s=_START_TIMEOUT_S,
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

    async def _start(self) -> ExecServerProcess:
        held = await asyncio.to_thread(
            covered_names, self._request, self._workspace, self._exec_cwd, to_run=True
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
        if self._client.name == "podman" and os.getuid() != 0:
            argv += ["--userns", "keep-id"]  # otherwise root owns the caller's files inside
        argv += [
            "--volume",
            f"{self._workspace}:{self._exec_cwd}",
            *covered,
            "--workdir",
            self._exec_cwd,
            *self._options,
        ]
        # A shell, because it reaps orphans. It prints one line when it has started and then reads
        # until the end of its input.
        argv += [self._image, "sh", "-c", f"echo ready `{FIND_SHELL}`; cat >/dev/null; exit"]
        first = await self._client.spawn(argv, stdin=True)
        assert first.stdout is not None
        assert first.stderr is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                ready = await first.stdout.readline()
                if ready.startswith(b"ready"):
                    await self._check_mounts(held)
                    self._covered = held
                    found = ready.decode(errors="replace").split()
                    self._shell = self._shell or shell_words(found[1] if len(found) == 2 else "sh")
                    return first
                output = (await first.stderr.read(4096)).decode(errors="replace").strip()
        except TimeoutError:
            output = f"it did not answer for {_START_TIMEOUT_S:.0f} s"
        except BaseException:
            first.close()
            raise
        first.close()
        raise NotStarted(
            f"{self.name} does not start: {output or 'no reason was given'}",
            failure=Failure.UNAVAILABLE,
            hint="check that the engine runs and that the image exists",
        )

    async def _check_mounts(self, held: CoveredNames) -> None:
        if not held.mounts:
            return
        asked = await run(
            self._client,
            [*self._engine, "inspect", "--format", "{{.State.Pid}}", self.container],
            timeout_s=_START_TIMEOUT_S,
        )
        pid = asked.stdout.strip()
        if not asked.ok or not pid.isdigit() or pid == "0":
            raise NotStarted(
                f"{self.name} does not say which process the container has: "
                f"{asked.stderr.strip() or pid or 'no answer'}",
                failure=Failure.UNAVAILABLE,
                hint="the engine has to run on this machine",
            )
        await asyncio.to_thread(check_mounts, held, int(pid))


def _disguised(names: Sequence[str], words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The client of an engine reads variables that are meant for the command, such as the path of
    its configuration or libraries for its loader. So the client gets the values under other names,
    and a shell in the container renames them.
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
    # A shell can not set a variable of such a name; the program `env` can.
    others = {
        name: disguise for name, disguise in disguises.items() if not _IDENTIFIER.fullmatch(name)
    }
    # The options of env precede its assignments.
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
