"""A plan is made from the recorded lists, also if other runs change them meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import HostError
from paddock.launch import prepare as module
from paddock.launch.prepare import MAX_ROUNDS, Prepared, prepare
from paddock.plan import compile_plan
from paddock.policy import Request
from paddock.policy.trust.journal_history import JournalHistory
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import follow
from tests.unit.policy.user_dirs import UserDirs

POLICY = """
[filesystem]
allow_globs = ["<cwd>/**"]
"""
MAKING = """
[filesystem]
allow_globs = [{ path = "<cwd>/out/**", create = true }]
"""


@pytest.fixture(name="dirs")
def _world(tmp_path: Path) -> UserDirs:
    return UserDirs(tmp_path)


@pytest.fixture(name="compiled")
def _compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """Functions that are called before each compilation with its number."""
    meanwhile: list[Callable[[int], None]] = []
    numbers = iter(range(10_000))

    def compiling(*arguments: Any) -> Any:
        number = next(numbers)
        for one in meanwhile:
            one(number)
        return compile_plan(*arguments)

    monkeypatch.setattr(module, "compile_plan", compiling)
    return meanwhile


def prepared(dirs: UserDirs, text: str = POLICY, *, to_run: bool = True) -> Prepared:
    path = dirs.file("p.toml", text)
    return prepare(Request(policies=(str(path),)), dirs.origin, to_run=to_run)


def reached(found: Prepared) -> list[str]:
    return [tree.path for tree in found.host.previously_writable]


def test_only_a_run_records_writable_paths(
    dirs: UserDirs, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []
    compiled.append(count.append)
    assert str(dirs.work) in reached(prepared(dirs, to_run=False))
    assert count == [0]
    assert WritableHistory.read(dirs.origin.state_dir).trees == ()


def test_a_plan_is_compiled_once_where_nothing_changes(
    dirs: UserDirs, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []
    compiled.append(count.append)
    found = prepared(dirs)
    assert count == [0]
    assert WritableHistory.read(dirs.origin.state_dir) == found.writable_history
    assert found.writable_history.trees == found.host.previously_writable


def test_a_record_of_a_concurrent_run_is_in_the_plan(
    dirs: UserDirs, compiled: list[Callable[[int], None]]
) -> None:
    other = dirs.root / "other"
    other.mkdir()
    state, count = dirs.origin.state_dir, list[int]()

    def meanwhile(number: int) -> None:
        count.append(number)
        if number == 0:
            WritableHistory.record(state, [follow(str(other))])
        if number == 1:
            JournalHistory.record(state, [str(other)])

    compiled.append(meanwhile)
    found = prepared(dirs)
    assert count == [0, 1, 2]
    assert {str(other), str(dirs.work)} <= set(reached(found))
    assert found.host.journals == (str(other),)
    assert (found.writable_history, found.journals) == (
        WritableHistory.read(state),
        JournalHistory.read(state),
    )


def test_a_directory_that_is_made_is_recorded_by_its_inode(dirs: UserDirs) -> None:
    found = prepared(dirs, MAKING)
    made = dirs.work / "out"
    assert made.is_dir()
    inodes = {
        tree.path: tree.identity.inode for tree in found.writable_history.trees if tree.identity
    }
    assert inodes[str(made)] == made.stat().st_ino
    assert found.writable_history.trees == found.host.previously_writable


def test_a_run_is_refused_if_the_recorded_lists_keep_changing(
    dirs: UserDirs, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []

    def meanwhile(number: int) -> None:
        count.append(number)
        other = dirs.root / f"other-{number}"
        other.mkdir()
        WritableHistory.record(dirs.origin.state_dir, [follow(str(other))])

    compiled.append(meanwhile)
    with pytest.raises(HostError, match="other runs"):
        prepared(dirs)
    assert len(count) == MAX_ROUNDS + 1
