"""No error of a system call leaves a name uncovered without a message: in a start, and in a guard.

In each run one call fails. Afterwards the host accepts one of two results. No secret left, no
planted name exists and no protected file changed. Or a line names the unprotected path.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.sandbox import Word
from tests.support.tester import Outcome
from tests.system.files.faults.fault_scene import ACT, DENIED, LATE, PLANTED, PROTECTED, Scene
from tests.system.files.faults.injection import (
    Fault,
    Faults,
    Run,
    Table,
    Tracing,
    since_program,
    since_supervision,
    try_faults,
    whole_table,
)

# Only init makes these calls, not the command.
MOUNTS = (
    "open_tree,move_mount,mount_setattr,mount,fsopen,fsconfig,fsmount,umount2,pivot_root,openat2"
)


def in_core(scene: Scene) -> tuple[Tracing, Tracing]:
    """Calls about the workspace, and all calls of the supervisor."""
    begins = since_program("paddock-core")
    return Tracing(
        paths=[*scene.directories(), scene.full.installation.core], begins=begins
    ), Tracing(begins=begins)


def try_all(
    table: Table,
    scene: Scene,
    run: Run,
    tracing: Tracing,
    *,
    sample: int,
    faults: Faults = whole_table,
) -> None:
    for _ in range(2):  # the plan is cached from here on
        run([])
        scene.put_back()
    clean = try_faults(
        table,
        run,
        tracing,
        sample=sample,
        judge=scene.judge,
        put_back=scene.put_back,
        faults=faults,
    )
    assert clean.started, str(clean)


def test_control_acts_read_plant_and_change_without_the_sandbox(scene: Scene) -> None:
    outcome = scene.full.outside(["sh", "-c", ACT])
    assert set(scene.uncovered(outcome)) == {DENIED[0], DENIED[2], *PLANTED, *PROTECTED}


def test_no_fault_of_a_live_run_leaves_a_name_uncovered(scene: Scene) -> None:
    here, anywhere = in_core(scene)
    table = Table("live")
    try_all(table, scene, scene.inside, here, sample=75)
    try_all(table, scene, scene.inside, anywhere, sample=30)
    table.check()


def test_a_directory_that_the_scan_finds_shut_is_closed(scene: Scene) -> None:
    """It is listed, cannot be searched for a moment, and is closed as a whole."""
    begins = since_program("paddock-core")
    paths = [scene.project / "app", scene.project / "bare.git", scene.full.installation.core]
    table = Table("shut")

    def denied(counts: dict[str, tuple[int, int]]) -> list[Fault]:
        before, total = counts["newfstatat"]
        indexes = range(before + 1, total + 1)
        return [Fault(call="newfstatat", index=index, error="EACCES") for index in indexes]

    tracing = Tracing(paths=paths, calls="newfstatat", begins=begins)
    try_all(table, scene, scene.inside, tracing, sample=40, faults=denied)
    table.check()


def test_no_fault_of_a_run_on_a_copy_lets_a_secret_out(scene: Scene) -> None:
    here, anywhere = in_core(scene)
    table = Table("copy")

    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.inside(prefix, "--cow")

    try_all(table, scene, run, here, sample=40)
    try_all(table, scene, run, anywhere, sample=30)
    table.check()


def test_no_fault_of_init_leaves_a_name_uncovered(scene: Scene) -> None:
    table = Table("init")
    tracing = Tracing(calls=MOUNTS, children=True)
    try_all(table, scene, scene.inside, tracing, sample=30)
    try_all(table, scene, scene.guarded, tracing, sample=15)
    table.check()


def test_no_fault_of_a_guard_leaves_a_name_uncovered(scene: Scene) -> None:
    table = Table("guard")
    try_all(table, scene, scene.guarded, in_core(scene)[0], sample=25)
    # Calls without a path: events, watches, messages to init.
    try_all(table, scene, scene.guarded, Tracing(begins=since_supervision), sample=25)
    table.check()


def test_no_fault_of_the_guard_of_a_copy_leaves_a_name_uncovered(scene: Scene) -> None:
    table = Table("guard of a copy")

    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.guarded(prefix, "--cow")

    try_all(table, scene, run, in_core(scene)[0], sample=20)
    calls = "inotify_add_watch,read,recvmsg,sendmsg"
    try_all(
        table, scene, run, Tracing(calls=calls, begins=since_program("paddock-core")), sample=10
    )
    table.check()


def test_control_names_made_by_the_host_are_read_without_the_sandbox(scene: Scene) -> None:
    for name, text in LATE.items():
        scene.full.tree.put(scene.project / name, text)
    outcome = scene.full.outside(["cat", *LATE])
    assert set(scene.uncovered(outcome)) == set(LATE)
