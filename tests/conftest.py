"""Fixtures for all tests on the real kernel. A fixture does nothing until a test uses it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    core,
    installation,
    longest_first,
    programs,
    saved_state,
    tester,
    tree,
)
from tests.support.features import need
from tests.support.sandbox import SandboxRunner

_testers: list[tester.Tester] = []  # the tester of this worker, after its first use
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {path: at for at, path in enumerate(longest_first.order(_files(items)))}
    items.sort(key=lambda item: place[_file(item)])


def _files(items: list[pytest.Item]) -> list[str]:
    return list(dict.fromkeys(map(_file, items)))


def _file(item: pytest.Item) -> str:
    return str(item.path.relative_to(HERE))


@pytest.fixture(scope="session", name="tester")
def _tester() -> Iterator[tester.Tester]:
    found = tester.find_or_make()
    _testers.append(found)
    with saved_state.own_paddock_put_aside(found):
        yield found


@pytest.fixture(scope="module", autouse=True)
def _no_state_of_earlier_files() -> None:
    """The files of a worker differ between runs. State of one file must not fail another."""
    for found in _testers:
        saved_state.forget_earlier_runs(found)


@pytest.fixture(scope="session", name="programs")
def _programs() -> Iterator[programs.Programs]:
    # not the temporary directory of pytest, which other users cannot enter
    directory = Path(tempfile.mkdtemp(prefix="paddock-programs-", dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        yield programs.build(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session", name="installation")
def _installation(tester: tester.Tester) -> Iterator[installation.Installation]:
    with installation.for_tester(tester) as installed:
        yield installed


@pytest.fixture(scope="session")
def host(tester: tester.Tester, installation: installation.Installation) -> dict[str, Any]:
    """The facts that the core reports about this machine."""
    return core.host_facts(tester, installation.core)


@pytest.fixture(name="tree")
def _tree(tester: tester.Tester) -> Iterator[tree.ProjectTree]:
    # Writable paths and journals of earlier tests are not the history of this test.
    for name in ("reach", "journals"):
        (tester.home / ".local" / "state" / "paddock" / name).unlink(missing_ok=True)
    with tree.project_tree(tester) as project_tree:
        yield project_tree


@pytest.fixture
def sandbox(
    tester: tester.Tester,
    installation: installation.Installation,
    programs: programs.Programs,
    tree: tree.ProjectTree,
    host: dict[str, Any],
) -> SandboxRunner:
    need(
        "landlock",
        host["landlock_abi"] >= 6,
        f"this kernel has Landlock ABI {host['landlock_abi']}; all rights need 6",
    )
    need("seccomp", host["seccomp"], "this kernel takes no seccomp filter")
    return SandboxRunner(tester=tester, installation=installation, programs=programs, tree=tree)


@pytest.fixture
def full(sandbox: SandboxRunner, host: dict[str, Any]) -> SandboxRunner:
    """The same sandbox in the full tier."""
    need(
        "namespaces",
        host["namespaces"]["usable"],
        f"this machine makes no namespaces: {host['namespaces']}",
    )
    return replace(sandbox, tier="full")
