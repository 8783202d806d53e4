"""`run --dry-run` ends like the run, with the same message, and changes nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import Snapshot

Case = Callable[[SandboxRunner], tuple[list[Word], list[Word]]]  # flags and command


def run(sandbox: SandboxRunner, flags: Sequence[Word], command: Sequence[Word]) -> Outcome:
    words: list[Word] = ["run", "--tier", sandbox.tier, *flags, "--", *command]
    return sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)


def a_program(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], ["true"]


def an_absent_program(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], ["no-such-command-here"]


def an_absent_path(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], ["./no/such/file"]


def a_file_without_its_bit(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], [sandbox.tree.put(sandbox.tree.project / "plain", "#!/bin/sh\n")]


def a_directory(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], [sandbox.tree.project]


def a_program_outside_every_grant(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], [sandbox.tree.put(sandbox.tree.outside / "tool", "#!/bin/sh\n", mode=0o755)]


def a_script_without_interpreter(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], [
        sandbox.tree.put(sandbox.tree.project / "script", "#!/nonexistent/sh -e\n", mode=0o755)
    ]


def a_script_for_the_shell(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return [], [sandbox.tree.put(sandbox.tree.project / "script", "exit 0\n", mode=0o755)]


def a_script_whose_interpreter_is_not_granted(
    sandbox: SandboxRunner,
) -> tuple[list[Word], list[Word]]:
    shell = sandbox.tree.put(sandbox.tree.outside / "shell", mode=0o755)
    shell.write_bytes(Path("/bin/sh").read_bytes())
    return [], [sandbox.tree.put(sandbox.tree.project / "script", f"#! {shell}\n", mode=0o755)]


def a_program_without_its_loader(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    policy = sandbox.tree.put(
        sandbox.tree.root / "bare.toml",
        '[meta]\ninherit = "base"\n[filesystem]\nno_bootstrap_reads = true\n'
        'read_globs = ["/usr/bin/true"]\n',
    )
    return ["--policy", policy], ["/usr/bin/true"]


def a_path_that_is_set(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    sandbox.tree.put(sandbox.tree.project / "tools" / "mine", "#!/bin/sh\n", mode=0o755)
    return ["--env", f"PATH=/nonexistent:{sandbox.tree.project}/tools"], ["mine"]


def a_path_without_it(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return ["--env", "PATH=/nonexistent"], ["true"]


def a_missing_working_directory(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return ["--workdir", sandbox.tree.project / "gone"], ["true"]


def a_closed_working_directory(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    shut = sandbox.tree.make(sandbox.tree.project / "shut")
    shut.chmod(0o600)
    return ["--workdir", shut], ["true"]


def a_journal_in_a_missing_place(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return ["--audit-log", sandbox.tree.root / "no" / "where"], ["true"]


def a_journal_that_others_can_write(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    assert sandbox.inside(["true"]).exit_code == 0
    (sandbox.journal / "head").chmod(0o666)
    return ["--audit-log", sandbox.journal], ["true"]


def a_missing_grant(sandbox: SandboxRunner) -> tuple[list[Word], list[Word]]:
    return ["--profile", "ai-agent", "--read", "/srv/nowhere"], ["true"]


@pytest.mark.parametrize(
    ("case", "code"),
    [
        (a_program, 0),
        (a_script_for_the_shell, 0),
        (a_path_that_is_set, 0),
        (an_absent_program, 127),
        (an_absent_path, 127),
        (a_path_without_it, 127),
        (a_script_without_interpreter, 127),
        (a_file_without_its_bit, 126),
        (a_directory, 126),
        (a_program_outside_every_grant, 126),
        (a_script_whose_interpreter_is_not_granted, 126),
        (a_program_without_its_loader, 126),
        (a_missing_working_directory, 125),
        (a_closed_working_directory, 125),
        (a_journal_in_a_missing_place, 125),
        (a_journal_that_others_can_write, 125),
        (a_missing_grant, 125),
    ],
)
def test_a_dry_run_ends_as_the_run_does(sandbox: SandboxRunner, case: Case, code: int) -> None:
    flags, command = case(sandbox)
    before = Snapshot.of(sandbox.tree.root)
    rehearsed = run(sandbox, ["--dry-run", *flags], command)
    assert Snapshot.of(sandbox.tree.root) == before
    ran = run(sandbox, flags, command)
    assert (rehearsed.exit_code, ran.exit_code) == (code, code), (rehearsed, ran)
    if case is not a_journal_that_others_can_write:  # here the core prints its own message
        assert rehearsed.stderr == ran.stderr.replace(" (os error 2)", "")
    assert (rehearsed.stdout != "") == (code != 125), "a plan that cannot be applied is not shown"


def test_json_dry_run_has_the_exit_code_and_the_refusal(sandbox: SandboxRunner) -> None:
    good, bad = (
        json.loads(run(sandbox, ["--dry-run", "--json"], [name]).stdout)
        for name in ("true", "no-such-thing")
    )
    assert (good["exit_code"], good["refusal"]) == (None, None)
    assert (bad["exit_code"], bad["refusal"]) == (
        127,
        "cannot run no-such-thing: No such file or directory",
    )
    assert bad["plan"]["files"]["grants"] == good["plan"]["files"]["grants"]


def test_an_unwritable_state_directory_stops_run_and_dry_run(sandbox: SandboxRunner) -> None:
    state = sandbox.tester.home / ".local" / "state" / "paddock"
    assert run(sandbox, [], ["true"]).exit_code == 0
    (state / "reach").unlink()
    state.chmod(0o500)
    try:
        outcomes = [run(sandbox, flags, ["true"]) for flags in (["--dry-run"], [])]
    finally:
        state.chmod(0o700)
    assert [one.exit_code for one in outcomes] == [125, 125], outcomes
    assert outcomes[0].stderr == outcomes[1].stderr


@pytest.mark.parametrize(("tier", "more"), [("full", False), ("landlock", True)])
def test_the_readme_counts_the_calls_that_each_tier_blocks(
    sandbox: SandboxRunner, tier: str, more: bool
) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the README counts the calls of x86_64")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    found = re.search(r"(\d+) risky system calls are blocked\..*?(\d+) more are blocked", readme)
    assert found
    count = int(found[1]) + (int(found[2]) if more else 0)
    words = ["run", "--tier", tier, "--profile", "ai-agent", "--dry-run", "--", "true"]
    shown = sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)
    assert f"system calls {count} blocked: " in shown.stdout, shown
