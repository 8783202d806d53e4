"""After a run, git outside finds the user's repository in each directory, as before.

The command works in a directory of a larger repository, which it does not see. Each attack runs
inside and outside of the sandbox. Outside it succeeds. Ordinary work succeeds inside.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome

IDENTITY = "git config user.name host; git config user.email host@x"


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """``before`` makes the workspace ``path`` in an empty directory. It tracks ``src/a``."""

    before: str
    path: str = "pkg"


TRACKED = "mkdir -p pkg/src; echo 1 > pkg/src/a; git add pkg; git commit -qm one"
# The repository `lib`, with the same files.
LIBRARY = f"""
git init -qb main lib; cd lib; {IDENTITY}; mkdir src; echo 1 > src/a; git add .; git commit -qm one
cd ..
"""
WORKSPACES = {
    "a directory of a repository": Workspace(before=f"git init -qb main .; {IDENTITY}; {TRACKED}"),
    "with SHA-256": Workspace(
        before=f"git init -qb main --object-format=sha256 .; {IDENTITY}; {TRACKED}"
    ),
    "with a split index": Workspace(
        before=f"git init -qb main .; {IDENTITY}; {TRACKED}; git update-index --split-index"
    ),
    "a directory of a linked work tree": Workspace(
        before=f"git init -qb main m; cd m; {IDENTITY}; {TRACKED}; git worktree add -q ../w",
        path="w/pkg",
    ),
    "a submodule": Workspace(
        before=f"{LIBRARY} git init -qb main .; {IDENTITY};"
        " git -c protocol.file.allow=always submodule --quiet add $PWD/lib pkg; git commit -qm two",
    ),
    "a directory with a submodule": Workspace(
        before=f"{LIBRARY} git init -qb main .; {IDENTITY}; mkdir pkg;"
        " git -c protocol.file.allow=always submodule --quiet add $PWD/lib pkg/sub;"
        " git commit -qm two",
    ),
}
EVIL = "git -C {0} remote add origin https://evil.example"


def workspace(sandbox: SandboxRunner, place: Path, one: Workspace) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    sandbox.tree.make(place)
    done = sandbox.tester.run(["sh", "-c", f"set -e; {one.before}"], cwd=place)
    assert done.exit_code == 0, str(done)
    return place / one.path


def runs(sandbox: SandboxRunner, cwd: Path, script: str, *, inside: bool) -> Outcome:
    run = sandbox.inside if inside else sandbox.outside
    outcome = run(["sh", "-c", f"echo started; {script}"], cwd=cwd)
    assert outcome.started, str(outcome)
    return outcome


def found_by_git(sandbox: SandboxRunner, directory: Path) -> str:
    """The repository that git of the host finds."""
    done = sandbox.tester.run(
        ["sh", "-c", "git rev-parse --git-common-dir --show-toplevel; git remote"], cwd=directory
    )
    return str(done.stdout)


def places(sandbox: SandboxRunner) -> tuple[tuple[Path, bool], ...]:
    return ((sandbox.tree.project, True), (sandbox.tree.outside, False))


@pytest.mark.parametrize("name", WORKSPACES)
def test_no_new_repository_takes_the_place_of_one_above(sandbox: SandboxRunner, name: str) -> None:
    of_submodule = "src" if "with a submodule" not in name else "sub/src"
    top = (
        "" if "submodule" in name else "git init -q .; git remote add origin https://evil.example;"
    )
    attacks = [
        f"{top} git init -q {of_submodule}; {EVIL.format(of_submodule)}",
        f"git init -q new; {EVIL.format('new')}; rm -rf old;"
        f" mkdir -p {of_submodule}; mv new/.git {of_submodule}",
        f"git init -q new; {EVIL.format('new')}; mv {of_submodule} old; mv new {of_submodule}",
    ]
    for attack in attacks:
        for place, inside in places(sandbox):
            cwd = workspace(sandbox, place, WORKSPACES[name])
            checked = [cwd, cwd / of_submodule]
            before = [found_by_git(sandbox, one) for one in checked]
            outcome = runs(sandbox, cwd, attack, inside=inside)
            after = [found_by_git(sandbox, one) for one in checked if one.exists()]
            assert (after == before[: len(after)]) == inside, f"{attack}\n{outcome}\n{after}"


@pytest.mark.parametrize(
    "script",
    [
        "git init -q new/er; test -d new/er/.git",
        "mkdir empty; git init -q empty; rm -rf empty; git init -q empty",
        "git init -qb main one; git -C one -c user.name=h -c user.email=h@x commit -q --allow-empty"
        " -m x; git clone -q one copy; mv copy moved; test -d moved/.git",
        "mv src old; mkdir src; echo 2 > src/a",
    ],
)
def test_a_new_directory_gets_a_repository(sandbox: SandboxRunner, script: str) -> None:
    for place, inside in places(sandbox):
        cwd = workspace(sandbox, place, WORKSPACES["a directory of a repository"])
        outcome = runs(sandbox, cwd, f"set -e; {script}", inside=inside)
        assert outcome.exit_code == 0, str(outcome)


def test_a_directory_without_files_of_the_repository_above_gets_a_repository(
    sandbox: SandboxRunner,
) -> None:
    """For example, below a home whose own files are in a repository."""
    for place, inside in places(sandbox):
        cwd = workspace(
            sandbox,
            place,
            Workspace(
                before=f"git init -qb main .; {IDENTITY}; echo 1 > a; git add a;"
                " git commit -qm one; mkdir pkg; echo 1 > pkg/b"
            ),
        )
        outcome = runs(sandbox, cwd, "git init -q .", inside=inside)
        assert (cwd / ".git/HEAD").exists(), str(outcome)


# The repository `sub` lies in a larger one, which git finds if `sub` is broken.
NESTED = f"""
git init -qb main .; {IDENTITY}; echo 1 > a; git add a; git commit -qm outer
git remote add origin https://evil.example
git init -qb main sub; cd sub; {IDENTITY}; echo 1 > a; git add a; git commit -qm inner
git remote add origin https://example.org/x
git clone -q --bare . ../bare.git; git -C ../bare.git remote set-url origin https://example.org/b
"""
SET_ACL = """
import os, struct
acl = struct.pack("<I", 2)
for tag, perm in ((1, 0), (4, 5), (32, 5)):
    acl += struct.pack("<HHI", tag, perm, 0xFFFFFFFF)
