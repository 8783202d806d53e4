"""After a run the host's git executes nothing that was planted inside."""

from __future__ import annotations

from pathlib import Path

from tests.support.sandbox import SandboxRunner

# Every plant touches its own mark when it is executed. The sandbox may refuse a plant, so each is
# tried alone. The one that sleeps gives the guard time to find the repository harmless first.
PLANTS = r"""
mark() { echo "touch $MARKS/$1"; }
evil() {
  printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n'
  printf '\tfsmonitor = "%s; false"\n' "$(mark $1)"
}
git_dir() {
  mkdir -p $1/objects $1/refs; echo 'ref: refs/heads/main' > $1/HEAD; evil $2 > $1/config
}
echo started
(evil config >> .git/config)
(git config core.fsmonitor "$(mark git-config); false")
(printf '#!/bin/sh\n%s\n' "$(mark hook)" > .git/hooks/post-index-change
chmod +x .git/hooks/post-index-change)
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

# The acts of a person after a run: git commands in every directory that looks like a repository.
LOOK = """
find . -type d | while read -r dir; do
  git -C "$dir" status >/dev/null 2>&1 </dev/null
  git -C "$dir" diff >/dev/null 2>&1 </dev/null
done
git log --oneline >/dev/null; git stash list; git branch >/dev/null; git worktree list >/dev/null; \
git submodule status
exit 0
"""


def prepared(full: SandboxRunner, place: Path) -> Path:
    full.tree.put(place / "file", "1\n")
    script = (
        "git init -q . && git add . && git -c user.name=t -c user.email=t@example.com "
        "commit -qm "
        "one"
    )
    assert full.outside(["sh", "-c", script], cwd=place).exit_code == 0
    return full.tree.make(full.tree.outside / place.name)


def marks(place: Path) -> set[str]:
    return {mark.name for mark in place.iterdir()}


def test_git_on_the_host_executes_nothing_that_was_planted(full: SandboxRunner) -> None:
    project = full.tree.project
    found = prepared(full, project)
    done = full.inside(["sh", "-c", f"MARKS={found} SURVIVOR=yes\n{PLANTS}"])
    assert done.started, str(done)
    assert full.outside(["sh", "-c", LOOK]).exit_code == 0
    assert marks(found) == set()
    assert full.outside(["git", "status", "--porcelain"]).exit_code == 0, "the repository is whole"

    control = full.tree.make(full.tree.root / "control")
    found = prepared(full, control)
    assert full.outside(["sh", "-c", f"MARKS={found} SURVIVOR=\n{PLANTS}"], cwd=control).started
    assert full.outside(["sh", "-c", LOOK], cwd=control).exit_code == 0
    assert {"nested", "bare", "late", "pointed", "renamed", "common"} <= marks(found), (
        "the control: the plants work"
    )


# Links at names that git writes without a check: git would write through the link.
THROUGH = r"""
echo started
printf '[core]\n\trepositoryformatversion = 0\n' > message
printf '\tfsmonitor = "touch %s; false"\n' "$MARKS/through" >> message
git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -F message
rm -f .git/COMMIT_EDITMSG .git/FETCH_HEAD
ln -s config .git/COMMIT_EDITMSG
ln -s "$OUTSIDE" .git/FETCH_HEAD
mkdir -p aside/.git/logs; ln -s "$OUTSIDE" aside/.git/logs/HEAD; mv aside/.git/logs aside/.git/moved
exit 0
"""
AMEND = """
git fetch -q . 2>/dev/null
git -c user.name=t -c user.email=t@example.com commit -q --amend --allow-empty --no-edit
git status
exit 0
"""


def test_git_on_the_host_writes_through_no_link_that_was_planted(full: SandboxRunner) -> None:
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        found = prepared(full, full.tree.make(place))
        kept = full.tree.put(full.tree.outside / f"kept-{place.name}", "kept\n")
        planted = f"cd {place}; MARKS={found} OUTSIDE={kept}\n{THROUGH}"
        assert run(["sh", "-c", planted]).started
        assert full.outside(["sh", "-c", AMEND], cwd=place).exit_code == 0
        sandboxed = place == full.tree.project
        assert (marks(found), kept.read_text() == "kept\n") == (
            (set(), True) if sandboxed else ({"through"}, False)
        )
        assert (place / "aside/.git/moved/HEAD").is_symlink() is not sandboxed


def test_links_in_git_s_own_directory_that_were_there_before_stay(full: SandboxRunner) -> None:
    prepared(full, full.tree.project)
    link = full.tree.project / ".git/objects/linked"
    assert full.outside(["ln", "-s", "pack", link]).exit_code == 0
    assert full.inside(["sh", "-c", "echo started; echo 1 > .git/x; git gc -q"]).started
    assert link.is_symlink()


def test_git_detects_the_links(full: SandboxRunner) -> None:
    """Git creates a link in its directory, checks it, and removes it."""
    script = (
        "echo started; for n in 1 2 3 4 5 6 7 8; do git init -q r$n; "
        "git -C r$n config core.symlinks; done"
    )
    outcome = full.inside(["sh", "-c", script])
    assert outcome.stdout == "started\n", str(outcome)
    assert len(list(full.tree.project.glob("r*/.git/config"))) == 8


def test_targets_of_links_in_a_protected_directory_are_protected(full: SandboxRunner) -> None:
    hooks = {
        "pre-commit": "../../scripts/one",
        "post-commit": "../../scripts/none",
        "post-index-change": "by",
    }
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        found = prepared(full, full.tree.make(place))
        full.tree.put(place / "scripts/one", "#!/bin/sh\n", mode=0o755)
        full.tree.put(place / "scripts/two", "#!/bin/sh\n", mode=0o755)
        links = [f"ln -s {target} .git/hooks/{name}" for name, target in hooks.items()]
        links += [
            f"ln -s {place}/chain .git/hooks/by",
            "ln -s scripts/two chain",
            "ln -s ../.. .git/hooks/up",
        ]
        assert full.outside(["sh", "-c", "; ".join(links)], cwd=place).exit_code == 0
        payload = 'printf "#!/bin/sh\\ntouch %s\\n" $MARKS/$n'
        write = f"for n in one two none; do {payload} > scripts/$n; chmod +x scripts/$n; done"
        rest = "rm -f chain; cp scripts/none chain; chmod +x chain; echo free > file; exit 0"
        assert run(
            ["sh", "-c", f"echo started; cd {place}; MARKS={found}\n{write}\n{rest}"]
        ).started
        assert (place / "file").read_text() == "free\n", "the rest can be written"
        commit = "git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m two"
        full.outside(["sh", "-c", commit], cwd=place)
        expected = set() if place == full.tree.project else {"one", "none"}
        assert marks(found) == expected
