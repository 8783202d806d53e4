"""`paddock why --exec`: the decision of the gate for one program, with the line of its rule."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "DEFAULT"

[[rule]]
id = "no-push"
action = "deny"
exe_basename = "sh"
argv_contains = "push"
reason = "leaves the machine"

[[rule]]
id = "ask-about-env"
action = "ask"
exe_basename = "env"

[[rule]]
id = "shell"
action = "allow"
exe = "/bin/sh"

[[rule]]
id = "here"
action = "allow"
exe_basename = "true"
cwd_glob = "<cwd>/sub"

[[rule]]
id = "tool"
action = "allow"
exe_glob = "<cwd>/bin/*"

[[rule]]
id = "only-from-git"
action = "allow"
exe = "/usr/bin/cat"
parent_exe = "/usr/bin/git"
"""


@pytest.fixture
def policy(sandbox: SandboxRunner) -> Path:
    return sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY.replace("DEFAULT", "deny"))


def why(sandbox: SandboxRunner, policy: Path, command: str, *more: Word) -> Outcome:
    words: list[Word] = [
        sandbox.installation.paddock,
        "why",
        "--policy",
        policy,
        "--exec",
        command,
        *more,
    ]
    outcome = sandbox.tester.run(words, cwd=sandbox.tree.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def answer(sandbox: SandboxRunner, policy: Path, command: str, *more: Word) -> dict[str, Any]:
    outcome = why(sandbox, policy, command, "--json", *more)
    answered: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == (0 if answered["allowed"] else 1)
    return answered


def line(rule: str) -> int:
    """The rule begins one line before its id."""
    return POLICY.split("\n").index(f'id = "{rule}"')


def test_the_first_rule_that_matches_is_named_with_its_line_and_reason(
    sandbox: SandboxRunner, policy: Path
) -> None:
    shown = why(sandbox, policy, "sh -c push push")
    assert shown.exit_code == 1
    assert shown.stdout.startswith("denied: sh -c push push (/usr/bin/")
    assert f"because: rule 'no-push' ({policy}:{line('no-push')})" in shown.stdout
    assert "reason:  leaves the machine" in shown.stdout
    shown = why(sandbox, policy, "sh -c true")
    assert (shown.exit_code, shown.stdout.partition(":")[0]) == (0, "allowed"), shown
    assert f"because: rule 'shell' ({policy}:{line('shell')})" in shown.stdout


def test_why_reports_that_a_person_would_be_asked(sandbox: SandboxRunner, policy: Path) -> None:
    shown = why(sandbox, policy, "env")
    assert (shown.exit_code, shown.stdout.partition(":")[0]) == (1, "asked about")
    assert answer(sandbox, policy, "env")["action"] == "ask"


def test_a_call_without_a_rule_gets_the_default(sandbox: SandboxRunner, policy: Path) -> None:
    answered = answer(sandbox, policy, "ls -l")
    assert (answered["action"], answered["cause"], answered["rule"]) == ("deny", "default", None)
    assert answered["exe"].endswith("/ls")


def test_a_rule_is_judged_by_the_working_directory(sandbox: SandboxRunner, policy: Path) -> None:
    sandbox.tree.make(sandbox.tree.project / "sub")
    assert not answer(sandbox, policy, "true")["allowed"]
    assert answer(sandbox, policy, "true", "--cwd", "sub")["rule"]["id"] == "here"


def test_a_script_brings_its_interpreter_along(sandbox: SandboxRunner, policy: Path) -> None:
    sandbox.tree.make(sandbox.tree.project / "bin")
    sandbox.tree.put(sandbox.tree.project / "bin" / "run", "#!/bin/sh\n", mode=0o755)
    answered = answer(sandbox, policy, "./bin/run push")
    # A rule allows the path of the script, but an earlier rule denies a shell with that argument.
    assert (answered["allowed"], answered["rule"]["id"]) == (False, "no-push")
    assert answered["interpreters"] != []
    assert answer(sandbox, policy, "./bin/run")["rule"]["id"] == "tool"


def test_a_copy_of_a_denied_program_is_judged_as_that_program(
    sandbox: SandboxRunner,
) -> None:
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY.replace("DEFAULT", "allow"))
    sandbox.tree.put(sandbox.tree.project / "made", "#!/bin/true\n", mode=0o755)
    assert answer(sandbox, policy, "ls")["allowed"]
    assert answer(sandbox, policy, "./made")["allowed"]
    shutil.copy("/bin/sh", sandbox.tree.project / "copied")
    assert answer(sandbox, policy, "./copied status")["allowed"]
    shown = why(sandbox, policy, "./copied push")
    assert shown.exit_code == 1
    assert "because: rule 'no-push'" in shown.stdout


