"""Inside a container with the engine's filter the sandbox holds, or names the missing feature."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import ENGINE_PROFILE, Container, removed, started_from
from tests.support.features import need_program, need_root
from tests.support.sandbox import SandboxRunner, Word
from tests.support.syscalls import numbers
from tests.support.tester import subordinate_numbers
from tests.support.tree import SECRET
from tests.support.waiting import wait_for

PTRACE = str(numbers()["ptrace"])  # without arguments this is PTRACE_TRACEME
LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


@pytest.fixture
def container(sandbox: SandboxRunner) -> Iterator[Container]:
    with started_from(sandbox) as container:
        yield container


def sandboxed(container: Container, *words: Word) -> list[Word]:
    sandbox = container.sandbox
    return [
        sandbox.installation.paddock,
        "run",
        "--profile",
        "ai-agent",
        "-r",
        f"{sandbox.programs.directory}/**",
        "--",
        *words,
    ]


@pytest.mark.parametrize("uid", [None, 0], ids=["user", "root"])
def test_sandbox_holds_under_the_engines_default_filter(
    container: Container, uid: int | None
) -> None:
    """F-019"""
    secret, probe = container.sandbox.tree.secret, container.sandbox.programs.probe
    status = container.run(["cat", "/proc/self/status"], uid=uid)
    assert "Seccomp:\t2\n" in status.stdout, f"the engine put no filter on: {status}"
    doctor = container.run([container.sandbox.installation.paddock, "doctor"], uid=uid)
    assert doctor.exit_code == 0, str(doctor)
    assert (
        container.run(sandboxed(container, probe, "read", "own.txt"), uid=uid).answer == "ok mine"
    )
    assert container.run(sandboxed(container, probe, "read", secret), uid=uid).answer == "EACCES"
    assert container.run([probe, "read", secret], uid=uid).answer == f"ok {SECRET}"
    assert container.run(sandboxed(container, probe, "syscall", PTRACE), uid=uid).answer == "EPERM"
    assert container.run([probe, "syscall", PTRACE], uid=uid).answer == "ok"


@pytest.mark.parametrize("names", [LANDLOCK, ("seccomp",)], ids=["landlock", "seccomp"])
def test_an_engine_that_does_not_know_the_calls_is_named_with_the_remedy(
    container: Container, names: tuple[str, ...]
) -> None:
    """F-019: an old profile of the engine that does not know the calls. The named remedy works."""
    marker = container.sandbox.tree.project / "ran"
    older = _without(names, container.place / "older.json")
    words = sandboxed(container, "touch", marker)
    refused = container.run(words, "--security-opt", f"seccomp={older}")
    assert refused.exit_code == 125, str(refused)
    assert "--security-opt seccomp=" in refused.stderr
    assert names[0].partition("_")[0] in refused.stderr.lower()
    assert not marker.exists()
    doctor = container.run(
        [container.sandbox.installation.paddock, "doctor"], "--security-opt", f"seccomp={older}"
    )
    assert doctor.exit_code == 125
    assert "--security-opt seccomp=" in doctor.stderr
    for remedy in ("unconfined", _knowing((*LANDLOCK, "seccomp"), older)):
        helped = container.run(words, "--security-opt", f"seccomp={remedy}")
        assert helped.exit_code == 0, str(helped)
        assert marker.exists()
        marker.unlink()


def _without(names: tuple[str, ...], path: Path) -> Path:
    profile = json.loads(ENGINE_PROFILE.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in names]
    path.write_text(json.dumps(profile))
    return path


def _knowing(names: tuple[str, ...], older: Path) -> Path:
    """The options of container/README.md."""
    profile = json.loads(older.read_text())
    profile["syscalls"].append({"names": names, "action": "SCMP_ACT_ALLOW"})
    newer = older.with_name("newer.json")
    newer.write_text(json.dumps(profile))
    return newer


ROOTLESS = """
import asyncio, json, os, subprocess, sys
from paddock import ContainerExecutor
from paddock.executors.run import run

place, image, workspace, runtime = sys.argv[1:]
words = ["podman", "--root", f"{place}/store", "--runroot", f"{place}/run", "--runtime", runtime]
words += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
subprocess.run([*words, "import", "--quiet", image, "localhost/tiny"], check=True, \
capture_output=True)


async def main():
    executor = ContainerExecutor(
        "localhost/tiny", workspace=workspace, engine=words[0], engine_options=words[1:], \
memory_mb=None,
        processes=None,
        options=("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"),
    )
    line = "echo started; id -u; cat .env; echo x > .git/hooks/post-checkout; echo x > made"
    line += "; ln -s ../../../.bashrc .git/logs/HEAD"
    ran = await run(executor, line)
    print(json.dumps([ran.stdout, ran.stderr, ran.error, executor.confines_writes, await \
executor.dispose()]))


asyncio.run(main())
"""


def test_names_hold_in_a_container_of_rootless_podman(full: SandboxRunner) -> None:
    """As an ordinary user who owns the files inside too (``keep-id``). Protected names hold
    there.
    """
    need_root()
    need_program("podman")
    runc, busybox = need_program("runc"), need_program("busybox")
    tree, tester = full.tree, full.tester
    place = Path(tempfile.mkdtemp(prefix="paddock-rootless-", dir="/var/tmp"))
    try:
        image = place / "image"
        for name in ("bin", "tmp", "proc", "dev", "etc", "work"):
            (image / name).mkdir(parents=True)
        shutil.copy(busybox, image / "bin" / "busybox")
        for word in ("sh", "cat", "echo", "id", "ln", "tr", "grep"):
            (image / "bin" / word).symlink_to("busybox")
        archive = shutil.make_archive(str(place / "image"), "tar", image)
        work = place / "project"
        (work / ".git" / "hooks").mkdir(parents=True)
        for name in ("objects", "refs", "logs"):
            (work / ".git" / name).mkdir()
        (work / ".git" / "logs" / "mine").symlink_to("elsewhere")
        (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        (work / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n")
        (work / ".env").write_text(f"KEY={SECRET}\n")
        tester.give(place)
        script = tree.put(tree.root / "rootless.py", ROOTLESS)
        environment = {
            "HOME": str(tester.home),
            "PATH": "/usr/sbin:/usr/bin:/bin",
            "XDG_RUNTIME_DIR": str(place),
        }
        python = full.installation.paddock.with_name("python")
        with subordinate_numbers(tester, 700000):
            ran = tester.run(
                [python, script, place, archive, work, runc], cwd=place, env=environment
            )
        assert ran.exit_code == 0, str(ran)
        stdout, stderr, error, confines, left = json.loads(ran.stdout)
        assert stdout == f"started\n{tester.uid}\n", (stdout, stderr, error)
        assert confines, "podman, as this user"
        planted = work / ".git" / "logs" / "HEAD"
        assert os.readlink(planted) == "../../../.bashrc", "the control: the link stays on the host"
        assert [line.partition(":")[0] for line in left] == [str(planted)], left
        assert "link to ../../../.bashrc" in left[0]
        assert (work / "made").stat().st_uid == tester.uid, (
            "the control: what is made there is the caller's"
        )
        assert not (work / ".git" / "hooks" / "post-checkout").exists()
    finally:
        wait_for(lambda: removed(place), "the engine has left its files")
