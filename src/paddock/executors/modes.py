"""Chooses the executor for a ``mode``. A mode that this system does not support is an error; no
other mode replaces it.
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
    from paddock.policy.command_line import Request

# variables of the caller that commands get in linux mode
ENVIRONMENT = ("PATH", "HOME", "TERM", "LANG")
_NEEDS = {
    Mode.LINUX: "linux",
    Mode.WINDOWS: "windows",
    Mode.WSL: "windows",
    Mode.CONTAINER: "linux",
    Mode.SSH: "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeGuarantees:
    """The guarantees of a mode. ``writes``: writes are confined, so no approval is needed because
    of them.
    """

    writes: bool
    where: str
    reads: str
    limits: str
    network: str

    @property
    def forced_ask(self) -> bool:
        return not self.writes


GUARANTEES: Mapping[Mode, ModeGuarantees] = {
    Mode.LOCAL: ModeGuarantees(
        writes=False, where="everywhere", reads="everything", limits="none", network="open"
    ),
    Mode.LINUX: ModeGuarantees(
        writes=True,
        where="the workspace and a private /tmp, without the files that git and tools obey",
        reads="the paths that the profile grants: the system and its tools, no secrets",
        limits="memory, for all commands together; other limits by policy",
        network="open, or as [network] of the policy decides",
    ),
    Mode.WINDOWS: ModeGuarantees(
        writes=True,
        where="paths with the low label: the workspace, and AppData\\LocalLow",
        reads="everything",
        limits="memory and number of processes, for each command",
        network="open",
    ),
    Mode.WSL: ModeGuarantees(
        writes=False,
        where="the distribution, and all drives of Windows unless they are not mounted",
        reads="the distribution, and all drives of Windows unless they are not mounted",
        limits="none",
        network="open",
    ),
    Mode.CONTAINER: ModeGuarantees(
        writes=True,
        where="the workspace, and the container, which is removed",
        reads="the image and the workspace",
        limits="memory and number of processes, for all commands together",
        network="none, or the engine's",
    ),
    Mode.SSH: ModeGuarantees(
        writes=False,
        where="everything that the account on that machine may",
        reads="everything that the account on that machine may",
        limits="none",
        network="the network of the other machine",
    ),
}


def resolve_mode(mode: str, *, platform: str | None = None, require_enforced: bool = True) -> Mode:
    """Resolves ``auto``, and checks that ``platform`` supports any other mode. ``require_enforced``
    false: if no sandbox is available, ``auto`` becomes local, with a warning.
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
    """``approver`` answers the questions of policy rules in linux mode."""
    config = config or SandboxConfig()
    match resolve_mode(config.mode, platform=platform, require_enforced=config.require_enforced):
        case Mode.LINUX:
            return _linux(config, approver)
        case Mode.WINDOWS:
            from paddock.executors.windows import WindowsExecutor

            settings = config.windows
            return WindowsExecutor(
                workspace=settings.workspace,
                max_memory_mb=settings.max_memory_mb,
                max_processes=settings.max_processes,
                use_low_integrity=settings.use_low_integrity,
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
    """The policy request of linux mode."""
    from paddock.policy.command_line import Request

    settings = config.linux
    return Request(
        profiles=(settings.profile,),
        policies=() if settings.policy is None else (settings.policy,),
        limits=(("memory_mb", settings.max_memory_mb),),
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

    settings = config.container
    if settings.image is None:
        raise UsageError("mode container needs container.image")
    return ContainerExecutor(
        settings.image,
        workspace=settings.workspace or os.getcwd(),
        engine=settings.engine,
        network=settings.network,
        memory_mb=settings.max_memory_mb,
        processes=settings.max_processes,
    )


def _system(platform: str) -> str:
    if platform.startswith("linux"):
        return "linux"
    return "windows" if platform in ("win32", "nt", "windows") else platform


class _LazyExecutor:
    """A mode as a class: the executor is created at its first use."""

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
    """Runs commands without isolation."""

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
