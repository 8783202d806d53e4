"""`paddock why` and the kernel give the same answer for every path."""

from __future__ import annotations

import json
import random

import pytest

from tests.support.sandbox import SandboxRunner, Word

SEED = 20261115


def test_the_plan_and_the_kernel_agree_on_a_carved_tree(sandbox: SandboxRunner) -> None:
    """Every path of a random tree, under random grants and denies of its directories, for every
    operation.
    """
    choose = random.Random(SEED)
    random_tree = sandbox.tree.make(sandbox.tree.outside / "tree")
    directories = [random_tree]
    for number in range(14):
        directory = choose.choice(directories) / f"d{number}"
        directory.mkdir()
        directories.append(directory)
        sandbox.tree.put(directory / "file", "#!/bin/sh\n", mode=0o755)
    sandbox.tester.give(random_tree)
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
        shown = sandbox.tester.run(
            [sandbox.installation.paddock, "why", *flags, "--path", path, "--op", op, "--json"],
            cwd=sandbox.tree.project,
        )
        assert shown.exit_code in (0, 1), shown
        answer = json.loads(shown.stdout)
        outcome = answer["tried"]["outcome"]
        if outcome in ("allowed", "denied") and not (op == "exec" and path.is_dir()):
            # The tester owns the tree and modes allow all, so only the sandbox can deny.
            assert answer["allowed"] == (outcome == "allowed"), answer
            assert not answer["reason"].startswith("the sandbox allows it"), answer
        answers.add((op, answer["allowed"]))
    # A test with only one kind of answer would prove nothing.
    assert {allowed for _, allowed in answers} == {True, False}, answers


@pytest.mark.parametrize("name", ["", "new", "deep/new"])
def test_why_does_not_call_a_read_only_directory_writable(
    sandbox: SandboxRunner, name: str
) -> None:
    """`why` does not create a file to find the answer. It reads the modes."""
    shut = sandbox.tree.make(sandbox.tree.project / "shut")
    path = shut / name

    def why(*more: str) -> tuple[int, str]:
        words: list[Word] = [
            sandbox.installation.paddock,
            "why",
            "--path",
            path,
            "--op",
            "write",
            *more,
        ]
        shown = sandbox.tester.run(words, cwd=sandbox.tree.project)
        return shown.exit_code, shown.stdout

    create = sandbox.probe("create", shut / "file")
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
        assert sandbox.inside(create).answer == "EACCES"
        assert sandbox.outside(create).answer == "EACCES", "the sandbox is not the reason"
    finally:
        shut.chmod(0o755)
    assert why()[0] == 0
    assert sandbox.inside(create).answer == "ok"


def test_why_distinguishes_a_missing_execute_bit_from_a_missing_grant(
    sandbox: SandboxRunner,
) -> None:
    plain = sandbox.tree.put(sandbox.tree.project / "plain", "#!/bin/sh\n", mode=0o644)
    outside = sandbox.tree.put(sandbox.tree.outside / "tool", "#!/bin/sh\n", mode=0o755)
    for path, fence_allows in ((plain, True), (outside, False)):
        words: list[Word] = [
            sandbox.installation.paddock,
            "why",
            "--path",
            path,
            "--op",
            "exec",
            "--json",
        ]
        shown = sandbox.tester.run(words, cwd=sandbox.tree.project)
        answer = json.loads(shown.stdout)
        assert (shown.exit_code, answer["allowed"], answer["fence_allows"]) == (
            1,
            False,
            fence_allows,
        ), answer


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".envrc", "protected: read-only inside writable directories, because "),
        (".vscode/tasks.json", "protected: read-only inside writable directories, because "),
        (".git/hooks/pre-commit", "protected: read-only inside writable directories, because "),
        (".env", ".env is denied, even inside a grant"),
    ],
)
def test_why_and_init_agree_on_names_in_the_landlock_tier(
    sandbox: SandboxRunner, name: str, reason: str
) -> None:
    """An attempt has no init, so `why` reports the decision of the plan."""
    path = sandbox.tree.put(sandbox.tree.project / name, "as it was\n")
    sandbox.tester.give(sandbox.tree.project)

    def why(operation: str, *more: str) -> tuple[int, str]:
        words: list[Word] = [
            sandbox.installation.paddock,
            "why",
            "--tier",
            "landlock",
            "--path",
            path,
            "--op",
            operation,
            *more,
        ]
        shown = sandbox.tester.run(words, cwd=sandbox.tree.project)
        assert shown.stderr == "", shown
        return shown.exit_code, shown.stdout

    code, text = why("write")
    assert (code, text.partition(":")[0]) == (1, "denied"), text
    assert reason in text
    assert "not tested: only a run judges names that are written" in text
    opening = "to allow it: paddock run --open-protected '**/.env'"
    assert ("to allow it" in text) == (name == ".env"), "no grant would help"
    assert (opening in text) == (name == ".env")
    answer = json.loads(why("write", "--json")[1])
    assert answer["tried"] == {"outcome": "untried", "errno": None}
    script = f"echo started; cat {name}; echo changed > {name}"
    done = sandbox.inside(["sh", "-c", script])
    assert done.started
    assert path.read_text() == "as it was\n", done
    # Reading does not depend on names.
    assert why("read")[0] == 0
    assert "as it was\n" in done.stdout
    # The control: outside the same act succeeds.
    assert sandbox.outside(["sh", "-c", script]).exit_code == 0
    assert path.read_text() == "changed\n"


def test_why_states_the_condition_for_files_of_git(sandbox: SandboxRunner) -> None:
    config = sandbox.tree.put(sandbox.tree.project / ".git" / "config", "[user]\n\tname = a\n")
    sandbox.tree.make(sandbox.tree.project / ".git" / "objects")
    sandbox.tester.give(sandbox.tree.project)
    words: list[Word] = [sandbox.installation.paddock, "why", "--tier", "landlock", "--path"]
    shown = sandbox.tester.run([*words, config, "--op", "write"], cwd=sandbox.tree.project)
    assert shown.exit_code == 0, shown
    assert "git obeys this file, so it may have harmless content only" in shown.stdout
    for key, held in (("email = b", True), ("[core]\n\tfsmonitor = evil", False)):
        before = config.read_text()
        sandbox.inside(["sh", "-c", f"echo '{key}' >> .git/config"])
        assert (config.read_text() != before) == held
