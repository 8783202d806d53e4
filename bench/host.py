"""What the host of a virtual machine takes of its processors' time: what is measured meanwhile tells of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST = 0.02
PATIENCE = 4  # so many are begun anew for each that is wanted


def undisturbed(measure: Callable[[], T], wanted: int) -> Iterator[T]:
    """So many results of ``measure``, those that the host fell into left out; where it never rests, with some of them,
    and a word about it."""
    spare, disturbed = wanted * PATIENCE, 0
    for _ in range(wanted):
        while True:
            stolen_before, before = _ticks()
            result = measure()
            stolen, passed = _ticks()
            is_quiet = stolen - stolen_before <= MOST * (passed - before)
            if is_quiet or not spare:
                break
            spare -= 1
        disturbed += not is_quiet
        yield result
    if disturbed:
        print(f"  the host took more than {MOST:.0%} of the processors' time in {disturbed} of {wanted} measurements")


def _ticks() -> tuple[int, int]:
    """Stolen, and all."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)
