"""What the host of a virtual machine takes of its processors' time: what is measured meanwhile tells of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST = 0.02
PAUSE_S = 0.5


class Watch:
    """Measures anew what the host fell into, as long as there is patience left."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._measured = 0
        self._disturbed = 0

    def undisturbed(self, measure: Callable[[], T]) -> T:
        self._measured += 1
        while True:
            stolen_before, before = _ticks()
            result = measure()
            stolen, passed = _ticks()
            if stolen - stolen_before <= MOST * (passed - before):
                return result
            if not self._patience:
                self._disturbed += 1
                return result
            self._patience -= 1
            time.sleep(PAUSE_S)

    def tell(self) -> None:
        if self._disturbed:
            share = f"{self._disturbed} of {self._measured} measurements"
            print(f"  the host took more than {MOST:.0%} of the processors' time in {share}")


def _ticks() -> tuple[int, int]:
    """Stolen, and all."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)
