"""On a kernel that lacks a feature no command runs, and the message names the feature. Best effort
needs a policy key.

A wrapper (support/programs/oldkernel.c) makes this kernel look older.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import SECRET

NFS, SMB2, V9FS, AFS, CEPH, CODA, FUSE = (
    "6969",
    "fe534d42",
    "01021997",
    "5346414f",
    "00c36400",
    "73757245",
    "65735546",
)


@pytest.fixture
def lenient(sandbox: SandboxRunner) -> Path:
    return sandbox.tree.put(
        sandbox.tree.root / "lenient.toml",
        '[meta]\nversion = 1\ninherit = "ai-agent"\n[filesystem]\nrequire_enforced = false\n'
        f'read_globs = ["{sandbox.programs.directory}/**"]\n',
    )


def older(sandbox: SandboxRunner, *options: Word) -> list[Word]:
    return [sandbox.programs.oldkernel, *options, "--"]


def with_policy(
    sandbox: SandboxRunner, policy: Path, prefix: list[Word], words: list[Word], *flags: Word
) -> Outcome:
    argv: list[Word] = [
        *prefix,
        sandbox.installation.paddock,
        "run",
        "--tier",
        sandbox.tier,
        "--policy",
        policy,
        "--audit-log",
        sandbox.journal,
        *flags,
    ]
    return sandbox.tester.run([*argv, "--", *words], cwd=sandbox.tree.project)


def test_control_the_wrapper_changes_nothing_else(sandbox: SandboxRunner) -> None:
    """The control: the wrapper without a change."""
    outcome = sandbox.inside(
        sandbox.probe("read", sandbox.tree.secret), prefix=older(sandbox, "--landlock-abi", "7")
    )
    assert outcome.answer == "EACCES", str(outcome)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--no-landlock", "38"), ("landlock", "5.13")),
        (("--no-landlock", "95"), ("landlock", "eopnotsupp")),
        (("--landlock-abi", "1"), ("refer", "5.19")),
        (("--landlock-abi", "2"), ("truncate", "6.2")),
        (("--landlock-abi", "4"), ("ioctl", "6.10")),
        (("--landlock-abi", "5"), ("signal", "6.12")),
        (("--no-seccomp", "1"), ("seccomp",)),
        (("--no-seccomp", "22"), ("seccomp",)),
        (("--no-seccomp", "38"), ("seccomp",)),
    ],
    ids=lambda value: "-".join(value).strip("-"),
)
def test_a_kernel_without_a_needed_right_runs_nothing(
    sandbox: SandboxRunner, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """C-054, F-107."""
    refused = sandbox.inside(sandbox.probe("create", "ran"), prefix=older(sandbox, *options))
    assert refused.exit_code == 125, str(refused)
    assert refused.stdout == ""
    assert not (sandbox.tree.project / "ran").exists()
    assert refused.stderr.startswith("paddock:")
    assert "hint:" in refused.stderr
    assert all(word in refused.stderr.lower() for word in words), str(refused)
    assert sandbox.inside(sandbox.probe("create", "ran")).answer == "ok"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--no-landlock", "38"), "landlock"),
        (("--landlock-abi", "2"), "truncate"),
        (("--landlock-abi", "5"), "signal"),
        (("--no-seccomp", "1"), "seccomp"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, tuple) else value,
)
def test_best_effort_prints_a_warning(
    sandbox: SandboxRunner, lenient: Path, options: tuple[str, ...], word: str
) -> None:
    """F-108: a warning line and a journal event. The features that the kernel has still hold."""
    create = with_policy(sandbox, lenient, older(sandbox, *options), sandbox.probe("create", "ran"))
    assert create.answer == "ok", str(create)
    assert word in create.stderr.lower()
    assert "paddock:" in create.stderr
    partial = [event for event in sandbox.events() if event["event"] == "enforcement.partial"]
    assert partial
    assert any(word in str(event["text"]).lower() for event in partial)
    read = with_policy(
        sandbox, lenient, older(sandbox, *options), sandbox.probe("read", sandbox.tree.secret)
    )
    assert (read.answer == "EACCES") == (options[0] != "--no-landlock"), str(read)
    clone3 = with_policy(
        sandbox, lenient, older(sandbox, *options), sandbox.probe("clone3", "0x10000000")
    )
    assert (clone3.answer == "ENOSYS") == (options[0] != "--no-seccomp"), clone3


REMEDY = "--security-opt seccomp="


@pytest.mark.parametrize(
    ("options", "advised"),
    [
        (("--no-landlock", "1"), True),
        (("--no-landlock", "38"), True),
        (("--no-seccomp", "1"), True),
        (("--no-seccomp", "38"), True),
        (("--no-landlock", "95"), False),
        (("--landlock-abi", "5"), False),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, tuple) else "",
)
def test_a_filter_that_hides_a_mechanism_is_named_with_the_remedy(
    sandbox: SandboxRunner, options: tuple[str, ...], advised: bool
) -> None:
    """F-019: the compiler prints the hint, and so does the core for a cached plan."""
    compiled = sandbox.inside(["true"], prefix=older(sandbox, *options))
    assert compiled.exit_code == 125, str(compiled)
    assert (REMEDY in compiled.stderr) == advised, str(compiled)
    assert sandbox.inside(["true"]).exit_code == 0, (
        "it runs without the filter, and a plan is cached"
    )
    remembered = sandbox.inside(["true"], prefix=older(sandbox, *options))
    assert remembered.exit_code == 125, str(remembered)
    assert (REMEDY in remembered.stderr) == advised, str(remembered)


@pytest.fixture
def share(sandbox: SandboxRunner) -> Iterator[Path]:
    """A directory on its own file system, because the core checks each device once."""
    place = Path(tempfile.mkdtemp(prefix="paddock-share-", dir="/dev/shm"))
    need(
        "shm",
        place.stat().st_dev != sandbox.tree.root.stat().st_dev,
        "/dev/shm is not a separate file system",
    )
    (place / "file").write_text("shared\n")
    sandbox.tester.give(place)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("kind", [NFS, SMB2, V9FS, AFS, CEPH, CODA])
def test_a_remote_file_system_under_a_grant_is_refused(
    sandbox: SandboxRunner, share: Path, kind: str
) -> None:
    words, grant = sandbox.probe("read", share / "file"), ("-r", f"{share}/**")
    prefix = older(sandbox, "--statfs-type", kind, share)
    refused = sandbox.inside(words, *grant, profile="base", prefix=prefix)
    assert refused.exit_code == 125, str(refused)
    assert refused.stdout == ""
    assert str(share) in refused.stderr
    assert "remote" in refused.stderr
    assert sandbox.inside(words, *grant, profile="base").answer == "ok shared"
    # a path without a grant does not matter
    assert sandbox.inside(words, profile="base", prefix=prefix).answer == "EACCES"


def test_a_remote_file_system_is_a_warning_when_best_effort_was_asked_for(
    sandbox: SandboxRunner, share: Path
) -> None:
    policy = sandbox.tree.put(
        sandbox.tree.root / "lenient.toml",
        f"[filesystem]\nrequire_enforced = false\n"
        f'read_globs = ["{sandbox.programs.directory}/**", "{share}/**"]\n',
    )
    prefix = older(sandbox, "--statfs-type", NFS, share)
    outcome = with_policy(sandbox, policy, prefix, sandbox.probe("read", share / "file"))
    assert outcome.answer == "ok shared", str(outcome)
    assert f"{share} is on a remote file system" in outcome.stderr
    partial = [event for event in sandbox.events() if event["event"] == "enforcement.partial"]
    assert any(str(share) in str(event["text"]) for event in partial)


def test_fuse_is_a_warning(sandbox: SandboxRunner, share: Path) -> None:
    prefix = older(sandbox, "--statfs-type", FUSE, share)
    outcome = sandbox.inside(
        sandbox.probe("read", share / "file"), "-r", f"{share}/**", profile="base", prefix=prefix
    )
    assert outcome.answer == "ok shared", str(outcome)
    assert str(share) in outcome.stderr


def test_doctor_fails_on_a_kernel_without_landlock(sandbox: SandboxRunner) -> None:
    """C-009: exit 0 only when the default profile can be enforced."""
    doctor: list[Word] = [sandbox.installation.paddock, "doctor", "--tier", "landlock"]
    assert sandbox.outside(doctor).exit_code == 0
    for options in (("--no-landlock", "38"), ("--landlock-abi", "2"), ("--no-seccomp", "1")):
        reported = sandbox.outside([*older(sandbox, *options), *doctor])
        assert reported.exit_code != 0, str(reported)
        assert "Traceback" not in reported.stderr


@pytest.mark.parametrize(
    "options", [("--no-landlock", "38"), ("--landlock-abi", "1"), ("--landlock-abi", "5")]
)
def test_mounts_enforce_file_rules_without_landlock(
    full: SandboxRunner, options: tuple[Word, ...]
) -> None:
    prefix = older(full, *options)
    assert full.inside(full.probe("read", full.tree.secret), prefix=prefix).answer == "ENOENT"
    assert full.inside(full.probe("create", full.tree.outside / "new"), prefix=prefix).answer in (
        "ENOENT",
        "EROFS",
    )
    assert full.inside(full.probe("create", "new"), prefix=prefix).answer == "ok"
    assert full.inside(full.probe("read", "own.txt"), prefix=prefix).answer == "ok mine"
    assert full.outside(full.probe("read", full.tree.secret)).answer.startswith("ok ")


def test_no_refusal_prints_a_secret(sandbox: SandboxRunner) -> None:
    for options in (("--no-landlock", "38"), ("--no-seccomp", "1")):
        refused = sandbox.inside(["cat", sandbox.tree.secret], prefix=older(sandbox, *options))
        assert SECRET not in refused.stdout
        assert refused.exit_code == 125


@pytest.mark.parametrize("options", [("--no-landlock", "38"), ("--landlock-abi", "5")])
def test_a_signal_to_the_whole_group_does_not_reach_the_supervisor(
    full: SandboxRunner, options: tuple[Word, ...]
) -> None:
    """These kernels have no signal scope, and a process group crosses pid namespaces."""
    script = "trap '' TERM; echo started; kill -TERM 0 && echo sent; sleep 0.2; echo ended"
    done = full.inside(["sh", "-c", script], prefix=["setsid", *older(full, *options)])
    assert (done.exit_code, done.stdout) == (0, "started\nended\n"), str(done)
    assert (
        full.outside(["setsid", "-w", "sh", "-c", "trap '' TERM; kill -TERM 0 && echo sent"]).stdout
        == "sent\n"
    )
