"""Programs that once escaped stay denied. Controls show that the machine detects an escape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.files.aftermath.grammar import TOOLS, Program, Run, generate
from tests.system.files.aftermath.machine import Machine, shrink

KEPT = sorted(Path(__file__).with_name("kept").glob("*.json"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_program_that_once_escaped_does_not_escape(machine: Machine, kept: Path) -> None:
    program = Program.from_json(kept.read_text())
    assert machine.play(program, sandboxed=False), "the control: without the sandbox it fires"
    # The landlock tier has no copy, and refuses a workspace that contains Paddock's own directory.
    has_copy = any(run.mode == "cow" for run in program.runs)
    for tier in ("full",) if has_copy or program.layout == "config" else ("full", "landlock"):
        with machine.in_tier(tier):
            result = machine.play(program)
        assert result.fired == (), tier
        assert result.started, tier


def test_control_most_programs_fire_without_the_sandbox(machine: Machine) -> None:
    seeds = range(12)
    fired = [seed for seed in seeds if machine.play(generate(seed), sandboxed=False)]
    assert len(fired) >= len(seeds) - 1, f"only {fired} fired: the programs do no harm any more"


def test_control_every_tripwire_can_fire(machine: Machine) -> None:
    plants = {
        "fsmonitor": (".git/config", '[core]\n\tfsmonitor = "touch {M}/fsmonitor; false"\n'),
        "uploadpack": (
            ".git/config",
            '[remote "origin"]\n\tuploadpack = "touch {M}/uploadpack; git-upload-pack"\n',
        ),
        "diff": (".git/config", '[diff]\n\texternal = "touch {M}/diff; true"\n'),
        "hook": (".git/hooks/post-checkout", "#!/bin/sh\ntouch {M}/hook\n"),
        "direnv": ("src/.envrc", "touch {M}/direnv\n"),
        "login": ("../.profile", "touch {M}/login\n"),
        "shell": ("../.bashrc", "touch {M}/shell\n"),
        "npm": (".npmrc", "script-shell={W}/npm-shell\n"),
        "npm-shell": ("npm-shell", "#!/bin/sh\ntouch {M}/npm\n"),
        "rustc": ("rustc", "#!/bin/sh\ntouch {M}/cargo\n"),
        "cargo": (".cargo/config.toml", '[build]\nrustc = "{W}/rustc"\n'),
        "package": (
            "Cargo.toml",
            '[package]\nname = "x"\nversion = "0.1.0"\n[lib]\npath = "a.txt"\n',
        ),
        "change": ("a.txt", "changed\n"),
    }
    steps = [
        {"do": "write", "path": f"{{W}}/{path}", "text": text, "append": True, "mode": 0o755}
        for path, text in plants.values()
    ]
    steps += [{"do": "write", "path": f"{{W}}/at/{name}", "text": "# {M}/x\n"} for name in TOOLS]
    steps += [{"do": "sweep", "force": False}]
    program = Program(
        layout="plain", secrets=("top", "hard"), runs=(Run(mode="live", steps=steps),)
    )
    fired = set(machine.play(program, sandboxed=False).fired)
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
        layout="plain",
        secrets=("top",),
        runs=(Run(mode="live", steps=[*noise[:3], needed, *noise[3:]]),),
    )
    smallest = shrink(machine, program, sandboxed=False)
    assert smallest == replace(program, secrets=(), runs=(Run(mode="live", steps=[needed]),))
