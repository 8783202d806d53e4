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
