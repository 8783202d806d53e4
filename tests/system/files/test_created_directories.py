"""``create = true``: a directory that is granted for writing and not there is made by the run, and
by nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fence import Fence, Word
from tests.support.test_tree import SECRET, Ground, Snapshot
from tests.support.tester import Outcome


def policy(
    ground: Ground, path: Path | str, *, key: str = "allow_globs", create: bool = True
) -> Path:
    said = ", create = true" if create else ""
    text = f'[meta]\ninherit = "ai-agent"\n[filesystem]\n{key} = [{{ path = "{path}"{said} }}]\n'
    return ground.put(ground.root / "p.toml", text)


def paddock(fence: Fence, *words: Word) -> Outcome:
    return fence.tester.run([fence.installation.paddock, *words], cwd=fence.ground.project)


@pytest.mark.parametrize(
    ("key", "umask"), [("allow_globs", 0o022), ("write_globs", 0o077), ("allow_globs", 0o777)]
)
def test_a_missing_directory_is_made_private_with_its_parents_and_granted(
    fence: Fence, ground: Ground, key: str, umask: int
) -> None:
    """F-095"""
    out = ground.root / "a" / "b" / "out"
    create = fence.probe("create", out / "new")
    without = fence.inside(create, "--policy", policy(ground, f"{out}/**", key=key, create=False))
    assert (without.exit_code, without.stdout) == (125, ""), "a missing path is an error, as ever"
    assert f"{out} does not exist" in without.stderr
    assert not (ground.root / "a").exists()
    made = fence.inside(create, "--policy", policy(ground, f"{out}/**", key=key), umask=umask)
    assert made.answer == "ok", str(made)
    assert (out / "new").exists()
    for directory in (ground.root / "a", out.parent, out):
        facts = directory.stat()
        assert (facts.st_mode & 0o7777, facts.st_uid) == (0o700, fence.tester.uid)
    assert (
        fence.inside(
            fence.probe("create", out.parent / "beside"), "--policy", ground.root / "p.toml"
        ).answer
        == "EACCES"
    )
    assert fence.outside(fence.probe("create", out.parent / "beside")).answer == "ok"


def test_an_existing_directory_stays_as_it_is(fence: Fence, ground: Ground) -> None:
    out = ground.put(ground.root / "out" / "old", "kept\n").parent
    out.chmod(0o755)
    before = Snapshot.of(out)
    assert (
        fence.inside(fence.probe("read", out / "old"), "--policy", policy(ground, out)).answer
        == "ok kept"
    )
    assert Snapshot.of(out) == before
    assert out.stat().st_mode & 0o777 == 0o755


def test_only_a_run_makes_it(fence: Fence, ground: Ground) -> None:
    out = ground.root / "out"
    file = policy(ground, f"{out}/**")
    asked: list[list[Word]] = [
        ["explain", "--policy", file],
        ["run", "--dry-run", "--policy", file, "--", "true"],
        ["run", "--dry-run", "--policy", file, "--workdir", out, "--", "true"],
        ["why", "--policy", file, "--op", "write", "--path", out / "new"],
        ["check", file],
    ]
    for words in asked:
        shown = paddock(fence, *words)
        assert shown.exit_code == 0, str(shown)
        assert not out.exists(), words
    assert f"created by the run, then granted: {out}" in paddock(fence, *asked[0]).stdout
    answer = json.loads(paddock(fence, *asked[3], "--json").stdout)
    assert (answer["allowed"], answer["grants"][0]["path"]) == (True, str(out))
    assert (
        paddock(fence, "run", "--policy", file, "--workdir", out, "--", "touch", "here").exit_code
        == 0
    )
    assert (out / "here").exists()


def test_a_remembered_plan_makes_it_again(fence: Fence, ground: Ground) -> None:
    out = ground.root / "out"
    words: list[Word] = ["run", "--policy", policy(ground, f"{out}/**"), "--", "touch", out / "new"]
    for _ in range(3):
        outcome = paddock(fence, *words)
        assert outcome.exit_code == 0, str(outcome)
        (out / "new").unlink()
        out.rmdir()


@pytest.mark.parametrize("where", ["way", "way/out"])
def test_no_link_is_followed(fence: Fence, ground: Ground, where: str) -> None:
    """A command that may write there once could have left it."""
    link = ground.project / where
    link.parent.mkdir(exist_ok=True)
    fence.tester.give(link.parent)
    link.symlink_to(ground.outside / "elsewhere" if where == "way/out" else ground.outside)
    before = Snapshot.of(ground.outside)
    file = policy(ground, "<cwd>/way/out/**")
    for flags in ([], ["--dry-run"]):
        refused = paddock(fence, "run", *flags, "--policy", file, "--", "cat", ground.secret)
        assert SECRET not in refused.stdout
        if where == "way":
            assert refused.exit_code == 125, str(refused)
            assert f"{ground.project}/way is a symbolic link, or not a directory" in refused.stderr
    assert Snapshot.of(ground.outside) == before


def test_a_directory_that_can_not_be_made_stops_run_and_dry_run(
    fence: Fence, ground: Ground
) -> None:
    shut = ground.make(ground.root / "shut")
    shut.chmod(0o555)
    file = policy(ground, f"{shut}/out/**")
    said = [
        paddock(fence, "run", *flags, "--policy", file, "--", "true")
        for flags in ([], ["--dry-run"])
    ]
    assert [one.exit_code for one in said] == [125, 125], said
    assert said[0].stderr == said[1].stderr
    assert f"{file}:4: cannot create {shut}/out: {shut}/out: Permission denied" in said[0].stderr
    shut.chmod(0o755)
    assert paddock(fence, "run", "--policy", file, "--", "true").exit_code == 0
    assert (shut / "out").is_dir()


def test_a_denied_place_is_not_made(fence: Fence, ground: Ground) -> None:
    out = ground.root / "closed" / "out"
    outcome = paddock(
        fence, "run", "--policy", policy(ground, out), "--deny", out.parent, "--", "true"
    )
    assert outcome.exit_code == 0, str(outcome)
    assert not out.parent.exists()
