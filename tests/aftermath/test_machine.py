"""Hostile programs behind the fence, the host's day after them: nothing that they planted runs, no secret leaves.

``PADDOCK_STRESS`` is the number of seeds to play; without it a few hundred are. A program that once went through is
kept for ever as the steps it needs, in ``kept/``. To play one seed by hand: ``python -m tests.aftermath SEED --tell``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.aftermath.grammar import TOOLS, Program, Run, generate
from tests.aftermath.machine import Machine, shrink
from tests.support.features import need, need_program, need_root
from tests.support.installation import Installation
from tests.support.tester import Tester

KEPT = sorted(Path(__file__).with_name("kept").glob("*.json"))
SEEDS = int(os.environ.get("PADDOCK_STRESS", "200"))
BATCH = 25


@pytest.fixture(scope="module", name="machine")
def _machine(tester: Tester, installation: Installation, host: dict[str, object]) -> Iterator[Machine]:
    need_root()  # the scenes need a home that they may change
    names = host["namespaces"]
    assert isinstance(names, dict)
    need("namespaces", names["usable"], f"this machine makes no namespaces: {names}")
    for program in ("git", "direnv", "npm", "pip"):
        need_program(program)
    with Machine.ready(tester, installation) as machine:
        yield machine


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
        pytest.fail(f"seeds that went through: {fired}\nthe first needs these steps:\n{smallest.to_json()}")
    assert started > runs * 0.7, f"only {started} of {runs} programs started: the fence was hardly met"


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_what_once_went_through_is_held(machine: Machine, kept: Path) -> None:
    program = Program.from_json(kept.read_text())
    assert machine.play(program, fenced=False), "the control: without the fence it fires"
    verdict = machine.play(program)
    assert verdict.fired == ()
    assert verdict.started


def test_most_programs_fire_without_the_fence(machine: Machine) -> None:
    seeds = range(12)
    fired = [seed for seed in seeds if machine.play(generate(seed), fenced=False)]
    assert len(fired) >= len(seeds) - 1, f"only {fired} fired: the programs have lost their teeth"


def test_every_tripwire_of_the_day_can_fire(machine: Machine) -> None:
    plants = {
        "fsmonitor": (".git/config", '[core]\n\tfsmonitor = "touch {M}/fsmonitor; false"\n'),
        "uploadpack": (".git/config", '[remote "origin"]\n\tuploadpack = "touch {M}/uploadpack; git-upload-pack"\n'),
        "diff": (".git/config", '[diff]\n\texternal = "touch {M}/diff; true"\n'),
        "hook": (".git/hooks/post-checkout", "#!/bin/sh\ntouch {M}/hook\n"),
        "direnv": ("src/.envrc", "touch {M}/direnv\n"),
        "login": ("../.profile", "touch {M}/login\n"),
        "shell": ("../.bashrc", "touch {M}/shell\n"),
        "npm": (".npmrc", "script-shell={W}/npm-shell\n"),
        "npm-shell": ("npm-shell", "#!/bin/sh\ntouch {M}/npm\n"),
        "rustc": ("rustc", "#!/bin/sh\ntouch {M}/cargo\n"),
        "cargo": (".cargo/config.toml", '[build]\nrustc = "{W}/rustc"\n'),
        "package": ("Cargo.toml", '[package]\nname = "x"\nversion = "0.1.0"\n[lib]\npath = "a.txt"\n'),
        "change": ("a.txt", "changed\n"),
    }
    steps = [
        {"do": "write", "path": f"{{W}}/{path}", "text": text, "append": True, "mode": 0o755}
        for path, text in plants.values()
    ]
    steps += [{"do": "write", "path": f"{{W}}/at/{name}", "text": "# {M}/x\n"} for name in TOOLS]
    steps += [{"do": "sweep", "force": False}]
    program = Program(layout="plain", secrets=("top", "hard"), runs=(Run(mode="live", steps=steps),))
    fired = set(machine.play(program, fenced=False).fired)
    expected = {"fsmonitor", "uploadpack", "diff", "hook", "direnv", "login", "shell", "npm"}
    if Path(machine.tools["cargo"]).exists():
        expected.add("cargo")
    assert {f"executed {name}" for name in expected} <= fired
    assert {f"left proj/at/{name}" for name in TOOLS} <= fired
    assert {"changed .bashrc", "changed .profile", "read proj/.env", "read proj/svc/.env"} <= fired


def test_a_shrunk_program_still_fires(machine: Machine) -> None:
    noise = [{"do": "mkdir", "path": f"{{W}}/noise{number}"} for number in range(6)]
    needed = {"do": "write", "path": "{W}/src/.envrc", "text": "touch {M}/shrunk\n"}
    program = Program(
        layout="plain", secrets=("top",), runs=(Run(mode="live", steps=[*noise[:3], needed, *noise[3:]]),)
    )
    smallest = shrink(machine, program, fenced=False)
    assert smallest == replace(program, secrets=(), runs=(Run(mode="live", steps=[needed]),))


def test_secrets_of_the_home_stay_closed_in_the_landlock_tier(machine: Machine) -> None:
    """Names inside the workspace are not held there, which each run says."""
    machine.tier = "landlock"
    try:
        verdicts = {seed: machine.play(generate(seed, modes=("live",))) for seed in range(10)}
    finally:
        machine.tier = "full"
    assert {seed: verdict.fired for seed, verdict in verdicts.items() if verdict} == {}
    assert sum(verdict.started for verdict in verdicts.values()) > 5
