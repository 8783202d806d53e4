"""Inside a container: the engine's own filter is on, and the fence still has to hold, or to say what is in its way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import ENGINE_PROFILE, Container, started_from
from tests.support.fence import Fence, Word
from tests.support.ground import SECRET
from tests.support.syscalls import numbers

PTRACE = str(numbers()["ptrace"])  # with nothing behind it: PTRACE_TRACEME
LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


@pytest.fixture
def container(fence: Fence) -> Iterator[Container]:
    with started_from(fence) as container:
        yield container


def fenced(container: Container, *words: Word) -> list[Word]:
    fence = container.fence
    return [
        fence.installation.paddock,
        "run",
        "--profile",
        "ai-agent",
        "-r",
        f"{fence.programs.directory}/**",
        "--",
        *words,
    ]


@pytest.mark.parametrize("uid", [None, 0], ids=["user", "root"])
def test_under_the_engines_default_filter_the_fence_holds(container: Container, uid: int | None) -> None:
    """F-019"""
    secret, probe = container.fence.ground.secret, container.fence.programs.probe
    status = container.run(["cat", "/proc/self/status"], uid=uid)
    assert "Seccomp:\t2\n" in status.stdout, f"the engine put no filter on: {status}"
    doctor = container.run([container.fence.installation.paddock, "doctor"], uid=uid)
    assert doctor.exit_code == 0, str(doctor)
    assert container.run(fenced(container, probe, "read", "own.txt"), uid=uid).answer == "ok mine"
    assert container.run(fenced(container, probe, "read", secret), uid=uid).answer == "EACCES"
    assert container.run([probe, "read", secret], uid=uid).answer == f"ok {SECRET}"
    assert container.run(fenced(container, probe, "syscall", PTRACE), uid=uid).answer == "EPERM"
    assert container.run([probe, "syscall", PTRACE], uid=uid).answer == "ok"


@pytest.mark.parametrize("names", [LANDLOCK, ("seccomp",)], ids=["landlock", "seccomp"])
def test_an_engine_that_does_not_know_the_calls_is_named_with_the_remedy(
    container: Container, names: tuple[str, ...]
) -> None:
    """F-019: the engine's own profile as it was before it knew them; and the remedy helps."""
    marker = container.fence.ground.project / "ran"
    older = _without(names, container.place / "older.json")
    words = fenced(container, "touch", marker)
    refused = container.run(words, "--security-opt", f"seccomp={older}")
    assert refused.exit_code == 125, str(refused)
    assert "--security-opt seccomp=" in refused.stderr
    assert names[0].partition("_")[0] in refused.stderr.lower()
    assert not marker.exists()
    doctor = container.run([container.fence.installation.paddock, "doctor"], "--security-opt", f"seccomp={older}")
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
    """As container/README.md says."""
    profile = json.loads(older.read_text())
    profile["syscalls"].append({"names": names, "action": "SCMP_ACT_ALLOW"})
    newer = older.with_name("newer.json")
    newer.write_text(json.dumps(profile))
    return newer
