"""``create = true``: only a run creates a missing directory that is granted for writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import SECRET, ProjectTree, Snapshot


def policy(
    tree: ProjectTree, path: Path | str, *, key: str = "allow_globs", create: bool = True
) -> Path:
    flag = ", create = true" if create else ""
    text = f'[meta]\ninherit = "ai-agent"\n[filesystem]\n{key} = [{{ path = "{path}"{flag} }}]\n'
    return tree.put(tree.root / "p.toml", text)


def paddock(sandbox: SandboxRunner, *words: Word) -> Outcome:
    return sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)


@pytest.mark.parametrize(
    ("key", "umask"), [("allow_globs", 0o022), ("write_globs", 0o077), ("allow_globs", 0o777)]
)
def test_a_missing_directory_is_made_private_with_its_parents_and_granted(
    sandbox: SandboxRunner, tree: ProjectTree, key: str, umask: int
) -> None:
    """F-095"""
    out = tree.root / "a" / "b" / "out"
    create = sandbox.probe("create", out / "new")
    without = sandbox.inside(create, "--policy", policy(tree, f"{out}/**", key=key, create=False))
    assert (without.exit_code, without.stdout) == (125, ""), "a missing path is still an error"
    assert f"{out} does not exist" in without.stderr
    assert not (tree.root / "a").exists()
    made = sandbox.inside(create, "--policy", policy(tree, f"{out}/**", key=key), umask=umask)
    assert made.answer == "ok", str(made)
    assert (out / "new").exists()
    for directory in (tree.root / "a", out.parent, out):
        facts = directory.stat()
        assert (facts.st_mode & 0o7777, facts.st_uid) == (0o700, sandbox.tester.uid)
    assert (
        sandbox.inside(
            sandbox.probe("create", out.parent / "beside"), "--policy", tree.root / "p.toml"
        ).answer
        == "EACCES"
    )
    assert sandbox.outside(sandbox.probe("create", out.parent / "beside")).answer == "ok"


def test_an_existing_directory_stays_as_it_is(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    out = tree.put(tree.root / "out" / "old", "kept\n").parent
    out.chmod(0o755)
    before = Snapshot.of(out)
    assert (
        sandbox.inside(sandbox.probe("read", out / "old"), "--policy", policy(tree, out)).answer
        == "ok kept"
    )
    assert Snapshot.of(out) == before
    assert out.stat().st_mode & 0o777 == 0o755


def test_only_a_run_creates_a_missing_directory(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    out = tree.root / "out"
    file = policy(tree, f"{out}/**")
    asked: list[list[Word]] = [
        ["explain", "--policy", file],
        ["run", "--dry-run", "--policy", file, "--", "true"],
        ["run", "--dry-run", "--policy", file, "--workdir", out, "--", "true"],
        ["why", "--policy", file, "--op", "write", "--path", out / "new"],
        ["check", file],
    ]
    for words in asked:
        shown = paddock(sandbox, *words)
        assert shown.exit_code == 0, str(shown)
        assert not out.exists(), words
    assert f"created by the run, then granted: {out}" in paddock(sandbox, *asked[0]).stdout
    answer = json.loads(paddock(sandbox, *asked[3], "--json").stdout)
    assert (answer["allowed"], answer["grants"][0]["path"]) == (True, str(out))
    assert (
        paddock(sandbox, "run", "--policy", file, "--workdir", out, "--", "touch", "here").exit_code
        == 0
    )
    assert (out / "here").exists()


def test_a_remembered_plan_creates_the_directory_again(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    out = tree.root / "out"
    words: list[Word] = ["run", "--policy", policy(tree, f"{out}/**"), "--", "touch", out / "new"]
    for _ in range(3):
        outcome = paddock(sandbox, *words)
        assert outcome.exit_code == 0, str(outcome)
        (out / "new").unlink()
        out.rmdir()


@pytest.mark.parametrize("where", ["way", "way/out"])
def test_creating_a_directory_follows_no_link(
    sandbox: SandboxRunner, tree: ProjectTree, where: str
) -> None:
    """An earlier command that may write there could have left the link."""
    link = tree.project / where
    link.parent.mkdir(exist_ok=True)
    sandbox.tester.give(link.parent)
    link.symlink_to(tree.outside / "elsewhere" if where == "way/out" else tree.outside)
    before = Snapshot.of(tree.outside)
    file = policy(tree, "<cwd>/way/out/**")
    for flags in ([], ["--dry-run"]):
        refused = paddock(sandbox, "run", *flags, "--policy", file, "--", "cat", tree.secret)
        assert SECRET not in refused.stdout
        if where == "way":
            assert refused.exit_code == 125, str(refused)
            assert f"{tree.project}/way is a symbolic link, or not a directory" in refused.stderr
    assert Snapshot.of(tree.outside) == before


def test_a_directory_that_cannot_be_made_stops_run_and_dry_run(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    shut = tree.make(tree.root / "shut")
    shut.chmod(0o555)
    file = policy(tree, f"{shut}/out/**")
    flag = [
        paddock(sandbox, "run", *flags, "--policy", file, "--", "true")
        for flags in ([], ["--dry-run"])
    ]
    assert [one.exit_code for one in flag] == [125, 125], flag
    assert flag[0].stderr == flag[1].stderr
    assert f"{file}:4: cannot create {shut}/out: {shut}/out: Permission denied" in flag[0].stderr
    shut.chmod(0o755)
    assert paddock(sandbox, "run", "--policy", file, "--", "true").exit_code == 0
    assert (shut / "out").is_dir()


def test_a_denied_place_is_not_made(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    out = tree.root / "closed" / "out"
    outcome = paddock(
        sandbox, "run", "--policy", policy(tree, out), "--deny", out.parent, "--", "true"
    )
    assert outcome.exit_code == 0, str(outcome)
    assert not out.parent.exists()
