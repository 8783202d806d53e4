"""The aftermath machine: builds a scene, runs a hostile program in the sandbox, does the host's
work, and checks the result.

The host decides the result. A tripwire is a file that a payload creates in a directory outside
every grant. A secret is a random token that must not come out. A program that fires is reduced to
the steps that it needs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.installation import Installation
from tests.support.tester import Outcome, Tester
from tests.system.files.aftermath.grammar import TOOLS, Program, Run
from tests.system.files.aftermath.scenes import Scene, Stage, stage

_HERE = Path(__file__).parent
_INSIDE = (_HERE / "inside.py").read_text()
_DAY = (_HERE / "day.py").read_text()
_SANDBOX = """
import asyncio, json, sys
from paddock import Sandbox
from paddock.policy.model import Tier
async def main():
    async with Sandbox(profile="ai-agent", workspace=sys.argv[1], tier=Tier(sys.argv[2]), \
journal=sys.argv[3]) as box:
        done = await box.run(sys.argv[4], timeout_s=60)
        print(done.stdout if isinstance(done.stdout, str) else done.stdout.decode(errors="replace"))
asyncio.run(main())
"""
PACKAGES = {"node_modules", "site-packages"}  # tools ignore the files of packages


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayResult:
    fired: tuple[str, ...]  # tripwires, tokens, changed names and left names on the host
    started: int  # runs that reached the first line of the program
    runs: int
    log: str

    def __bool__(self) -> bool:
        return bool(self.fired)


class Machine:
    def __init__(self, stage: Stage, installation: Installation, scratch: Path) -> None:
        self.stage, self.tester, self.installation = stage, stage.tester, installation
        self.tier = "full"
        self.journal = self.tester.home / "journal"
        self.tools = {
            name: shutil.which(name, path=f"{scratch}/tools:/usr/local/bin:/usr/bin:/bin")
            or "/nonexistent"
            for name in ("direnv", "npm", "pip", "cargo")
        }

    @classmethod
    @contextmanager
    def ready(cls, tester: Tester, installation: Installation) -> Iterator[Machine]:
        scratch = Path(tempfile.mkdtemp(prefix="paddock-aftermath-", dir="/var/tmp"))
        scratch.chmod(0o755)
        try:
            _bring_cargo(scratch / "tools")
            with stage(tester, installation.root, scratch) as made:
                yield cls(made, installation, scratch)
        finally:
            shutil.rmtree(scratch)

    @contextmanager
    def in_tier(self, tier: str) -> Iterator[None]:
        before, self.tier = self.tier, tier
        try:
            yield
        finally:
            self.tier = before

    def play(
        self,
        program: Program,
        *,
        sandboxed: bool = True,
        tell: bool = False,
        thorough: bool = False,
    ) -> PlayResult:
        scene = self.stage.lay_out(program.layout, program.secrets)
        output: list[Outcome] = []
        started = 0
        for run in program.runs:
            if run.day_before:
                self._day(scene, thorough=False)
            outcomes = self._run(scene, run, sandboxed=sandboxed, tell=tell)
            started += any("started\n" in outcome.stdout for outcome in outcomes)
            output += outcomes
        output.append(self._day(scene, thorough=thorough))
        fired = tuple(sorted(set(self._fired(scene, output))))
        log = (
            "\n".join(f"exit {one.exit_code}\n{one.stdout}{one.stderr}" for one in output)
            if tell
            else ""
        )
        return PlayResult(fired=fired, started=started, runs=len(program.runs), log=log)

    def _run(self, scene: Scene, run: Run, *, sandboxed: bool, tell: bool) -> list[Outcome]:
        text = json.dumps({"workspace": str(scene.workspace), "steps": run.steps, "tell": tell})
        for sign, place in (("{W}", scene.workspace), ("{H}", scene.home), ("{M}", scene.marks)):
            text = text.replace(sign, str(place))
        words = ["/usr/bin/python3", "-Ic", _INSIDE, text]
        paddock = self.installation.paddock
        flags = ["--tier", self.tier, "--profile", "ai-agent", "--audit-log", str(self.journal)]
        if not sandboxed:
            return [self._call(scene, words)]
        if run.mode == "sandbox":
            python = self.installation.root / "bin" / "python3"
            given = [str(scene.workspace), self.tier, str(self.journal), shlex.join(words)]
            return [self._call(scene, [python, "-c", _SANDBOX, *given])]
        if run.mode == "live":
            return [self._call(scene, [paddock, "run", *flags, "--", *words])]
        done = [self._call(scene, [paddock, "run", "--cow", *flags, "--", *words])]
        return [*done, self._call(scene, [paddock, "apply"])]

    def _call(self, scene: Scene, words: Sequence[str | Path]) -> Outcome:
        return self.tester.run(words, cwd=scene.workspace)

    def _day(self, scene: Scene, *, thorough: bool) -> Outcome:
        log = {
            "workspace": str(scene.workspace),
            "home": str(scene.home),
            "others": [str(scene.home / "other")],
            "tools": self.tools,
            "thorough": thorough,
        }
        done = self.tester.run(["/usr/bin/python3", "-Ic", _DAY, json.dumps(log)], cwd="/")
        assert done.exit_code == 0, done
        return done

    def _fired(self, scene: Scene, output: list[Outcome]) -> Iterable[str]:
        yield from (f"executed {mark}" for mark in os.listdir(scene.marks))
        for outcome in output:
            yield from (
                f"read {place}"
                for token, place in scene.tokens.items()
                if self._counts(place) and token in outcome.stdout + outcome.stderr
            )
        loot = scene.workspace / "loot"
        if loot.is_file():
            text = loot.read_text()
            yield from (
                f"read {place}"
                for token, place in scene.tokens.items()
                if self._counts(place) and token in text
            )
        for name, before in scene.trusted.items():
            path = scene.home / name
            if (path.read_bytes() if path.exists() else None) != before:
                yield f"changed {name}"
        yield from self._left(scene)

    def _counts(self, place: str) -> bool:
        """The landlock tier does not protect names inside the workspace against reading, and says
        so.
        """
        return self.tier == "full" or place.startswith((".ssh/", ".aws/"))

    def _left(self, scene: Scene) -> Iterable[str]:
        """Tools that this machine lacks cannot be started. So files that they obey must not
        exist.
        """
        firsts = {name.split("/")[0] for name in TOOLS}
        payload = str(scene.marks).encode()
        for place, below, files in os.walk(scene.workspace):
            if PACKAGES & set(place.split("/")) or "/.git" in place:
                below.clear()
                continue
            for first in firsts & {*below, *files}:
                for name in TOOLS:
                    path = Path(place, name)
                    if name.startswith(first) and path.is_file() and payload in path.read_bytes():
                        yield f"left {path.relative_to(scene.home)}"


def _bring_cargo(tools: Path) -> None:
    """The tester cannot reach root's cargo. A copy of cargo alone is enough, because a payload
    replaces rustc.
    """
    tools.mkdir()
    try:
        found = subprocess.run(
            ["rustup", "which", "cargo"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return
    shutil.copy(found, tools / "cargo")


def shrink(
    machine: Machine, program: Program, *, tries: int = 120, sandboxed: bool = True
) -> Program:
    """Drops runs, steps and secrets while the program still fires."""

    def fires(candidate: Program) -> bool:
        nonlocal tries
        tries -= 1
        return tries > 0 and bool(machine.play(candidate, sandboxed=sandboxed))

    for number in reversed(range(len(program.runs))):
        smaller = replace(program, runs=program.runs[:number] + program.runs[number + 1 :])
        if smaller.runs and fires(smaller):
            program = smaller
    changed = True
    while changed:
        changed = False
        for number, run in enumerate(program.runs):
            for size in (8, 4, 2, 1):
                place = len(run.steps) - size
                while place >= 0:
                    fewer = replace(run, steps=run.steps[:place] + run.steps[place + size :])
                    smaller = replace(
                        program, runs=(*program.runs[:number], fewer, *program.runs[number + 1 :])
                    )
                    if fires(smaller):
                        program, run, changed = smaller, fewer, True
                    place -= size
    for name in program.secrets:
        smaller = replace(program, secrets=tuple(one for one in program.secrets if one != name))
        if fires(smaller):
            program = smaller
    return program
