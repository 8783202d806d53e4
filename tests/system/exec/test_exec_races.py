"""The judged program is the program that runs, also if another process changes it meanwhile.

The kernel reads path and arguments again after they were judged, and opens files by their names.
These tests change both as fast as possible while the calls wait. The control is the same race under
a gate that only checks and continues.

`make test` makes 200 calls in each race, `make stress` up to some ten thousand.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gate import Gate, rule
from tests.support.programs import loader_of, roomy
from tests.support.sandbox import SandboxRunner, Word
from tests.support.stress import amount
from tests.support.tester import Outcome
from tests.support.waiting import NeverHappened

CALLS = amount(ordinary=200, first=300, more=1000)
NAIVE_CALLS = 400
MOST_RUNS = 100
TIMEOUT_S = 60 + CALLS / 50
WORDS = ("word-a", "word-f")

MEMORY = ("thread", "clone", "shared", "mem", "vm-write")
RACES = (
    *(f"{who} {what}" for what in ("argv", "path") for who in MEMORY),
    *(f"thread {what} script" for what in ("argv", "path")),
    *(
        "symlink",
        "symlink script",
        "exchange",
        "exchange script",
        "rewrite script",
        "rewrite content",
        "directory",
    ),
    *("rewrite loader", "rewrite no loader"),
)
# With file rules it is denied before it can begin.
WITHOUT_FILE_RULES = "exchange loader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    words: list[Word]
    rules: tuple[str, ...]
    denied: Path
    places: tuple[Path, ...]

    def bypasses(self, gate: Gate) -> list[str]:
        """Lines that only the denied program can have written."""
        lines = [(place, line) for place in self.places for line in gate.ran(place)]
        return [
            line
            for place, line in lines
            if line.startswith("forbidden") or WORDS[1] in line.split() or place.name == "denied"
        ]


def race(gate: Gate, name: str, calls: int) -> Race:
    programs, project = gate.sandbox.programs, gate.project
    who, *rest = name.split()
    allowed, forbidden = programs.allowed, programs.forbidden
    if "script" in rest:
        allowed, forbidden = (programs.directory / f"script-{letter}" for letter in "af")
        for path, interpreter in ((allowed, programs.allowed), (forbidden, programs.forbidden)):
            path.write_text(f"#!{interpreter}\n")
            path.chmod(0o755)
    own = rule("own", "allow", exe_glob=f"{project}/own-*")
    rules = [
        rule("no-word", "deny", exe=[str(programs.allowed), str(allowed)], argv_contains=WORDS[1]),
        rule("no-marker", "deny", exe=str(programs.forbidden)),
        rule("no-content", "deny", exe_sha256=digest(programs.forbidden)),
        rule("no-place", "deny", cwd_glob=f"{project}/denied"),
        own,
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
        case ["exchange", "loader"]:
            changing, one, denied = (project / f"own-{name}" for name in ("l", "ld", "f"))
            shutil.copy(loader_of(programs.linked), one)
            shutil.copy(programs.posing, denied)
            rules = [rule("no-loader", "deny", exe=str(denied)), own]
            content = programs.hosted.read_bytes()
            changing.write_bytes(
                content.replace(roomy(loader_of(programs.linked)).encode(), roomy(one).encode())
            )
            words = [*start, str(calls), changing, one, denied]
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
        case ["rewrite", "loader"]:
            changing, content, denied = (
                project / "own-l",
                programs.hosted.read_bytes(),
                programs.posing,
            )
            rules = [rule("no-loader", "deny", exe=str(denied)), own]
            name_of_loader = roomy(loader_of(programs.linked))
            changing.write_bytes(content)
            offset = content.index(name_of_loader.encode())
            words = [*start, str(calls), changing, name_of_loader, roomy(denied), str(offset)]
        case ["rewrite", "no", "loader"]:
            # A note, which the kernel ignores, or the path of a loader.
            changing, denied = project / "own-l", programs.fixed
            rules = [rule("no-loader", "deny", exe=str(denied)), own]
            content, offset = with_note(programs.allowed.read_bytes(), os.fsencode(denied) + b"\0")
            changing.write_bytes(content)
            words = [*start, str(calls), changing, "\x04", "\x03", str(offset)]
        case ["rewrite", "content"]:
            # One file with the content of the allowed program, or with one letter changed.
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
                gate.sandbox.tree.make(place)
            words = [*start, str(calls), allowed, *places]
        case _:
            raise AssertionError(name)
    for path in project.glob("own-*"):
        path.chmod(0o755)
    gate.sandbox.tester.give(project)
    return Race(words=words, rules=tuple(rules), denied=denied, places=tuple(places))


def with_note(program: bytes, note: bytes) -> tuple[bytes, int]:
    """A static program with this note (PT_NOTE) first, and the offset of its type field."""
    (headers,) = struct.unpack_from("<Q", program, 32)
    (count,) = struct.unpack_from("<H", program, 56)
    places = range(headers, headers + 56 * count, 56)
    place = next(place for place in places if struct.unpack_from("<I", program, place) == (4,))
    changed = bytearray(program + note)
    struct.pack_into("<Q", changed, place + 8, len(program))
    struct.pack_into("<Q", changed, place + 32, len(note))
    return bytes(changed), place


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def counts(outcome: Outcome) -> tuple[int, int, int]:
    found = re.fullmatch(r"calls (\d+) ran (\d+) killed (\d+)\n", outcome.stdout)
    assert found, str(outcome)
    calls, ran, killed = map(int, found.groups())
    return calls, ran, killed


# A naive gate does not check content.
@pytest.mark.parametrize(
    "name", [*(name for name in RACES if name != "rewrite content"), WITHOUT_FILE_RULES]
)
def test_control_a_gate_that_only_looks_loses_the_race(sandbox: SandboxRunner, name: str) -> None:
    gate = Gate(sandbox=sandbox)
    run = race(gate, name, NAIVE_CALLS)
    words = [
        gate.sandbox.programs.naive,
        run.denied,
        WORDS[1],
        gate.project / "denied",
        "--",
        *run.words,
    ]
    # Losing the race is chance, so the control runs until it happens.
    for _ in range(MOST_RUNS):
        outcome = gate.sandbox.tester.run(words, cwd=gate.project, timeout_s=TIMEOUT_S)
        assert counts(outcome)[2] == 0, str(outcome)
        if run.bypasses(gate):
            return
    raise NeverHappened(f"{name}: {MOST_RUNS} runs, the last one: {outcome}")


@pytest.mark.parametrize("name", RACES)
def test_no_unjudged_program_runs(gate: Gate, name: str) -> None:
    run = race(gate, name, CALLS)
    # A debugger needs these calls.
    more = "[syscalls]\ntrace = true\n" if "vm-write" in name or "mem" in name else ""
    flags = ["--quiet", *(["--write", "/proc/**"] if "mem" in name else [])]
    # On a busy machine all calls of a race may be denied, so it is run until one of them starts.
    for _ in range(MOST_RUNS):
        outcome = gate.inside(run.words, *run.rules, more=more, flags=flags, timeout_s=TIMEOUT_S)
        if lost(gate, run, outcome):
            return
        for file in gate.sandbox.journal.iterdir():
            file.unlink()
    raise NeverHappened(f"{name}: {MOST_RUNS} runs, the last one: {outcome}")


def test_the_judged_loader_runs_also_without_file_rules(
    sandbox: SandboxRunner,
) -> None:
    gate = Gate(sandbox=sandbox)
    run = race(gate, WITHOUT_FILE_RULES, CALLS)
    flags = ["--quiet", "--off", "landlock"]
    assert lost(gate, run, gate.inside(run.words, *run.rules, flags=flags, timeout_s=TIMEOUT_S)) > 0


def test_a_loader_that_the_command_can_exchange_is_never_started(gate: Gate) -> None:
    run = race(gate, WITHOUT_FILE_RULES, CALLS)
    assert (
        lost(gate, run, gate.inside(run.words, *run.rules, flags=["--quiet"], timeout_s=TIMEOUT_S))
        == 0
    )


# The output ends with the number of killed programs.
VANISHES = """
import os, shutil, sys
killed = 0
for number in range(int(sys.argv[2])):
    name = f"own-{number}"
    shutil.copy(sys.argv[1], name)
    child = os.posix_spawn(name, [name], os.environ)
    os.rename(name, "own-renamed")
    os.unlink("own-renamed")
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
sys.exit(killed)
"""


@pytest.mark.parametrize("loaded", [True, False])
def test_a_program_may_be_renamed_and_removed_as_soon_as_it_is_started(
    gate: Gate, loaded: bool
) -> None:
    """The gate identifies a loader by more than its path."""
    program = gate.sandbox.programs.hosted if loaded else gate.sandbox.programs.allowed
    own = rule("own", "allow", exe_glob=f"{gate.project}/own-*")
    outcome = gate.inside(["python3", "-c", VANISHES, program, "100"], own, flags=["--quiet"])
    assert outcome.exit_code == 0, str(outcome)
    assert gate.ran() == ["allowed"] * 100


def lost(gate: Gate, run: Race, outcome: Outcome) -> int:
    """Only judged programs ran. The result is their number."""
    calls, ran, killed = counts(outcome)
    print(gate.sandbox.tier, outcome.stdout.strip())
    bypasses = run.bypasses(gate)
    assert not bypasses, f"{len(bypasses)} of {calls}: {bypasses[:3]}"
    assert calls >= CALLS, str(outcome)
    attacks = [event for event in gate.execs() if event["event"] == "exec.attack"]
    assert len(attacks) == killed, f"{attacks[:3]}\n{outcome}"
    return ran


def test_a_command_killed_for_a_race_ends_the_run_with_its_signal(gate: Gate) -> None:
    """The tracer and the parent both wait for the process. Neither loses its end."""
    programs = gate.sandbox.programs
    words: list[Word] = [programs.racer, "alone", "8", programs.allowed, *WORDS]
    denied = rule("no-word", "deny", exe=str(programs.allowed), argv_contains=WORDS[1])
    for _ in range(MOST_RUNS):
        outcome = gate.inside(words, denied, flags=["--quiet"])
        assert outcome.stderr == "", str(outcome)
        assert not any(WORDS[1] in line.split() for line in gate.ran()), str(outcome)
        # The program ran, was denied each time, or was killed.
        assert outcome.exit_code in (0, 100, 137), str(outcome)
        if outcome.exit_code == 137:
            return
    raise NeverHappened(f"never killed in {MOST_RUNS} runs")
