"""Waits for a condition with a deadline. No other module of the tests sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NeverHappened(AssertionError):  # noqa: N818 (nothing is wrong yet)
    """The condition or the race of a test did not happen, so the test could not check anything."""


DEADLINE_S = 120.0  # long enough for a busy machine
_INTERVAL_S = 0.02


def wait_for(
    look: Callable[[], T | None],
    what: str,
    deadline_s: float = DEADLINE_S,
    interval_s: float = _INTERVAL_S,
) -> T:
    """The first result of ``look`` that is neither None nor False. Fails at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise NeverHappened(f"not within {deadline_s} s: {what}")
        time.sleep(interval_s)
