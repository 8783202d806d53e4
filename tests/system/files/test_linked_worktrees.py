"""A linked worktree whose main repository is elsewhere: git works in it, and the rest of that
repository stays closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cow import tree_entries
from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome

_SETTINGS = ("-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "init.defaultBranch=main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """``main`` holds the repository. ``top`` is the worktree, the working directory of the run."""

    sandbox: SandboxRunner
    main: Path
    top: Path

    def inside(self, script: str) -> Outcome:
        return self.sandbox.inside(["sh", "-c", f"echo started\n{script}"], cwd=self.top)


@pytest.fixture
def linked(full: SandboxRunner) -> Linked:
    need_program("git")
    main, top = full.tree.outside / "main", full.tree.root / "topic"
    full.tree.make(main)
    for words in (
        ["init", "-q", str(main)],
        ["-C", str(main), "commit", "-q", "--allow-empty", "-m", "first"],
        ["-C", str(main), "worktree", "add", "-q", str(top)],
    ):
        made = full.outside(["git", *_SETTINGS, *words])
        assert made.exit_code == 0, str(made)
    return Linked(sandbox=full, main=main, top=top)


def test_git_works_in_a_linked_worktree(linked: Linked) -> None:
    done = linked.inside(
        "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a "
        "GIT_COMMITTER_EMAIL=a@b\n"
        "set -e\necho x > file\ngit add file\ngit commit -qm inside\ngit checkout -qb other\n"
        "echo y >> file\ngit stash -q\ngit stash pop -q\ngit commit -qam more\n"
        "git rebase -q HEAD~1\ngit status --short"
    )
    assert done.exit_code == 0, str(done)
    log = linked.sandbox.outside(["git", "-C", linked.main, "log", "--format=%s", "other"])
    assert log.stdout.split() == ["more", "inside", "first"], str(log)


@pytest.mark.parametrize(
    "name",
    ["config", "hooks/post-commit", "worktrees/topic/gitdir", "worktrees/topic/commondir", "HEAD"],
)
def test_files_that_redirect_git_cannot_be_written(linked: Linked, name: str) -> None:
    place = linked.main / ".git" / name
    before = place.read_bytes() if place.exists() else None
    linked.inside(f"echo evil > {place}; mv {place} {place}.old; rm -f {place}")
    assert (place.read_bytes() if place.exists() else None) == before
    assert linked.sandbox.outside(["sh", "-c", f"echo evil >> {place}"]).exit_code == 0


def test_the_rest_of_the_main_repository_stays_closed(linked: Linked) -> None:
    secret = linked.sandbox.tree.put(linked.main / "secret.txt", "secret\n")
    assert linked.sandbox.inside(linked.sandbox.probe("read", secret), cwd=linked.top).answer in (
        "EACCES",
        "ENOENT",
    )
    assert linked.sandbox.outside(linked.sandbox.probe("read", secret)).answer == "ok secret"


def test_a_planted_pointer_opens_no_repository(linked: Linked) -> None:
    project = linked.sandbox.tree.project
    (project / ".git").write_bytes((linked.top / ".git").read_bytes())
    linked.sandbox.tester.give(project)
    head = linked.main / ".git" / "HEAD"
    refused = linked.sandbox.inside(linked.sandbox.probe("read", head))
    assert refused.answer in ("EACCES", "ENOENT"), str(refused)
    assert "does not list this worktree" in refused.stderr
    opened = linked.sandbox.inside(linked.sandbox.probe("read", head), cwd=linked.top)
    assert opened.answer.startswith("ok "), str(opened)


def test_a_second_run_in_the_same_worktree_works_too(linked: Linked) -> None:
    """After the first run, both the worktree and its entry count as previously writable."""
    for _ in range(2):
        done = linked.inside("git status --short && git log --oneline | wc -l")
        assert done.answer == "1", str(done)


def test_a_copy_of_a_worktree_leaves_the_main_repository_as_it_is(linked: Linked) -> None:
    git = linked.main / ".git"
    script = (
        "echo started; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a "
        "GIT_COMMITTER_EMAIL=a@b\n"
        f"git status; git tag v9; git commit -q --allow-empty -m inside\n"
        f"rm -rf {git}/objects/??; rm -f {git}/refs/heads/*"
    )
    before = tree_entries(git)
    argv = linked.sandbox.command(["sh", "-c", script], "--cow")
    done = linked.sandbox.tester.run(argv, cwd=linked.top)
    assert done.started, str(done)
    assert "On branch" in done.stdout, "it can be read"
    assert tree_entries(git) == before
    assert linked.sandbox.outside(["git", "-C", linked.main, "tag", "v9"]).exit_code == 0
    assert tree_entries(git) != before
