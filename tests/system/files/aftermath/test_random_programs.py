"""Hostile programs run in the sandbox, then the host works with the files that they left.

The host runs nothing that they planted, and no secret leaves.

`make test` plays the first seeds, `make stress` the seeds after them. To play one seed by hand:
``python -m tests.system.files.aftermath SEED --tell``. A seed that escapes is reduced. Keep its
steps in ``kept/``.
"""

from __future__ import annotations

import pytest

from tests.support.stress import LEVEL, amount
from tests.system.files.aftermath.grammar import MODES, generate
from tests.system.files.aftermath.machine import Machine, shrink

ORDINARY = 75
FIRST = ORDINARY if LEVEL else 0
LAST = FIRST + amount(ordinary=ORDINARY, first=25, more=100)
BATCH = 25


# The landlock tier has no copy of the workspace.
TIERS = {"full": MODES, "landlock": tuple(mode for mode in MODES if mode != "cow")}


@pytest.mark.parametrize("first", range(FIRST, LAST, BATCH))
@pytest.mark.parametrize("tier", TIERS)
def test_nothing_planted_runs_and_no_secret_leaves(machine: Machine, tier: str, first: int) -> None:
    """In the landlock tier only secrets of the home stay closed, as each run says."""
    fired, started, runs = [], 0, 0
    with machine.in_tier(tier):
        for seed in range(first, first + BATCH):
            result = machine.play(generate(seed, modes=TIERS[tier]))
            started, runs = started + result.started, runs + result.runs
            if result:
                fired.append((seed, result.fired))
        if fired:
            smallest = shrink(machine, generate(fired[0][0], modes=TIERS[tier]))
            pytest.fail(
                f"seeds that went through: {fired}\n"
                f"the first needs these steps:\n{smallest.to_json()}"
            )
    assert started > runs * 0.7, (
        f"only {started} of {runs} programs started: the sandbox was hardly tested"
    )
