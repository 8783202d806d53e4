"""Hostile programs run in the sandbox, then the host works with the files that they left.

The host runs nothing that they planted, and no secret leaves.

`make test` plays the first seeds, `make stress` the seeds after them. To play one seed by hand:
``python -m tests.system.files.aftermath SEED --tell``. A seed that escapes is reduced. Keep its
steps in ``kept/``.
"""

from __future__ import annotations

import pytest

from tests.support.stress import LEVEL, amount
from tests.system.files.aftermath.grammar import generate
from tests.system.files.aftermath.machine import Machine, shrink

ORDINARY = 75
FIRST = ORDINARY if LEVEL else 0
LAST = FIRST + amount(ordinary=ORDINARY, first=25, more=100)
BATCH = 25


@pytest.mark.parametrize("first", range(FIRST, LAST, BATCH))
def test_nothing_planted_runs_and_no_secret_leaves(machine: Machine, first: int) -> None:
    fired, started, runs = [], 0, 0
    for seed in range(first, first + BATCH):
        result = machine.play(generate(seed))
        started, runs = started + result.started, runs + result.runs
        if result:
            fired.append((seed, result.fired))
    if fired:
        smallest = shrink(machine, generate(fired[0][0]))
        pytest.fail(
            f"seeds that went through: {fired}\nthe first needs these steps:\n{smallest.to_json()}"
        )
    assert started > runs * 0.7, (
        f"only {started} of {runs} programs started: the sandbox was hardly tested"
    )


def test_secrets_of_the_home_stay_closed_in_the_landlock_tier(machine: Machine) -> None:
    """The landlock tier does not protect names inside the workspace, as each run says."""
    machine.tier = "landlock"
    try:
        results = {seed: machine.play(generate(seed, modes=("live",))) for seed in range(10)}
    finally:
        machine.tier = "full"
    assert {seed: result.fired for seed, result in results.items() if result} == {}
    assert sum(result.started for result in results.values()) > 5
