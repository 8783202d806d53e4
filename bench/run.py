"""Compares launch and file work: bare, at the limit, through Paddock, and through its peers.

All cases run in turn, in one run on one machine, as an unprivileged user. The results are ratios,
because figures of different machines or different minutes cannot be compared. Exits 1 when a budget
is missed.

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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import execs, host, network, routes, shells, tree, writes  # noqa: E402
from bench.fixture import Bench, plan_of_ai_agent, set_up  # noqa: E402
from tests.support import core, installation, tester  # noqa: E402
from tests.support.cow import workbench  # noqa: E402

# Relative to another case of the same run: a launch to limit.c, one in the full tier to bubblewrap,
# file work to limit.c.
LAUNCH_BUDGET, FULL_BUDGET, WORK_BUDGET = 1.30, 0.80, 1.05
CROWD, CROWD_BUDGET_S, CROWD_BUDGET_MIB = 50, 0.25, 0.4
BATCH = 20
PATIENCE_S = 180
# Processes that create and remove files without a pause, in a busy sandbox.
BUSY = 2
COPY_BUDGET_MS = 1.0
NETWORK_BUDGET_MS = 1.5


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
        verdict = (
            ""
            if self.budget is None
            else f"≤ {self.budget:<5.2f} {'pass' if self.kept else 'FAIL'}"
        )
        return f"  {self.name:<44} {self.median_ms:>9.3f} ms {self.ratio:>7.2f} x  {verdict}"


def lean(plan: core.Plan) -> core.Plan:
    """A plan with nothing to supervise: no journal, no private temporary directory."""
    return core.changed(
        plan, journal=None, temp=None, environment={**plan["environment"], "set": {}}
    )


def launch(bench: Bench, rounds: int) -> list[Row]:
    """Launches in the small workspace."""
    true = ["/bin/true"]
    with (
        core.sealed(core.canonical(bench.small_plan)) as full,
        core.sealed(core.canonical(lean(bench.small_plan))) as bare_sandbox,
        core.sealed(core.canonical(bench.small_full_plan)) as boxed,
        core.sealed(core.canonical(lean(bench.small_full_plan))) as bare_box,
    ):
        cases: dict[str, list[str | Path]] = {
            "bare": [*true],
            "one more exec (again.c)": [bench.build / "again", *true],
            "the limit (limit.c)": [bench.build / "limit", *true],
            "one more exec, no C library (bare.c)": [bench.build / "again-bare", *true],
            "the limit, no C library (bare.c)": [bench.build / "limit-bare", *true],
            "bare namespaces (unshare.c)": [bench.build / "unshare", *true],
            "paddock-core, journal and temp": bench.through_core(full, true),
            "paddock-core, nothing to supervise": bench.through_core(bare_sandbox, true),
            "paddock-core, full tier, journal and temp": bench.through_core(boxed, true),
            "paddock-core, full tier": bench.through_core(bare_box, true),
            "paddock run, plan remembered": [
                bench.installed.paddock,
                "run",
                "--quiet",
                "--",
                *true,
            ],
        }
        remembered = bench.user.run(cases["paddock run, plan remembered"], cwd=bench.small)
        if remembered.exit_code != 0:
            sys.exit(f"bench: {remembered}")
        if bwrap := shutil.which("bwrap", path=tester.SEARCH_PATH):
            cases["bubblewrap"] = [*bubblewrap(bwrap, bench.small), *true]
        taken: dict[str, list[float]] = {}
        fds = (full, bare_sandbox, boxed, bare_box)
        with sandlock(bench) as peer:
            _launch_batch(bench, cases, peer, 5, fds)  # warm caches; not counted
            batches = max(1, rounds // BATCH)
            watch = host.Watch(PATIENCE_S)
            for _ in range(batches):
                times = watch.undisturbed(partial(_launch_batch, bench, cases, peer, BATCH, fds))
                for name, samples in times.items():
                    taken.setdefault(name, []).extend(samples)
            watch.tell()
    # Ratios are taken in each round, because the speed of the machine changes.
    ratios = {name: execs.ratio(samples, taken["bare"]) for name, samples in taken.items()}
    # The table shows the cost of a supervisor. The budget is for the cost of every run.
    budgets = {"paddock-core, nothing to supervise": LAUNCH_BUDGET * ratios["the limit (limit.c)"]}
    if "bubblewrap" in ratios:
        budgets["paddock-core, full tier"] = FULL_BUDGET * ratios["bubblewrap"]
    return [
        Row(
            name=name,
            median_ms=statistics.median(samples),
            ratio=ratios[name],
            budget=budgets.get(name),
        )
        for name, samples in taken.items()
    ]


def launch_among_files(bench: Bench, rounds: int) -> list[Row]:
    """The cost at the start of searching thousands of names and watching their directories. It has
    no budget.
    """
    true = ["/bin/true"]
    with core.sealed(core.canonical(bench.full_plan)) as boxed:
        cases: dict[str, Sequence[str | Path]] = {
            "bare": true,
            "paddock-core, full tier": bench.through_core(boxed, true),
        }
        bench.time(2, list(cases.values()), [boxed], bench.workspace)  # warm caches; not counted
        taken = dict(
            zip(
                cases,
                bench.time(rounds, list(cases.values()), [boxed], bench.workspace),
                strict=True,
            )
        )
    bare = statistics.median(taken["bare"])
    return [_row(name, samples, bare, None) for name, samples in taken.items()]


def bubblewrap(program: str, workspace: Path) -> list[str | Path]:
    return [
        program, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp",
        "--bind", workspace, workspace, "--unshare-pid", "--die-with-parent",
    ]  # fmt: skip


def crowd(bench: Bench, workspace: Path, plan: core.Plan, *, judged: bool) -> list[Crowd]:
    """Many sandboxes at once: the time until all of them run, and the memory that they use then."""
    shell = ["/bin/sh", "-c", "echo started; read -r end"]
    with core.sealed(core.canonical(plan)) as fd:
        cases: dict[str, tuple[str, list[str | Path]]] = {
            "bare": ("", [*shell]),
            "paddock-core, full tier": ("paddock-core", bench.through_core(fd, shell)),
        }
        if bwrap := shutil.which("bwrap", path=tester.SEARCH_PATH):
            cases["bubblewrap"] = ("bwrap", [*bubblewrap(bwrap, workspace), *shell])
        return [
            _crowd(bench, workspace, name, sandbox, command, fd, judged=judged)
            for name, (sandbox, command) in cases.items()
        ]


def _crowd(
    bench: Bench,
    workspace: Path,
    name: str,
    sandbox: str,
    command: Sequence[str | Path],
    fd: int,
    *,
    judged: bool,
) -> Crowd:
    words: list[str | Path] = [bench.build / "crowd", str(CROWD), *command]
    taken, memory = [], 0.0
    for _ in range(5):
        start = bench.user.starting(words, cwd=workspace, stdin=subprocess.PIPE, pass_fds=[fd])
        with start as process:
            if process.stdin is None or process.stdout is None:
                sys.exit("bench: no pipes")
            taken.append(int(process.stdout.readline()) / 1e9)
            memory = proportional_mib(sandbox) / CROWD if sandbox else 0.0
            print(file=process.stdin, flush=True)
            process.wait(timeout=60)
    ours = name.startswith("paddock")
    return Crowd(name=name, seconds=min(taken), memory_mib=memory, judged=judged and ours)


def proportional_mib(program: str) -> float:
    """Proportional memory of all processes of this name: private pages and a share of the rest."""
    total = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "comm").read_text().strip() == program:
                rollup = (process / "smaps_rollup").read_text()
                total += sum(
                    int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
                )
    return total / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    name: str
    seconds: float
    memory_mib: float
    judged: bool

    @property
    def kept(self) -> bool:
        return not self.judged or (
            self.seconds <= CROWD_BUDGET_S and self.memory_mib <= CROWD_BUDGET_MIB
        )

    def __str__(self) -> str:
        verdict = (
            f"≤ {CROWD_BUDGET_S} s, {CROWD_BUDGET_MIB} MiB {'pass' if self.kept else 'FAIL'}"
            if self.judged
            else ""
        )
        return f"  {self.name:<44} {self.seconds:>9.3f} s {self.memory_mib:>9.3f} MiB  {verdict}"


def _launch_batch(
    bench: Bench,
    cases: dict[str, list[str | Path]],
    peer: subprocess.Popen[str] | None,
    rounds: int,
    plan_fds: Sequence[int],
) -> dict[str, list[float]]:
    """Some rounds of all cases, then as many of the peer library, which is not a program."""
    taken = dict(
        zip(cases, bench.time(rounds, list(cases.values()), plan_fds, bench.small), strict=True)
    )
    if peer and peer.stdin and peer.stdout:
        print(rounds, file=peer.stdin, flush=True)
        taken["sandlock (library, in process)"] = [
            int(text) / 1e6 for text in peer.stdout.readline().split()
        ]
    return taken


def _row(name: str, samples: list[float], base: float, budget: float | None) -> Row:
    median = statistics.median(samples)
    return Row(name=name, median_ms=median, ratio=median / base, budget=budget)


@contextmanager
def sandlock(bench: Bench) -> Iterator[subprocess.Popen[str] | None]:
    """The sandlock library, if the environment of the bench has it."""
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
    with bench.user.starting(
        [interpreter, script], cwd=bench.workspace, env=path, stdin=subprocess.PIPE
    ) as process:
        yield process


def work(bench: Bench, rounds: int) -> list[Row]:
    """The cost of the same rules while a program works. Journal and temp belong to the launch. The
    result is the median of the ratios of all rounds, so slow changes of the machine cancel out.
    """
    rows = []
    for name, job in tree.jobs(bench.workspace).items():
        with core.sealed(core.canonical(lean(bench.plan))) as fd:
            cases = {
                "bare": job,
                "the limit": [str(bench.build / "limit"), *job],
                "paddock-core": [str(word) for word in bench.through_core(fd, job)],
            }
            bench.time(2, list(cases.values()), [fd], bench.workspace)  # warm caches; not counted
            taken = dict(
                zip(
                    cases,
                    bench.time(rounds, list(cases.values()), [fd], bench.workspace),
                    strict=True,
                )
            )
        for case, samples in taken.items():
            ratio = statistics.median(
                ours / limit for ours, limit in zip(samples, taken["the limit"], strict=True)
            )
            budget = WORK_BUDGET if case == "paddock-core" else None
            rows.append(
                Row(
                    name=f"{name}: {case}",
                    median_ms=statistics.median(samples),
                    ratio=ratio,
                    budget=budget,
                )
            )
    return rows


def observed(bench: Bench, rounds: int) -> list[Row]:
    """The cost of --observe. A run ends when the observer, a Python process that starts with the
    run, has judged all calls. It has no budget.
    """
    rows = []
    for tier, plan in {"landlock": lean(bench.plan), "full": lean(bench.full_plan)}.items():
        for name, job in {"true": ["/bin/true"], **tree.jobs(bench.workspace)}.items():
            with (
                core.sealed(core.canonical(plan)) as plain,
                core.sealed(core.canonical(core.changed(plan, observe=True))) as observing,
            ):
                cases = {
                    "paddock-core": bench.through_core(plain, job),
                    "paddock-core, observed": bench.through_core(observing, job),
                }
                fds = [plain, observing]
                bench.time(
                    1, list(cases.values()), fds, bench.workspace
                )  # warm caches; not counted
                taken = dict(
                    zip(
                        cases,
                        bench.time(rounds, list(cases.values()), fds, bench.workspace),
                        strict=True,
                    )
                )
            base = statistics.median(taken["paddock-core"])
            rows += [
                _row(f"{tier}, {name}: {case}", samples, base, None)
                for case, samples in taken.items()
            ]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    name: str
    read_us: list[
        float
    ]  # from the replacement to the last time the secret was read; 0: it never was

    def __str__(self) -> str:
        ordered = sorted(self.read_us)
        p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        never = sum(1 for window in ordered if window == 0)
        shown = (
            f"median {statistics.median(ordered):>7.0f} us, p99 {p99:>7.0f} us, worst "
            f"{ordered[-1]:>7.0f} us"
        )
        return f"  {self.name:<44} {shown}; never read: {never} of {len(ordered)}"


def windows(bench: Bench, rounds: int) -> list[Window]:
    """The host replaces a denied name of a live workspace. A program inside opens it in a loop."""
    secret, fresh = bench.small / ".env", bench.small / "fresh"
    program = Path(shutil.copy(bench.build / "window", bench.small))
    cases = {"the sandbox is quiet": "0", f"{BUSY} of its processes make files": str(BUSY)}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    with core.sealed(core.canonical(bench.small_full_plan)) as fd:
        for name, busy in cases.items():
            secret.write_text("old")
            words = bench.through_core(fd, [program, ".env", busy])
            start = bench.user.starting(
                words, cwd=bench.small, stdin=subprocess.PIPE, pass_fds=[fd]
            )
            with start as process:
                for number in range(rounds):
                    fresh.write_text(f"secret {number}\n")
                    bench.user.give(fresh)
                    print(f"secret {number}", file=process.stdin, flush=True)
                    if process.stdout is None or process.stdout.readline() != "looking\n":
                        sys.exit(f"bench: {process.communicate()}")
                    before = time.monotonic_ns()
                    fresh.rename(secret)
                    last, _ = map(int, process.stdout.readline().split())
                    taken[name].append(max(0, last - before) / 1000)
    return [Window(name=name, read_us=samples) for name, samples in taken.items()]


def copy_on_write(bench: Bench, rounds: int) -> list[Row]:
    """A session of about 745 changes, and git status in its workspace. Apply mostly waits for two
    syncs of the disk.
    """
    with workbench(bench.build, bench.user, bench.installed) as made:
        script = made.script(HERE / "cow_work.py")
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
        _row("git status: on an overlay alone", taken["plain"], native, None),
        _row("git status: on the copy", taken["overlay"], native, None),
    ]


def copied(bench: Bench, rounds: int) -> list[Row]:
    """The time until the command runs, in a live workspace and in a copy of it, in turn. The end is
    not timed: a short command waits until its session is on the disk.
    """
    shell = ["/bin/sh", "-c", "echo started; read -r end"]
    workspace = {"path": str(bench.workspace), "resume": None}
    with (
        core.sealed(core.canonical(bench.full_plan)) as live,
        core.sealed(core.canonical(core.changed(bench.full_plan, workspace=workspace))) as copy,
    ):
        taken: dict[int, list[float]] = {live: [], copy: []}
        for _ in range(rounds):
            for fd, samples in taken.items():
                words: list[str | Path] = [
                    bench.build / "crowd",
                    "1",
                    *bench.through_core(fd, shell),
                ]
                start = bench.user.starting(
                    words, cwd=bench.workspace, stdin=subprocess.PIPE, pass_fds=[fd]
                )
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


def networked(bench: Bench, rounds: int) -> list[Row]:
    """The cost of a network namespace for a launch in the small workspace. The command opens no
    connection, so no relay starts. The HTTP helper of a route starts and has to end again.
    """
    no_hosts: dict[str, Any] = {
        "denied": [],
        "allowed": [],
        "approved": [],
        "local_ports": [],
        "published": [],
    }
    own = {"default": "deny", "default_source": None, "ask_timeout_s": 60, "http": None, **no_hosts}
    plan = lean(bench.small_full_plan)
    secret = {"kind": "env", "place": "BENCH_KEY", "source": "bench:1"}
    route: dict[str, object] = {
        "name": "api", "upstream": {"scheme": "https", "host": "api.example", "port": 443,
        "base": ""},
        "credential": secret, "inject_mode": None, "inject_name": None, "endpoints": None,
        "inspect": False,
        "body_methods": [], "upstream_addresses": [], "shared_addresses": False,
        "source": "bench:1",
    }  # fmt: skip
    routed = {**own, "mode": "filtered", "http": {"routes": [route], "inspect": []}}
    with (
        core.sealed(core.canonical(core.changed(plan, network=None))) as host,
        core.sealed(core.canonical(core.changed(plan, network={**own, "mode": "none"}))) as none,
        core.sealed(
            core.canonical(core.changed(plan, network={**own, "mode": "filtered"}))
        ) as filtered,
        core.sealed(core.canonical(core.changed(plan, network=routed))) as served,
    ):
        fds = (host, none, filtered, served)
        cases = [bench.through_core(fd, ["/bin/true"]) for fd in fds]
        key = {"BENCH_KEY": "sk-0123456789abcdef"}
        bench.time(5, cases, fds, bench.small, key)  # warm caches; not counted
        taken = bench.time(rounds, cases, fds, bench.small, key)
    base = statistics.median(taken[0])
    budget = (base + NETWORK_BUDGET_MS) / base
    names = (
        "the host's network",
        "a network without hosts",
        "a network that is filtered",
        "… with a route and its secret",
    )
    budgets = (None, budget, budget, None)
    return [
        _row(name, samples, base, one)
        for name, samples, one in zip(names, taken, budgets, strict=True)
    ]


def intercepted(bench: Bench, rounds: int) -> list[Row]:
    taken = shells.intercepted(bench, rounds)
    base = statistics.median(next(iter(taken.values())))
    budget = (base + shells.BUDGET_MS) / base
    return [
        _row(name, samples, base, budget if number else None)
        for number, (name, samples) in enumerate(taken.items())
    ]


def gate_plan(bench: Bench, tier: str) -> core.Plan:
    """The program that starts the others is in a directory that the command cannot write."""
    journal, readable = bench.small.with_name("journal"), f"{bench.build}/**"
    plan: core.Plan = plan_of_ai_agent(
        bench.user, bench.installed, bench.small, journal, tier, "-r", readable
    )
    return plan


def networked_plan(bench: Bench, tier: str) -> core.Plan:
    """A plan with everything that a filtered network needs."""
    policy = bench.build / "networked.toml"
    policy.write_text('[meta]\ninherit = "ai-agent"\n[network]\nallowed_hosts = []\n')
    journal, readable = bench.small.with_name("journal"), f"{bench.build}/**"
    more = ("-r", readable, "--policy", str(policy))
    plan: core.Plan = plan_of_ai_agent(
        bench.user, bench.installed, bench.small, journal, tier, *more
    )
    return plan


def gate(bench: Bench, rounds: int) -> list[Row]:
    taken = execs.execs(
        bench, gate_plan(bench, "landlock"), gate_plan(bench, "full"), max(2, rounds // 15)
    )
    budget = execs.BUDGET * execs.ratio(taken[execs.LIMIT], taken["bare"])
    return [
        Row(
            name=name,
            median_ms=statistics.median(samples),
            ratio=execs.ratio(samples, taken["bare"]),
            budget=budget if "rules, " in name and "without" not in name else None,
        )
        for name, samples in taken.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=300, help="launches per case (file work: a fifth)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it works, not how fast"
    )
    parser.add_argument(
        "--starts", type=int, default=0, help="also show the supervisor's memory over so many execs"
    )
    options = parser.parse_args()
    rounds = 40 if options.quick else options.rounds
    with set_up() as bench:
        launches = launch(bench, rounds)
        print("launch of /bin/true, ratio to bare")
        print(*launches, sep="\n", flush=True)
        print(
            f"the same among {tree.FILES} files in {tree.DIRECTORIES} directories and their "
            "repository"
        )
        print(*launch_among_files(bench, max(20, rounds // 5)), sep="\n", flush=True)
        crowds = crowd(bench, bench.small, bench.small_full_plan, judged=True)
        print(f"{CROWD} at once, the best of five: until all run; memory of each sandbox")
        print(*crowds, sep="\n", flush=True)
        print(f"the same among {tree.FILES} files")
        print(*crowd(bench, bench.workspace, bench.full_plan, judged=False), sep="\n", flush=True)
        print("a denied name that the host replaces: time until no process inside can read it")
        print(*windows(bench, rounds), sep="\n", flush=True)
        works = work(bench, max(5, rounds // 5))
        print("file work, ratio to the limit")
        print(*works, sep="\n", flush=True)
        judged = writes.measure(bench, max(2, rounds // 40))
        print("judged writes, ratio to the same sandbox without them")
        print(*judged, sep="\n", flush=True)
        print("the same work with --observe, ratio to without")
        print(*observed(bench, max(3, rounds // 20)), sep="\n", flush=True)
        print("copy-on-write, ratio to git status")
        print(*copy_on_write(bench, max(3, rounds // 20)), sep="\n", flush=True)
        gates = gate(bench, rounds)
        print(f"{execs.STARTS} starts of /bin/true, one after the other, ratio to bare")
        print(*gates, sep="\n", flush=True)
        if options.starts:
            first, last = execs.memory(bench, gate_plan(bench, "full"), options.starts)
            print(
                f"  memory of the supervisor over {options.starts} starts: {first} KiB, {last} KiB "
                "at the end"
            )
        networks = networked(bench, rounds)
        print(
            f"launch of /bin/true, ratio to the host's network; at most {NETWORK_BUDGET_MS} "
            "milliseconds more"
        )
        print(*networks, sep="\n", flush=True)
        intercepts = intercepted(bench, rounds)
        print(
            f"shells behind [shell], ratio to one that is not; at most {shells.BUDGET_MS} "
            "milliseconds more"
        )
        print(*intercepts, sep="\n", flush=True)
        flows = network.through(bench, gate_plan(bench, "full"), max(2, rounds // 60))
        print("through the network filter, ratio to a relay in C")
        print(*flows, sep="\n", flush=True)
        finds = network.lookups(bench, gate_plan(bench, "full"), max(2, rounds // 60))
        print("questions for names, ratio to a table of few hosts")
        print(*finds, sep="\n", flush=True)
        opened = network.connections(
            bench, gate_plan(bench, "full"), networked_plan(bench, "landlock"), max(2, rounds // 60)
        )
        print("connections, one after the other, ratio to a direct connection")
        print(*opened, sep="\n", flush=True)
        served = routes.through(max(2, rounds // 60))
        print(f"requests over HTTP, {routes.CLIENTS} at a time, ratio to mitmproxy")
        print(*served, sep="\n", flush=True)
        copies = copied(bench, rounds)
        print("copy-on-write, ratio to a live workspace; at most one millisecond more")
        print(*copies, sep="\n")
    rows: list[Row | Crowd | writes.Row | network.Through] = [
        *launches,
        *crowds,
        *works,
        *judged,
        *gates,
        *networks,
        *intercepts,
        *flows,
    ]
    rows += [*finds, *served, *copies]
    missed = [row for row in rows if not row.kept]
    print(f"{len(missed)} budgets missed" if missed else "every budget kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
