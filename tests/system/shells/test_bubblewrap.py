"""Inside bubblewrap: Paddock adds its layers, and shells can be replaced by its mounts."""

from __future__ import annotations

import pytest

from tests.support.features import need_program
from tests.support.fence import Fence, Word
from tests.support.tester import Outcome
from tests.system.shells.test_interception import FILTERS, PYTHON, agent

TIOCSTI = "import fcntl, sys; fcntl.ioctl(int(sys.argv[1]), 0x5412, b'x')"


class Wrapped:
    """As docs/keep-shells-offline.md has it."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.bwrap = need_program("bwrap")

    def run(self, *words: Word, binds: tuple[Word, ...] = ()) -> Outcome:
        home = self.fence.tester.home
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
        return self.fence.tester.run(
            [self.bwrap, *places, *binds, "--", *words], cwd=self.fence.ground.project
        )


@pytest.fixture
def wrapped(fence: Fence) -> Wrapped:
    return Wrapped(fence)


def test_a_run_inside_adds_landlock_and_seccomp(wrapped: Wrapped) -> None:
    """C-121."""
    fence = wrapped.fence
    status = "grep Seccomp: /proc/self/status"
    assert (
        wrapped.run("sh", "-c", f"{status}; cat {fence.ground.secret}").stdout
        == "Seccomp:\t0\nthe-secret-outside\n"
    )
    for tier in ("landlock", "full"):
        words = fence.command(["sh", "-c", f"{status}; cat {fence.ground.secret}"], "--tier", tier)
        outcome = wrapped.run(*words)
        assert (outcome.exit_code, outcome.stdout) == (1, "Seccomp:\t2\n"), str(outcome)


def test_shells_of_a_run_inside_are_intercepted(wrapped: Wrapped) -> None:
    words = wrapped.fence.command(
        agent("/bin/bash", "-c", FILTERS), "--tier", "full", "--intercept-shells"
    )
    outcome = wrapped.run(*words)
    assert outcome.stdout == "Seccomp_filters:\t3\n", str(outcome)


@pytest.mark.parametrize("locked", [True, False])
def test_its_mounts_replace_shells(wrapped: Wrapped, locked: bool) -> None:
    """C-122. A /dev that can be written could be given something else to apply: then no shell
    starts.
    """
    fence = wrapped.fence
    shims, mark = fence.ground.root / "shims", fence.ground.project / "mark"
    installed = fence.tester.run([fence.installation.paddock, "shims", "install", shims])
    assert installed.exit_code == 0, str(installed)
    place = "/dev/.paddock-shell"
    binds: list[Word] = ["--ro-bind", shims / "plan.json", f"{place}/plan.json"]
    binds += ["--ro-bind", "/usr/bin/bash", f"{place}/usr/bin/bash"]
    binds += ["--ro-bind", fence.installation.core, "/usr/bin/bash"]
    binds += ["--remount-ro", "/dev"] if locked else []
    outcome = wrapped.run(
        "/bin/bash", "-c", f"{FILTERS}; echo > {mark}; bash -c '{FILTERS}'", binds=tuple(binds)
    )
    if locked:
        assert (outcome.stdout, mark.exists()) == ("Seccomp_filters:\t2\n" * 2, True), str(outcome)
    else:
        assert (outcome.exit_code, outcome.stdout, mark.exists()) == (126, "", False), str(outcome)
        assert "--remount-ro /dev" in outcome.stderr


def test_nothing_is_typed_into_the_terminal(wrapped: Wrapped) -> None:
    """C-123: also where the terminal is shared. EPERM is the filter's word; without it the kernel
    says ENOTTY.
    """
    words: list[Word] = [PYTHON, "-c", TIOCSTI, "0"]
    assert "Inappropriate ioctl" in wrapped.run(*words).stderr
    outcome = wrapped.run(*wrapped.fence.command(words, "--tier", "landlock"))
    assert "Operation not permitted" in outcome.stderr, str(outcome)
