"""Inside bubblewrap Paddock adds its layers, and mounts of bubblewrap can replace shells."""

from __future__ import annotations

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.system.shells.test_interception import FILTERS, PYTHON, agent

TIOCSTI = "import fcntl, sys; fcntl.ioctl(int(sys.argv[1]), 0x5412, b'x')"


class Wrapped:
    """The command of docs/keep-shells-offline.md."""

    def __init__(self, sandbox: SandboxRunner) -> None:
        self.sandbox = sandbox
        self.bwrap = need_program("bwrap")

    def run(self, *words: Word, binds: tuple[Word, ...] = ()) -> Outcome:
        home = self.sandbox.tester.home
        places: list[Word] = [
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
        ]
        places += [
            "--bind",
            home,
            home,
            "--unshare-net",
            "--unshare-pid",
            "--new-session",
            "--die-with-parent",
        ]
        return self.sandbox.tester.run(
            [self.bwrap, *places, *binds, "--", *words], cwd=self.sandbox.tree.project
        )


@pytest.fixture
def wrapped(sandbox: SandboxRunner) -> Wrapped:
    return Wrapped(sandbox)


def test_a_run_inside_adds_landlock_and_seccomp(wrapped: Wrapped) -> None:
    """C-121."""
    sandbox = wrapped.sandbox
    status = "grep Seccomp: /proc/self/status"
    assert (
        wrapped.run("sh", "-c", f"{status}; cat {sandbox.tree.secret}").stdout
        == "Seccomp:\t0\nthe-secret-outside\n"
    )
    for tier in ("landlock", "full"):
        words = sandbox.command(
            ["sh", "-c", f"{status}; cat {sandbox.tree.secret}"], "--tier", tier
        )
        outcome = wrapped.run(*words)
        assert (outcome.exit_code, outcome.stdout) == (1, "Seccomp:\t2\n"), str(outcome)


def test_shells_of_a_run_inside_are_intercepted(wrapped: Wrapped) -> None:
    words = wrapped.sandbox.command(
        agent("/bin/bash", "-c", FILTERS), "--tier", "full", "--intercept-shells"
    )
    outcome = wrapped.run(*words)
    assert outcome.stdout == "Seccomp_filters:\t4\n", str(outcome)


@pytest.mark.parametrize("locked", [True, False])
def test_mounts_in_bubblewrap_replace_shells(wrapped: Wrapped, locked: bool) -> None:
    """C-122. In a writable /dev the plan could be replaced. Then no shell starts."""
    sandbox = wrapped.sandbox
    shims, mark = sandbox.tree.root / "shims", sandbox.tree.project / "mark"
    installed = sandbox.tester.run([sandbox.installation.paddock, "shims", "install", shims])
    assert installed.exit_code == 0, str(installed)
    place = "/dev/.paddock-shell"
    binds: list[Word] = ["--ro-bind", shims / "plan.json", f"{place}/plan.json"]
    binds += ["--ro-bind", "/usr/bin/bash", f"{place}/usr/bin/bash"]
    binds += ["--ro-bind", sandbox.installation.core, "/usr/bin/bash"]
    binds += ["--remount-ro", "/dev"] if locked else []
    outcome = wrapped.run(
        "/bin/bash", "-c", f"{FILTERS}; echo > {mark}; bash -c '{FILTERS}'", binds=tuple(binds)
    )
    if locked:
        assert (outcome.stdout, mark.exists()) == ("Seccomp_filters:\t2\n" * 2, True), str(outcome)
    else:
        assert (outcome.exit_code, outcome.stdout, mark.exists()) == (126, "", False), str(outcome)
        assert "--remount-ro /dev" in outcome.stderr


def test_bubblewrap_cannot_type_into_the_terminal(wrapped: Wrapped) -> None:
    """C-123: also with a shared terminal. EPERM comes from the filter. Without it the kernel
    answers ENOTTY.
    """
    words: list[Word] = [PYTHON, "-c", TIOCSTI, "0"]
    assert "Inappropriate ioctl" in wrapped.run(*words).stderr
    outcome = wrapped.run(*wrapped.sandbox.command(words, "--tier", "landlock"))
    assert "Operation not permitted" in outcome.stderr, str(outcome)
