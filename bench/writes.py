"""The cost of judged writes: file work in a sandbox, ratio to the same sandbox without them.

A file system in memory shows the cost best, because the calls themselves take least there. Only
root can mount one; another user measures on the disk of the home. The time of a start is taken off:
a sandbox that judges writes scans the workspace first.

    python bench/writes.py [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import host, tree  # noqa: E402
from bench.fixture import Bench, plan_of_ai_agent, set_up  # noqa: E402
from tests.support import core  # noqa: E402

CREATED = 10_000
# A file system in memory must hold the tree three times.
TMPFS_MIB = 512
PATIENCE_S = 120

CREATE = f"[open(str(n), 'w').close() for n in range({CREATED})]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    words: list[str]
    budget: float
    # Runs before each round, outside of the measured time.
    prepare: str = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    without_ms: float
    judged_ms: float
    ratio: float
    budget: float

    @property
    def kept(self) -> bool:
        return self.ratio <= self.budget

    def __str__(self) -> str:
        return (
            f"  {self.name:<44} {self.without_ms:>9.1f} ms {self.judged_ms:>9.1f} ms "
            f"{self.ratio:>7.2f} x  ≤ {self.budget:<5.2f} {'pass' if self.kept else 'FAIL'}"
        )


def jobs(root: Path) -> dict[str, Job]:
    """`root` has the repository `tree` and the archive `tree.tar`."""
    repository = root / "tree"
    git = ["/usr/bin/git", "-C", str(repository)]
    leave = f"git -C {repository} checkout -q empty"
    fresh = f"rm -rf {root}/out && mkdir {root}/out"
    sources = sorted(str(path) for path in (repository / "sources").glob("*.c"))
    return {
        "git checkout": Job(words=[*git, "checkout", "-q", "main"], budget=2.0, prepare=leave),
        f"{CREATED} files created": Job(
            words=["/usr/bin/python3", "-Sc", f"import os; os.chdir('{root}/out'); {CREATE}"],
            budget=2.0,
            prepare=fresh,
        ),
        "tar -x": Job(
            words=["/usr/bin/tar", "-xf", str(root / "tree.tar"), "-C", str(root / "out")],
            budget=2.2,
            prepare=fresh,
        ),
        "git status": Job(words=[*git, "status", "--porcelain"], budget=1.05),
        "grep -r": Job(
            words=["/usr/bin/grep", "-rc", "--exclude-dir=.git", "dog 7", str(repository)],
            budget=1.02,
        ),
        "compile": Job(
            words=["/bin/sh", "-c", f"cd {root}/out && cc -O1 -c {' '.join(sources)}"],
            budget=1.05,
            prepare=fresh,
        ),
    }


@contextmanager
def workspace(bench: Bench) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="paddock-bench-writes-", dir=bench.user.home))
    is_root = os.geteuid() == 0
    if is_root:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MIB}m", "tmpfs", root], check=True
        )
    try:
        root.chmod(0o755)
        repository = root / "tree"
        repository.mkdir()
        bench.user.give(root)
        tree.grow(repository, bench.user)
        identity = "-c user.name=bench -c user.email=bench@example.org"
        _run(
            bench,
            root,
            f"cd tree && git branch -M main && git checkout -q --orphan empty && git rm -rqf . && "
            f"git {identity} commit -q --allow-empty -m empty && git checkout -q main && "
            "tar -cf ../tree.tar --exclude=.git . && mkdir ../out",
        )
        yield root
    finally:
        if is_root:
            subprocess.run(["umount", root], check=True)
        shutil.rmtree(root)


def _run(bench: Bench, root: Path, line: str) -> None:
    done = bench.user.run(["/bin/sh", "-c", line], cwd=root, timeout_s=120)
    if done.exit_code != 0:
        sys.exit(f"bench: {done}")


def measure(bench: Bench, rounds: int) -> list[Row]:
    """The result is the median of the ratios of all rounds, so slow changes of the machine cancel
    out.
    """
    rows = []
    watch = host.Watch(PATIENCE_S)
    with workspace(bench) as root:
        for tier in ("full", "landlock"):
            plan = plan_of_ai_agent(
                bench.user, bench.installed, root, root.with_name("journal"), tier
            )
            judged = core.changed(plan, judges_writes=True)
            without = core.changed(plan, judges_writes=False)
            if judged != plan:
                sys.exit("bench: this machine does not judge writes")
            with (
                core.sealed(core.canonical(without)) as base,
                core.sealed(core.canonical(judged)) as ours,
            ):
                for name, job in jobs(root).items():
                    _round(bench, root, job, base, ours)  # warms caches; not counted
                    one = partial(_round, bench, root, job, base, ours)
                    taken = [watch.undisturbed(one) for _ in range(rounds)]
                    rows.append(
                        Row(
                            name=f"{tier}: {name}",
                            without_ms=statistics.median(base for base, _ in taken),
                            judged_ms=statistics.median(ours for _, ours in taken),
                            ratio=statistics.median(ours / base for base, ours in taken),
                            budget=job.budget,
                        )
                    )
    watch.tell()
    return rows


def _round(bench: Bench, root: Path, job: Job, base: int, ours: int) -> tuple[float, float]:
    taken = []
    for fd in (base, ours):
        _run(bench, root, job.prepare)
        words = [bench.through_core(fd, command) for command in (["/bin/true"], job.words)]
        [[start_ms], [whole_ms]] = (bench.time(1, [case], [fd], root)[0] for case in words)
        taken.append(whole_ms - start_ms)
    return taken[0], taken[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with set_up() as bench:
        rows = measure(bench, options.rounds)
    print("judged writes, ratio to the same sandbox without them")
    print(*rows, sep="\n")
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
