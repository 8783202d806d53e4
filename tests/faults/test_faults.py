"""No error of a system call leaves a name uncovered without a word.

In each run one call fails. Afterwards the host looks: either no secret left, nothing that was planted is there and
nothing protected was changed; or the run ended with 125; or a line names what is not held; or the supervisor died, and
the next run took away what was planted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.injection import Table, counted, faults, only
from tests.support.aside import remove
from tests.support.features import need_program
from tests.support.fence import Fence, Word
from tests.support.tester import Outcome

SECRET = "the-denied-secret"
DENIED = (".env", "deploy/.env", "deploy/settings", "deploy/hard")  # a file, a link and its target, a hard link
PROTECTED = {"app/.vscode/tasks.json": "{}\n", "bare.git/config": "[core]\n\tbare = true\n"}
PLANTED = (".envrc", "new/.vscode", "nested/.git/commondir", "app/.mcp.json")
ACT = f"""
echo started
cat {" ".join(DENIED)}
for f in {" ".join(PROTECTED)}; do echo evil > $f; done
echo evil > .envrc; mkdir -p new/.vscode; echo evil > new/.vscode/tasks.json
echo ../evil > nested/.git/commondir; echo evil > app/.mcp.json
echo done > work.txt
"""


@dataclass(frozen=True, slots=True)
class Scene:
    full: Fence

    @property
    def project(self) -> Path:
        return self.full.ground.project

    def lay_out(self) -> None:
        put = self.full.ground.put
        put(self.project / ".env", f"{SECRET}-1\n")
        put(self.project / "deploy" / "settings", f"{SECRET}-2\n")
        if not (self.project / "deploy" / ".env").is_symlink():
            (self.project / "deploy" / ".env").symlink_to("settings")
            os.link(self.project / ".env", self.project / "deploy" / "hard")
        for name, text in PROTECTED.items():
            put(self.project / name, text)
        for name in ("bare.git/HEAD", "nested/.git/HEAD"):
            put(self.project / name, "ref: refs/heads/main\n")
        for name in ("bare.git", "nested/.git"):
            for part in ("objects", "refs"):
                self.full.ground.make(self.project / name / part)
        put(self.project / "nested" / ".git" / "config", "[core]\n\tbare = false\n")

    def left(self) -> list[str]:
        return [name for name in PLANTED if os.path.lexists(self.project / name)]

    def uncovered(self, outcome: Outcome) -> list[str]:
        """What was read, is left, or was changed, as the host sees it."""
        read = [name for number, name in ((1, DENIED[0]), (2, DENIED[2])) if f"{SECRET}-{number}" in outcome.stdout]
        changed = [name for name, text in PROTECTED.items() if (self.project / name).read_text() != text]
        return [*read, *self.left(), *changed]

    def finish_later(self, uncovered: list[str]) -> bool:
        """Does the next run take all of it away?"""
        if not uncovered or uncovered != self.left():
            return False
        return self.full.inside(["true"], journal=False).exit_code == 0 and not self.left()

    def put_back(self) -> None:
        for name in self.left():
            remove(self.project / name)
        for name, text in PROTECTED.items():
            (self.project / name).write_text(text)
        state = self.full.tester.home / ".local" / "state" / "paddock"
        shutil.rmtree(state / "unfinished", ignore_errors=True)


@pytest.fixture
def scene(full: Fence) -> Scene:
    need_program("strace")
    made = Scene(full)
    made.lay_out()
    return made


def runner(scene: Scene, *flags: Word, act: str = ACT) -> Callable[[Sequence[Word]], Outcome]:
    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.full.inside(["sh", "-c", act], "--quiet", *flags, journal=False, prefix=prefix)

    return run


def try_all(name: str, scene: Scene, run: Callable[[Sequence[Word]], Outcome], *, here: int, anywhere: int) -> None:
    """``here``: with so many errors for each call in the workspace. ``anywhere``: for each call of the supervisor."""
    run([])  # the plan is remembered from here on
    run([])
    scene.put_back()
    directories = [Path(parent) for parent, _, _ in os.walk(scene.project)]
    table = Table(name, [])
    for paths, errors in ((only(directories), here), ([], anywhere)):
        if not errors:
            continue
        counts, clean = counted(run, paths, since="paddock-core")
        assert clean.started, str(clean)
        assert scene.uncovered(clean) == [], f"the control: nothing fails, and all is held: {clean}"
        scene.put_back()
        assert {"openat2", "newfstatat", "getdents64"} <= counts.keys(), "the calls that matter are counted"
        for fault in faults(counts, errors=errors):
            outcome = run(fault.words(paths))
            uncovered = scene.uncovered(outcome)
            table.add(fault, outcome, uncovered, finished_later=scene.finish_later(uncovered))
            scene.put_back()
    table.check()


def test_without_a_fence_the_same_act_reads_plants_and_changes(scene: Scene) -> None:
    outcome = scene.full.outside(["sh", "-c", ACT])
    assert set(scene.uncovered(outcome)) == {DENIED[0], DENIED[2], *PLANTED, *PROTECTED}


def test_no_fault_of_a_live_run_leaves_a_name_uncovered(scene: Scene) -> None:
    try_all("live", scene, runner(scene), here=3, anywhere=1)


def test_no_fault_of_a_run_on_a_copy_lets_a_secret_out(scene: Scene) -> None:
    try_all("copy", scene, runner(scene, "--cow"), here=1, anywhere=0)


def test_no_fault_of_an_apply_brings_a_protected_name_into_the_workspace(scene: Scene) -> None:
    sessions = scene.full.tester.home / ".local" / "state" / "paddock" / "sessions"
    before = set(sessions.glob("*"))
    assert runner(scene, "--cow")([]).started
    (session,) = set(sessions.glob("*")) - before
    apply: list[Word] = [scene.full.installation.paddock, "apply", session.name]

    def run(prefix: Sequence[Word]) -> Outcome:
        (scene.project / "work.txt").unlink(missing_ok=True)
        return scene.full.outside([*prefix, *apply])

    places = [Path(parent) for top in (scene.project, session / "upper") for parent, _, _ in os.walk(top)]
    counts, clean = counted(run, only(places))
    assert scene.uncovered(clean) == [], f"the control: nothing fails, and all is held: {clean}"
    assert {"openat", "getdents64"} <= counts.keys(), f"the calls that matter are counted: {counts}"
    table = Table("apply", [])
    for fault in faults(counts, errors=1):
        outcome = run(fault.words(only(places)))
        table.add(fault, outcome, scene.uncovered(outcome), finished_later=False)
        scene.put_back()
    table.check()
