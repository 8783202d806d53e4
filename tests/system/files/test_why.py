"""The reasoning behind `paddock why` and the kernel give the same answer, wherever one asks."""

from __future__ import annotations

import json
import random

import pytest

from tests.support.fence import Fence, Word

SEED = 20261115


def test_the_plan_and_the_kernel_agree_on_a_carved_tree(fence: Fence) -> None:
    """Every path of a random tree, under random grants and denies of its directories, for every
    operation.
    """
    choose = random.Random(SEED)
    tree = fence.ground.make(fence.ground.outside / "tree")
    directories = [tree]
    for number in range(14):
        directory = choose.choice(directories) / f"d{number}"
        directory.mkdir()
        directories.append(directory)
        fence.ground.put(directory / "file", "#!/bin/sh\n", mode=0o755)
    fence.tester.give(tree)
    flags: list[str] = ["--profile", "base"]
    for directory in choose.sample(directories[1:], 5):
        flags += [choose.choice(["--read", "--allow", "-x", "--write"]), f"{directory}/**"]
    for directory in choose.sample(directories[2:], 3):
        flags += ["--deny", f"{directory}/**"]
    paths = [
        *directories,
        *(directory / "file" for directory in directories[1:]),
        *(d / "new" for d in directories[1:6]),
    ]
    answers = set()
    for path in paths:
        op = choose.choice(["read", "write", "exec"])
        shown = fence.tester.run(
            [fence.installation.paddock, "why", *flags, "--path", path, "--op", op, "--json"],
            cwd=fence.ground.project,
        )
        assert shown.exit_code in (0, 1), shown
        answer = json.loads(shown.stdout)
        outcome = answer["tried"]["outcome"]
        if outcome in ("allowed", "denied") and not (op == "exec" and path.is_dir()):
            # The tester owns the tree and modes allow all: nothing but the fence can say no.
            assert answer["allowed"] == (outcome == "allowed"), answer
            assert not answer["reason"].startswith("the sandbox allows it"), answer
        answers.add((op, answer["allowed"]))
    # A test that only ever saw one answer would prove nothing.
    assert {allowed for _, allowed in answers} == {True, False}, answers


@pytest.mark.parametrize("name", ["", "new", "deep/new"])
def test_a_directory_whose_own_mode_forbids_it_is_not_said_to_be_writable(
    fence: Fence, name: str
) -> None:
    """The kernel is not asked to make a file for the sake of an answer; the modes are there to be
    read.
    """
    shut = fence.ground.make(fence.ground.project / "shut")
    path = shut / name

    def why(*more: str) -> tuple[int, str]:
        words: list[Word] = [
            fence.installation.paddock,
            "why",
            "--path",
            path,
            "--op",
            "write",
            *more,
        ]
        shown = fence.tester.run(words, cwd=fence.ground.project)
        return shown.exit_code, shown.stdout

    create = fence.probe("create", shut / "file")
    shut.chmod(0o555)
    try:
        code, text = why()
        assert (code, text.partition(":")[0]) == (1, "denied"), text
        assert (
            f"the sandbox allows it, but the file's own permissions do not ({shut}: mode 0555, uid "
            in text
        )
        assert "to allow it" not in text, "no grant would help"
        code, text = why("--json")
        answer = json.loads(text)
        assert (code, answer["allowed"], answer["fence_allows"]) == (1, False, True)
        assert fence.inside(create).answer == "EACCES"
        assert fence.outside(create).answer == "EACCES", "it is not the fence"
    finally:
        shut.chmod(0o755)
    assert why()[0] == 0
    assert fence.inside(create).answer == "ok"


def test_a_program_that_is_not_executable_is_told_from_one_that_is_not_granted(
    fence: Fence,
) -> None:
    plain = fence.ground.put(fence.ground.project / "plain", "#!/bin/sh\n", mode=0o644)
    outside = fence.ground.put(fence.ground.outside / "tool", "#!/bin/sh\n", mode=0o755)
    for path, fence_allows in ((plain, True), (outside, False)):
        words: list[Word] = [
            fence.installation.paddock,
            "why",
            "--path",
            path,
            "--op",
            "exec",
            "--json",
        ]
        shown = fence.tester.run(words, cwd=fence.ground.project)
        answer = json.loads(shown.stdout)
        assert (shown.exit_code, answer["allowed"], answer["fence_allows"]) == (
            1,
            False,
            fence_allows,
        ), answer
