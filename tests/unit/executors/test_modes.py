"""The executor of each mode. tests/cli/test_sandbox.py tests the limits of linux mode."""

from __future__ import annotations

import asyncio
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

import paddock
from paddock.errors import HostError, UsageError
from paddock.executors.asyncio_process import PlainExecutor
from paddock.executors.container import ContainerExecutor
from paddock.executors.host import HostExecutor
from paddock.executors.interface import CommandExecutor
from paddock.executors.modes import GUARANTEES, LocalSandbox, executor_for, resolve_mode
from paddock.executors.sandbox import SandboxExecutor
from paddock.executors.ssh import SshExecutor
from paddock.executors.windows import WindowsExecutor
from paddock.executors.wsl import WslExecutor
from paddock.policy.formats.executor_modes import (
    ContainerSandboxConfig,
    Mode,
    SandboxConfig,
    SshSandboxConfig,
)


@pytest.mark.parametrize(
    ("mode", "platform", "resolved"),
    [
        ("auto", "linux", Mode.LINUX),
        ("auto", "nt", Mode.WINDOWS),
        ("auto", "win32", Mode.WINDOWS),
        ("linux", "linux", Mode.LINUX),
        ("windows", "win32", Mode.WINDOWS),
        ("wsl", "win32", Mode.WSL),
        ("local", "linux", Mode.LOCAL),
        ("local", "win32", Mode.LOCAL),
        ("local", "darwin", Mode.LOCAL),
        ("container", "linux", Mode.CONTAINER),
        ("ssh", "linux", Mode.SSH),
    ],
)
def test_each_mode_resolves_to_an_executor(mode: str, platform: str, resolved: Mode) -> None:
    """A-100, A-157, A-158"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_mode(mode, platform=platform) is resolved


@pytest.mark.parametrize(
    ("mode", "platform"),
    [
        ("windows", "linux"),
        ("wsl", "linux"),
        ("linux", "win32"),
        ("linux", "darwin"),
        ("wsl", "darwin"),
        ("ssh", "nt"),
    ],
)
def test_a_mode_of_another_platform_is_an_error(mode: str, platform: str) -> None:
    """A-101"""
    for required in (True, False):
        with pytest.raises(HostError, match=f"mode {mode} needs"):
            resolve_mode(mode, platform=platform, require_enforced=required)


def test_an_unknown_mode_is_an_error() -> None:
    """A-100"""
    with pytest.raises(UsageError, match="is not one of"):
        resolve_mode("x")


def test_auto_without_enforcement_is_refused_or_warns() -> None:
    """A-159"""
    with pytest.raises(HostError, match="darwin has no sandbox for commands"):
        resolve_mode("auto", platform="darwin")
    with pytest.warns(RuntimeWarning, match="without isolation"):
        assert resolve_mode("auto", platform="darwin", require_enforced=False) is Mode.LOCAL
    with pytest.warns(RuntimeWarning, match="without isolation"):
        executor = executor_for(SandboxConfig(require_enforced=False), platform="darwin")
    assert isinstance(executor, PlainExecutor)
    assert not executor.confines_writes


def test_every_executor_matches_its_row_of_the_mode_table() -> None:
    """A-103, A-050 to A-053: the executor tells whether a call has to be asked about."""
    places: dict[Mode, type[Any]] = {
        Mode.LOCAL: HostExecutor,
        Mode.WSL: WslExecutor,
        Mode.SSH: SshExecutor,
    }
    assert {*places, Mode.LINUX, Mode.WINDOWS, Mode.CONTAINER} == set(GUARANTEES)
    for mode, kind in places.items():
        assert GUARANTEES[mode].forced_ask is not kind.confines_writes
    for measured in (SandboxExecutor, WindowsExecutor, ContainerExecutor):
        assert isinstance(measured.confines_writes, property)


def test_executor_gets_the_settings_of_its_mode(tmp_path: Path) -> None:
    def made(**values: Any) -> CommandExecutor:
        return executor_for(SandboxConfig(**values), platform="linux")

    assert isinstance(made(), SandboxExecutor)
    assert isinstance(made(mode=Mode.LOCAL), HostExecutor)
    container = made(
        mode=Mode.CONTAINER, container=ContainerSandboxConfig(image="x", engine="podman")
    )
    assert isinstance(container, ContainerExecutor)
    for mode in (Mode.CONTAINER, Mode.SSH):
        with pytest.raises(UsageError, match=f"mode {mode} needs"):
            made(mode=mode)

    async def over_ssh() -> None:
        executor = made(mode=Mode.SSH, ssh=SshSandboxConfig(destination="x", workspace="/w"))
        assert isinstance(executor, SshExecutor)
        await executor.dispose()

    asyncio.run(over_ssh())


def test_local_mode_passes_the_callers_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A-109, A-160"""
    monkeypatch.setenv("MINE", "here")
    monkeypatch.chdir(tmp_path)

    async def look() -> None:
        sandbox = LocalSandbox()
        reported = await sandbox.execute('echo "$0 $MINE $(pwd -P)"; exit 3')
        assert (reported.exit_code, reported.stdout) == (
            3,
            f"/bin/bash here {os.path.realpath(tmp_path)}\n",
        )
        assert not sandbox.executor.confines_writes
        assert await sandbox.dispose() == ()

    asyncio.run(look())


def test_modes_of_other_systems_are_named_and_refused() -> None:
    """A-101, A-129, A-179"""

    async def look() -> None:
        for name in ("WindowsSubprocessSandbox", "WslDistroSandbox"):
            sandbox = getattr(paddock, name)()
            with pytest.raises(HostError, match="needs Windows"):
                await sandbox.execute("ver")
            assert await sandbox.dispose() == ()

    asyncio.run(look())
