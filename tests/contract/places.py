"""The executors of the contract suite. The user who runs the suite makes each of them."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from paddock.executors.container import ContainerExecutor
from paddock.executors.exec_server import ExecServerProcess
from paddock.executors.host import HostExecutor
from paddock.executors.sandbox import SandboxExecutor
from paddock.executors.ssh import SshExecutor
from paddock.executors.wsl import WslExecutor
from paddock.policy.command_line import Request
from paddock.policy.model import Tier
from paddock.testing.executor import ExecutorUnderTest


@asynccontextmanager
async def host() -> AsyncIterator[ExecutorUnderTest]:
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        executor = HostExecutor(cwd=directory)
        try:
            yield ExecutorUnderTest(executor=executor, workspace=Path(directory), inside=directory)
        finally:
            await executor.dispose()


@asynccontextmanager
async def logged() -> AsyncIterator[ExecutorUnderTest]:
    """The executor of the guide. guide.py holds its text."""
    log: list[object] = []
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        executor = importlib.import_module("guide").Logged(HostExecutor(cwd=directory), log)
        try:
            yield ExecutorUnderTest(executor=executor, workspace=Path(directory), inside=directory)
        finally:
            await executor.dispose()
    assert log, "every command used this executor"


class _Liar(HostExecutor):
    """An executor that reports success for every command."""

    async def spawn(self, *arguments: Any, **options: Any) -> ExecServerProcess:
        process = await super().spawn(*arguments, **options)
        process.__class__ = _Successful
        return process


class _Successful(ExecServerProcess):
    @property
    def returncode(self) -> int | None:
        return None if super().returncode is None else 0


@asynccontextmanager
async def liar() -> AsyncIterator[ExecutorUnderTest]:
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        executor = _Liar(cwd=directory)
        try:
            yield ExecutorUnderTest(
                executor=executor, workspace=Path(directory), inside=directory, has_terminals=False
            )
        finally:
            await executor.dispose()


@asynccontextmanager
async def _sandbox(tier: Tier) -> AsyncIterator[ExecutorUnderTest]:
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        executor = SandboxExecutor(Request(profiles=("ai-agent",), tier=tier), workspace=directory)
        try:
            yield ExecutorUnderTest(executor=executor, workspace=Path(directory), inside=directory)
        finally:
            await executor.dispose()


def full() -> object:
    return _sandbox(Tier.FULL)


def landlock() -> object:
    return _sandbox(Tier.LANDLOCK)


@asynccontextmanager
async def podman() -> AsyncIterator[ExecutorUnderTest]:
    """PADDOCK_TEST_ENGINE is the engine with its options, PADDOCK_TEST_IMAGE the image that a test
    made.
    """
    engine, *options = os.environ["PADDOCK_TEST_ENGINE"].split()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        executor = ContainerExecutor(
            os.environ["PADDOCK_TEST_IMAGE"],
            workspace=directory,
            engine=engine,
            engine_options=options,
            # The engine's default limits need CAP_SYS_RESOURCE.
            options=("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"),
        )
        try:
            yield ExecutorUnderTest(
                executor=executor,
                workspace=Path(directory),
                inside="/work",
                tells_failures=False,
                at_a_time=3,
            )
        finally:
            await executor.dispose()


@asynccontextmanager
async def ssh() -> AsyncIterator[ExecutorUnderTest]:
    """PADDOCK_TEST_SSH is the destination, with options, of a server that a test runs."""
    destination, *options = os.environ["PADDOCK_TEST_SSH"].split()
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        executor = SshExecutor(destination, exec_cwd=directory, options=options)
        try:
            yield ExecutorUnderTest(
                executor=executor,
                workspace=Path(directory),
                inside=directory,
                tells_failures=False,
                at_a_time=3,
            )
        finally:
            await executor.dispose()


@asynccontextmanager
async def wsl() -> AsyncIterator[ExecutorUnderTest]:
    """PADDOCK_TEST_WSL is the wsl.exe of tests/support. Drives are mounted in a directory that
    exists on the host too.
    """
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        program = Path(directory, "wsl.exe")
        program.write_text(os.environ["PADDOCK_TEST_WSL"])
        program.chmod(0o755)
        Path(directory, "distros").mkdir()
        Path(directory, "distros", "paddock-sandbox").touch()
        workspace = Path(directory, "mnt", "c", "Work")
        workspace.mkdir(parents=True)
        executor = WslExecutor(
            workspace=r"C:\Work", automount=f"{directory}/mnt", program=str(program)
        )
        try:
            yield ExecutorUnderTest(
                executor=executor,
                workspace=workspace,
                inside=str(workspace),
                tells_failures=False,
                has_terminals=False,
                at_a_time=3,
            )
        finally:
            await executor.dispose()
