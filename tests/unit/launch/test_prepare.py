"""A plan is made from the lists as they are recorded, whatever other runs add to them meanwhile."""

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
from tests.unit.policy.world import World

POLICY = """
[filesystem]
allow_globs = ["<cwd>/**"]
"""
MAKING = """
[filesystem]
allow_globs = [{ path = "<cwd>/out/**", create = true }]
"""


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(name="compiled")
def _compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """Functions that are called before each compilation, with its number."""
    meanwhile: list[Callable[[int], None]] = []
    numbers = iter(range(10_000))

    def compiling(*arguments: Any) -> Any:
        number = next(numbers)
        for one in meanwhile:
            one(number)
        return compile_plan(*arguments)

    monkeypatch.setattr(module, "compile_plan", compiling)
    return meanwhile


def prepared(world: World, text: str = POLICY, *, to_run: bool = True) -> Prepared:
    path = world.file("p.toml", text)
    return prepare(Request(policies=(str(path),)), world.origin, to_run=to_run)


def reached(found: Prepared) -> list[str]:
    return [tree.path for tree in found.host.previously_writable]


def test_only_a_run_records_writable_paths(
    world: World, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []
    compiled.append(count.append)
    assert str(world.work) in reached(prepared(world, to_run=False))
    assert count == [0]
    assert WritableHistory.read(world.origin.state_dir).trees == ()


def test_a_plan_is_compiled_once_where_nothing_changes(
    world: World, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []
    compiled.append(count.append)
    found = prepared(world)
    assert count == [0]
    assert WritableHistory.read(world.origin.state_dir) == found.writable_history
    assert found.writable_history.trees == found.host.previously_writable


def test_a_record_of_a_concurrent_run_is_in_the_plan(
    world: World, compiled: list[Callable[[int], None]]
) -> None:
    other = world.root / "other"
    other.mkdir()
    state, count = world.origin.state_dir, list[int]()

    def meanwhile(number: int) -> None:
        count.append(number)
        if number == 0:
            WritableHistory.record(state, [follow(str(other))])
        if number == 1:
            JournalHistory.record(state, [str(other)])

    compiled.append(meanwhile)
    found = prepared(world)
    assert count == [0, 1, 2]
    assert {str(other), str(world.work)} <= set(reached(found))
    assert found.host.journals == (str(other),)
    assert (found.writable_history, found.journals) == (
        WritableHistory.read(state),
        JournalHistory.read(state),
    )


def test_a_directory_that_is_made_is_recorded_by_its_inode(world: World) -> None:
    found = prepared(world, MAKING)
    made = world.work / "out"
    assert made.is_dir()
    inodes = {
        tree.path: tree.identity.inode for tree in found.writable_history.trees if tree.identity
    }
    assert inodes[str(made)] == made.stat().st_ino
    assert found.writable_history.trees == found.host.previously_writable


def test_a_run_is_refused_if_the_recorded_lists_keep_changing(
    world: World, compiled: list[Callable[[int], None]]
) -> None:
    count: list[int] = []

    def meanwhile(number: int) -> None:
        count.append(number)
        other = world.root / f"other-{number}"
        other.mkdir()
        WritableHistory.record(world.origin.state_dir, [follow(str(other))])

    compiled.append(meanwhile)
    with pytest.raises(HostError, match="other runs"):
        prepared(world)
    assert len(count) == MAX_ROUNDS + 1
