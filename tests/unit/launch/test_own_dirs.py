"""Paddock creates its own directories before a command could create them."""

from __future__ import annotations

import stat
from pathlib import Path

from paddock.launch.own_dirs import make_lockable
from tests.unit.policy.user_dirs import UserDirs


def test_own_directories_inside_a_grant_are_created_first(tmp_path: Path) -> None:
    dirs = UserDirs(tmp_path)
    dirs.config.rmdir()
    make_lockable(dirs.origin, [str(dirs.home)])
    for path in (dirs.config, Path(dirs.origin.state_dir)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_path_outside_the_grants_is_left_alone(tmp_path: Path) -> None:
    dirs = UserDirs(tmp_path)
    dirs.config.rmdir()
    make_lockable(dirs.origin, [str(dirs.work), str(dirs.home / ".config" / "other")])
    assert not dirs.config.exists()
    assert not Path(dirs.origin.state_dir).exists()


def test_an_existing_directory_stays_as_it_is(tmp_path: Path) -> None:
    dirs = UserDirs(tmp_path)
    dirs.config.chmod(0o755)
    make_lockable(dirs.origin, [str(dirs.home)])
    assert stat.S_IMODE(dirs.config.stat().st_mode) == 0o755
