"""The cost of the exec gate: many starts of /bin/true under twenty rules about arguments.

The gate judges, verifies and journals each start. The same starts run in turn without a sandbox,
under the smallest possible gate (gate.c), in the sandbox without rules, under `strace -f`, and
under the sandlock library. Sandlock calls a policy callback in Python, which has one rule only.
Each round gives one ratio. The table shows the median of the ratios.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import host
from bench.fixture import Bench
from tests.support import core, installation, tester

HERE = Path(__file__).resolve().parent
BUDGET = 1.10  # of the limit
LIMIT = "the limit: held, traced and compared, no rules (gate.c)"
STARTS = 1000  # one after the other
RULES = 20
PEER_ROUNDS = 5
PATIENCE_S = 240


def gated(plan: core.Plan) -> core.Plan:
    """Twenty rules about arguments. None matches /bin/true, so the gate tries all of them."""
    rules = [
        {
            "id": f"no-{number}",
            "action": "deny",
            "reason": None,
            "source": "bench",
            "match": [
                {
                    "key": "argv_regex",
                    "not": False,
                    "values": [rf"^(git|npm|a{number}) (push|up{number})( |$)"],
                }
            ],
        }
        for number in range(RULES)
    ]
    gate = {
        "default": "allow",
        "on_error": "deny",
        "timeout_ms": 250,
        "ask_timeout_s": 300,
        "trace": False,
        "exec_only_granted": True,
        "rules": rules,
        "approved": [],
    }
    return core.changed(plan, gate=gate)


def execs(
    bench: Bench, plan: core.Plan, full_plan: core.Plan, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of one start in each round, for each case."""
    many: list[str | Path] = [bench.build / "many", str(STARTS), "/bin/true"]
    with contextlib.ExitStack() as stack:
        plans = [plan, gated(plan), gated(full_plan)]
        fds = [stack.enter_context(core.sealed(core.canonical(plan))) for plan in plans]
        cases: dict[str, list[str | Path]] = {
            "bare": many,
            LIMIT: [bench.build / "gate", *many],
            "the sandbox without rules, landlock tier": bench.through_core(fds[0], many),
            f"{RULES} rules, landlock tier": bench.through_core(fds[1], many),
            f"{RULES} rules, full tier": bench.through_core(fds[2], many),
        }
        own = list(cases)
        if strace := shutil.which("strace", path=tester.SEARCH_PATH):
            cases["strace -f -e trace=execve"] = [
                strace,
                "-f",
                "-qq",
                "-e",
                "trace=execve",
                "-o",
                "/dev/null",
                *many,
            ]

        def start(words: list[str | Path]) -> float:
            done = bench.user.run(words, cwd=bench.small, pass_fds=fds, timeout_s=120)
            if done.exit_code != 0:
                sys.exit(f"bench: {done}")
            return int(done.stdout) / 1e6

        def call(peer: subprocess.Popen[str]) -> float:
            print(file=peer.stdin, flush=True)
            return int(peer.stdout.readline() if peer.stdout else "0") / 1e6

        measures: dict[str, Callable[[], float]] = {
            name: partial(start, words) for name, words in cases.items()
        }
        if peer := stack.enter_context(sandlock(bench, many)):
            measures["sandlock, policy callback"] = partial(call, peer)
        for measure in measures.values():
            measure()  # warms caches
        watch = host.Watch(PATIENCE_S)
        taken: dict[str, list[float]] = {name: [] for name in measures}
        for number in range(rounds):
            # The peers take as long as all our cases, and their exact figure decides nothing.
            names = list(measures) if number < PEER_ROUNDS else own
            # A random order, so that no case always runs after the same other case. One case leaves
            # caches and clock rates that change the next.
            for name in random.sample(names, len(names)):
                taken[name].append(watch.undisturbed(measures[name]))
        watch.tell()
    return taken


def ratio(samples: list[float], bare: list[float]) -> float:
    """The median of the ratios of all rounds. Some cases have only the first rounds."""
    return statistics.median(ours / base for ours, base in zip(samples, bare, strict=False))


@contextlib.contextmanager
def sandlock(bench: Bench, many: list[str | Path]) -> Iterator[subprocess.Popen[str] | None]:
    spec = importlib.util.find_spec("sandlock")
    if spec is None or spec.origin is None:
        yield None
        return
    interpreter, _ = installation.reachable_interpreter(bench.user)
    script = shutil.copy(HERE / "peer_sandlock_execs.py", bench.build)
    path = {"PYTHONPATH": str(Path(spec.origin).parent.parent)}
    words: list[str | Path] = [interpreter, script, *many]
    tried = bench.user.run(words, cwd=bench.small, env=path, stdin="\n")
    if tried.exit_code != 0:
        print(f"sandlock does not run here, so it is not measured: {tried.stderr.strip()}")
        yield None
        return
    with bench.user.starting(words, cwd=bench.small, env=path, stdin=subprocess.PIPE) as process:
        yield process


def memory(bench: Bench, plan: core.Plan, starts: int) -> tuple[int, int]:
    """Memory of the supervisor in KiB: after a hundredth of the starts, and at their end."""
    words: list[str | Path] = [bench.build / "many", str(starts), "/bin/true"]
    seen: list[int] = []
    with core.sealed(core.canonical(gated(plan))) as fd:
        start = bench.user.starting(bench.through_core(fd, words), cwd=bench.small, pass_fds=[fd])
        with start as process:
            while process.poll() is None:
                time.sleep(0.5)
                with contextlib.suppress(OSError, StopIteration):
                    seen.append(_resident_kib(_core_below(process.pid)))
    if len(seen) < 3:
        sys.exit("bench: too few starts to see memory grow")
    return seen[max(1, len(seen) // 100)], seen[-1]


def _core_below(pid: int) -> int:
    """The pid of the tester's command: another program starts it and becomes it by exec."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "paddock-core":
            return pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(children[0]) if children else pid
    raise StopIteration


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
