"""`paddock why --exec`: the gate's own answer for one program, with the line that gave it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.fence import Fence, Word
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
def policy(fence: Fence) -> Path:
    return fence.ground.put(fence.ground.root / "p.toml", POLICY.replace("DEFAULT", "deny"))


def why(fence: Fence, policy: Path, command: str, *more: Word) -> Outcome:
    words: list[Word] = [
        fence.installation.paddock,
        "why",
        "--policy",
        policy,
        "--exec",
        command,
        *more,
    ]
    outcome = fence.tester.run(words, cwd=fence.ground.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def answer(fence: Fence, policy: Path, command: str, *more: Word) -> dict[str, Any]:
    outcome = why(fence, policy, command, "--json", *more)
    answered: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == (0 if answered["allowed"] else 1)
    return answered


def line(rule: str) -> int:
    """The rule begins one line before its id."""
    return POLICY.split("\n").index(f'id = "{rule}"')


def test_the_first_rule_that_matches_is_named_with_its_line_and_reason(
    fence: Fence, policy: Path
) -> None:
    shown = why(fence, policy, "sh -c push push")
    assert shown.exit_code == 1
    assert shown.stdout.startswith("denied: sh -c push push (/usr/bin/")
    assert f"because: rule 'no-push' ({policy}:{line('no-push')})" in shown.stdout
    assert "reason:  leaves the machine" in shown.stdout
    shown = why(fence, policy, "sh -c true")
    assert (shown.exit_code, shown.stdout.partition(":")[0]) == (0, "allowed"), shown
    assert f"because: rule 'shell' ({policy}:{line('shell')})" in shown.stdout


def test_a_person_would_be_asked(fence: Fence, policy: Path) -> None:
    shown = why(fence, policy, "env")
    assert (shown.exit_code, shown.stdout.partition(":")[0]) == (1, "asked about")
    assert answer(fence, policy, "env")["action"] == "ask"


def test_a_call_without_a_rule_gets_the_default(fence: Fence, policy: Path) -> None:
    answered = answer(fence, policy, "ls -l")
    assert (answered["action"], answered["cause"], answered["rule"]) == ("deny", "default", None)
    assert answered["exe"].endswith("/ls")


def test_the_directory_counts(fence: Fence, policy: Path) -> None:
    fence.ground.make(fence.ground.project / "sub")
    assert not answer(fence, policy, "true")["allowed"]
    assert answer(fence, policy, "true", "--cwd", "sub")["rule"]["id"] == "here"


def test_a_script_brings_its_interpreter_along(fence: Fence, policy: Path) -> None:
    fence.ground.make(fence.ground.project / "bin")
    fence.ground.put(fence.ground.project / "bin" / "run", "#!/bin/sh\n", mode=0o755)
    answered = answer(fence, policy, "./bin/run push")
    # The script's place is allowed, but a rule before that denies a shell with that argument.
    assert (answered["allowed"], answered["rule"]["id"]) == (False, "no-push")
    assert answered["interpreters"] != []
    assert answer(fence, policy, "./bin/run")["rule"]["id"] == "tool"


def test_a_program_that_the_command_could_write_is_not_allowed_by_default(fence: Fence) -> None:
    policy = fence.ground.put(fence.ground.root / "p.toml", POLICY.replace("DEFAULT", "allow"))
    fence.ground.put(fence.ground.project / "made", "#!/bin/true\n", mode=0o755)
    assert answer(fence, policy, "ls")["allowed"]
    shown = why(fence, policy, "./made")
    assert shown.exit_code == 1
    assert "the command could have created" in shown.stdout
    assert "exec_globs" in shown.stdout
    assert answer(fence, policy, "./made", "-x", "<cwd>/made")["allowed"]


def test_a_rule_that_needs_the_parent_can_not_be_judged_beforehand(
    fence: Fence, policy: Path
) -> None:
    answered = answer(fence, policy, "cat x")
    assert (answered["action"], answered["cause"]) == ("deny", "error")
    assert "the parent is unknown" in answered["reason"]


def test_the_files_have_their_say_too(fence: Fence, policy: Path) -> None:
    outside = fence.ground.put(fence.ground.outside / "tool", "#!/bin/sh\n", mode=0o755)
    assert fence.tester.run([outside], cwd=fence.ground.project).exit_code == 0, (
        "it starts without the fence"
    )
    answered = answer(fence, policy, str(outside))
    assert not answered["allowed"]
    assert answered["files_refuse"] == "Permission denied" or answered["exe"] is None
    shown = why(fence, policy, "no-such-program")
    assert (shown.exit_code, "no directory in the command's PATH has it" in shown.stdout) == (
        1,
        True,
    )


def test_without_rules_the_files_alone_decide(fence: Fence) -> None:
    words: list[Word] = [fence.installation.paddock, "why", "--exec", "ls"]
    shown = fence.tester.run(words, cwd=fence.ground.project)
    assert (shown.exit_code, "there are no exec rules" in shown.stdout) == (0, True), shown


@pytest.mark.parametrize("command", ["", "ls; id", "a | b", "a > b", "'", "(a)", "a && b"])
def test_a_shell_is_not_asked_about(fence: Fence, policy: Path, command: str) -> None:
    shown = why(fence, policy, command)
    assert (shown.exit_code, shown.stdout) == (125, ""), shown


def test_a_quoted_operator_is_an_argument(fence: Fence, policy: Path) -> None:
    assert answer(fence, policy, "ls 'a;b' \"|\" \\;")["argv"] == ["ls", "a;b", "|", ";"]


def test_a_gate_is_explained_and_held(fence: Fence, policy: Path) -> None:
    paddock = fence.installation.paddock
    shown = fence.tester.run([paddock, "explain", "--policy", policy], cwd=fence.ground.project)
    assert shown.exit_code == 0, shown
    assert f"shell: exe = /bin/sh | /usr/bin/dash  {policy}:{line('shell')}" in shown.stdout
    assert "deny  every other program; deny if a rule cannot be checked" in shown.stdout
    marker = fence.ground.project / "ran"
    for more in ([], ["--dry-run"]):
        words: list[Word] = [paddock, "run", "--policy", policy, *more, "--", "touch", marker]
        run = fence.tester.run(words, cwd=fence.ground.project)
        assert run.exit_code == 126, run
        assert "denied: touch " in run.stderr
    assert not marker.exists()
    assert fence.tester.run(["touch", marker], cwd=fence.ground.project).exit_code == 0
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
def around(fence: Fence, request: pytest.FixtureRequest) -> tuple[Fence, str]:
    """Files that a gate lets through or not before any rule is asked."""
    ground, project = fence.ground, fence.ground.project
    bin_dir = ground.make(project / "bin")
    for name, text in {
        "script": "#!/bin/sh\necho ran\n",
        "nested": f"#!{bin_dir}/script\n",
        "by-loader": "#!LOADER /bin/cat\n",
        "text": "echo ran\n",
        "nobody": "#!/no/such/interpreter\n",
        "denied": "#!/bin/cat\n",
    }.items():
        ground.put(bin_dir / name, text.replace("LOADER", loader()), mode=0o755)
    for depth in range(7):
        inner = f"{bin_dir}/loop{depth + 1}" if depth < 6 else "/bin/sh"
        ground.put(bin_dir / f"loop{depth}", f"#!{inner}\necho ran\n", mode=0o755)
    shutil.copy("/bin/true", bin_dir / "shut")
    (bin_dir / "shut").chmod(0o111)
    (project / "link").symlink_to("/usr/bin/ldd")
    fence.tester.give(project)
    return fence, str(request.param)


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
def test_the_answer_is_what_the_gate_does(
    around: tuple[Fence, str], command: str, starts_outside: bool
) -> None:
    fence, tier = around
    policy = fence.ground.put(fence.ground.root / "p.toml", AROUND)
    command = command.replace("LOADER", loader())
    words: list[Word] = [*command.split(" ")]
    python: list[Word] = ["python3", "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"]
    assert (
        fence.tester.run([*python, *words], cwd=fence.ground.project).exit_code == 0
    ) is starts_outside
    run: list[Word] = [
        fence.installation.paddock,
        "run",
        "--tier",
        tier,
        "--policy",
        policy,
        "--",
        *words,
    ]
    ran = fence.tester.run(run, cwd=fence.ground.project)
    assert ran.exit_code in (0, 126, 127), ran
    answered = answer(fence, policy, command, "--tier", tier)
    assert answered["allowed"] is (ran.exit_code == 0), (answered, ran)
    rehearsed = fence.tester.run([*run[:2], "--dry-run", *run[2:]], cwd=fence.ground.project)
    assert rehearsed.exit_code == ran.exit_code, (rehearsed, ran)


def test_what_no_rule_is_asked_about_says_why(around: tuple[Fence, str]) -> None:
    fence, tier = around
    policy = fence.ground.put(fence.ground.root / "p.toml", AROUND)
    for command, said in {
        f"{loader()} /bin/echo": "it is a loader",
        "bin/by-loader": "it is a loader",
        "bin/shut": "the file cannot be read",
        "./link": "through a path that the command can change",
        "/proc/self/root/bin/echo": "through a descriptor",
        "/proc/self/exe": "depends on the program that opens it",
    }.items():
        answered = answer(fence, policy, command, "--tier", tier)
        assert (answered["action"], answered["cause"], answered["rule"]) == (
            "deny",
            "unseen",
            None,
        ), answered
        assert said in answered["reason"], answered
    # What is no program is read by a shell.
    assert answer(fence, policy, "bin/text", "--tier", tier)["exe"] == os.path.realpath("/bin/sh")
