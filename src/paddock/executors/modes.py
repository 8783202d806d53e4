"""``mode`` → an executor. A place that this system does not have is an error, never another place
instead.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paddock.errors import HostError, UsageError
from paddock.executors.interface import CommandExecutor, CommandLine, shell_here
from paddock.executors.run import Result, run
from paddock.policy.formats.executor_modes import (
    LinuxSandboxConfig,
    LocalSandboxConfig,
    Mode,
    SandboxConfig,
    WindowsSandboxConfig,
    WslSandboxConfig,
)

if TYPE_CHECKING:
    from paddock.approve import Approver
    from paddock.policy.request import Request

ENVIRONMENT = ("PATH", "HOME", "TERM", "LANG")  # what commands have of the caller's, in linux mode
_NEEDS = {
    Mode.LINUX: "linux",
    Mode.WINDOWS: "windows",
    Mode.WSL: "windows",
    Mode.CONTAINER: "linux",
    Mode.SSH: "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a mode holds commands to. ``writes``: is that confined, so that nobody needs to be asked
    for its sake?
    """

    writes: bool
    where: str
    reads: str
    limits: str
    network: str

    @property
    def forced_ask(self) -> bool:
        return not self.writes


HOLDS: Mapping[Mode, Held] = {
    Mode.LOCAL: Held(
        writes=False, where="everywhere", reads="everything", limits="none", network="open"
    ),
    Mode.LINUX: Held(
        writes=True,
        where="the workspace and a private /tmp, without the files that git and tools obey",
        reads="the paths that the profile grants: the system and its tools, no secrets",
        limits="memory, for all commands together; other limits by policy",
        network="open, or as [network] of the policy decides",
    ),
    Mode.WINDOWS: Held(
        writes=True,
        where="paths with the low label: the workspace, and AppData\\LocalLow",
        reads="everything",
        limits="memory and number of processes, for each command",
        network="open",
    ),
    Mode.WSL: Held(
        writes=False,
        where="the distribution, and all drives of Windows unless they are not mounted",
        reads="the distribution, and all drives of Windows unless they are not mounted",
        limits="none",
        network="open",
    ),
    Mode.CONTAINER: Held(
        writes=True,
        where="the workspace, and the container, which is removed",
        reads="the image and the workspace",
        limits="memory and number of processes, for all commands together",
        network="none, or the engine's",
    ),
    Mode.SSH: Held(
        writes=False,
        where="everything that the account on that machine may",
        reads="everything that the account on that machine may",
        limits="none",
        network="the network of the other machine",
    ),
}


def resolve_mode(mode: str, *, platform: str | None = None, require_enforced: bool = True) -> Mode:
    """The place for ``auto``, and any other if ``platform`` has it. ``require_enforced`` false:
    where nothing can hold commands, ``auto`` is local, with a warning.
    """
    if mode not in list(Mode):
        raise UsageError(f"mode: {mode!r} is not one of {', '.join(Mode)}")
    platform = platform or sys.platform
    wanted, here = Mode(mode), _system(platform)
    if wanted is Mode.AUTO:
        if here in ("linux", "windows"):
            return Mode(here)
        if require_enforced:
            raise HostError(
                f"{platform} has no sandbox for commands",
                hint='to run commands without isolation, write mode = "local" or '
                "require_enforced = false",
            )
        warnings.warn(
            f"{platform} has no sandbox for commands: they run without isolation",
            RuntimeWarning,
            stacklevel=2,
        )
        return Mode.LOCAL
    needs = _NEEDS.get(wanted, here)
    if needs != here:
        raise HostError(f"mode {wanted} needs {needs.capitalize()}, and this is {platform}")
    return wanted


