"""The directories, plans and programs that every part of the bench measures with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import rules, tree
from tests.support import core, installation, tester

HERE = Path(__file__).resolve().parent
BARE = ("-nostdlib", "-ffreestanding", "-fno-tree-loop-distribute-patterns", "-fno-stack-protector")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    user: tester.Tester
    installed: installation.Installation
    build: Path  # readable by the user
    workspace: Path  # some thousand files
    small: Path  # of a few files: a start in it has no search cost
    plan: core.Plan  # landlock tier
    full_plan: core.Plan
    small_plan: core.Plan  # landlock tier
    small_full_plan: core.Plan

    def time(
        self,
        rounds: int,
        cases: Sequence[Sequence[str | Path]],
        plan_fds: Sequence[int],
        cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> list[list[float]]:
        """Milliseconds of every round, for each case. The plan descriptors are consecutive."""
        words: list[str | Path] = [self.build / "spawn", str(rounds), str(plan_fds[0])]
        for number, case in enumerate(cases):
            words += ["::"] if number else []
            words += case
        done = self.user.run(words, cwd=cwd, pass_fds=plan_fds, env=env, timeout_s=600)
        if done.exit_code != 0:
            sys.exit(f"bench: {done}")
        return [[int(text) / 1e6 for text in line.split()] for line in done.stdout.splitlines()]

    def through_core(self, fd: int, command: Sequence[str | Path]) -> list[str | Path]:
        return [self.installed.core, "run", "--plan-fd", str(fd), "--quiet", "--", *command]


def plan_of_ai_agent(
    user: tester.Tester,
    installed: installation.Installation,
    workspace: Path,
    journal: Path,
    tier: str,
    *more: str,
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
        *more,
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
        workspace, small, build = root / "workspace", root / "small", root / "build"
        for directory in (root, workspace, small, build):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o755)
        user.give(root)
        tree.grow(workspace, user)
        tree.sow(small, user)
        with installation.for_tester(user) as installed:
            plan, full_plan, small_plan, small_full_plan = (
                plan_of_ai_agent(user, installed, place, root / "journal", tier)
                for place in (workspace, small)
                for tier in ("landlock", "full")
            )
            (build / "rules.h").write_text(rules.header(plan))
            for name in (
                "spawn",
                "crowd",
                "many",
                "again",
                "limit",
                "gate",
                "unshare",
                "window",
                "wire",
            ):
                flags = ["-O2", "-static", "-Wall", "-Wextra", "-Werror", "-I", str(build)]
                subprocess.run(
                    ["cc", *flags, "-o", str(build / name), str(HERE / f"{name}.c")], check=True
                )
                if name in ("again", "limit"):
                    sources = [str(HERE / f"{name}.c"), str(HERE / "bare.c")]
                    subprocess.run(
                        ["cc", *flags, *BARE, "-o", str(build / f"{name}-bare"), *sources],
                        check=True,
                    )
            yield Bench(
                user=user,
                installed=installed,
                build=build,
                workspace=workspace,
                small=small,
                plan=plan,
                full_plan=full_plan,
                small_plan=small_plan,
                small_full_plan=small_full_plan,
            )
    finally:
        shutil.rmtree(root)
