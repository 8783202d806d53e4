"""The cost of an intercepted shell: plain `bash -c :`, a first shell, and a nested shell."""

from __future__ import annotations

import sys

from bench.fixture import Bench

BUDGET_MS = 2.0
# A shell that is started by its real path is not intercepted.
_REAL = (
    "import os, sys; os.execv(os.path.realpath('/dev/.paddock-shell') + '/usr/bin/bash', "
    "sys.argv[1:])"
)
_SPAWN = (
    'exec "$0" "$1" 0 "$(readlink -f /dev/.paddock-shell)/usr/bin/bash" -c : :: /usr/bin/bash -c :'
)


def intercepted(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every round, for each case."""
    spawn = [str(bench.build / "spawn"), str(rounds)]
    first = _time(bench, ["/usr/bin/python3", "-c", _REAL, "bash", "-c", _SPAWN, *spawn])
    below = _time(bench, ["/bin/sh", "-c", _SPAWN, *spawn])
    return {"bash -c :": first[0], "intercepted": first[1], "intercepted, below another": below[1]}


def _time(bench: Bench, words: list[str]) -> list[list[float]]:
    """Milliseconds as the command measures them, in one run."""
    flags = ("--tier", "full", "--intercept-shells", "--quiet", "-r", f"{bench.build}/**")
    done = bench.user.run(
        [bench.installed.paddock, "run", *flags, "--", *words], cwd=bench.small, timeout_s=600
    )
    if done.exit_code != 0:
        sys.exit(f"bench: {done}")
    return [[int(text) / 1e6 for text in line.split()] for line in done.stdout.splitlines()]
