"""Runs that were killed before their last scan: their planted names are removed before another
command runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner, only
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

# The supervisor is stopped meanwhile, so that it removes nothing before it is killed.
PLANT = """
echo started; while ! test -e go; do sleep 0.02; done
echo 'touch pwned' > .envrc; mkdir -p sub/.vscode; echo '{}' > sub/.vscode/tasks.json
echo mine > work.txt; touch planted; sleep 60
"""


def marks(full: SandboxRunner) -> list[Path]:
    place = full.tester.home / ".local" / "state" / "paddock" / "unfinished"
    return sorted(place.iterdir()) if place.exists() else []


def planted(full: SandboxRunner) -> list[str]:
    """The existing protected names, as the host sees them."""
    project = full.tree.project
    return [name for name in (".envrc", "sub/.vscode") if os.path.lexists(project / name)]


@contextmanager
def planting(full: SandboxRunner, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has planted names while its supervisor was stopped."""
    project = full.tree.project
    with full.starting(["sh", "-c", PLANT], *flags) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        full.tree.put(project / "go")
        wait_for(lambda: (project / "planted").exists(), "the command has planted its names")
        assert planted(full) == [".envrc", "sub/.vscode"]
        yield process
    (project / "go").unlink()


def killed(full: SandboxRunner, *flags: str) -> str:
    """The session of a run that was killed with all its planted names."""
    with planting(full, *flags) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    start = [event for event in full.events() if event["event"] == "session.start"][-1]
    assert planted(full) == [".envrc", "sub/.vscode"], "the stopped supervisor removed nothing"
    return str(start["session"])


def assert_taken(full: SandboxRunner, reported: str, session: str) -> None:
    project = full.tree.project
    assert planted(full) == []
    assert (project / "work.txt").read_text() == "mine\n", "ordinary files stay"
    for name in (".envrc", "sub/.vscode"):
        assert f"removed {project / name}, created during the run" in reported
    assert f"finished the interrupted last scan of session {session}" in reported
    of_session = [event for event in full.events() if event["session"] == session]
    names = {str(event["path"]) for event in of_session if event["event"] == "name.taken"}
    assert names == {str(project / ".envrc"), str(project / "sub" / ".vscode")}
    assert only(of_session, "scan.finished")["taken"] == 2
    assert marks(full) == []


def test_the_next_run_takes_away_what_a_killed_run_planted_before_its_command_starts(
    full: SandboxRunner,
) -> None:
    session = killed(full)
    outcome = full.inside(["sh", "-c", "ls -a . sub"])
    assert outcome.exit_code == 0, str(outcome)
    assert ".envrc" not in outcome.stdout
    assert ".vscode" not in outcome.stdout
    assert_taken(full, outcome.stderr, session)


def test_a_grant_inside_another_is_scanned_too(full: SandboxRunner) -> None:
    inner = full.tree.make(full.tree.project / "sub")
    session = killed(full, "--allow", f"{inner}/**")
    outcome = full.inside(["true"])
    assert outcome.exit_code == 0, str(outcome)
    assert_taken(full, outcome.stderr, session)


def test_a_run_elsewhere_without_namespaces_finishes_the_scan(
    full: SandboxRunner, sandbox: SandboxRunner
) -> None:
    session = killed(full)
    outcome = sandbox.inside(["true"], cwd=sandbox.tree.make(sandbox.tree.root / "elsewhere"))
    assert outcome.exit_code == 0, str(outcome)
    assert_taken(full, outcome.stderr, session)


