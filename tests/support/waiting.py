"""Waiting for something to become true, with a deadline; the only place that lets time pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NeverHappened(AssertionError):  # noqa: N818 (nothing is wrong yet)
    """What a test waits for, or races for, did not come about: that says nothing of what it would
    have been.
    """


DEADLINE_S = 120.0  # of a machine that has more to do
_INTERVAL_S = 0.02


def wait_for(
    look: Callable[[], T | None],
    what: str,
    deadline_s: float = DEADLINE_S,
    interval_s: float = _INTERVAL_S,
) -> T:
    """The first answer of ``look`` that is neither None nor False; fails when the deadline
    passes.
    """
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise NeverHappened(f"not within {deadline_s} s: {what}")
        time.sleep(interval_s)
