"""No error of a system call keeps the next run or `paddock doctor` from finishing a scan without a
message.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.sandbox import Word
from tests.support.tester import Outcome
from tests.support.waiting import wait_for
from tests.system.files.faults.fault_scene import PLANT, PLANTED, Scene
from tests.system.files.faults.injection import Table, Tracing, since_program, try_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A run whose supervisor was killed before it could remove planted names."""

    scene: Scene
    mark: Path
    content: bytes

    def put_back(self) -> None:
        self.scene.put_back()
        # The repeated scan is always of the same session, so names that it took before have to be
        # removed.
        shutil.rmtree(self.scene.state / "sessions" / self.mark.name, ignore_errors=True)
        self.mark.write_bytes(self.content)
        self.mark.chmod(0o600)
        self.scene.full.tester.give(self.mark)
        outcome = self.scene.full.outside(["sh", "-c", PLANT])
        assert (outcome.exit_code, self.scene.left()) == (0, list(PLANTED)), str(outcome)


@pytest.fixture
def killed(scene: Scene) -> Killed:
    project = scene.project
    # The supervisor is stopped meanwhile, so that it removes nothing before it is killed.
    act = f"echo started; read go; {PLANT}\ntouch planted; sleep 60"
    words = scene.full.command(["sh", "-c", act], journal=False)
    read, write = os.pipe()
    with scene.full.tester.starting(words, cwd=project, stdin=read) as process:
        os.close(read)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        os.write(write, b"go\n")
        os.close(write)
        wait_for((project / "planted").exists, "the command has planted its names")
        os.kill(process.pid, signal.SIGKILL)
    assert scene.left() == list(PLANTED), "the stopped supervisor removed nothing"
    (mark,) = scene.unfinished.iterdir()
    return Killed(scene=scene, mark=mark, content=mark.read_bytes())


def test_no_fault_of_the_next_run_leaves_a_scan_unfinished_without_a_message(
    killed: Killed,
) -> None:
    scene = killed.scene

    def run(prefix: Sequence[Word]) -> Outcome:
        return scene.full.inside(["true"], "--quiet", journal=False, prefix=prefix)

    table = Table("finished by the next run")
    begins = since_program("paddock-core")
    core = scene.full.installation.core
    for paths, sample in (
        ([*scene.directories(), core], 40),
        ([scene.unfinished, killed.mark, core], 20),
        ([], 30),
    ):
        killed.put_back()
        tracing = Tracing(paths=paths, begins=begins)
        try_faults(table, run, tracing, sample=sample, judge=scene.judge, put_back=killed.put_back)
    table.check()


def test_no_fault_of_doctor_leaves_a_scan_unfinished_without_a_message(killed: Killed) -> None:
    """The part of `paddock doctor` that finishes scans is a command of the core. Its answer is
    JSON.
    """
    scene = killed.scene
    words: list[Word] = [scene.full.installation.core, "finish", scene.state / "sessions"]

    def run(prefix: Sequence[Word]) -> Outcome:
        outcome = scene.full.outside([*prefix, *words])
        return replace(outcome, stderr=outcome.stdout + outcome.stderr)

    table = Table("finished by doctor")
    killed.put_back()
    try_faults(table, run, Tracing(), sample=50, judge=scene.judge, put_back=killed.put_back)
    table.check()


def test_doctor_says_that_a_scan_cannot_be_finished(killed: Killed) -> None:
    killed.put_back()
    killed.mark.write_bytes(killed.content[:100])
    outcome = killed.scene.full.outside([killed.scene.full.installation.paddock, "doctor"])
    assert outcome.exit_code != 0, str(outcome)
    assert f"{killed.mark}, the record of an unfinished scan, is damaged" in outcome.stderr
