"""The amount of random tests. `make stress` sets ``PADDOCK_STRESS``, `make test` does not."""

from __future__ import annotations

import os
import random

LEVEL = int(os.environ.get("PADDOCK_STRESS", "0"))
WHOLE_LEVEL = 20
"""From this level on, a test that takes a sample takes everything."""


def seed_source(fixed: int) -> random.Random:
    """The seeds. Level 1 uses the same seeds in every run, so that CI does not fail by chance."""
    return random.Random(fixed if LEVEL < 2 else None)


def amount(*, ordinary: int, first: int, more: int) -> int:
    """``first`` is for level 1, a short run; each further level adds ``more``."""
    return first + (LEVEL - 1) * more if LEVEL else ordinary
