"""Detects other load on the processors, because it changes what the bench measures.

The host of a virtual machine reports stolen time. It does not report the load on the other thread
of the same processor core. With such load the same work takes up to twice as long, and work that
needs large caches takes more. So ``Watch`` times the same sum again and again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST_STOLEN = 0.02
MOST_SLOWER = 1.25
PAUSE_S = 0.25


class Watch:
    """Measures only while the machine is as fast as it can be, until the patience is used up."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._measured = 0
        self._disturbed = 0
        self._quickest = float("inf")
        for _ in range(40):
            self._is_quick()
            time.sleep(0.05)

    def undisturbed(self, measure: Callable[[], T]) -> T:
        self._measured += 1
        while True:
            began = time.monotonic()
            if self._patience_s <= 0 or self._is_quick():
                stolen_before, before = _ticks()
                result = measure()
                stolen, passed = _ticks()
                if stolen - stolen_before <= MOST_STOLEN * (passed - before) and self._is_quick():
                    return result
                if self._patience_s <= 0:
                    self._disturbed += 1
                    return result
            time.sleep(PAUSE_S)
            self._patience_s -= time.monotonic() - began

    def tell(self) -> None:
        if self._disturbed:
            share = f"{self._disturbed} of {self._measured} measurements"
            print(f"  others had a part of the processors in {share}")

    def _is_quick(self) -> bool:
        pace = min(_sum() for _ in range(3))
        self._quickest = min(self._quickest, pace)
        return pace <= MOST_SLOWER * self._quickest


def _sum() -> float:
    began = time.perf_counter()
    sum(range(100_000))
    return time.perf_counter() - began


def _ticks() -> tuple[int, int]:
    """Stolen ticks and all ticks."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)
