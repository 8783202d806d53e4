"""The client of an engine, and ssh: an earlier session may have planted one in PATH."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.executors.container import ContainerExecutor
from paddock.executors.host_program import find_host_program
from paddock.executors.interface import Failure, NotStarted
from paddock.executors.ssh import SshExecutor
from paddock.policy import Origin
from paddock.policy.trust.writable_history import EMPTY_HISTORY, WritableHistory
from paddock.text.path_walk import follow

Programs = tuple[Path, Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A directory that a sandboxed command could write, first in PATH, and another one."""
    planted, own = tmp_path / "project" / "bin", tmp_path / "bin"
    for directory in (planted, own):
        directory.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{planted}{os.pathsep}{own}")
    history = WritableHistory().including([follow(str(tmp_path / "project"))])
    with_history(monkeypatch, history)
    return planted, own


def with_history(monkeypatch: pytest.MonkeyPatch, history: WritableHistory) -> None:
    origin = replace(Origin.of_process(), writable_history=history)
    monkeypatch.setattr(Origin, "of_process", lambda: origin)


def put(directory: Path, name: str) -> str:
    program = directory / name
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    return str(program)


def test_a_planted_program_is_passed_over(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, own = programs
    put(planted, "engine")
    expected = put(own, "engine")
    monkeypatch.setenv("CONFIG", str(planted / "config"))
    found = find_host_program(("engine",), ("PATH", "CONFIG"))
    assert (found.path, found.refusal) == (expected, None)
    assert found.environ == {"PATH": str(own)}
    with_history(monkeypatch, EMPTY_HISTORY)
    control = find_host_program(("engine",), ("PATH", "CONFIG"))
    assert control.path == str(planted / "engine")
    assert set(control.environ) == {"PATH", "CONFIG"}


def test_a_program_that_exists_only_there_is_refused(programs: Programs) -> None:
    planted, own = programs
    put(planted, "podman")
    put(own, "docker")
    assert find_host_program(("podman", "docker"), ()).path == str(own / "docker")
    found = find_host_program(("podman",), ())
    assert found.refusal is not None
    assert found.refusal.failure is Failure.DENIED
    assert f"could have written {planted}/podman" in found.refusal.message
    missing = find_host_program(("none",), ()).refusal
    assert missing is not None
    assert missing.failure is Failure.NOT_FOUND


@pytest.mark.parametrize("name", ["podman", "ssh"])
def test_no_executor_starts_a_planted_program(programs: Programs, name: str) -> None:
    planted, _ = programs
    put(planted, name)
    work = planted.parent

    async def scene() -> str:
        executor = (
            ContainerExecutor("image", workspace=work)
            if name == "podman"
            else SshExecutor("nowhere.invalid", exec_cwd="/")
        )
        try:
            await executor.spawn(["true"])
        except NotStarted as error:
            return error.message
        finally:
            await executor.dispose()
        return "started"

    assert "could have written" in asyncio.run(scene())
    assert not (work / "ran").exists()


@pytest.mark.parametrize("name", ["podman", "ssh"])
def test_a_program_that_is_planted_later_is_not_started(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The executor exists already when a sandboxed command can write the program."""
    planted, _ = programs
    recorded = Origin.of_process().writable_history
    with_history(monkeypatch, EMPTY_HISTORY)
    put(planted, name)

    async def scene() -> tuple[str, ...]:
        executor = (
            ContainerExecutor("image", workspace=planted.parent.parent / "bin", exec_cwd="/")
            if name == "podman"
            else SshExecutor("nowhere.invalid", exec_cwd="/")
        )
        messages = []
        try:
            for history in (EMPTY_HISTORY, recorded):
                with_history(monkeypatch, history)
                try:
                    await executor.spawn(["true"])
                except NotStarted as error:
                    messages.append(error.message)
        finally:
            await executor.dispose()
        return tuple(messages)

    before, after = asyncio.run(scene())
    assert "could have written" not in before, "the control: it is started"
    assert f"could have written {planted}/{name}" in after


def test_a_program_in_the_executors_own_workspace_is_not_started(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, _ = programs
    with_history(monkeypatch, EMPTY_HISTORY)
    put(planted, "podman")
    assert find_host_program(("podman",), ()).refusal is None, "the control"

    async def scene() -> str:
        executor = ContainerExecutor("image", workspace=planted.parent)
        try:
            await executor.spawn(["true"])
        except NotStarted as error:
            return error.message
        finally:
            await executor.dispose()
        return "started"

    assert f"could have written {planted}/podman" in asyncio.run(scene())