os.setxattr(".git/objects", "system.posix_acl_access", acl)
"""
EXCHANGE = """
import ctypes
ctypes.CDLL(None).syscall(316, -100, b"new", -100, b".git/refs", 2)
"""
BREAKS = {
    "HEAD removed": "rm .git/HEAD",
    "HEAD renamed": "mv .git/HEAD .git/x",
    "HEAD exchanged": f"echo hello > new; /usr/bin/python3 -c '{EXCHANGE}'".replace(
        ".git/refs", ".git/HEAD"
    ),
    "HEAD emptied": ": > .git/HEAD",
    "HEAD truncated": "truncate -s 3 .git/HEAD",
    "HEAD replaced by an empty file": ": > .git/x; mv .git/x .git/HEAD",
    "HEAD with other text": "echo hello > .git/HEAD",
    "HEAD with other text by a rename": "echo hello > .git/HEAD.lock; mv .git/HEAD.lock .git/HEAD",
    "HEAD with blanks": "printf 'ref:%300srefs/heads/main' ' ' > .git/HEAD",
    "HEAD unreadable": "chmod 0 .git/HEAD",
    "objects renamed": "mv .git/objects .git/x",
    "objects removed": "rm -rf .git/objects",
    "objects closed": "chmod 600 .git/objects",
    "objects closed by an ACL": f"/usr/bin/python3 -c '{SET_ACL}'",
    "objects replaced": "rm -rf .git/objects/*; mkdir new; chmod 600 new; mv -T new .git/objects",
    "refs renamed": "mv .git/refs x",
    "refs removed": "rm -rf .git/refs",
    "refs exchanged": f"echo 1 > new; /usr/bin/python3 -c '{EXCHANGE}'",
    "refs closed": "chmod 0 .git/refs",
    "the directory closed": "chmod 0 .git",
    "the directory closed by a descriptor": "/usr/bin/python3 -c"
    " 'import os; os.fchmod(os.open(\".git\", os.O_RDONLY), 0)'",
    "a common directory": "echo ../.. > .git/commondir",
    "a common directory by a rename": "echo ../.. > x; mv x .git/commondir",
    "without a work tree": "cd ../bare.git; chmod 0 objects; chmod 0 HEAD; rm -rf refs;"
    " echo x > HEAD",
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_repository_from_before_the_run_stays_one(sandbox: SandboxRunner, name: str) -> None:
    directory = "bare.git" if name == "without a work tree" else "sub"
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=NESTED))
        before = found_by_git(sandbox, place / directory)
        outcome = runs(sandbox, place, f"cd sub; {BREAKS[name]}", inside=inside)
        after = found_by_git(sandbox, place / directory)
        assert (after == before) == inside, f"{outcome}\n{before}\n{after}"
        for part in (place / "sub/.git", place / "sub/.git/objects", place / "sub/.git/refs"):
            if not inside and part.exists():
                part.chmod(0o755)


@pytest.mark.parametrize(
    "script",
    [
        "git checkout -q --detach; git checkout -qb new; git checkout -q main; git gc -q",
        "git init -q new; rm -rf new/.git/refs; rm -rf new",
        "git clone -q . copy; rm copy/.git/HEAD; chmod 0 copy/.git/objects;"
        " chmod 755 copy/.git/objects; rm -rf copy; test ! -e copy",
        "git worktree add -q tree; rm -rf tree; git worktree prune; test ! -e .git/worktrees/tree",
        "chmod 700 .git .git/objects .git/refs; chmod 600 .git/HEAD; chmod g+s .git/objects",
        "git symbolic-ref HEAD refs/heads/other; printf 'ref: refs/heads/main' > .git/HEAD",
    ],
)
def test_ordinary_work_in_a_repository_succeeds(sandbox: SandboxRunner, script: str) -> None:
    for place, inside in places(sandbox):
        cwd = workspace(sandbox, place, Workspace(before=NESTED, path="sub"))
        outcome = runs(sandbox, cwd, f"set -e; {script}", inside=inside)
        assert outcome.exit_code == 0, str(outcome)
        assert "example.org" in found_by_git(sandbox, cwd) or "origin" in found_by_git(sandbox, cwd)


APPLIED = [
    "HEAD removed",
    "HEAD emptied",
    "HEAD with other text",
    "HEAD unreadable",
    "objects closed",
    "refs removed",
    "the directory closed",
    "a common directory",
    "without a work tree",
]


@pytest.mark.parametrize("name", APPLIED)
def test_apply_keeps_a_repository(full: SandboxRunner, name: str) -> None:
    """Writes in a copy are not judged. Apply judges them."""
    place = full.tree.project
    directory = "bare.git" if name == "without a work tree" else "sub"
    workspace(full, place, Workspace(before=NESTED))
    before = found_by_git(full, place / directory)
    script = f"echo started; echo 2 > sub/new; cd sub; {BREAKS[name]}"
    outcome = full.inside(["sh", "-c", script], "--cow", cwd=place)
    assert outcome.started, str(outcome)
    applied = full.outside([full.installation.paddock, "apply"], cwd=place)
    assert (place / "sub/new").exists(), str(applied)
    assert found_by_git(full, place / directory) == before, f"{outcome}\n{applied}"


# The repository of the user has a protected and a denied name. Git of the host writes the content
# of the index into the work tree.
HUSKY = f"""
git init -qb main .; {IDENTITY}; mkdir .husky; echo good > .husky/pre-commit; echo good > .envrc
chmod +x .husky/pre-commit; echo 1 > a; git add .; git commit -qm one
"""
BLOB = "B=$(echo evil | git hash-object -w --stdin)"
INDEX_ATTACKS = {
    "another id": f"{BLOB}; git update-index --cacheinfo 100755,$B,.husky/pre-commit",
    "removed and added": "git rm -q --cached .envrc; git add -A;"
    f"{BLOB}; git update-index --add --cacheinfo 100644,$B,.envrc",
    "a new name": f"{BLOB}; git update-index --add --cacheinfo 100644,$B,new/.envrc",
    "without the old index": f"{BLOB}; rm .git/index; git read-tree HEAD;"
    " git update-index --cacheinfo 100755,$B,.husky/pre-commit",
    "another index": f"{BLOB}; export GIT_INDEX_FILE=.git/other; git read-tree HEAD;"
    " git update-index --cacheinfo 100644,$B,.envrc; mv .git/other .git/index",
    "a symlink": "B=$(printf ../a | git hash-object -w --stdin);"
    " git update-index --cacheinfo 120000,$B,.husky/pre-commit",
    "a conflict": f"{BLOB}; printf '100644 %s 3\\t.envrc\\n' $B | git update-index --index-info",
    "a tree of a commit": f"{BLOB}; git update-index --cacheinfo 100644,$B,.envrc;"
    f" export GIT_INDEX_FILE=.git/o; git read-tree HEAD;"
    " git update-index --cacheinfo 100644,$B,.envrc;"
    " T=$(git write-tree); unset GIT_INDEX_FILE; git read-tree $T",
}


def content(place: Path) -> dict[str, str]:
    found = [path for path in place.rglob("*") if ".git" not in path.parts and not path.is_dir()]
    return {str(path.relative_to(place)): path.read_text() for path in found}


@pytest.mark.parametrize("name", INDEX_ATTACKS)
def test_an_index_brings_no_other_content_to_a_protected_name(
    sandbox: SandboxRunner, name: str
) -> None:
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=HUSKY))
        before = content(place)
        outcome = runs(sandbox, place, INDEX_ATTACKS[name], inside=inside)
        script = "rm .envrc .husky/pre-commit; git checkout . || git checkout --theirs .envrc"
        after = sandbox.tester.run(["sh", "-c", script], cwd=place)
        told = f"{outcome}\n{after}\n{content(place)}"
        assert (content(place) == before) == inside, told
        if inside:
            assert "the entry" in outcome.stderr, told


@pytest.mark.parametrize(
    "script",
    [
        "echo 2 > a; git add -A; git commit -qm two; git checkout -qb x; git checkout -q main",
        "echo 2 > a; git stash -q; git stash pop -q; git reset -q --hard; test $(cat a) = 1",
        "git rm -q --cached .envrc; git commit -qm gone; git add .envrc; git commit -qm back",
        "git rm -q --cached .envrc; git reset -q; git diff --cached --quiet",
        "git checkout -qb x; echo 2 > b; git add b; git commit -qm b; git checkout -q main;"
        " echo 3 > c; git add c; git commit -qm c; git merge -q x; git rebase -q HEAD~; test -e b",
        "rm .git/index; git reset -q; git status --short | wc -l",
        "git add -A; git commit -qam two; git diff --quiet HEAD",
    ],
)
def test_ordinary_work_with_protected_names_succeeds(sandbox: SandboxRunner, script: str) -> None:
    """Also the changes of the user at these names are committed."""
    changed = "echo mine > .envrc; mkdir -p sub; echo new > sub/.envrc"
    before = f"{HUSKY} {changed if 'add -A; git commit -qam' in script else ''}"
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=before))
        outcome = runs(sandbox, place, f"set -e; {script}", inside=inside)
        assert outcome.exit_code == 0, str(outcome)


# The user has put a program into the git directory, and git runs it.
FILTER = f"""
git init -qb main .; {IDENTITY}; echo 1 > a; git add a; git commit -qm one
printf '#!/bin/sh\\ncat\\n' > .git/clean.sh; chmod +x .git/clean.sh; mkdir .git/tools
cp .git/clean.sh .git/tools; echo 1 > .git/COMMIT_EDITMSG
git config filter.x.clean '$(git rev-parse --git-common-dir)/tools/clean.sh'
git config filter.y.clean 'cd "$(git rev-parse --git-dir)" && ./clean.sh'
mkdir -p .git/info; echo '*.x filter=x' > .git/info/attributes
echo '*.y filter=y' >> .git/info/attributes
"""
EVIL_PROGRAM = "printf '#!/bin/sh\\ncat; touch %s\\n' $MARK"
PROGRAM_ATTACKS = {
    "written in place": f"{EVIL_PROGRAM} > .git/$PROGRAM",
    "replaced": f"{EVIL_PROGRAM} > x; chmod +x x; mv x .git/$PROGRAM",
    "removed and made": f"{EVIL_PROGRAM} > x; chmod +x x; rm -f .git/$PROGRAM; mv x .git/$PROGRAM",
    "linked": f"ln .git/$PROGRAM x; {EVIL_PROGRAM} > x",
}


@pytest.mark.parametrize("program", ["tools/clean.sh", "clean.sh"])
@pytest.mark.parametrize("name", PROGRAM_ATTACKS)
def test_a_program_of_the_user_in_the_git_directory_stays(
    sandbox: SandboxRunner, name: str, program: str
) -> None:
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=FILTER))
        mark = sandbox.tree.root / f"ran-{place.name}"
        script = f"PROGRAM={program}; MARK={mark}; {PROGRAM_ATTACKS[name]}"
        outcome = runs(sandbox, place, script, inside=inside)
        ending = "x" if "tools" in program else "y"
        add = f"echo 1 > b.{ending}; git add b.{ending}"
        after = sandbox.tester.run(["sh", "-c", add], cwd=place)
        assert after.exit_code == 0, str(after)
        assert mark.exists() == (not inside), f"{outcome}\n{after}"


def test_git_and_the_command_write_their_own_files_in_the_git_directory(
    sandbox: SandboxRunner,
) -> None:
    script = (
        "set -e; echo 2 > a; git commit -qam two; echo 1 > .git/own; echo 2 > .git/own;"
        " mv .git/own .git/other; rm .git/other; echo x > .git/description; git gc -q"
    )
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=FILTER))
        outcome = runs(sandbox, place, script, inside=inside)
        assert outcome.exit_code == 0, str(outcome)


def test_apply_keeps_a_program_of_the_user_in_the_git_directory(full: SandboxRunner) -> None:
    place = full.tree.project
    workspace(full, place, Workspace(before=FILTER))
    before = (place / ".git/clean.sh").read_text()
    script = "echo started; echo evil > .git/clean.sh; echo 2 > new"
    outcome = full.inside(["sh", "-c", script], "--cow", cwd=place)
    assert outcome.started, str(outcome)
    applied = full.outside([full.installation.paddock, "apply"], cwd=place)
    assert (place / "new").exists(), str(applied)
    assert (place / ".git/clean.sh").read_text() == before, str(applied)


def test_a_sparse_checkout_removes_no_protected_file(sandbox: SandboxRunner) -> None:
    script = (
        "git config core.sparseCheckout true; mkdir -p .git/info;"
        " printf '/*\\n!/.envrc\\n' > .git/info/sparse-checkout"
    )
    for place, inside in places(sandbox):
        workspace(sandbox, place, Workspace(before=HUSKY))
        outcome = runs(sandbox, place, script, inside=inside)
        after = sandbox.tester.run(["git", "read-tree", "-mu", "HEAD"], cwd=place)
        assert (place / ".envrc").exists() == inside, f"{outcome}\n{after}"