def test_doctor_finishes_an_unfinished_scan(full: SandboxRunner) -> None:
    session = killed(full)
    outcome = full.outside([full.installation.paddock, "doctor"])
    assert outcome.exit_code == 0, str(outcome)
    assert_taken(full, outcome.stdout, session)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_directory_that_is_away_keeps_its_mark_and_is_scanned_when_it_is_back(
    full: SandboxRunner, replaced: bool
) -> None:
    """As after a crash with an unmounted drive: the path is missing, or an empty directory."""
    session = killed(full)
    (mark,) = marks(full)
    project, elsewhere = full.tree.project, full.tree.make(full.tree.root / "elsewhere")
    away = project.rename(project.with_name("away"))
    if replaced:
        full.tree.put(project / ".envrc", "of the person\n")
    doctor: list[str | bytes | Path] = [full.installation.paddock, "doctor"]
    for words in (full.command(["touch", "ran"]), full.command(["true"]), doctor):
        outcome = full.outside(words, cwd=elsewhere)
        reported = outcome.stdout + outcome.stderr
        assert outcome.exit_code == 0, str(outcome)
        assert (
            f"needs {project} "
            f"({'another directory has this path' if replaced else 'it does not exist'})"
        ) in reported
        assert f"rm '{mark}'" in reported
        assert marks(full) == [mark]
    assert (elsewhere / "ran").exists()
    if replaced:
        assert (project / ".envrc").read_text() == "of the person\n"
        (project / ".envrc").unlink()
        project.rmdir()
    away.rename(project)
    outcome = full.outside(full.command(["true"]), cwd=elsewhere)
    assert outcome.exit_code == 0, str(outcome)
    assert_taken(full, outcome.stderr, session)


def test_control_a_run_that_ends_takes_planted_names_and_leaves_no_mark(
    full: SandboxRunner,
) -> None:
    with planting(full) as process:
        assert len(marks(full)) == 1
        os.kill(process.pid, signal.SIGCONT)
        os.kill(process.pid, signal.SIGTERM)
        process.wait()
    assert planted(full) == []
    assert marks(full) == []
    assert not any(event["event"] == "scan.finished" for event in full.events())


def test_a_file_from_before_the_killed_run_stays(full: SandboxRunner) -> None:
    project = full.tree.project
    full.tree.put(project / "own" / ".envrc", "as it was\n")
    full.tree.put(project / "own" / ".vscode" / "tasks.json", "{}\n")
    full.outside(["git", "init", "-q", "."])
    killed(full)
    # The user continues to work meanwhile.
    full.outside(["sh", "-c", "echo more >> own/.envrc; git config user.name ada"])
    assert full.inside(["true"]).exit_code == 0
    assert planted(full) == []
    assert (project / "own" / ".envrc").read_text() == "as it was\nmore\n"
    assert (project / "own" / ".vscode" / "tasks.json").exists()
    assert "ada" in (project / ".git" / "config").read_text()


