"""One runner, side by side: launch and file work, bare, at the limit, through Paddock, through its peers.

Everything is measured in one run on one machine, in turn, as an unprivileged user, and read as ratios: figures of
different machines or of different minutes can not be compared. Exits 1 when a budget is missed.

    python bench/run.py [--rounds N] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import rules, tree  # noqa: E402
from tests.support import core, installation, tester  # noqa: E402
from tests.support.cow import workbench  # noqa: E402

LAUNCH_BUDGET, FULL_BUDGET, WORK_BUDGET = 2.0, 4.5, 1.05
CROWD, CROWD_BUDGET_S, CROWD_BUDGET_MIB = 50, 0.25, 0.4
BATCH = 20
COPY_BUDGET_MS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    user: tester.Tester
    installed: installation.Installation
    build: Path  # readable by the user
    workspace: Path
    plan: core.Plan  # of the landlock tier
    full_plan: core.Plan

    @property
    def lean_plan(self) -> core.Plan:
        """Nothing to supervise: no journal, no private temporary directory."""
        environment = {**self.plan["environment"], "set": {}}
        return core.changed(self.plan, journal=None, temp=None, environment=environment)

    def time(self, rounds: int, cases: Sequence[Sequence[str | Path]], plan_fds: Sequence[int]) -> list[list[float]]:
        """Milliseconds of every round, per case. The plans' descriptors must follow each other."""
        words: list[str | Path] = [self.build / "spawn", str(rounds), str(plan_fds[0])]
        for number, case in enumerate(cases):
            words += ["::"] if number else []
            words += case
        done = self.user.run(words, cwd=self.workspace, pass_fds=plan_fds, timeout_s=600)
        if done.exit_code != 0:
            sys.exit(f"bench: {done}")
        return [[int(text) / 1e6 for text in line.split()] for line in done.stdout.splitlines()]

    def through_core(self, fd: int, command: Sequence[str | Path]) -> list[str | Path]:
        return [self.installed.core, "run", "--plan-fd", str(fd), "--quiet", "--", *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    median_ms: float
    ratio: float
    budget: float | None = None

    @property
    def kept(self) -> bool:
        return self.budget is None or self.ratio <= self.budget

    def __str__(self) -> str:
        verdict = "" if self.budget is None else f"≤ {self.budget:<5} {'pass' if self.kept else 'FAIL'}"
        return f"  {self.name:<44} {self.median_ms:>9.3f} ms {self.ratio:>7.2f} x  {verdict}"


def launch(bench: Bench, rounds: int) -> list[Row]:
    true = ["/bin/true"]
    with (
        core.sealed(core.canonical(bench.plan)) as full,
        core.sealed(core.canonical(bench.lean_plan)) as lean,
        core.sealed(core.canonical(bench.full_plan)) as boxed,
    ):
        cases: dict[str, list[str | Path]] = {
            "bare": [*true],
            "one more exec (again.c)": [bench.build / "again", *true],
            "the limit (limit.c)": [bench.build / "limit", *true],
            "paddock-core, journal and temp": bench.through_core(full, true),
            "paddock-core, nothing to supervise": bench.through_core(lean, true),
            "paddock-core, full tier": bench.through_core(boxed, true),
            "paddock run, plan remembered": [bench.installed.paddock, "run", "--quiet", "--", *true],
        }
        remembered = bench.user.run(cases["paddock run, plan remembered"], cwd=bench.workspace)
        if remembered.exit_code != 0:
            sys.exit(f"bench: {remembered}")
        if bwrap := shutil.which("bwrap", path=tester.SEARCH_PATH):
            cases["bubblewrap"] = [*bubblewrap(bwrap, bench.workspace), *true]
        taken: dict[str, list[float]] = {name: [] for name in cases}
        with sandlock(bench) as peer:
            if peer:
                taken["sandlock (library, in process)"] = []
            _launch_batch(bench, cases, taken, peer, 5, (full, lean, boxed))  # warm caches; not counted
            taken = {name: [] for name in taken}
            for _ in range(max(1, rounds // BATCH)):
                _launch_batch(bench, cases, taken, peer, BATCH, (full, lean, boxed))
    bare = statistics.median(taken["bare"])
    # A supervisor's own cost is shown; the budget is for what has to be paid in any case.
    budgets = {"paddock-core, nothing to supervise": LAUNCH_BUDGET, "paddock-core, full tier": FULL_BUDGET}
    if "bubblewrap" in taken:
        budgets["paddock-core, full tier"] = min(FULL_BUDGET, statistics.median(taken["bubblewrap"]) / bare)
    return [_row(name, samples, bare, budgets.get(name)) for name, samples in taken.items()]


def bubblewrap(program: str, workspace: Path) -> list[str | Path]:
    return [
        program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--bind", workspace, workspace, "--unshare-pid", "--die-with-parent",
    ]  # fmt: skip


def crowd(bench: Bench) -> list[Crowd]:
    """Many sandboxes at once: until all of them run, and what their fences take of the memory then."""
    shell = ["/bin/sh", "-c", "echo started; read -r end"]
    with core.sealed(core.canonical(bench.full_plan)) as fd:
        cases: dict[str, tuple[str, list[str | Path]]] = {
            "bare": ("", [*shell]),
            "paddock-core, full tier": ("paddock-core", bench.through_core(fd, shell)),
        }
        if bwrap := shutil.which("bwrap", path=tester.SEARCH_PATH):
            cases["bubblewrap"] = ("bwrap", [*bubblewrap(bwrap, bench.workspace), *shell])
        return [_crowd(bench, name, fence, command, fd) for name, (fence, command) in cases.items()]


def _crowd(bench: Bench, name: str, fence: str, command: Sequence[str | Path], fd: int) -> Crowd:
    words: list[str | Path] = [bench.build / "crowd", str(CROWD), *command]
    taken, memory = [], 0.0
    for _ in range(5):
        start = bench.user.starting(words, cwd=bench.workspace, stdin=subprocess.PIPE, pass_fds=[fd])
        with start as process:
            if process.stdin is None or process.stdout is None:
                sys.exit("bench: no pipes")
            taken.append(int(process.stdout.readline()) / 1e9)
            memory = proportional_mib(fence) / CROWD if fence else 0.0
            print(file=process.stdin, flush=True)
            process.wait(timeout=60)
    ours = name.startswith("paddock")
    return Crowd(name=name, seconds=min(taken), memory_mib=memory, judged=ours)


def proportional_mib(program: str) -> float:
    """Of all processes of this name: what they have alone, and their share of the rest."""
    total = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "comm").read_text().strip() == program:
                rollup = (process / "smaps_rollup").read_text()
                total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    name: str
    seconds: float
    memory_mib: float
    judged: bool

    @property
    def kept(self) -> bool:
        return not self.judged or (self.seconds <= CROWD_BUDGET_S and self.memory_mib <= CROWD_BUDGET_MIB)

    def __str__(self) -> str:
        verdict = (
            f"≤ {CROWD_BUDGET_S} s, {CROWD_BUDGET_MIB} MiB {'pass' if self.kept else 'FAIL'}" if self.judged else ""
        )
        return f"  {self.name:<44} {self.seconds:>9.3f} s {self.memory_mib:>9.3f} MiB  {verdict}"


def _launch_batch(
    bench: Bench,
    cases: dict[str, list[str | Path]],
    taken: dict[str, list[float]],
    peer: subprocess.Popen[str] | None,
    rounds: int,
    plan_fds: Sequence[int],
) -> None:
    """Some rounds of all cases, then as many of the peer that can not be started as a program."""
    for name, samples in zip(cases, bench.time(rounds, list(cases.values()), plan_fds), strict=True):
        taken[name] += samples
    if peer and peer.stdin and peer.stdout:
        print(rounds, file=peer.stdin, flush=True)
        taken["sandlock (library, in process)"] += [int(text) / 1e6 for text in peer.stdout.readline().split()]


def _row(name: str, samples: list[float], base: float, budget: float | None) -> Row:
    median = statistics.median(samples)
    return Row(name=name, median_ms=median, ratio=median / base, budget=budget)


@contextmanager
def sandlock(bench: Bench) -> Iterator[subprocess.Popen[str] | None]:
    """The peer library, if the environment of the bench has it."""
    spec = importlib.util.find_spec("sandlock")
    if spec is None or spec.origin is None:
        yield None
        return
    interpreter, _ = installation.reachable_interpreter(bench.user)
    script = shutil.copy(HERE / "peer_sandlock.py", bench.build)
    path = {"PYTHONPATH": str(Path(spec.origin).parent.parent)}
    tried = bench.user.run([interpreter, script], cwd=bench.workspace, env=path, stdin="1\n")
    if tried.exit_code != 0:
        print(f"sandlock does not run here, so it is not measured: {tried.stderr.strip()}")
        yield None
        return
    with bench.user.starting([interpreter, script], cwd=bench.workspace, env=path, stdin=subprocess.PIPE) as process:
        yield process


def work(bench: Bench, rounds: int) -> list[Row]:
    """What the same rules cost while a program works; journal and temp belong to the launch. Ratios are taken round by
    round and their median shown: slow drifts of the machine fall out."""
    rows = []
    for name, job in tree.jobs(bench.workspace).items():
        with core.sealed(core.canonical(bench.lean_plan)) as fd:
            cases = {
                "bare": job,
                "the limit": [str(bench.build / "limit"), *job],
                "paddock-core": [str(word) for word in bench.through_core(fd, job)],
            }
            bench.time(2, list(cases.values()), [fd])  # warm caches; not counted
            taken = dict(zip(cases, bench.time(rounds, list(cases.values()), [fd]), strict=True))
        for case, samples in taken.items():
            ratio = statistics.median(ours / limit for ours, limit in zip(samples, taken["the limit"], strict=True))
            budget = WORK_BUDGET if case == "paddock-core" else None
            rows.append(Row(name=f"{name}: {case}", median_ms=statistics.median(samples), ratio=ratio, budget=budget))
    return rows


def copy_on_write(bench: Bench, rounds: int) -> list[Row]:
    """A session of about 745 changes, and git status where it works. Applying is mostly waiting for the disk, twice."""
    with workbench(bench.build, bench.user, bench.installed) as desk:
        script = desk.script(HERE / "cow_work.py")
        words = [*script, bench.workspace, bench.workspace.with_name("state"), str(rounds)]
        done = bench.user.run(words, cwd=bench.build, timeout_s=600)
    if done.exit_code != 0:
        sys.exit(f"bench: {done}")
    taken: dict[str, list[float]] = json.loads(done.stdout)
    count, native = int(statistics.median(taken["changes"])), statistics.median(taken["native"])
    return [
        _row(f"diff of {count} changes", taken["diff"], native, None),
        _row(f"apply of {count} changes", taken["apply"], native, None),
        _row("git status: native", taken["native"], native, None),
        _row("git status: on the overlay", taken["overlay"], native, None),
    ]


def copied(bench: Bench, rounds: int) -> list[Row]:
    """Until the command runs, in a live workspace and in a copy of it, in turn. Not until the end: a short command
    waits until its session is on the disk."""
    shell = ["/bin/sh", "-c", "echo started; read -r end"]
    workspace = {"path": str(bench.workspace), "resume": None}
    with (
        core.sealed(core.canonical(bench.full_plan)) as live,
        core.sealed(core.canonical(core.changed(bench.full_plan, workspace=workspace))) as copy,
    ):
        taken: dict[int, list[float]] = {live: [], copy: []}
        for _ in range(rounds):
            for fd, samples in taken.items():
                words: list[str | Path] = [bench.build / "crowd", "1", *bench.through_core(fd, shell)]
                start = bench.user.starting(words, cwd=bench.workspace, stdin=subprocess.PIPE, pass_fds=[fd])
                with start as process:
                    if process.stdin is None or process.stdout is None:
                        sys.exit("bench: no pipes")
                    samples.append(int(process.stdout.readline()) / 1e6)
                    print(file=process.stdin, flush=True)
                    process.wait(timeout=60)
    base = statistics.median(taken[live])
    return [
        _row("start, live workspace", taken[live], base, None),
        _row("start, copy-on-write workspace", taken[copy], base, (base + COPY_BUDGET_MS) / base),
    ]


def plan_of_ai_agent(
    user: tester.Tester, installed: installation.Installation, workspace: Path, journal: Path, tier: str
) -> Any:
    words: list[str | Path] = [
        installed.paddock,
        "run",
        "--tier",
        tier,
        "--profile",
        "ai-agent",
        "--audit-log",
        journal,
        "--dry-run",
        "--json",
        "--",
        "true",
    ]
    shown = user.run(words, cwd=workspace)
    if shown.exit_code != 0:
        sys.exit(f"bench: {shown}")
    return json.loads(shown.stdout)["plan"]


@contextmanager
def set_up() -> Iterator[Bench]:
    user = tester.find_or_make()
    root = Path(tempfile.mkdtemp(prefix="paddock-bench-", dir=user.home))
    try:
        workspace, build = root / "workspace", root / "build"
        for directory in (root, workspace, build):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        user.give(root)
        tree.grow(workspace, user)
        with installation.for_tester(user) as installed:
            plan = plan_of_ai_agent(user, installed, workspace, root / "journal", "landlock")
            full_plan = plan_of_ai_agent(user, installed, workspace, root / "journal", "full")
            (build / "rules.h").write_text(rules.header(plan))
            for name in ("spawn", "crowd", "again", "limit"):
                flags = ["-O2", "-static", "-Wall", "-Wextra", "-Werror", "-I", str(build)]
                subprocess.run(["cc", *flags, "-o", str(build / name), str(HERE / f"{name}.c")], check=True)
            yield Bench(
                user=user, installed=installed, build=build, workspace=workspace, plan=plan, full_plan=full_plan
            )
    finally:
        shutil.rmtree(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="launches per case (file work: a fifth)")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast")
    options = parser.parse_args()
    rounds = 40 if options.quick else options.rounds
    with set_up() as bench:
        launches = launch(bench, rounds)
        print("launch of /bin/true, ratio to bare")
        print(*launches, sep="\n", flush=True)
        crowds = crowd(bench)
        print(f"{CROWD} at once, the best of five: until all run; memory of each fence")
        print(*crowds, sep="\n", flush=True)
        works = work(bench, max(5, rounds // 5))
        print("file work, ratio to the limit")
        print(*works, sep="\n", flush=True)
        print("copy-on-write, ratio to git status")
        print(*copy_on_write(bench, max(3, rounds // 20)), sep="\n", flush=True)
        copies = copied(bench, rounds)
        print("copy-on-write, ratio to a live workspace; at most one millisecond more")
        print(*copies, sep="\n")
    rows: list[Row | Crowd] = [*launches, *crowds, *works, *copies]
    missed = [row for row in rows if not row.kept]
    print(f"{len(missed)} budgets missed" if missed else "every budget kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
