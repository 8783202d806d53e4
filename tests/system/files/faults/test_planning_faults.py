"""No error of a system call makes a plan that leaves a name uncovered without a message.

Before the core starts, Python reads files outside of the workspace that git obeys. Here the
configuration of the user makes git execute files of the workspace.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from tests.support.sandbox import Word
from tests.support.tester import Outcome
from tests.system.files.faults.fault_scene import ACT, Scene
from tests.system.files.faults.injection import (
    LOST,
    Fault,
    Table,
    Tracing,
    since_program,
    try_faults,
    whole_table,
)

HOOK = "own-hooks/pre-commit"


def before_the_core(counts: dict[str, tuple[int, int]]) -> list[Fault]:
    return whole_table({call: (0, before) for call, (before, _) in counts.items() if before})


def test_no_fault_of_a_plan_leaves_a_name_uncovered(scene: Scene) -> None:
    home = scene.full.tester.home
    assert scene.full.tester.disposable, "the tests do not replace the configuration of a user"
    hook = scene.full.tree.put(scene.project / HOOK, "true\n")
    more, config = home / ".gitmore", home / ".gitconfig"
    more.write_text(f"[core]\n\thooksPath = {hook.parent}\n")
    config.write_text(f"[include]\n\tpath = {more}\n")
    for path in (more, config):
        scene.full.tester.give(path)

    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.inside(prefix, act=f"{ACT}\necho evil > {HOOK}; true")

    def judge(outcome: Outcome) -> tuple[str, str]:
        if hook.read_text() != "true\n" and str(hook) not in outcome.stderr:
            return LOST, f"{hook} {outcome.stderr}"
        return scene.judge(outcome)

    def put_back() -> None:
        scene.put_back()
        hook.write_text("true\n")
        forget_plans(scene)

    try:
        put_back()
        table = Table("plan")
        paths = [*scene.directories(), more, config, home, scene.full.installation.core]
        tracing = Tracing(paths=paths, begins=since_program("paddock-core"))
        try_faults(
            table, run, tracing, sample=8, judge=judge, put_back=put_back, faults=before_the_core
        )
        table.check()
    finally:
        for path in (more, config):
            path.unlink()


def forget_plans(scene: Scene) -> None:
    """Removes the plans, so that the next run compiles one."""
    shutil.rmtree(scene.state / "plans", ignore_errors=True)
