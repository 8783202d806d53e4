"""System calls on files answer inside as they answer without Paddock.

``file_calls`` makes random calls that create, open, move, remove or change files by a path. The
same seeds run bare and inside, in the same directory, and each line of the two outputs is compared.
A supervisor that does such calls for the command must answer as the kernel does, so nothing here
depends on how the calls are done.

Some answers differ on purpose. ``EXCEPTIONS`` names the part of ``file_calls`` that meets each of
them; both runs leave that part out. `make test` plays the first seeds, `make stress` the seeds
after them. ``tests/support/call_comparison.py`` compares by hand, with any command as the sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.call_comparison import Sequences, differences, report
from tests.support.sandbox import SandboxRunner, Word
from tests.support.stress import LEVEL, amount
from tests.support.tester import Outcome
from tests.support.tree import ProjectTree

ORDINARY = 150
FIRST = ORDINARY if LEVEL else 0
LAST = FIRST + amount(ordinary=ORDINARY, first=50, more=500)
BATCH = 50
FEW = 20
STEPS = 150
# A socket that an undumpable process holds is masked if the sandbox has no network of its own: the
# guard can not see the holder's descriptors.
FLAGS = ("--socket", "unix", "--block-net")
BOTH = ("landlock", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    feature: str
    tiers: tuple[str, ...]
    reason: str
    always: bool = True  # False: chance decides, or how fast the guard is

    def __str__(self) -> str:
        return self.feature


EXCEPTIONS = (
    Difference(
        feature="char-device",
        tiers=BOTH,
        reason="Landlock: no grant has MAKE_CHAR, so mknod of device 0:0 is EACCES",
    ),
    Difference(
        feature="whiteout",
        tiers=BOTH,
        reason="RENAME_WHITEOUT makes a character device, which no grant allows",
    ),
    Difference(
        feature="system-path",
        tiers=BOTH,
        reason="/ can not be listed; in the full tier system directories are read-only (EROFS)",
    ),
    Difference(
        feature="proc-name",
        tiers=BOTH,
        reason="Landlock denies removing names of /proc (EACCES) before /proc does (EPERM)",
    ),
    Difference(
        feature="empty-link",
        tiers=BOTH,
        reason="the kernel wants the opener's credentials, and init opens most files: it links all",
    ),
    Difference(
        feature="path-how",
        tiers=BOTH,
        reason="no call gives another process a descriptor of O_PATH: openat2 says ENOSYS",
    ),
    Difference(
        feature="undumpable-link",
        tiers=BOTH,
        reason="every process stays dumpable, so its user keeps its names in /proc (no EPERM)",
        always=False,
    ),
    Difference(
        feature="no-xdev",
        tiers=("full",),
        reason="the workspace is a mount, so RESOLVE_NO_XDEV does not reach it from / (EXDEV)",
    ),
    Difference(
        feature="shut-directory",
        tiers=BOTH,
        reason="full: the guard restores the owner's rights to list and search a directory; "
        "landlock: init renames no directory that it can not list",
        always=False,
    ),
    Difference(
        feature="shut-socket",
        tiers=("full",),
        reason="the guard masks a socket that it has no right to connect to",
        always=False,
    ),
)


def left_out(tier: str, *, but: str | None = None) -> tuple[str, ...]:
    return tuple(one.feature for one in EXCEPTIONS if tier in one.tiers and one.feature != but)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    bare: Outcome
    inside: Outcome


def play(sandbox: SandboxRunner, tree: ProjectTree, sequences: Sequences) -> Calls:
    directory = tree.make(tree.project / "calls")
    words: list[Word] = [*sequences.words(sandbox.programs.file_calls, directory)]
    calls = Calls(bare=sandbox.outside(words), inside=sandbox.inside(words, *FLAGS))
    assert calls.bare.exit_code == 0, str(calls.bare)
    assert calls.inside.exit_code == 0, calls.inside.stderr
    assert calls.bare.stdout.count("\nseed ") == sequences.count - 1
    return calls


def of_tier(tier: str, sandbox: SandboxRunner, full: SandboxRunner) -> SandboxRunner:
    return full if tier == "full" else sandbox


@pytest.mark.parametrize("first", range(FIRST, LAST, BATCH))
@pytest.mark.parametrize("tier", BOTH)
def test_file_calls_answer_as_without_paddock(
    sandbox: SandboxRunner, full: SandboxRunner, tree: ProjectTree, tier: str, first: int
) -> None:
    sequences = Sequences(first=first, count=BATCH, steps=STEPS, without=left_out(tier))
    calls = play(of_tier(tier, sandbox, full), tree, sequences)
    found = differences(calls.bare.stdout, calls.inside.stdout)
    assert not found, report(found)
    answers = calls.bare.stdout.count(" = ")
    succeeded = sum(calls.bare.stdout.count(f" = {digit}") for digit in range(10))
    assert succeeded > answers * 0.15, "hardly any call succeeds: the seeds show nothing"


@pytest.mark.parametrize(
    ("exception", "tier"),
    [(one, one.tiers[0]) for one in EXCEPTIONS if one.always],
    ids=lambda value: str(value),
)
def test_an_exception_is_a_difference(
    sandbox: SandboxRunner, full: SandboxRunner, tree: ProjectTree, exception: Difference, tier: str
) -> None:
    """The comparison can fail, and no exception is kept without need."""
    without = left_out(tier, but=exception.feature)
    sequences = Sequences(first=0, count=FEW, steps=STEPS, without=without)
    calls = play(of_tier(tier, sandbox, full), tree, sequences)
    assert differences(calls.bare.stdout, calls.inside.stdout), exception.reason


OWNERS = """
import errno, os
print("started")
open("x", "w").close()
for owner in ((0, -1), (-1, 0), (-1, os.getgid())):
    try:
        os.chown("x", *owner)
        print("ok")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("tier", BOTH)
def test_only_the_full_tier_does_not_know_other_owners(
    sandbox: SandboxRunner, full: SandboxRunner, tier: str
) -> None:
    words: list[Word] = ["/usr/bin/python3", "-Ic", OWNERS]
    inside = of_tier(tier, sandbox, full).inside(words)
    refusal = "EINVAL" if tier == "full" else "EPERM"
    assert inside.stdout.split() == ["started", refusal, refusal, "ok"], str(inside)
    control = sandbox.outside(words)
    assert control.stdout.split() == ["started", "EPERM", "EPERM", "ok"], str(control)


def test_two_bare_runs_print_the_same(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """With every feature: a difference is never chance."""
    directory = tree.make(tree.project / "calls")
    words = Sequences(first=0, count=FEW, steps=STEPS).words(sandbox.programs.file_calls, directory)
    first, second = (sandbox.outside([*words]) for _ in range(2))
    found = differences(first.stdout, second.stdout)
    assert not found, report(found)


def test_the_first_line_that_differs_is_shown_for_each_seed() -> None:
    bare = "seed 4\n0 mkdir(x) = 0\n1 fork: open(y) = 3\nseed 5\n0 umask(0) = 022\n"
    inside = "seed 4\n0 mkdir(x) = 0\n1 fork: open(y) = EACCES\n2 more\nseed 5\n"
    open_differs, umask_differs = differences(bare, inside)
    assert open_differs.call == "open"
    assert open_differs.context == ("0 mkdir(x) = 0",)
    assert (open_differs.bare, open_differs.inside) == (
        "1 fork: open(y) = 3", "1 fork: open(y) = EACCES",
    )  # fmt: skip
    assert (umask_differs.seed, umask_differs.inside) == ("seed 5", "(no more lines)")
    assert differences(bare, bare) == []
