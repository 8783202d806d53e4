"""What was judged is what runs, whoever changes it meanwhile.

The kernel reads path and arguments again after they were judged, and opens files by their names. Here both are changed
as fast as that goes while the calls wait. The control is the same race under a gate that looks and then lets go.

``PADDOCK_RACES`` is the number of calls of each race; without it, as many as a run of all the tests has time for."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fence import Fence, Word
from tests.support.gate import Gate, rule
from tests.support.tester import Outcome
from tests.support.waiting import NeverHappened

CALLS = int(os.environ.get("PADDOCK_RACES", "400"))
NAIVE_CALLS = 400
MOST_RUNS = 100
TIMEOUT_S = 60 + CALLS / 50
WORDS = ("word-a", "word-f")

MEMORY = ("thread", "clone", "shared", "mem", "vm-write")
RACES = (
    *(f"{who} {what}" for what in ("argv", "path") for who in MEMORY),
    *(f"thread {what} script" for what in ("argv", "path")),
    *("symlink", "symlink script", "exchange", "exchange script", "rewrite script", "rewrite content", "directory"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    words: list[Word]
    rules: tuple[str, ...]
    denied: Path
    places: tuple[Path, ...]

    def bypasses(self, gate: Gate) -> list[str]:
        """Lines that only the denied one can have left."""
        lines = [(place, line) for place in self.places for line in gate.ran(place)]
        return [
            line
            for place, line in lines
            if line.startswith("forbidden") or WORDS[1] in line.split() or place.name == "denied"
        ]


def race(gate: Gate, name: str, calls: int) -> Race:
    programs, project = gate.fence.programs, gate.project
    who, *rest = name.split()
    allowed, forbidden = programs.allowed, programs.forbidden
    if "script" in rest:
        allowed, forbidden = (programs.directory / f"script-{letter}" for letter in "af")
        for path, interpreter in ((allowed, programs.allowed), (forbidden, programs.forbidden)):
            path.write_text(f"#!{interpreter}\n")
            path.chmod(0o755)
    rules = [
        rule("no-word", "deny", exe=[str(programs.allowed), str(allowed)], argv_contains=WORDS[1]),
        rule("no-marker", "deny", exe=str(programs.forbidden)),
        rule("no-content", "deny", exe_sha256=digest(programs.forbidden)),
        rule("no-place", "deny", cwd_glob=f"{project}/denied"),
        rule("own", "allow", exe_glob=f"{project}/own-*"),
    ]
    start: list[Word] = [programs.racer, who]
    denied, places = programs.forbidden, [project]
    match name.split():
        case [_, "argv", *_]:
            words = [*start, "argv", str(calls), allowed, *WORDS]
        case [_, "path", *_]:
            words = [*start, "path", str(calls), allowed, allowed, forbidden]
        case ["symlink", *_]:
            (project / "link").symlink_to(allowed)
            words = [*start, str(calls), project / "link", allowed, forbidden]
        case ["exchange", *_]:
            one, other = project / "own-a", project / "own-f"
            one.write_bytes(allowed.read_bytes())
            other.write_bytes(forbidden.read_bytes())
            denied = denied if "script" in rest else other
            words = [*start, str(calls), one, one, other]
        case ["rewrite", "script"]:
            changing = project / "own-s"
            changing.write_bytes(allowed.read_bytes())
            words = [*start, str(calls), changing, programs.allowed, programs.forbidden, "2"]
        case ["rewrite", "content"]:
            # One file whose content is the allowed one's or, but for one letter, not.
            changing, content = project / "own-c", programs.linked.read_bytes()
            offset = content.index(b"forbidden")
            content = content.replace(b"forbidden", b"permitted")
            changing.write_bytes(content)
            rules = [
                rule("racer", "allow", exe=str(programs.racer)),
                rule("content", "allow", exe_sha256=hashlib.sha256(content).hexdigest()),
                rule("rest", "deny", uid_not=999999),
            ]
            words = [*start, str(calls), changing, "permitted", "forbidden", str(offset)]
        case ["directory"]:
            places = [project / "granted", project / "denied"]
            for place in places:
                gate.fence.ground.make(place)
            words = [*start, str(calls), allowed, *places]
        case _:
            raise AssertionError(name)
    for path in project.glob("own-*"):
        path.chmod(0o755)
    gate.fence.tester.give(project)
    return Race(words=words, rules=tuple(rules), denied=denied, places=tuple(places))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def counts(outcome: Outcome) -> tuple[int, int, int]:
    found = re.fullmatch(r"calls (\d+) ran (\d+) killed (\d+)\n", outcome.stdout)
    assert found, str(outcome)
    calls, ran, killed = map(int, found.groups())
    return calls, ran, killed


# Content is nothing that one looks at and then goes on.
@pytest.mark.parametrize("name", [name for name in RACES if name != "rewrite content"])
def test_looking_and_letting_go_loses_the_race(fence: Fence, name: str) -> None:
    gate = Gate(fence=fence)
    run = race(gate, name, NAIVE_CALLS)
    words = [gate.fence.programs.naive, run.denied, WORDS[1], gate.project / "denied", "--", *run.words]
    outcome = gate.fence.tester.run(words, cwd=gate.project, timeout_s=TIMEOUT_S)
    calls, ran, killed = counts(outcome)
    assert killed == 0, str(outcome)
    if not run.bypasses(gate):
        raise NeverHappened(f"{name}: {calls} calls, {ran} ran")


@pytest.mark.parametrize("name", RACES)
def test_nothing_runs_that_was_not_judged(gate: Gate, name: str) -> None:
    run = race(gate, name, CALLS)
    # These are a debugger's.
    more = "[syscalls]\ntrace = true\n" if "vm-write" in name or "mem" in name else ""
    flags = ["--quiet", *(["--write", "/proc/**"] if "mem" in name else [])]
    outcome = gate.inside(run.words, *run.rules, more=more, flags=flags, timeout_s=TIMEOUT_S)
    calls, ran, killed = counts(outcome)
    print(gate.fence.tier, name, outcome.stdout.strip())
    bypasses = run.bypasses(gate)
    assert not bypasses, f"{name}: {len(bypasses)} of {calls}: {bypasses[:3]}"
    assert ran > 0, str(outcome)
    assert calls >= CALLS, str(outcome)
    attacks = [event for event in gate.execs() if event["event"] == "exec.attack"]
    assert len(attacks) == killed, f"{attacks[:3]}\n{outcome}"


def test_a_command_that_is_killed_for_its_race_ends_the_run_as_such(gate: Gate) -> None:
    """It is waited for by those who trace it and by those who started it: its end is lost to neither."""
    programs = gate.fence.programs
    words: list[Word] = [programs.racer, "alone", "8", programs.allowed, *WORDS]
    denied = rule("no-word", "deny", exe=str(programs.allowed), argv_contains=WORDS[1])
    for _ in range(MOST_RUNS):
        outcome = gate.inside(words, denied, flags=["--quiet"])
        assert outcome.stderr == "", str(outcome)
        assert not any(WORDS[1] in line.split() for line in gate.ran()), str(outcome)
        # It ran, was denied each time, or was killed.
        assert outcome.exit_code in (0, 100, 137), str(outcome)
        if outcome.exit_code == 137:
            return
    raise NeverHappened(f"never killed in {MOST_RUNS} runs")
