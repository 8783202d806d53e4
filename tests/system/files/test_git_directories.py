"""Git directories are recognised by their content, not by their name. The host's git executes
nothing that was planted in one, and writes through no link there. Marks on the host show the
result. Each control does the same without the sandbox.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome, Tester
from tests.support.waiting import wait_for

_WHO = (
    "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n"
)
_REPOSITORY = (
    f"{_WHO}set -e; git init -q -b main .; echo 1 > file; git add file; git commit -qm one"
)

# A whole repository, a `.git` file that leads to its worktree, and an index that names it.
_LED_TO = r"""
echo started
B=$PWD/$HIDDEN
mkdir -p $B/objects $B/refs $B/worktrees/N sub
printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n' > $B/config
printf '\tfsmonitor = "touch %s; false"\n' "$MARK" >> $B/config
(cd $B/worktrees/N; echo ../.. > commondir; echo ref: refs/heads/main > HEAD
echo $OLDPWD/sub/.git > gitdir)
echo "gitdir: $B/worktrees/N" > sub/.git
git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub
exit 0
"""


def made(full: SandboxRunner, place: Path, script: str = _REPOSITORY) -> Path:
    need_program("git")
    done = full.outside(["sh", "-c", script], cwd=full.tree.make(place))
    assert done.exit_code == 0, str(done)
    return place


# Among the branches of a submodule, and by a name that is git's only on a case-insensitive file
# system.
@pytest.mark.parametrize("hidden", [".git/modules/x/refs/heads/.git", "x/.GIT"])
def test_a_hidden_repository_executes_nothing(full: SandboxRunner, hidden: str) -> None:
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place)
        mark = full.tree.outside / f"mark-{place.name}"
        planted = run(["sh", "-c", f"cd {place}; MARK={mark} HIDDEN={hidden}\n{_LED_TO}"])
        assert planted.started, str(planted)
        full.outside(["git", "status"], cwd=place)
        assert mark.exists() is (run == full.outside)


_RELATIVE = [
    ("core.hooksPath", "tools/hooks"),
    ("core.fsmonitor", "sh tools/hooks/post-index-change"),
    ("core.hooksPath", "../tools/hooks"),
]
_HOOK = r"""hook() { mkdir -p $1; printf '#!/bin/sh\ntouch %s; false\n' $MARK > $1/post-index-change
chmod +x $1/post-index-change; }
"""


@pytest.mark.parametrize(("key", "value"), _RELATIVE)
def test_a_new_work_tree_executes_nothing_by_a_relative_value(
    full: SandboxRunner, key: str, value: str
) -> None:
    """The file that the value names in the existing work tree is read-only. In another directory it
    names another file.
    """
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place, f"{_REPOSITORY}; git config {key} '{value}'")
        mark = full.tree.outside / f"mark-{place.name}"
        add = (
            "git worktree add -q -b deep deep/wt; cd deep/wt; hook tools/hooks; "
            "hook ../tools/hooks; cd ../.."
        )
        link = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),deep/wt"
        assert run(
            ["sh", "-c", f"echo started; MARK={mark}; {_HOOK}{add}; {link}; exit 0"], cwd=place
        ).started
        mark.unlink(missing_ok=True)
        full.outside(
            ["sh", "-c", f"{_WHO}touch deep/wt/file; git status; git -C deep/wt status; true"],
            cwd=place,
        )
        assert mark.exists() is (run == full.outside)


# The name of the entry begins with a dot, or the entry names another work tree.
@pytest.mark.parametrize("rename", ["N=.N", "echo $PWD/other/.git > .git/worktrees/wt/gitdir"])
def test_a_git_value_is_protected_behind_every_git_file(full: SandboxRunner, rename: str) -> None:
    """A run makes a work tree, and the user sets a relative value. The next run finds the file that
    the value names there.
    """
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place)
        mark = full.tree.outside / f"mark-{place.name}"
        move = (
            "E=$PWD/.git/worktrees; [ $N = wt ] || { mv $E/wt $E/$N; echo gitdir: "
            "$E/$N > wt/.git; }"
        )
        first = f"echo started; git worktree add -q wt; N=wt; {rename}; {move}; exit 0"
        assert run(["sh", "-c", first], cwd=place).started
        full.outside(["git", "config", "core.hooksPath", "tools/hooks"], cwd=place)
        assert run(
            ["sh", "-c", f"echo started; MARK={mark}; {_HOOK}hook wt/tools/hooks; exit 0"],
            cwd=place,
        ).started
        full.outside(
            ["sh", "-c", f"{_WHO}echo 2 > new; git add new; git commit -qm two"], cwd=place / "wt"
        )
        assert mark.exists() is (run == full.outside)


def test_a_work_tree_that_its_owner_moved_is_protected_where_it_is(full: SandboxRunner) -> None:
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(
            full,
            place,
            f"{_REPOSITORY}; git worktree add -q wt; mv wt moved; "
            f"git config core.hooksPath tools/hooks",
        )
        mark = full.tree.outside / f"mark-{place.name}"
        assert run(
            ["sh", "-c", f"echo started; MARK={mark}; {_HOOK}hook moved/tools/hooks; exit 0"],
            cwd=place,
        ).started
        full.outside(
            ["sh", "-c", f"{_WHO}echo 2 > new; git add new; git commit -qm two"],
            cwd=place / "moved",
        )
        assert mark.exists() is (run == full.outside)


def test_a_name_that_is_denied_and_protected_is_not_left(full: SandboxRunner) -> None:
    mark = full.tree.outside / "mark"
    config = f'[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "touch {mark}; false"\\n'
    make = f"mkdir -p n p/objects p/refs; printf '{config}' > p/config"
    plant = (
        f"echo started; rm -rf n p; {make}; mv p n/.git; echo ref: "
        f"refs/heads/main > n/.git/HEAD; exit 0"
    )
    assert full.inside(["sh", "-c", plant], "--deny", "**/.git/config").started
    full.outside(["git", "status"], cwd=full.tree.project / "n")
    assert not mark.exists()
    full.outside(["sh", "-c", plant])
    full.outside(["git", "status"], cwd=full.tree.project / "n")
    assert mark.exists(), "the control: the plant works"


def test_a_denied_name_that_its_owner_replaces_stays(full: SandboxRunner) -> None:
    """The name is protected as well. The host puts another file there while the command waits."""
    name = full.tree.put(full.tree.project / ".envrc", "old\n")
    new = full.tree.put(full.tree.outside / "new", "new\n")
    done = full.tree.project / "done"
    script = "echo started; touch ready; while [ ! -e done ]; do sleep 0.05; done; cat .envrc"
    with full.starting(["sh", "-c", script], "--deny", "**/.envrc") as started:
        while not (full.tree.project / "ready").exists():
            assert started.poll() is None
        full.outside(["mv", new, name])
        full.outside(["touch", done])
        out, _ = started.communicate(timeout=60)
    assert out.startswith("started")
    assert "new" not in out
    assert name.read_text() == "new\n"


def test_values_of_a_submodule_are_protected_in_each_of_its_work_trees(full: SandboxRunner) -> None:
    """Git writes core.worktree for a submodule. Its linked work trees have other paths."""
    sub = made(full, full.tree.outside / "source")
    script = (
        f"{_WHO}git init -q -b main . && git -c protocol.file.allow=always submodule "
        f"--quiet add "
        f"{sub} sub"
    )
    config = "git -C sub config core.hooksPath tools/hooks && git -C sub worktree add -q ../linked"
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place, f"{script} && {config}; mkdir -p linked/tools/hooks")
        mark = full.tree.outside / f"mark-{place.name}"
        assert run(
            ["sh", "-c", f"echo started; MARK={mark}; {_HOOK}hook linked/tools/hooks; exit 0"],
            cwd=place,
        ).started
        full.outside(
            ["sh", "-c", f"{_WHO}echo 2 > new; git add new; git commit -qm two"],
            cwd=place / "linked",
        )
        assert mark.exists() is (run == full.outside)


def test_a_work_tree_is_added_where_every_value_means_the_same(full: SandboxRunner) -> None:
    """`.husky` is protected by its name in every directory. A program with an absolute path is the
    same everywhere.
    """
    config = (
        "git config core.hooksPath .husky/_; git config credential.helper '!/usr/bin/gh auth "
        "git-credential'"
    )
    project = made(full, full.tree.project, f"{_REPOSITORY}; {config}")
    done = full.inside(
        [
            "sh",
            "-c",
            f"{_WHO}set -e; git worktree add -q wt; cd wt; git commit -q --allow-empty -m two",
        ]
    )
    assert done.exit_code == 0, str(done)
    log = full.outside(["git", "log", "--format=%s"], cwd=project / "wt")
    assert log.stdout.split() == ["two", "one"], str(log)


@pytest.mark.parametrize(("key", "value"), _RELATIVE)
def test_a_repository_with_relative_values_cannot_be_moved(
    full: SandboxRunner, key: str, value: str
) -> None:
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        nested = made(full, place / "nested", f"{_REPOSITORY}; git config {key} '{value}'")
        mark = full.tree.outside / f"mark-{place.name}"
        move = "mkdir deep; mv nested deep/nested && ln -s deep/nested nested; mkdir -p deep/nested"
        plant = "hook deep/nested/tools/hooks; hook deep/tools/hooks"
        assert run(
            ["sh", "-c", f"echo started; MARK={mark}; {_HOOK}{move}; {plant}; exit 0"], cwd=place
        ).started
        mark.unlink(missing_ok=True)
        full.outside(
            ["sh", "-c", f"{_WHO}touch file; git status; git commit -q --allow-empty -m two"],
            cwd=nested,
        )
        assert mark.exists() is (run == full.outside)


def test_branches_of_a_submodule_may_be_called_config_and_hooks(full: SandboxRunner) -> None:
    project = full.tree.project
    sub = made(full, full.tree.outside / "sub")
    script = (
        f"{_WHO}git init -q -b main . && git -c protocol.file.allow=always submodule "
        f"--quiet add "
        f"{sub} sub"
    )
    made(full, project, f"{script} && git commit -qm one")
    done = full.inside(["sh", "-c",
    f"{_WHO}set -e; cd sub; for n in config hooks/x; do git checkout -qb $n; "
                        "git commit -q --allow-empty -m $n; done; git branch"])  # fmt: skip
    assert done.exit_code == 0, str(done)
    log = full.outside(["git", "log", "--format=%s", "hooks/x"], cwd=project / "sub")
    assert log.stdout.split() == ["hooks/x", "config", "one"], str(log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """``top`` holds the bare repository ``.bare`` and the worktree ``feature``."""

    sandbox: SandboxRunner
    top: Path
    victim: Path

    @property
    def logs(self) -> Path:
        return self.top / ".bare/worktrees/feature/logs"

    def run(self, script: str, *, cwd: Path, sandboxed: bool = True) -> Outcome:
        words = ["sh", "-c", f"echo started; {_WHO}{script}"]
        return (
            self.sandbox.inside(words, cwd=cwd)
            if sandboxed
            else self.sandbox.outside(words, cwd=cwd)
        )

    def commits(self) -> None:
        script = (
            f"{_WHO}echo 2 > new; git add new; git commit -q --allow-empty -m 'written through'"
        )
        self.sandbox.outside(["sh", "-c", script], cwd=self.top / "feature")


_PLANT = (
    "E=$(git -C {top}/feature rev-parse --git-dir); rm -f $E/logs/HEAD; "
    "ln -s {victim} $E/logs/HEAD; exit 0"
)


@pytest.fixture
def bare(full: SandboxRunner) -> Bare:
    source = made(full, full.tree.outside / "source")
    top = full.tree.make(full.tree.root / "w")
    made(
        full,
        top,
        f"git clone -q --bare {source} .bare; cd .bare; "
        f"git worktree add -q -b feature ../feature main",
    )
    return Bare(sandbox=full, top=top, victim=full.tree.put(full.tree.outside / "bashrc", "mine\n"))


@pytest.mark.parametrize("workspace", ["feature", "."])
def test_no_link_is_planted_in_a_bare_repository(bare: Bare, workspace: str) -> None:
    planted = bare.run(_PLANT.format(top=bare.top, victim=bare.victim), cwd=bare.top / workspace)
    assert planted.started, str(planted)
    assert not (bare.logs / "HEAD").is_symlink()
    bare.commits()
    assert bare.victim.read_text() == "mine\n"
    bare.run(_PLANT.format(top=bare.top, victim=bare.victim), cwd=bare.top, sandboxed=False)
    bare.commits()
    assert "written through" in bare.victim.read_text(), "the control: the plant works"


@pytest.mark.parametrize(
    "part",
    ["config", "hooks/post-commit", "objects/info/alternates", "worktrees/feature/commondir"],
)
def test_files_that_git_obeys_in_a_bare_repository_stay_unchanged(bare: Bare, part: str) -> None:
    place = bare.top / ".bare" / part
    before = place.read_bytes() if place.exists() else None
    assert bare.run(f"echo evil > {place}", cwd=bare.top).started
    assert (place.read_bytes() if place.exists() else None) == before
    assert bare.run(f"echo evil > {place}", cwd=bare.top, sandboxed=False).exit_code == 0


def test_git_works_in_worktrees_of_a_bare_repository(bare: Bare) -> None:
    done = bare.run(
        "set -e; cd feature; echo x > a; git add a; git commit -qm inside; "
        "git checkout -qb other; echo y >> a;"
        "git stash -q; git stash pop -q; git commit -qam more; git rebase -q HEAD~1; "
        "git checkout -q feature;"
        "git merge -q other; git worktree add -q ../second; cd ../second; "
        "git commit -q --allow-empty -m second;"
        "git status --short; git init -q ../third; "
        "git -C ../third commit -q --allow-empty -m third",
        cwd=bare.top,
    )
    assert done.exit_code == 0, str(done)
    log = bare.sandbox.outside(["git", "log", "--format=%s"], cwd=bare.top / "second")
    assert log.stdout.split() == ["second", "more", "inside", "one"], str(log)


# Files that git obeys or writes through, and that did not exist before.
_PARTS = (
    "commondir",
    "config.worktree",
    "info/attributes",
    "objects/info/alternates",
    "FETCH_HEAD",
)
_PLANT_PARTS = """
echo started; while ! test -d $PLACE || ! test -e go; do sleep 0.01; done; cd $PLACE
mkdir -p info objects/info
echo ../evil > commondir; echo evil > config.worktree; echo '* filter=evil' > info/attributes
echo /evil > objects/info/alternates; ln -s $VICTIM FETCH_HEAD
touch ../planted; while ! test -e ../end; do sleep 0.01; done
"""


@pytest.mark.parametrize("place", ["old.repo", "new.repo"])
def test_a_repository_that_its_owner_moves_is_protected_where_it_is(
    full: SandboxRunner, place: str
) -> None:
    project, mark = made(full, full.tree.project), full.tree.outside / "mark"
    victim = full.tree.put(full.tree.outside / "bashrc", "mine\n")
    made(
        full,
        project,
        "git clone -q --bare . old.repo; mkdir evil; cp -r old.repo/objects old.repo/refs evil",
    )
    full.tree.put(
        project / "evil" / "config", f'[core]\n\tbare = true\n[alias]\n\tx = "!touch {mark}"\n'
    )
    here, config = project / place, (project / "old.repo" / "config").read_bytes()
    script = _PLANT_PARTS.replace("$PLACE", place).replace("$VICTIM", str(victim))
    with full.starting(["sh", "-c", script]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if not here.exists():
            (project / "old.repo").rename(here)
        full.tree.put(project / "go")
        wait_for(lambda: (project / "planted").exists(), "the command has planted its names")
        full.tree.put(project / "end")
        process.wait(timeout=120)
    assert [part for part in _PARTS if os.path.lexists(here / part)] == []
    assert (here / "config").read_bytes() == config
    assert full.outside(["git", "log", "-1", "--format=%s"], cwd=here).stdout == "one\n", (
        "it works as before"
    )
    full.outside(["git", "x"], cwd=here)
    assert not mark.exists()
    full.tree.put(here / "commondir", "../evil\n")
    full.outside(["git", "x"], cwd=here)
    assert mark.exists(), "the control: git obeys it"


def test_no_directory_above_a_repository_is_renamed(full: SandboxRunner) -> None:
    """A repository without a configuration, like fixtures and backups: no locked name in it fixes
    its path.
    """
    project, mark = made(full, full.tree.project), full.tree.outside / "mark"
    made(
        full,
        project,
        "git clone -q --bare . tests/fixtures/r.git; cd tests/fixtures/r.git; "
        "rm -r config hooks info",
    )
    move = "mv tests other; mv tests/fixtures tests/other; "
    plant = (
        "D=$(echo */*/r.git); mkdir -p $D/hooks; "
        f"printf '#!/bin/sh\\ntouch {mark}\\n' > $D/hooks/post-update; "
        f"chmod +x $D/hooks/post-update"
    )
    tried = full.inside(["sh", "-c", f"echo started; {move}{plant}"])
    assert tried.started, str(tried)
    assert (project / "tests" / "fixtures" / "r.git").is_dir(), str(tried)
    push = ["sh", "-c", "git push -q $PWD/*/*/r.git HEAD:$(date +%N)"]
    assert full.outside(push).exit_code == 0
    assert not mark.exists()
    assert full.outside(["sh", "-c", f"mv tests other; {plant}"]).exit_code == 0
    assert full.outside(push).exit_code == 0
    assert mark.exists(), "the control: without the sandbox it is moved, and such a hook runs"


def test_a_link_of_git_s_own_directory_stays_the_one_that_it_was(full: SandboxRunner) -> None:
    """The link is known by its path too: at another name git would write through it."""
    project = made(full, full.tree.project)
    victim = full.tree.put(full.tree.outside / "bashrc", "mine\n")
    full.outside(["ln", "-s", victim, ".git/kept"])
    full.outside(["ln", "-s", victim, ".git/other"])
    assert full.inside(["sh", "-c", "echo started; mv .git/kept .git/logs/HEAD"]).started
    full.outside(["sh", "-c", f"{_WHO}git commit -q --allow-empty -m 'written through'"])
    assert victim.read_text() == "mine\n"
    assert (project / ".git/other").is_symlink()
    full.outside(["mv", ".git/other", ".git/logs/HEAD"])
    full.outside(["sh", "-c", f"{_WHO}git commit -q --allow-empty -m 'written through'"])
    assert "written through" in victim.read_text(), "the control: the plant works"


def test_paths_that_an_included_configuration_names_are_protected(full: SandboxRunner) -> None:
    """In a repository below the workspace, by a chain of includes with any conditions."""
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        nested = made(
            full,
            full.tree.make(place / "nested"),
            f"{_REPOSITORY}; mkdir -p tools/hooks; "
            f"printf '[include]\\n\\tpath = more\\n' > .gitconfig;"
            "printf '[core]\\n\\thooksPath = tools/hooks\\n' > more; "
            "git config include.path ../.gitconfig;"
            "printf '#!/bin/sh\\n' > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit",
        )
        mark = full.tree.outside / f"mark-{place.name}"
        plant = (
            f"echo started; cd {nested}; printf '#!/bin/sh\\ntouch {mark}\\n' > "
            f"tools/hooks/pre-commit; exit 0"
        )
        assert run(["sh", "-c", plant]).started
        full.outside(["sh", "-c", f"{_WHO}git commit -q --allow-empty -m two"], cwd=nested)
        assert mark.exists() is (run == full.outside)
        if run == full.inside:
            full.inside(
                [
                    "sh",
                    "-c",
                    f"cd {nested}; echo x >> more; echo x >> .gitconfig; rm tools/hooks/pre-commit",
                ]
            )
            assert (nested / "more").read_text() == "[core]\n\thooksPath = tools/hooks\n"


def test_a_configuration_that_cannot_be_read_ends_the_start(full: SandboxRunner) -> None:
    nested = made(full, full.tree.project / "nested")
    (nested / "included").write_text("[core]\n")
    (nested / "included").chmod(0)
    full.tree.tester.give(nested)
    assert full.inside(["true"]).exit_code == 0
    full.outside(["git", "config", "include.path", "../included"], cwd=nested)
    refused = full.inside(["true"])
    assert refused.exit_code == 125, str(refused)
    assert f"cannot read {nested}/included" in refused.stderr


@pytest.fixture
def dotfiles(full: SandboxRunner, tester: Tester) -> Iterator[Path]:
    """A repository of settings that the home links to, as `stow` makes it."""
    need(
        "root",
        tester.disposable,
        "the tests do not write start-up files of an ordinary user",
    )
    dot = full.tree.make(full.tree.root / "dot")
    names = {
        ".gitconfig": "git/.gitconfig",
        ".bashrc": "bash/.bashrc",
        ".config/fish": "config/fish",
    }
    aside = {name: tester.home / f"{name}.aside" for name in names}
    for name, inside in names.items():
        (tester.home / name).parent.mkdir(parents=True, exist_ok=True)
        if (tester.home / name).exists():
            (tester.home / name).rename(aside[name])
        target = full.tree.put(
            dot / inside / "config.fish" if name == ".config/fish" else dot / inside, "# mine\n"
        )
        (tester.home / name).symlink_to(dot / inside)
        assert target.exists()
    tester.give(tester.home / ".config")
    yield dot
    for name, kept in aside.items():
        (tester.home / name).unlink()
        if kept.exists():
            kept.rename(tester.home / name)


def test_the_settings_that_the_home_links_to_are_protected(
    full: SandboxRunner, dotfiles: Path
) -> None:
    mark = full.tree.outside / "mark"
    evil = f'printf "[core]\\n\\tfsmonitor = \\"touch {mark}; false\\"\\n" >> git/.gitconfig'
    script = (
        f"echo started; {evil}; echo evil >> bash/.bashrc; "
        f"echo evil >> config/fish/config.fish; "
        f"echo 1 > free"
    )
    repository = made(full, full.tree.outside / "any")
    assert full.inside(["sh", "-c", script], cwd=dotfiles).started
    assert (dotfiles / "free").exists()
    full.outside(["git", "status"], cwd=repository)
    assert not mark.exists()
    for name in ("bash/.bashrc", "config/fish/config.fish", "git/.gitconfig"):
        assert (dotfiles / name).read_text() == "# mine\n", name
    full.outside(["sh", "-c", script], cwd=dotfiles)
    full.outside(["git", "status"], cwd=repository)
    assert mark.exists(), "the control: the plant works"


def test_git_s_own_configuration_is_protected_where_its_directory_is_the_workspace(
    full: SandboxRunner, tester: Tester
) -> None:
    need("root", tester.disposable, "the tests do not write the configuration of an ordinary user")
    config = tester.home / ".config"
    kept = (config / "git").exists()
    assert not kept, "the tester has none"
    config.mkdir(exist_ok=True)
    try:
        (config / "git").mkdir()
        (config / "git/config").write_text("# mine\n")
        tester.give(config)
        script = (
            "echo started; echo '[core]' >> git/config; echo x > git/attributes; "
            "echo x > free; "
            "exit 0"
        )
        assert full.inside(["sh", "-c", script], cwd=config).started
        assert (config / "git/config").read_text() == "# mine\n"
        assert not (config / "git/attributes").exists()
        assert (config / "free").exists()
    finally:
        shutil.rmtree(config / "git")
        (config / "free").unlink(missing_ok=True)
