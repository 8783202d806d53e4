"""The environment is built from nothing. Only named variables pass."""

from __future__ import annotations

import pytest

from tests.support.sandbox import SandboxRunner

LOADER = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "DYLD_INSERT_LIBRARIES",
    "DYLD_LIBRARY_PATH",
    "_JAVA_OPTIONS",
    "JAVA_TOOL_OPTIONS",
]
STEERING = [
    "BASH_ENV",
    "ENV",
    "PROMPT_COMMAND",
    "PYTHONSTARTUP",
    "PYTHONPATH",
    "NODE_OPTIONS",
    "PERL5OPT",
    "RUBYOPT",
    "GIT_SSH_COMMAND",
    "GCONV_PATH",
]
SECRETS = [
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "OPENAI_API_KEY",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
]


def names(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize("name", [*LOADER, *STEERING, *SECRETS])
def test_a_dangerous_variable_does_not_come_in(sandbox: SandboxRunner, name: str) -> None:
    """C-046, C-047."""
    value = "/nonexistent/x" if name.startswith("LD_") else "leaked"
    inside = sandbox.inside(["/usr/bin/env"], env={name: value})
    assert inside.exit_code == 0, str(inside)
    assert name not in names(inside.stdout), str(inside)
    assert names(sandbox.outside(["/usr/bin/env"], env={name: value}).stdout)[name] == value


def test_variables_that_programs_need_are_passed(sandbox: SandboxRunner) -> None:
    """C-047: PATH HOME TERM LANG LC_* USER SHELL TZ."""
    given = {"TERM": "xterm", "LC_TIME": "C", "TZ": "UTC", "LANG": "C.UTF-8"}
    seen = names(sandbox.inside(["/usr/bin/env"], env=given).stdout)
    assert seen.items() >= given.items()
    assert seen["HOME"] == str(sandbox.tester.home)
    assert seen["USER"] == sandbox.tester.name
    assert seen["PATH"]


def test_a_variable_comes_in_when_it_is_named(sandbox: SandboxRunner) -> None:
    env = {"AWS_SECRET_ACCESS_KEY": "x", "MY_SETTING": "y"}
    flags = (
        "--env-pass",
        "AWS_SECRET_ACCESS_KEY",
        "--env-pass",
        "MY_SETTING",
        "--env",
        "ADDED=a=b",
    )
    seen = names(sandbox.inside(["/usr/bin/env"], *flags, env=env).stdout)
    assert (seen["AWS_SECRET_ACCESS_KEY"], seen["MY_SETTING"], seen["ADDED"]) == ("x", "y", "a=b")
    assert "MY_SETTING" not in names(sandbox.inside(["/usr/bin/env"], env=env).stdout)


def test_process_environ_holds_no_removed_variable(sandbox: SandboxRunner) -> None:
    """/proc/self/environ is the environment of the exec call."""
    outcome = sandbox.inside(
        ["cat", "/proc/self/environ"], env={"GITHUB_TOKEN": "leaked", "FOO": "leaked"}
    )
    assert outcome.exit_code == 0
    assert outcome.stdout
    assert "leaked" not in outcome.stdout


def test_a_preload_library_never_runs_inside(sandbox: SandboxRunner) -> None:
    """C-046: the library prints the program that loaded it. The sandbox may read the library."""
    env = {"LD_PRELOAD": str(sandbox.programs.preload)}
    assert "preloaded into true" in sandbox.outside(["true"], env=env).stderr
    inside = sandbox.inside(["sh", "-c", "echo started; /bin/true"], env=env)
    assert inside.started
    assert "preloaded into true" not in inside.stderr, str(inside)
    assert "preloaded into sh" not in inside.stderr, str(inside)


def test_off_env_passes_the_environment_unchanged(sandbox: SandboxRunner) -> None:
    """C-048."""
    outcome = sandbox.inside(
        ["/usr/bin/env"], "--off", "env-sanitize", env={"FOO": "kept", "LD_AUDIT": ""}
    )
    assert names(outcome.stdout)["FOO"] == "kept"
    assert "env-sanitize" in outcome.stderr


def test_bytes_that_are_not_text_pass_unchanged(sandbox: SandboxRunner) -> None:
    value = b"a\xff\xfeb".decode("utf-8", "surrogateescape")
    outcome = sandbox.inside(["/usr/bin/env"], "--env-pass", "ODD", env={"ODD": value})
    assert names(outcome.stdout)["ODD"] == value


def test_empty_and_strange_variable_names_are_harmless(sandbox: SandboxRunner) -> None:
    odd = {"A B": "1", "x=y"[:1]: "", "BASH_FUNC_ls%%": "() { echo evil; }"}
    outcome = sandbox.inside(["bash", "-c", "echo started; ls own.txt"], env=odd)
    assert outcome.answer == "own.txt", str(outcome)
