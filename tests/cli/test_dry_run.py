"""`run --dry-run` ends as the run would, says why in the same words, and does nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.fence import Fence, Word
from tests.support.test_tree import Snapshot
from tests.support.tester import Outcome

Case = Callable[[Fence], tuple[list[Word], list[Word]]]  # flags and command


def run(fence: Fence, flags: Sequence[Word], command: Sequence[Word]) -> Outcome:
    words: list[Word] = ["run", "--tier", fence.tier, *flags, "--", *command]
    return fence.tester.run([fence.installation.paddock, *words], cwd=fence.ground.project)


def a_program(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], ["true"]


def an_absent_program(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], ["no-such-command-here"]


def an_absent_path(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], ["./no/such/file"]


def a_file_without_its_bit(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], [fence.ground.put(fence.ground.project / "plain", "#!/bin/sh\n")]


def a_directory(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], [fence.ground.project]


def a_program_outside_every_grant(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], [fence.ground.put(fence.ground.outside / "tool", "#!/bin/sh\n", mode=0o755)]


def a_script_without_interpreter(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], [
        fence.ground.put(fence.ground.project / "script", "#!/nonexistent/sh -e\n", mode=0o755)
    ]


def a_script_for_the_shell(fence: Fence) -> tuple[list[Word], list[Word]]:
    return [], [fence.ground.put(fence.ground.project / "script", "exit 0\n", mode=0o755)]


def a_script_whose_interpreter_is_not_granted(fence: Fence) -> tuple[list[Word], list[Word]]:
    shell = fence.ground.put(fence.ground.outside / "shell", mode=0o755)
    shell.write_bytes(Path("/bin/sh").read_bytes())
    return [], [fence.ground.put(fence.ground.project / "script", f"#! {shell}\n", mode=0o755)]


def a_program_without_its_loader(fence: Fence) -> tuple[list[Word], list[Word]]:
    policy = fence.ground.put(
        fence.ground.root / "bare.toml",
        '[meta]\ninherit = "base"\n[filesystem]\nno_bootstrap_reads = true\n'
        'read_globs = ["/usr/bin/true"]\n',
    )
    return ["--policy", policy], ["/usr/bin/true"]


def a_path_that_is_set(fence: Fence) -> tuple[list[Word], list[Word]]:
    fence.ground.put(fence.ground.project / "tools" / "mine", "#!/bin/sh\n", mode=0o755)
    return ["--env", f"PATH=/nonexistent:{fence.ground.project}/tools"], ["mine"]


def a_path_without_it(fence: Fence) -> tuple[list[Word], list[Word]]:
    return ["--env", "PATH=/nonexistent"], ["true"]


def a_missing_working_directory(fence: Fence) -> tuple[list[Word], list[Word]]:
    return ["--workdir", fence.ground.project / "gone"], ["true"]


def a_closed_working_directory(fence: Fence) -> tuple[list[Word], list[Word]]:
    shut = fence.ground.make(fence.ground.project / "shut")
    shut.chmod(0o600)
    return ["--workdir", shut], ["true"]


def a_journal_in_a_missing_place(fence: Fence) -> tuple[list[Word], list[Word]]:
    return ["--audit-log", fence.ground.root / "no" / "where"], ["true"]


def a_journal_that_others_can_write(fence: Fence) -> tuple[list[Word], list[Word]]:
    assert fence.inside(["true"]).exit_code == 0
    (fence.journal / "head").chmod(0o666)
    return ["--audit-log", fence.journal], ["true"]


def a_missing_grant(fence: Fence) -> tuple[list[Word], list[Word]]:
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
def test_a_dry_run_ends_as_the_run_does(fence: Fence, case: Case, code: int) -> None:
    flags, command = case(fence)
    before = Snapshot.of(fence.ground.root)
    rehearsed = run(fence, ["--dry-run", *flags], command)
    assert Snapshot.of(fence.ground.root) == before
    ran = run(fence, flags, command)
    assert (rehearsed.exit_code, ran.exit_code) == (code, code), (rehearsed, ran)
    if case is not a_journal_that_others_can_write:  # the core names the one thing that is wrong
        assert rehearsed.stderr == ran.stderr.replace(" (os error 2)", "")
    assert (rehearsed.stdout != "") == (code != 125), (
        "a plan that can not be carried out is not shown"
    )


def test_the_answer_for_programs_tells_the_end(fence: Fence) -> None:
    good, bad = (
        json.loads(run(fence, ["--dry-run", "--json"], [name]).stdout)
        for name in ("true", "no-such-thing")
    )
    assert (good["exit_code"], good["refusal"]) == (None, None)
    assert (bad["exit_code"], bad["refusal"]) == (
        127,
        "cannot run no-such-thing: No such file or directory",
    )
    assert bad["plan"]["files"]["grants"] == good["plan"]["files"]["grants"]


def test_a_state_that_can_not_be_written_stops_both(fence: Fence) -> None:
    state = fence.tester.home / ".local" / "state" / "paddock"
    assert run(fence, [], ["true"]).exit_code == 0
    (state / "reach").unlink()
    state.chmod(0o500)
    try:
        outcomes = [run(fence, flags, ["true"]) for flags in (["--dry-run"], [])]
    finally:
        state.chmod(0o700)
    assert [one.exit_code for one in outcomes] == [125, 125], outcomes
    assert outcomes[0].stderr == outcomes[1].stderr
