"""Plays seeds by hand, as root: ``python -m tests.system.files.aftermath FIRST LAST [--shrink]
[--tier T] [--control] [--modes live,cow]``.

``PADDOCK_PREFIX`` names the virtual environment of the installation under test. The default is the
one that runs this.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.support import installation, saved_state, tester
from tests.system.files.aftermath.grammar import MODES, Program, generate
from tests.system.files.aftermath.machine import Machine, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.system.files.aftermath")
    parser.add_argument("first", help="a seed, or a file or directory of programs")
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--tell", action="store_true")
    parser.add_argument("--tier", default="full")
    parser.add_argument("--modes", default=",".join(MODES))
    given = parser.parse_args()
    found = tester.find_or_make()
    count = started = runs = 0
    begun = time.monotonic()
    with (
        saved_state.own_paddock_put_aside(found),
        installation.for_tester(found) as installed,
        Machine.ready(found, installed) as machine,
    ):
        machine.tier = given.tier
        for name, program in programs(given):
            result = machine.play(program, sandboxed=not given.control, tell=given.tell)
            started, runs = started + result.started, runs + result.runs
            if given.tell:
                print(result.log)
            if result:
                count += 1
                print(
                    f"{name} {program.layout} {program.runs[0].mode}: {', '.join(result.fired)}",
                    flush=True,
                )
                if given.shrink:
                    print(shrink(machine, program).to_json(), flush=True)
    print(f"{count} fired; {started} of {runs} runs started; {time.monotonic() - begun:.1f} s")
    return 1 if count else 0


def programs(given: argparse.Namespace) -> list[tuple[str, Program]]:
    if not given.first.isdigit():
        place = Path(given.first)
        files = sorted(place.glob("*.json")) if place.is_dir() else [place]
        return [(file.stem, Program.from_json(file.read_text())) for file in files]
    last = int(given.first) + 1 if given.last is None else given.last
    return [
        (str(seed), generate(seed, modes=tuple(given.modes.split(","))))
        for seed in range(int(given.first), last)
    ]


sys.exit(main())
