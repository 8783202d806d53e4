"""Paddock's own directories are there before a command could make them."""

from __future__ import annotations

import stat
from pathlib import Path

from paddock.launch.own_dirs import make_lockable
from tests.unit.policy.world import World


def test_own_directories_inside_a_grant_are_created_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.config.rmdir()
    make_lockable(world.origin, [str(world.home)])
    for path in (world.config, Path(world.origin.state_dir)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_path_outside_the_grants_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.config.rmdir()
    make_lockable(world.origin, [str(world.work), str(world.home / ".config" / "other")])
    assert not world.config.exists()
    assert not Path(world.origin.state_dir).exists()


def test_an_existing_directory_stays_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.config.chmod(0o755)
    make_lockable(world.origin, [str(world.home)])
    assert stat.S_IMODE(world.config.stat().st_mode) == 0o755
