"""A supervisor without memory leaves no name uncovered.

A failed allocation ends the supervisor (SIGABRT, and a line) at any point, or is an error of the
guard. Then init ends the command. strace removes the memory: from some call on the kernel gives the
supervisor no more.
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
    since_supervision,
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


def test_without_memory_a_guard_leaves_no_name_uncovered(scene: Scene) -> None:
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
        Tracing(calls=MEMORY, begins=since_supervision),
        sample=4,
        judge=scene.judge,
        put_back=put_back,
        # The last call first: by then the names are planted.
        faults=lambda counts: lasting_table(counts)[::-1],
    )
    assert clean.started, str(clean)
    table.check()
    results = {result for _, result, _ in table.rows}
    # SIGABRT, or an error of the guard
    died = {"closed (-6)", "closed (125)"}
    assert results & died, f"the control: a supervisor without memory ends: {results}"


def test_a_guard_without_memory_ends_the_command(scene: Scene) -> None:
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
    for number in range(MOST_NAMES):
        if not (made := scene.project / f"{number:0200}").exists():
            break
        made.rmdir()
    assert scene.left() == []
