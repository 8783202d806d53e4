"""An ordinary user's own Paddock, put aside while the tests run.

The tests write profiles, and every run they make leaves its trail: places in reach, plans, events. None of that may
stay with a person. So configuration, state and journal are moved away and moved back; what tests that were killed could
not move back, the next ones do. A user made for the tests has nothing to keep.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tester import Tester


class AlreadyTestingError(Exception):
    """Two runs of the tests by one person would take each other's state for the person's."""


@contextmanager
def own_paddock_put_aside(tester: Tester) -> Iterator[None]:
    if tester.disposable:
        yield
        return
    with _alone(tester.home / ".paddock-tests.lock"):
        places = [
            tester.home / ".config" / "paddock",
            tester.home / ".local" / "state" / "paddock",
            Path(f"/var/tmp/paddock-audit-{tester.uid}"),
        ]
        for place in places:
            if os.path.lexists(_kept(place)):
                _remove(place)
            elif os.path.lexists(place):
                place.rename(_kept(place))
        try:
            yield
        finally:
            for place in places:
                _remove(place)
                if os.path.lexists(_kept(place)):
                    _kept(place).rename(place)


def _kept(place: Path) -> Path:
    return place.with_name(f"{place.name}-before-tests")


def _remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)


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