def test_a_name_that_the_host_removed_during_the_killed_run_is_not_the_command_s(
    full: SandboxRunner,
) -> None:
    """The same holds for names that the host creates meanwhile: no event names the creator."""
    project = full.tree.project
    for name in (".envrc", ".mcp.json", "own/.envrc"):
        full.tree.put(project / name, "as it was\n")
    script = (
        "echo started; while test -e .envrc; do sleep 0.01; done; echo evil > .envrc; "
        "touch planted; sleep 60"
    )
    with full.starting(["sh", "-c", script]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        (project / ".envrc").unlink()
        wait_for(lambda: (project / "planted").exists(), "the command has planted its name")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    full.tree.put(project / "new", "of the person\n").rename(project / ".mcp.json")
    assert (project / ".envrc").read_text() == "evil\n", (
        "the control: the stopped supervisor did not remove it"
    )
    outcome = full.inside(["true"])
    assert outcome.exit_code == 0, str(outcome)
    assert not (project / ".envrc").exists(), str(outcome)
    assert not (project / ".mcp.json").exists(), str(outcome)
    assert (project / "own" / ".envrc").read_text() == "as it was\n"
    taken = [Path(str(event["kept"])) for event in full.events() if event["event"] == "name.taken"]
    assert sorted(kept.read_text() for kept in taken) == ["evil\n", "of the person\n"]


def test_a_name_that_came_with_a_renamed_directory_is_taken(full: SandboxRunner) -> None:
    """The file is as old as the workspace. At the start it had no protected name."""
    project = full.tree.project
    full.tree.put(project / "docs" / "tasks.json", "{}\n")
    script = PLANT.replace(
        "mkdir -p sub/.vscode; echo '{}' > sub/.vscode/tasks.json", "mkdir sub; mv docs sub/.vscode"
    )
    with full.starting(["sh", "-c", script]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        full.tree.put(project / "go")
        wait_for(lambda: (project / "planted").exists(), "the command has planted its names")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert planted(full) == [".envrc", "sub/.vscode"]
    assert full.inside(["true"]).exit_code == 0
    assert planted(full) == []


def test_the_mark_of_a_run_that_lives_is_left_alone(full: SandboxRunner) -> None:
    with planting(full):
        outcome = full.inside(["true"])
        assert outcome.exit_code == 0, str(outcome)
        assert "finished the interrupted last scan" not in outcome.stderr
        assert len(marks(full)) == 1


def test_a_start_right_after_the_kill_waits_for_the_end_of_the_supervisor(
    full: SandboxRunner,
) -> None:
    """The kernel needs a moment to end the supervisor, which holds its lock meanwhile."""
    for _ in range(4):
        with planting(full) as process:
            os.kill(process.pid, signal.SIGKILL)
            outcome = full.inside(["true"])
        assert "finished the interrupted last scan" in outcome.stderr, str(outcome)
        assert planted(full) == []
        assert marks(full) == []
        (full.tree.project / "planted").unlink()


def test_concurrent_starts_finish_the_scan_once(full: SandboxRunner) -> None:
    session = killed(full)
    argv = [str(word) for word in full.command(["true"])]
    script = 'for i in 1 2 3 4 5 6; do "$@" 2>&1 & done; wait'
    outcome = full.outside(["sh", "-c", script, "sh", *argv])
    assert outcome.stdout.count("finished the interrupted last scan") == 1, str(outcome)
    assert_taken(full, outcome.stdout, session)
    starts = [event for event in full.events() if event["event"] == "session.start"]
    assert len(starts) == 7


def test_a_scan_that_cannot_be_finished_keeps_the_next_command_from_starting(
    full: SandboxRunner,
) -> None:
    killed(full)
    (mark,) = marks(full)
    mark.write_text("torn")
    outcome: Outcome = full.inside(["touch", "ran"])
    assert outcome.exit_code == 125, str(outcome)
    assert str(mark) in outcome.stderr
    assert "remove the record" in outcome.stderr
    assert not (full.tree.project / "ran").exists()
    doctor = full.outside([full.installation.paddock, "doctor"])
    assert doctor.exit_code == 125
    assert str(mark) in doctor.stderr
    mark.unlink()
    assert full.inside(["touch", "ran"]).exit_code == 0


def test_a_command_cannot_touch_a_mark(full: SandboxRunner) -> None:
    place = full.tester.home / ".local" / "state" / "paddock" / "unfinished"
    script = f"ls {place}; rm -rf {place}; echo x > {place}/x"
    outcome = full.inside(
        ["sh", "-c", f"echo started; {script}"], "-w", f"{full.tester.home}/.local/**"
    )
    assert outcome.stdout == "started\n", str(outcome)
    assert marks(full) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_stops_the_last_scan_and_the_next_run_finishes_it(
    full: SandboxRunner, name: str
) -> None:
    project = full.tree.project
    script = "for i in $(seq 60); do mkdir w$i; echo x > w$i/.envrc; done; touch ready"
    # Each listing of a directory takes 20 ms, so the last scan takes a second at least.
    slow = [
        need_program("strace"),
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=getdents64:delay_enter=20000",
    ]
    with full.tester.starting([*slow, *full.command(["sh", "-c", script])], cwd=project) as process:
        wait_for((project / "ready").exists, "the command has planted its names")
        (supervisor,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        # Signals before the scan are for the command, which has ended.
        while process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(int(supervisor), getattr(signal, name))
        assert process.returncode == 125
    assert "did not finish" in str(only(full.events(), "scan.unfinished")["error"])
    assert len(marks(full)) == 1
    assert full.inside(["true"]).exit_code == 0
    assert list(project.glob("w*/.envrc")) == []
    assert marks(full) == []


def test_verify_and_report_name_a_killed_session_and_the_chain_is_whole(
    full: SandboxRunner,
) -> None:
    session = killed(full)
    assert full.inside(["true"]).exit_code == 0
    verified = full.outside([full.installation.paddock, "audit", "verify", "--dir", full.journal])
    assert verified.exit_code == 0, str(verified)
    assert verified.stderr.count("has a start event and no end event") == 1
    assert f"session {session} has a start event and no end event" in verified.stderr
    report = full.outside([full.installation.paddock, "audit", "report", "--dir", full.journal])
    assert report.exit_code == 0
    assert f"<li>{session}</li>" in report.stdout
