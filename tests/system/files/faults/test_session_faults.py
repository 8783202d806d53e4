"""No error of a system call makes `diff`, `apply`, `discard` or `sessions` omit a name without a
message.

Each command does and prints the same as without the fault, or reports the failure: by its exit
code, or by a line on stderr. `apply` never brings a protected name into the workspace.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.sandbox import Word
from tests.support.saved_state import remove
from tests.support.tester import Outcome
from tests.support.tree import Snapshot
from tests.system.files.faults.fault_scene import ACT, Scene
from tests.system.files.faults.injection import ERRORS, LOST, Table, Tracing, try_faults

# Ordinary changes beside the protected names: new, changed, removed, renamed.
WORK = (
    "; mkdir -p src/deep; echo 1 > src/deep/new; echo 2 > own.txt; rm gone.txt; "
    "mv old.txt moved.txt; ln -s new src/l"
)
# As `diff` and `apply` print it.
CONFLICT = re.compile(r"^(?:  conflict: |skipped \(conflict\): )", re.MULTILINE)
SAMPLES = {"diff": 8, "apply": 10, "discard": 6, "sessions": 6}


def complaints(outcome: Outcome) -> int:
    """The number of reported failures."""
    texts = ("cannot", *(os.strerror(getattr(errno, name)) for name in ERRORS))
    return sum((outcome.stdout + outcome.stderr).count(text) for text in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An ended session on a copy, with the state of the session and of the workspace."""

    scene: Scene
    session: Path
    kept: Path

    def put_back(self) -> None:
        for name, place in (("session", self.session), ("project", self.scene.project)):
            for path in place.iterdir() if place.exists() else ():
                remove(path)
            subprocess.run(["cp", "-aT", self.kept / name, place], check=True)

    def state_after(self, outcome: Outcome) -> dict[str, object]:
        """Everything that a person or a program can see of the result."""
        project = Snapshot.of(self.scene.project).entries
        seen = {f"project: {name}": (mode, content) for name, mode, _, _, content in project}
        return {
            "exit code": outcome.exit_code,
            "stdout": outcome.stdout,
            "is there": self.session.exists(),
            **seen,
        }


@pytest.fixture
def ended(scene: Scene) -> Ended:
    for name in ("own.txt", "gone.txt", "old.txt"):
        scene.full.tree.put(scene.project / name, f"{name}\n")
    sessions = scene.state / "sessions"
    if sessions.exists():
        shutil.rmtree(sessions)
    assert scene.inside([], "--cow", act=ACT + WORK).started
    (session,) = sessions.iterdir()
    kept = scene.full.tree.root / "kept"
    kept.mkdir()
    for name, place in (("session", session), ("project", scene.project)):
        subprocess.run(["cp", "-a", place, kept / name], check=True)
    return Ended(scene=scene, session=session, kept=kept)


@pytest.mark.parametrize("command", SAMPLES)
def test_no_fault_of_a_command_hides_a_name_without_a_message(ended: Ended, command: str) -> None:
    scene = ended.scene
    words: list[Word] = [scene.full.installation.paddock, command]
    if command != "sessions":
        words.append(ended.session.name)

    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.full.outside([*prefix, *words])

    ended.put_back()
    clean = run([])
    expected = ended.state_after(clean)
    ended.put_back()

    def judge(outcome: Outcome) -> tuple[str, str]:
        uncovered = scene.uncovered(outcome) if command == "apply" else []
        state = ended.state_after(outcome)
        other = {key: (state.get(key), expected.get(key)) for key in state | expected}
        other = {key: (now, then) for key, (now, then) in other.items() if now != then}
        if not uncovered and not other:
            return "closed", ""
        # A conflict holds a change back, and says why.
        conflicts, before = (len(CONFLICT.findall(one.stdout)) for one in (outcome, clean))
        reported = (
            outcome.exit_code != clean.exit_code
            or complaints(outcome) > complaints(clean)
            or conflicts > before
        )
        return (
            "message" if reported and not uncovered else LOST
        ), f"{uncovered} {other} {outcome.stderr}"

    below = (ended.session, scene.project)
    paths = [Path(parent) for top in below for parent, _, _ in os.walk(top)]
    paths += [ended.session.parent, *(path for path in ended.session.iterdir() if path.is_file())]
    table = Table(command)
    try_faults(
        table,
        run,
        Tracing(paths=paths),
        sample=SAMPLES[command],
        judge=judge,
        put_back=ended.put_back,
    )
    table.check()