def test_a_rule_that_needs_the_parent_cannot_be_judged_beforehand(
    sandbox: SandboxRunner, policy: Path
) -> None:
    answered = answer(sandbox, policy, "cat x")
    assert (answered["action"], answered["cause"]) == ("deny", "error")
    assert "the parent is unknown" in answered["reason"]


def test_why_reports_a_program_that_file_rules_refuse(sandbox: SandboxRunner, policy: Path) -> None:
    outside = sandbox.tree.put(sandbox.tree.outside / "tool", "#!/bin/sh\n", mode=0o755)
    assert sandbox.tester.run([outside], cwd=sandbox.tree.project).exit_code == 0, (
        "it starts without the sandbox"
    )
    answered = answer(sandbox, policy, str(outside))
    assert not answered["allowed"]
    assert answered["files_refuse"] == "Permission denied" or answered["exe"] is None
    shown = why(sandbox, policy, "no-such-program")
    assert (shown.exit_code, "no directory in the command's PATH has it" in shown.stdout) == (
        1,
        True,
    )


def test_without_rules_the_files_alone_decide(sandbox: SandboxRunner) -> None:
    words: list[Word] = [sandbox.installation.paddock, "why", "--exec", "ls"]
    shown = sandbox.tester.run(words, cwd=sandbox.tree.project)
    assert (shown.exit_code, "there are no exec rules" in shown.stdout) == (0, True), shown


@pytest.mark.parametrize("command", ["", "ls; id", "a | b", "a > b", "'", "(a)", "a && b"])
def test_a_shell_is_not_asked_about(sandbox: SandboxRunner, policy: Path, command: str) -> None:
    shown = why(sandbox, policy, command)
    assert (shown.exit_code, shown.stdout) == (125, ""), shown


def test_a_quoted_operator_is_an_argument(sandbox: SandboxRunner, policy: Path) -> None:
    assert answer(sandbox, policy, "ls 'a;b' \"|\" \\;")["argv"] == ["ls", "a;b", "|", ";"]


def test_a_gate_is_explained_and_enforced(sandbox: SandboxRunner, policy: Path) -> None:
    paddock = sandbox.installation.paddock
    shown = sandbox.tester.run([paddock, "explain", "--policy", policy], cwd=sandbox.tree.project)
    assert shown.exit_code == 0, shown
    assert f"shell: exe = /bin/sh | /usr/bin/dash  {policy}:{line('shell')}" in shown.stdout
    assert "deny  every other program; deny if a rule cannot be checked" in shown.stdout
    marker = sandbox.tree.project / "ran"
    for more in ([], ["--dry-run"]):
        words: list[Word] = [paddock, "run", "--policy", policy, *more, "--", "touch", marker]
        run = sandbox.tester.run(words, cwd=sandbox.tree.project)
        assert run.exit_code == 126, run
        assert "denied: touch " in run.stderr
    assert not marker.exists()
    assert sandbox.tester.run(["touch", marker], cwd=sandbox.tree.project).exit_code == 0
    assert marker.exists()


AROUND = """
[meta]
inherit = "ai-agent"
default_action = "allow"

[filesystem]
exec_globs = ["<cwd>/bin"]

[[rule]]
id = "no-cat"
action = "deny"
exe_basename = "cat"
"""


