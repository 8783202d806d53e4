"""The reasoning behind `paddock why` and the kernel give the same answer, wherever one asks."""

from __future__ import annotations

import json
import random

from tests.support.fence import Fence

SEED = 20261115


def test_the_plan_and_the_kernel_agree_on_a_carved_tree(fence: Fence) -> None:
    """Every path of a random tree, under random grants and denies of its directories, for every operation."""
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
        flags += [choose.choice(["--read", "--allow", "--exec", "--write"]), f"{directory}/**"]
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
            [fence.installation.paddock, "why", *flags, "--path", path, "--op", op, "--json"], cwd=fence.ground.project
        )
        assert shown.exit_code in (0, 1), shown
        answer = json.loads(shown.stdout)
        outcome = answer["tried"]["outcome"]
        if outcome in ("allowed", "denied") and not (op == "exec" and path.is_dir()):
            # The tester owns the tree and modes allow all: nothing but the fence can say no.
            assert answer["allowed"] == (outcome == "allowed"), answer
            assert not answer["reason"].startswith("the fence allows it"), answer
        answers.add((op, answer["allowed"]))
    # A test that only ever saw one answer would prove nothing.
    assert {allowed for _, allowed in answers} == {True, False}, answers
