"""Moves the state of an ordinary user's own Paddock away while the tests run.

The tests write profiles, and every run leaves state: writable paths, plans, events. None of that
may stay with a person. So configuration, state and journal are moved away and moved back. If tests
are killed, the next test run moves them back. A user made for the tests has nothing to keep: all
new files in the home and in world-writable directories are removed at the end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tester import Tester


class AlreadyTestingError(Exception):
    """Another test run of the same user is active. Two runs would mix up the state of the user."""


@contextmanager
def own_paddock_put_aside(tester: Tester) -> Iterator[None]:
    if tester.disposable:
        with _left_as_found(tester):
            yield
        return
    with _alone(tester.home / ".paddock-tests.lock"):
        places = _own_paddock(tester)
        for place in places:
            if os.path.lexists(_kept(place)):
                remove(place)
            elif os.path.lexists(place):
                place.rename(_kept(place))
        try:
            yield
        finally:
            for place in places:
                remove(place)
                if os.path.lexists(_kept(place)):
                    _kept(place).rename(place)


def forget_earlier_runs(tester: Tester) -> None:
    """Gives a test file a user without profile, state and journal of Paddock."""
    for place in _own_paddock(tester):
        remove(place)


def _own_paddock(tester: Tester) -> list[Path]:
    return [
        tester.home / ".config" / "paddock",
        tester.home / ".local" / "state" / "paddock",
        Path(f"/var/tmp/paddock-audit-{tester.uid}"),
    ]


_EVERYBODYS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


@contextmanager
def _left_as_found(tester: Tester) -> Iterator[None]:
    def things() -> set[Path]:
        shared = (
            entry for place in _EVERYBODYS for entry in place.iterdir() if _is_of(tester, entry)
        )
        return {*tester.home.iterdir(), *shared}

    before = things()
    try:
        yield
    finally:
        for place in things() - before:
            remove(place)


def _is_of(tester: Tester, entry: Path) -> bool:
    try:
        return entry.lstat().st_uid == tester.uid
    except FileNotFoundError:  # another process has removed it
        return False


def remove(place: Path) -> None:
    """Removes a file or a tree, also if its modes forbid that to the owner."""
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        return
    for _, directories, _, parent in os.fwalk(
        place
    ):  # by descriptors: the tree may be deeper than PATH_MAX
        for name in directories:
            if not stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
                os.chmod(name, 0o700, dir_fd=parent)
    shutil.rmtree(place)


def _kept(place: Path) -> Path:
    return place.with_name(f"{place.name}-before-tests")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyTestingError(f"another run of the tests holds {lock}") from None
        try:
            yield
        finally:
            lock.unlink()
