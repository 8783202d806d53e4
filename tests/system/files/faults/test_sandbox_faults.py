"""No error of a system call leaves a name uncovered without a message in a `Sandbox`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from tests.support.sandbox import Word
from tests.support.session_program import words
from tests.support.tester import Outcome
from tests.support.waiting import wait_for
from tests.system.files.faults.fault_scene import ACT, Scene
from tests.system.files.faults.injection import Table, Tracing, since_program, try_faults

# A script starts the supervisor core under strace.
BODY = """
from paddock.core import process as core
core_path, act = options.pop("core"), options.pop("act")
real_program, real_start = core.program, core.start_beside
def start(*arguments, **options):
    core.program = lambda: core_path
    try:
        return real_start(*arguments, **options)
    finally:
        core.program = real_program
core.start_beside = start
try:
    async with Sandbox(**options) as box:
        done = await box.run(act, timeout_s=30)
        print(done.stdout, end="")
        print(done.stderr, file=sys.stderr)
        print(done.error, file=sys.stderr)
    sys.exit(done.exit_code or 0)
except Exception as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(125)
"""


def test_no_fault_of_a_sandbox_leaves_a_name_uncovered(scene: Scene) -> None:
    full = scene.full
    script = full.tree.root / "core"

    def run(prefix: Sequence[Word]) -> Outcome:
        core = shlex.quote(str(full.installation.core))
        traced = (
            f'test "$1" = run && exec {shlex.join(map(str, prefix))} {core} "$@"\n'
            if prefix
            else ""
        )
        full.tree.put(script, f'#!/bin/sh\n{traced}exec {core} "$@"\n', mode=0o755)
        outcome = full.tester.run(
            words(full, BODY, profile=full.profile, core=str(script), act=ACT), cwd=scene.project
        )
        if prefix:
            log = Path(str(prefix[list(prefix).index("-o") + 1]))
            wait_for(
                lambda: "+++ " in log.read_text(errors="replace"), "strace has ended", deadline_s=10
            )
        return outcome

    untraced = run([])
    assert untraced.started, str(untraced)
    scene.put_back()
    table = Table("Sandbox")
    # -D: the core keeps the pid that was started, and strace is not its parent.
    tracing = Tracing(
        paths=[*scene.directories(), scene.full.installation.core],
        begins=since_program("paddock-core"),
        words=["-D"],
    )
    clean = try_faults(table, run, tracing, sample=8, judge=scene.judge, put_back=scene.put_back)
    assert clean.started, str(clean)
    table.check()