def executor_for(
    config: SandboxConfig | None = None,
    *,
    approver: Approver | None = None,
    platform: str | None = None,
) -> CommandExecutor:
    """``approver`` answers what rules of a policy ask, in linux mode."""
    config = config or SandboxConfig()
    match resolve_mode(config.mode, platform=platform, require_enforced=config.require_enforced):
        case Mode.LINUX:
            return _linux(config, approver)
        case Mode.WINDOWS:
            from paddock.executors.windows import WindowsExecutor

            told = config.windows
            return WindowsExecutor(
                workspace=told.workspace,
                max_memory_mb=told.max_memory_mb,
                max_processes=told.max_processes,
                use_low_integrity=told.use_low_integrity,
                require_enforced=config.require_enforced,
            )
        case Mode.WSL:
            from paddock.executors.wsl import WslExecutor

            return WslExecutor(
                config.wsl.distro, workspace=config.wsl.workspace, shell=config.wsl.shell
            )
        case Mode.CONTAINER:
            return _container(config)
        case Mode.SSH:
            from paddock.executors.ssh import SshExecutor

            if config.ssh.destination is None or config.ssh.workspace is None:
                raise UsageError("mode ssh needs ssh.destination and ssh.workspace")
            return SshExecutor(
                config.ssh.destination, exec_cwd=config.ssh.workspace, options=config.ssh.options
            )
        case _:
            return _local(_system(platform or sys.platform))


def _local(here: str) -> CommandExecutor:
    if here == "linux":
        from paddock.executors.host import HostExecutor

        return HostExecutor()
    from paddock.executors.asyncio_process import PlainExecutor

    return PlainExecutor(shell=None if here == "windows" else shell_here())


def request_for(config: SandboxConfig) -> Request:
    """What linux mode asks of the fence."""
    from paddock.policy.request import Request

    told = config.linux
    return Request(
        profiles=(told.profile,),
        policies=() if told.policy is None else (told.policy,),
        limits=(("memory_mb", told.max_memory_mb),),
        require_enforced=None if config.require_enforced else False,
        command="/bin/sh",
    )


def _linux(config: SandboxConfig, approver: Approver | None) -> CommandExecutor:
    from paddock.executors.sandbox import SandboxExecutor

    return SandboxExecutor(
        request_for(config),
        workspace=config.linux.workspace or os.getcwd(),
        approver=approver,
        environ={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    )


def _container(config: SandboxConfig) -> CommandExecutor:
    from paddock.executors.container import ContainerExecutor

    told = config.container
    if told.image is None:
        raise UsageError("mode container needs container.image")
    return ContainerExecutor(
        told.image,
        workspace=told.workspace or os.getcwd(),
        engine=told.engine,
        network=told.network,
        memory_mb=told.max_memory_mb,
        processes=told.max_processes,
    )


def _system(platform: str) -> str:
    if platform.startswith("linux"):
        return "linux"
    return "windows" if platform in ("win32", "nt", "windows") else platform


class _LazyExecutor:
    """A mode by a name of its own: an executor, made when it is first needed."""

    mode: ClassVar[Mode]

    def __init__(self, config: Any = None, *, require_enforced: bool = True) -> None:
        given = {} if config is None else {self.mode.value: config}
        self.config = SandboxConfig(mode=self.mode, require_enforced=require_enforced, **given)
        self._executor: CommandExecutor | None = None

    @property
    def executor(self) -> CommandExecutor:
        if self._executor is None:
            self._executor = executor_for(self.config)
        return self._executor

    async def execute(self, command: CommandLine, **options: Any) -> Result:
        """See :func:`paddock.executors.run.run`."""
        return await run(self.executor, command, **options)

    async def dispose(self) -> tuple[str, ...]:
        executor, self._executor = self._executor, None
        return () if executor is None else await executor.dispose()


class LocalSandbox(_LazyExecutor):
    """No isolation."""

    mode = Mode.LOCAL

    def __init__(self, config: LocalSandboxConfig | None = None) -> None:
        super().__init__(config)


class LinuxSandbox(_LazyExecutor):
    mode = Mode.LINUX

    def __init__(
        self, config: LinuxSandboxConfig | None = None, *, require_enforced: bool = True
    ) -> None:
        super().__init__(config, require_enforced=require_enforced)


class WindowsSubprocessSandbox(_LazyExecutor):
    mode = Mode.WINDOWS

    def __init__(
        self, config: WindowsSandboxConfig | None = None, *, require_enforced: bool = True
    ) -> None:
        super().__init__(config, require_enforced=require_enforced)


class WslDistroSandbox(_LazyExecutor):
    mode = Mode.WSL

    def __init__(self, config: WslSandboxConfig | None = None) -> None:
        super().__init__(config)
