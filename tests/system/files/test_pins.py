"""Directories above a covered name cannot be renamed, neither in this run nor for the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sandbox import UNJUDGED, SandboxRunner

# Every method to move a directory. Each prints its result, so that the control differs from the
# sandbox.
MOVES = """
import ctypes, os, shutil, sys
place, aside = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir(aside + "-other")
def exchange():
    if libc.renameat2(-100, place.encode(), -100, (aside + "-other").encode(), 2):
        raise OSError(ctypes.get_errno(), "exchange")
def through_proc():
    os.rename(f"/proc/self/root{place}", aside)
def by_descriptor():
    above = os.open(os.path.dirname(place), os.O_PATH)
    os.rename(os.path.basename(place), aside, src_dir_fd=above)
def removed():
    shutil.rmtree(place)
print("started", flush=True)
for way in (exchange, through_proc, by_descriptor, lambda: os.rename(place, aside), removed):
    try:
        way()
        print("moved", flush=True)
    except OSError:
        pass
"""


def repository(full: SandboxRunner, place: Path) -> Path:
    assert full.outside(["git", "init", "-q", place]).exit_code == 0
    full.tree.put(place / ".git" / "hooks" / "pre-commit", "#!/bin/sh\n", mode=0o755)
    return place / ".git"


@pytest.mark.parametrize("where", [".", "sub/deep"])
def test_a_git_directory_stays_where_it_is(full: SandboxRunner, where: str) -> None:
    git = repository(full, full.tree.project / where)
    before = (git.stat().st_ino, (git / "config").read_text())
    for number in range(2):  # the second run has the leftovers of the first
        done = full.inside(
            ["python3", "-c", MOVES, str(git), str(full.tree.project / f"aside{number}")]
        )
        assert done.started, str(done)
        assert "moved" not in done.stdout, str(done)
        assert (git.stat().st_ino, (git / "config").read_text()) == before
        assert (git / "hooks" / "pre-commit").read_text() == "#!/bin/sh\n"
    control = full.outside(["python3", "-c", MOVES, str(git), str(full.tree.project / "control")])
    assert "moved" in control.stdout, str(control)


def test_a_submodule_s_git_directory_stays_where_it_is(full: SandboxRunner) -> None:
    git = repository(full, full.tree.project)
    place = full.tree.put(git / "modules" / "m" / "config", "[core]\n").parent
    full.tree.put(place / "HEAD", "ref: refs/heads/main\n")
    aside = full.tree.project / "aside"
    done = full.inside(["python3", "-c", MOVES, str(place.parent), str(aside)])
    assert done.started, str(done)
    assert "moved" not in done.stdout, str(done)
    assert (place / "config").read_text() == "[core]\n"
    control = full.outside(
        ["python3", "-c", MOVES, str(place.parent), str(full.tree.project / "control")]
    )
    assert "moved" in control.stdout, str(control)


@pytest.mark.parametrize("level", ["a", "a/b"])
def test_directories_above_an_exact_deny_cannot_be_renamed(full: SandboxRunner, level: str) -> None:
    """Else the next run would find the secret under a name that nothing denies."""
    project = full.tree.project
    secret = full.tree.put(project / "a" / "b" / "plain", "secret\n")
    deny = ("--deny", str(secret))
    done = full.inside(
        ["python3", "-c", MOVES, str(project / level), str(project / "aside")], *deny
    )
    assert done.started, str(done)
    assert "moved" not in done.stdout, str(done)
    after = full.inside(["sh", "-c", f"echo started; grep -r secret {project}"], *deny)
    assert after.started, str(after)
    assert "secret\n" not in after.stdout, str(after)
    control = full.outside(["python3", "-c", MOVES, str(project / level), str(project / "control")])
    assert "moved" in control.stdout, str(control)


def test_a_directory_that_no_name_rests_on_moves_with_what_is_in_it(full: SandboxRunner) -> None:
    """The name below it is covered at its new path too, now and in the next run. Judged writes
    refuse the move.
    """
    full = replace(full, own_flags=UNJUDGED)
    project = full.tree.project
    git = repository(full, project / "old")
    secret = full.tree.put(project / "old" / ".env", "secret\n")
    moved = project / "new"
    script = f"echo started; mv old new && cat {moved}/.env; echo evil > {moved}/.git/config"
    for words in (script, f"echo started; cat {moved}/.env; echo evil > {moved}/.git/config"):
        done = full.inside(["sh", "-c", words])
        assert done.started, str(done)
        assert "secret" not in done.stdout, str(done)
        assert (moved / ".env").read_text() == "secret\n"
        assert "evil" not in (moved / ".git" / "config").read_text()
    assert not secret.exists()
    assert not git.exists()
    assert "secret" in full.outside(["cat", moved / ".env"]).stdout


def test_git_works_beside_the_pins(full: SandboxRunner) -> None:
    project = full.tree.project
    git = repository(full, project)
    (git / "hooks" / "pre-commit").unlink()
    script = """
    set -e
    git config -f /tmp/c user.name t; git config -f /tmp/c user.email t@example.com; export \
GIT_CONFIG_GLOBAL=/tmp/c
    mkdir dir; echo 1 > dir/file; git add dir; git commit -qm one
    git mv dir moved; git commit -qm two
    git checkout -qb other; echo 2 >> moved/file; git stash -q; git stash pop -q; git commit -qam \
three
    git checkout -q -; git rebase -q other; git worktree add -q tree -b third; git gc -q
    git worktree remove tree; git status --porcelain -uno
    """
    done = full.inside(["sh", "-c", f"echo started\n{script}"])
    assert (done.exit_code, done.stdout) == (0, "started\n"), str(done)
    assert "three" in full.outside(["git", "log", "--format=%s"]).stdout
