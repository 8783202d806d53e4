"""Events that the guard missed or saw late: it removes every name that could be a plant.

The supervisor is stopped meanwhile, so that its events wait, and nothing depends on how fast it is.
The kernel keeps ``max_queued_events`` events and drops the rest. The host checks each plant before
the supervisor continues. That is the control, which shows that the act itself succeeds.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for

# Each step of a command waits for a file of the host, and creates a file when it is done.
STEPS = """
import os, sys, time
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
def done(name): open(name, "w").close()
def flood(count):
    "So many events, none of which is like the one before."
    open("n1", "w").close()
    for _ in range(count // 2): os.rename("n1", "n2"); os.rename("n2", "n1")
def busy():
    "Events that take the guard seconds, and are fewer than the kernel keeps: each has it look \
through a tree."
    for _ in range(1000): os.rename("tree", "eert"); os.rename("eert", "tree")
for number in range(300): os.makedirs(f"tree/{number}")
print("started", flush=True)
wait("go")
"""
MOST_EVENTS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
# The reason why the guard misses a removal: none, waiting events, dropped events.
GAPS = {"none": "", "waiting": "busy()", "dropped": f"flood({MOST_EVENTS + 2000})"}
gaps = pytest.mark.parametrize("gap", GAPS)


@contextmanager
def stepping(full: SandboxRunner, gap: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose supervisor does not see the following acts, unless there is no gap."""
    project = full.tree.project
    with full.starting(
        [need_program("python3"), "-c", f"{STEPS}{GAPS[gap]}\ndone('filled')\n{script}"]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if gap != "none":
            os.kill(process.pid, signal.SIGSTOP)
        full.tree.put(project / "go")
        wait_for(lambda: (project / "filled").exists(), "the command has made its events")
        yield process


def until(full: SandboxRunner, name: str) -> None:
    wait_for(lambda: (full.tree.project / name).exists(), f"the command has made {name}")


def ended(process: subprocess.Popen[str]) -> str:
    """The output of the run after its supervisor was continued."""
    os.kill(process.pid, signal.SIGCONT)
    assert process.stderr is not None
    reported = process.stderr.read()
    process.wait(timeout=120)
    return reported


@gaps
def test_a_name_that_the_host_removed_is_not_attributed_to_the_command(
    full: SandboxRunner, gap: str
) -> None:
    project = full.tree.project
    full.tree.put(project / ".envrc", "as it was\n")
    full.tree.put(project / ".mcp.json", "as it was\n")
    plant = """
while os.path.exists(".envrc"): time.sleep(0.001)
with open(".envrc", "x") as file: file.write("evil")
done("planted"); wait("end")
"""
    with stepping(full, gap, plant) as process:
        (project / ".envrc").unlink()
        until(full, "planted")
        if gap != "none":
            assert (project / ".envrc").read_text() == "evil", "the control: it can be planted"
        full.tree.put(project / "end")
        reported = ended(process)
    assert not (project / ".envrc").exists(), reported
    assert f"removed {project / '.envrc'}" in reported
    assert (project / ".mcp.json").read_text() == "as it was\n", "the earlier file stays"


@gaps
def test_a_file_renamed_by_the_host_stays_unless_events_were_dropped(
    full: SandboxRunner, gap: str
) -> None:
    project = full.tree.project
    full.tree.put(project / ".envrc", "as it was\n")
    with stepping(full, gap, "wait('end')") as process:
        full.tree.put(project / "new", "of the person\n").rename(project / ".envrc")
        full.tree.put(project / "end")
        reported = ended(process)
    if gap == "dropped":
        assert not (project / ".envrc").exists(), reported
        assert f"removed {project / '.envrc'}" in reported
    else:
        assert (project / ".envrc").read_text() == "of the person\n"


# A file of the command with the inode number of a file that was covered at the start.
REUSE = """
number = os.stat(".git/config").st_ino
done("measured")
while os.stat(".git/config").st_ino == number: time.sleep(0.001)
for at in range(4000):
    with open(f".git/{at}", "x") as file:
        if os.fstat(file.fileno()).st_ino != number: continue
        file.write("../evil\\n")
    os.rename(f".git/{at}", ".git/commondir")
    done("reused")
    break
done("planted"); wait("end")
"""


@pytest.mark.parametrize("gap", ["none", "dropped"])
def test_a_reused_inode_number_does_not_make_a_new_file_old(full: SandboxRunner, gap: str) -> None:
    project, mark = full.tree.project, full.tree.outside / "mark"
    config = (
        f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        f'\tfsmonitor = "touch {mark}; '
        f'false"\n'
    )
    assert full.outside(["git", "init", "-q", "."]).exit_code == 0
    full.tree.put(project / "evil" / "config", config)
    assert full.outside(["cp", "-r", ".git/objects", ".git/refs", "evil"]).exit_code == 0
    with stepping(full, gap, REUSE) as process:
        until(full, "measured")
        assert full.outside(["git", "config", "user.name", "ada"]).exit_code == 0
        until(full, "planted")
        if not (project / "reused").exists():
            pytest.skip("this file system reuses no inode number in 4000 files")
        full.tree.put(project / "end")
        reported = ended(process)
    assert not (project / ".git" / "commondir").exists(), reported
    assert "ada" in (project / ".git" / "config").read_text(), "a harmless configuration stays"
    full.outside(["git", "status"])
    assert not mark.exists()
    full.tree.put(project / ".git" / "commondir", "../evil\n")
    full.outside(["git", "status"])
    assert mark.exists(), "the control: git obeys it"


@gaps
def test_a_name_that_another_run_removed_is_not_attributed_to_the_command(
    full: SandboxRunner, gap: str
) -> None:
    """For the run that created the file it is no mount point. For the other run the first run is
    outside.
    """
    project, mark = full.tree.project, full.tree.outside / "mark"
    first = (
        "git init -q nested; echo started; while ! test -e remove; do sleep 0.01; done; "
        "rm nested/.git/config"
    )
    config = (
        f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        f'\tfsmonitor = "touch {mark}; '
        f'false"\n'
    )
    plant = f"""
try:
    open("nested/.git/config", "a")
    done("open")
except OSError: pass
wait("removed")
with open("nested/.git/config", "w") as file: file.write({config!r})
done("planted"); wait("end")
"""
    with full.starting(["sh", "-c", first]) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "started\n"
        with stepping(full, gap, plant) as process:
            full.tree.put(project / "remove")
            other.wait(timeout=120)
            assert not (project / "nested" / ".git" / "config").exists()
            full.tree.put(project / "removed")
            until(full, "planted")
            full.tree.put(project / "end")
            reported = ended(process)
    assert not (project / "open").exists(), "it is read-only for the second run"
    assert not (project / "nested" / ".git" / "config").exists(), reported
    full.outside(["git", "status"], cwd=project / "nested")
    assert not mark.exists()
    full.tree.put(project / "nested" / ".git" / "config", config)
    full.outside(["git", "status"], cwd=project / "nested")
    assert mark.exists(), "the control: git obeys it"