@pytest.fixture(params=["landlock", "full"])
def around(sandbox: SandboxRunner, request: pytest.FixtureRequest) -> tuple[SandboxRunner, str]:
    """Files that the gate decides before it tries any rule."""
    tree, project = sandbox.tree, sandbox.tree.project
    bin_dir = tree.make(project / "bin")
    for name, text in {
        "script": "#!/bin/sh\necho ran\n",
        "nested": f"#!{bin_dir}/script\n",
        "by-loader": "#!LOADER /bin/cat\n",
        "text": "echo ran\n",
        "nobody": "#!/no/such/interpreter\n",
        "denied": "#!/bin/cat\n",
    }.items():
        tree.put(bin_dir / name, text.replace("LOADER", loader()), mode=0o755)
    for depth in range(7):
        inner = f"{bin_dir}/loop{depth + 1}" if depth < 6 else "/bin/sh"
        tree.put(bin_dir / f"loop{depth}", f"#!{inner}\necho ran\n", mode=0o755)
    shutil.copy("/bin/true", bin_dir / "shut")
    (bin_dir / "shut").chmod(0o111)
    (project / "link").symlink_to("/usr/bin/ldd")
    sandbox.tester.give(project)
    return sandbox, str(request.param)


def loader() -> str:
    names = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
    return next(name for name in names if Path(name).exists())


@pytest.mark.parametrize(
    ("command", "starts_outside"),
    [
        ("/bin/echo ran", True),
        ("bin/script", True),
        ("bin/nested", True),
        ("/usr/bin/ldd --version", True),
        ("bin/denied", True),
        ("LOADER /bin/echo ran", True),
        ("bin/by-loader", True),
        ("bin/shut", True),
        ("./link --version", True),
        ("/proc/self/root/bin/echo ran", True),
        ("bin/loop2", True),
        ("bin/loop1", False),
        ("bin/text", False),
        ("bin/nobody", False),
    ],
)
def test_why_gives_the_decision_of_the_gate(
    around: tuple[SandboxRunner, str], command: str, starts_outside: bool
) -> None:
    sandbox, tier = around
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", AROUND)
    command = command.replace("LOADER", loader())
    words: list[Word] = [*command.split(" ")]
    python: list[Word] = ["python3", "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"]
    assert (
        sandbox.tester.run([*python, *words], cwd=sandbox.tree.project).exit_code == 0
    ) is starts_outside
    run: list[Word] = [
        sandbox.installation.paddock,
        "run",
        "--tier",
        tier,
        "--policy",
        policy,
        "--",
        *words,
    ]
    ran = sandbox.tester.run(run, cwd=sandbox.tree.project)
    assert ran.exit_code in (0, 126, 127), ran
    answered = answer(sandbox, policy, command, "--tier", tier)
    assert answered["allowed"] is (ran.exit_code == 0), (answered, ran)
    rehearsed = sandbox.tester.run([*run[:2], "--dry-run", *run[2:]], cwd=sandbox.tree.project)
    assert rehearsed.exit_code == ran.exit_code, (rehearsed, ran)


def test_a_program_denied_before_the_rules_shows_the_reason(
    around: tuple[SandboxRunner, str],
) -> None:
    sandbox, tier = around
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", AROUND)
    for command, output in {
        f"{loader()} /bin/echo": "it is a loader",
        "bin/by-loader": "it is a loader",
        "bin/shut": "the file cannot be read",
        "./link": "through a path that the command can change",
        "/proc/self/root/bin/echo": "through a descriptor",
        "/proc/self/exe": "depends on the program that opens it",
    }.items():
        answered = answer(sandbox, policy, command, "--tier", tier)
        assert (answered["action"], answered["cause"], answered["rule"]) == (
            "deny",
            "unseen",
            None,
        ), answered
        assert output in answered["reason"], answered
    # A shell runs a file that is not a program.
    assert answer(sandbox, policy, "bin/text", "--tier", tier)["exe"] == os.path.realpath("/bin/sh")
