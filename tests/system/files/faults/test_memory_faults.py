"""A supervisor without memory leaves no name uncovered.

A failed allocation ends the supervisor (SIGABRT, and a line) at any point, or is an error of the
search. Then init ends the command, the mark of the run stays, and the next run finishes the last
scan. strace removes the memory: from some call on the kernel gives the supervisor no more.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.saved_state import remove
from tests.support.session_program import alive, gone, mark
from tests.support.waiting import wait_for
from tests.system.files.faults.fault_scene import PLANT, Scene
from tests.system.files.faults.injection import (
    Table,
    Tracing,
    lasting_table,
    since_mark,
    try_faults,
)

MEMORY = "mmap,brk,mremap"
# Names that need more memory than the supervisor has at the start.
TREE = "mkdir -p tree; for i in $(seq 8); do mkdir -p $(seq -f tree/$i/%0180g 40); done"
# The largest number of names that the host creates.
MOST_NAMES = 20_000
ACT = (
    f"echo started; {TREE}\n{PLANT}\ncat .env deploy/settings; "
    f"{TREE.replace('tree', 'tree/second')}"
)


def test_without_memory_a_guard_and_a_last_scan_leave_no_name_uncovered(scene: Scene) -> None:
    def put_back() -> None:
        scene.put_back()
        if os.path.lexists(scene.project / "tree"):
            remove(scene.project / "tree")

    for _ in range(2):
        scene.inside([], act=ACT)
        put_back()
    table = Table("no memory")
    clean = try_faults(
        table,
        lambda prefix: scene.inside(prefix, act=ACT),
        Tracing(calls=MEMORY, begins=since_mark),
        sample=4,
        judge=scene.judge,
        put_back=put_back,
        # The last call first: by then the names are planted.
        faults=lambda counts: lasting_table(counts)[::-1],
    )
    assert clean.started, str(clean)
    table.check()
    results = {result for _, result, _ in table.rows}
    died = {"closed (-6)", "finished later"}  # SIGABRT
    assert results & died, f"the control: a supervisor without memory ends: {results}"


def test_a_guard_without_memory_ends_the_command_and_the_next_run_finishes_its_scan(
    scene: Scene,
) -> None:
    word = mark()
    words = scene.full.command(
        ["sh", "-c", f"{PLANT}\necho started; exec sleep {word}"], "--quiet", journal=False
    )
    with scene.full.tester.starting(words, cwd=scene.project) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        wait_for(lambda: alive(word), "the control: the command sleeps for a day")
        starve = ["-e", f"trace={MEMORY}", "-e", f"inject={MEMORY}:error=ENOMEM"]
        tracer = subprocess.Popen(
            ["strace", "-qq", "-o", "/dev/null", "-p", str(process.pid), *starve]
        )
        status = Path(f"/proc/{process.pid}/status")
        wait_for(
            lambda: "TracerPid:\t0\n" not in status.read_text(),
            "the supervisor gets no more memory",
        )
        # The host creates more names than the guard has memory for.
        for number in range(MOST_NAMES):
            if process.poll() is not None:
                break
            (scene.project / f"{number:0200}").mkdir()
        wait_for(lambda: process.poll() is not None, "the supervisor has ended", deadline_s=30)
        tracer.wait(timeout=30)
        assert process.returncode != 0
        assert process.stderr is not None
        assert "memory" in process.stderr.read()
    gone(word)
    # A failed allocation of the walk ends the run normally. Then its last scan is complete, and no
    # mark is left.
    marked = bool(list(scene.unfinished.iterdir()))
    assert marked or scene.left() == [], "a mark, or a complete scan"
    for number in range(MOST_NAMES):
        if not (made := scene.project / f"{number:0200}").exists():
            break
        made.rmdir()
    outcome = scene.full.inside(["true"], journal=False)
    assert outcome.exit_code == 0, str(outcome)
    assert ("finished the interrupted last scan of session" in outcome.stderr) is marked, str(
        outcome
    )
    assert (scene.left(), list(scene.unfinished.iterdir())) == ([], [])
