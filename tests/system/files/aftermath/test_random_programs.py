"""Hostile programs behind the fence, the host's day after them: nothing that they planted runs, no
secret leaves.

``PADDOCK_STRESS`` is the number of seeds to play, in hundreds; without it two hundred are. To play
one seed by hand: ``python -m tests.system.files.aftermath SEED --tell``. A seed that goes through
is shrunk; keep its steps in ``kept/``.
"""

from __future__ import annotations

import os

import pytest

from tests.system.files.aftermath.grammar import generate
from tests.system.files.aftermath.machine import Machine, shrink

SEEDS = 100 * int(os.environ.get("PADDOCK_STRESS", "2"))
BATCH = 25


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_nothing_planted_runs_and_no_secret_leaves(machine: Machine, first: int) -> None:
    fired, started, runs = [], 0, 0
    for seed in range(first, min(first + BATCH, SEEDS)):
        verdict = machine.play(generate(seed))
        started, runs = started + verdict.started, runs + verdict.runs
        if verdict:
            fired.append((seed, verdict.fired))
    if fired:
        smallest = shrink(machine, generate(fired[0][0]))
        pytest.fail(
            f"seeds that went through: {fired}\nthe first needs these steps:\n{smallest.to_json()}"
        )
    assert started > runs * 0.7, (
        f"only {started} of {runs} programs started: the fence was hardly met"
    )


def test_secrets_of_the_home_stay_closed_in_the_landlock_tier(machine: Machine) -> None:
    """Names inside the workspace are not held there, which each run says."""
    machine.tier = "landlock"
    try:
        verdicts = {seed: machine.play(generate(seed, modes=("live",))) for seed in range(10)}
    finally:
        machine.tier = "full"
    assert {seed: verdict.fired for seed, verdict in verdicts.items() if verdict} == {}
    assert sum(verdict.started for verdict in verdicts.values()) > 5
