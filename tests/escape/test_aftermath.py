"""After a run the host's git executes nothing that was planted inside."""

from __future__ import annotations

from pathlib import Path

from tests.support.fence import Fence

# Every plant touches a mark of its own, whoever comes to execute it. A plant that is refused is the fence's work, so
# each is tried alone, and its failure is its own.
PLANTS = r"""
mark() { echo "touch $MARKS/$1"; }
evil() { printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = "%s; false"\n' "$(mark $1)"; }
git_dir() { mkdir -p $1/objects $1/refs; echo 'ref: refs/heads/main' > $1/HEAD; evil $2 > $1/config; }
echo started
(evil config >> .git/config)
(git config core.fsmonitor "$(mark git-config); false")
(printf '#!/bin/sh\n%s\n' "$(mark hook)" > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change)
(git config extensions.worktreeConfig true; evil worktree-config > .git/config.worktree)
(mv .git .git-aside; cp -r .git-aside .git; evil moved > .git/config)
(git_dir sub/bare bare)
(git init -q nested; evil nested > nested/.git/config)
(git_dir elsewhere pointed; mkdir n2; echo "gitdir: $PWD/elsewhere" > n2/.git)
(git_dir common common; echo "$PWD/common" > .git/commondir)
(git init -q late; sleep 0.05; cd late; git config core.fsmonitor "$(mark late); false")
(git_dir aside/dotgit renamed; mv aside/dotgit aside/.git)
(mkdir case; git_dir case/.GIT case)
(git_dir .git/modules/sub module; mkdir linked; echo 'gitdir: ../.git/modules/sub' > linked/.git)
(ln -s sub/bare link; mkdir by-link; ln -s ../sub/bare by-link/.git)
(git worktree add -q tree -b tree; echo ../../../common > .git/worktrees/tree/commondir)
again="while :; do git config core.fsmonitor 'touch $MARKS/survivor'; done"
(test $SURVIVOR && cd nested && setsid sh -c "$again" >/dev/null 2>&1 &)
exit 0
"""

# What a person does after a run: look, in every place that looks like a repository.
LOOK = """
find . -type d | while read -r dir; do
  git -C "$dir" status >/dev/null 2>&1 </dev/null
  git -C "$dir" diff >/dev/null 2>&1 </dev/null
done
git log --oneline >/dev/null; git stash list; git branch >/dev/null; git worktree list >/dev/null; git submodule status
exit 0
"""


def prepared(full: Fence, place: Path) -> Path:
    full.ground.put(place / "file", "1\n")
    script = "git init -q . && git add . && git -c user.name=t -c user.email=t@example.com commit -qm one"
    assert full.outside(["sh", "-c", script], cwd=place).exit_code == 0
    return full.ground.make(full.ground.outside / place.name)


def marks(place: Path) -> set[str]:
    return {mark.name for mark in place.iterdir()}


def test_git_on_the_host_executes_nothing_that_was_planted(full: Fence) -> None:
    project = full.ground.project
    found = prepared(full, project)
    done = full.inside(["sh", "-c", f"MARKS={found} SURVIVOR=yes\n{PLANTS}"])
    assert done.started, str(done)
    assert full.outside(["sh", "-c", LOOK]).exit_code == 0
    assert marks(found) == set()
    assert full.outside(["git", "status", "--porcelain"]).exit_code == 0, "the repository is whole"

    control = full.ground.make(full.ground.root / "control")
    found = prepared(full, control)
    assert full.outside(["sh", "-c", f"MARKS={found} SURVIVOR=\n{PLANTS}"], cwd=control).started
    assert full.outside(["sh", "-c", LOOK], cwd=control).exit_code == 0
    assert {"nested", "bare", "late", "pointed", "renamed", "common"} <= marks(found), "the plants are good"
