"""Compares what random system calls on files answer, bare and inside a sandbox.

``programs/file_calls.c`` makes the calls and prints one line for each. To compare by hand, with any
command in the place of the sandbox (``PROGRAM`` is compiled from ``programs/file_calls*.c`` with
``cc -static -pthread``)::

    python -m tests.support.call_comparison PROGRAM DIRECTORY --seeds 0 100 -- SANDBOX WORDS...

Both runs use the same empty directory, one after the other: the length of its path is a part of
what the calls see. ``DIRECTORY`` is on the file system that is to be tested.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

_CONTEXT_LINES = 8
_END = "(no more lines)"
_CALL = re.compile(r"\d+ (?:[a-z, ]+: )?(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Which calls ``file_calls`` makes: seeds ``first`` to ``first + count``, and what it leaves
    out.
    """

    first: int
    count: int
    steps: int
    without: tuple[str, ...] = ()

    def words(self, program: Path, directory: Path) -> list[str]:
        left_out = [word for feature in self.without for word in ("--without", feature)]
        return [
            str(program), str(directory), str(self.steps), str(self.first), str(self.count),
            *left_out,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first line of one seed that is not the same in both runs."""

    seed: str
    context: tuple[str, ...]
    bare: str
    inside: str

    @property
    def call(self) -> str:
        found = _CALL.match(self.bare) or _CALL.match(self.inside)
        return found[1] if found else "tree"

    def __str__(self) -> str:
        before = "".join(f"    {line}\n" for line in self.context)
        return f"{self.seed}\n{before}  - {self.bare}\n  + {self.inside}\n"


def differences(bare: str, inside: str) -> list[Difference]:
    """One for each seed whose lines differ. Later lines of a seed follow from the first one."""
    by_seed = dict(_seeds(inside))
    found = [_first(seed, lines, by_seed.get(seed, [])) for seed, lines in _seeds(bare)]
    return [difference for difference in found if difference is not None]


def report(found: Sequence[Difference], *, shown: int = 3) -> str:
    calls = ", ".join(f"{name} {count}" for name, count in _counted(found))
    first = "\n".join(map(str, found[:shown]))
    return f"{len(found)} seeds differ; the first call that differs: {calls}\n{first}"


def _counted(found: Iterable[Difference]) -> list[tuple[str, int]]:
    return Counter(difference.call for difference in found).most_common()


def _seeds(text: str) -> list[tuple[str, list[str]]]:
    parts = re.split(r"^(seed \d+)\n", text, flags=re.MULTILINE)
    names, texts = parts[1::2], parts[2::2]
    return [(name, text.splitlines()) for name, text in zip(names, texts, strict=True)]


def _first(seed: str, bare: list[str], inside: list[str]) -> Difference | None:
    for at, (expected, actual) in enumerate(zip_longest(bare, inside, fillvalue=_END)):
        if expected != actual:
            context = tuple(bare[max(0, at - _CONTEXT_LINES) : at])
            return Difference(seed=seed, context=context, bare=expected, inside=actual)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 100), metavar=("FIRST", "COUNT"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--shown", type=int, default=3)
    own, prefix = _parted(sys.argv[1:])
    chosen = parser.parse_args(own)
    sequences = Sequences(
        first=chosen.seeds[0], count=chosen.seeds[1], steps=chosen.steps,
        without=tuple(chosen.without),
    )  # fmt: skip
    words = sequences.words(chosen.program, chosen.directory)
    found = differences(_output(words), _output([*prefix, *words]))
    print(report(found, shown=chosen.shown) if found else "no difference")
    return 1 if found else 0


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before ``--``, and those after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _output(words: Sequence[str]) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode(errors="surrogateescape")


if __name__ == "__main__":
    sys.exit(main())
