"""Arguments of exec calls: any bytes, up to the limits of the kernel, and invalid ones. The gate
answers like the kernel, judges the program that the kernel would start, and continues.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.gate import Gate, rule


def allowed(gate: Gate, act: str, *before: str, after: tuple[str, ...] = ()) -> str:
    """The answer of the probe. It is the same without the gate."""
    words = gate.sandbox.probe(act, *before, gate.sandbox.programs.allowed, *after)
    control = gate.without(words).answer
    gate.ran()
    outcome = gate.inside(words, gate.forbidding)
    assert outcome.answer == control, str(outcome)
    return outcome.answer


@pytest.mark.parametrize(
    ("count", "length", "answer"),
    [
        (0, 0, "ok 0"),
        (10, 100_000, "ok 0"),
        (1, 131_071, "ok 0"),
        (1, 131_072, "E2BIG"),
        (60_000, 5, "ok 0"),
        (20, 130_000, "E2BIG"),
    ],
)
def test_arguments_are_taken_as_far_as_the_kernel_takes_them(
    gate: Gate, count: int, length: int, answer: str
) -> None:
    assert allowed(gate, "exec-large", after=(str(count), str(length))) == answer
    assert len(gate.ran()) == (answer == "ok 0")


def test_the_last_of_many_arguments_is_judged(gate: Gate) -> None:
    words = ["x" * 100_000] * 9 + ["y"] * 5000
    denied = rule("no-word", "deny", argv_contains="word")
    program = gate.sandbox.programs.allowed
    outcome = gate.inside(gate.sandbox.probe("exec", program, *words, "fine"), denied)
    assert (outcome.answer, len(gate.ran())) == ("ok 0", 1), outcome.stderr
    for before in (0, 4999):
        outcome = gate.inside(
            ["sh", "-c", 'exec "$@" "wor""d"', "sh", program, *words[:before]], denied
        )
        assert outcome.exit_code == 126, outcome.stderr[:500]
        assert gate.ran() == []


def test_bytes_that_are_no_text_are_judged_as_they_are(gate: Gate) -> None:
    program, odd = gate.sandbox.programs.allowed, b"\xff\xfe\n\x1b[31m \\"
    denied = rule(
        "no-byte", "deny", exe=str(program), argv_regex=r"(?-u)\xff\xfe\\n\\x1b\[31m\\x20\\\\$"
    )
    outcome = gate.inside([program, odd[:-1]], denied)
    assert outcome.exit_code == 0, str(outcome)
    assert gate.ran(), str(outcome)
    outcome = gate.inside([program, odd], denied)
    assert outcome.exit_code == 126, str(outcome)
    assert gate.ran() == []
    assert "\x1b" not in outcome.stderr
    argv = gate.execs()[-1]["argv"]
    assert isinstance(argv, list)


@pytest.mark.parametrize("what", ["path", "argv", "string", "end"])
def test_invalid_pointers_return_efault_to_the_caller(gate: Gate, what: str) -> None:
    assert allowed(gate, "exec-wrong", what) == "EFAULT"
    assert gate.ran() == []


@pytest.mark.parametrize("act", ["exec-no-argv", "exec-empty-argv"])
def test_an_empty_argument_list_becomes_one_empty_argument(gate: Gate, act: str) -> None:
    assert allowed(gate, act) == "ok 0"
    assert gate.ran() == ["allowed"]
    empty = rule("no-name", "deny", exe=str(gate.sandbox.programs.allowed), argv_regex="^$")
    assert (
        gate.inside(gate.sandbox.probe(act, gate.sandbox.programs.allowed), empty).answer
        == "EACCES"
    )
    assert gate.ran() == []


@pytest.mark.parametrize(("length", "answer"), [(4095, "ok 0"), (4096, "ENAMETOOLONG")])
def test_paths_are_taken_as_long_as_the_kernel_takes_them(
    gate: Gate, length: int, answer: str
) -> None:
    assert allowed(gate, "exec-long-path", after=(str(length),)) == answer
    outcome = gate.inside(
        gate.sandbox.probe("exec-long-path", gate.sandbox.programs.forbidden, str(length)),
        gate.forbidding,
    )
    assert outcome.answer == ("EACCES" if answer == "ok 0" else answer), str(outcome)
    assert "forbidden" not in "".join(gate.ran())


def test_in_a_directory_that_is_gone_programs_are_judged(gate: Gate) -> None:
    programs = gate.sandbox.programs
    for program, answer in ((programs.allowed, "ok 9"), (programs.forbidden, "EACCES")):
        gone = gate.sandbox.tree.make(gate.project / "gone")
        # The program runs, but has no directory to write its line to.
        outcome = gate.inside(gate.sandbox.probe("exec-removed", gone, program), gate.forbidding)
        assert outcome.answer == answer, str(outcome)
        assert not gone.exists()
    gone = gate.sandbox.tree.make(gate.project / "gone")
    outcome = gate.inside(gate.sandbox.probe("exec-removed", gone, "../x"), gate.forbidding)
    assert outcome.answer in ("ENOENT", "EACCES"), str(outcome)


def test_a_program_that_can_be_executed_and_not_read_is_refused(gate: Gate) -> None:
    hidden = gate.project / "hidden"
    hidden.write_bytes(gate.sandbox.programs.allowed.read_bytes())
    hidden.chmod(0o111)
    if os.getuid() == 0:
        os.chown(hidden, 0, 0)
    rules = (gate.forbidding, rule("own", "allow", exe_glob=f"{gate.project}/*"))
    # Outside: in the landlock tier init can not read the memory of such a program, so its writes
    # fail.
    control = gate.sandbox.outside(gate.sandbox.probe("exec", hidden, "x"), cwd=gate.project)
    assert gate.ran() == ["allowed x"], str(control)
    assert gate.without(gate.sandbox.probe("exec", hidden, "x")).answer.startswith("ok ")
    gate.ran()
    outcome = gate.inside(gate.sandbox.probe("exec", hidden, "x"), *rules)
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []
    assert "the file cannot be read" in outcome.stderr, str(outcome)


def test_a_file_that_is_no_program_is_not_started(gate: Gate) -> None:
    """A shell runs a text without an interpreter line. No program runs a directory, a device or a
    broken binary.
    """
    project = gate.project
    own = rule("own", "allow", exe_glob=f"{project}/*")
    gate.sandbox.tree.put(project / "text", "echo from-a-shell\n", mode=0o755)
    gate.sandbox.tree.put(project / "plain", "text\n")
    (project / "broken").write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 200)
    (project / "broken").chmod(0o755)
    for path, answer in (
        ("./text", "ENOEXEC"), ("./broken", "ENOEXEC"), ("./plain", "EACCES"), (".", "EACCES"),
        ("/dev/null", "EACCES"), ("./none", "ENOENT"), ("./plain/x", "ENOTDIR"), ("", "ENOENT"),
    ):  # fmt: skip
        assert gate.without(gate.sandbox.probe("exec", path)).answer == answer, path
        outcome = gate.inside(gate.sandbox.probe("exec", path), own)
        # A file without the execute bit is no program either. The gate checks that first.
        assert outcome.answer in (answer, "ENOEXEC" if path == "./plain" else answer), (
            f"{path}: {outcome}"
        )
    assert gate.shell("./text", own).stdout == "from-a-shell\n"


def test_scripts_are_nested_as_deep_as_the_kernel_nests_them(gate: Gate) -> None:
    programs, project = gate.sandbox.programs, gate.project
    own = rule("own", "allow", exe_glob=f"{project}/*")

    def nest(levels: int, last: Path) -> None:
        for level in range(levels):
            following = project / f"n{level + 1}" if level + 1 < levels else last
            gate.sandbox.tree.put(project / f"n{level}", f"#!{following}\n", mode=0o755)

    for levels, answer in ((1, "ok 0"), (5, "ok 0"), (6, "ELOOP")):
        nest(levels, programs.allowed)
        assert gate.without(gate.sandbox.probe("exec", "./n0")).answer == answer
        left = gate.ran()
        outcome = gate.inside(gate.sandbox.probe("exec", "./n0"), gate.forbidding, own)
        assert outcome.answer == answer, str(outcome)
        assert gate.ran() == left
    nest(5, programs.forbidden)
    assert gate.inside(gate.sandbox.probe("exec", "./n0"), gate.forbidding, own).answer == "EACCES"
    assert gate.ran() == []


def test_an_event_of_a_script_names_the_interpreter(gate: Gate) -> None:
    """F-042"""
    programs, project = gate.sandbox.programs, gate.project
    own = rule("own", "allow", exe_glob=f"{project}/*")
    for name, program in (("runs", programs.allowed), ("stays", programs.forbidden)):
        gate.sandbox.tree.put(project / name, f"#!{program}\n", mode=0o755)
    outcome = gate.shell("./runs; ./stays; :", gate.forbidding, own)
    assert gate.ran() == ["allowed ./runs"], str(outcome)
    found = {
        Path(str(event["exe"])).name: (event["interpreter"], event["action"])
        for event in gate.execs()
    }
    assert found["runs"] == (str(programs.allowed), "allow")
    assert found["stays"] == (str(programs.forbidden), "deny")
    (shell,) = {one for one in found if one not in ("runs", "stays")}
    assert found[shell] == (None, "allow"), "a program has no interpreter"


def test_relative_paths_begin_where_the_caller_stands(gate: Gate) -> None:
    programs = gate.sandbox.programs
    sub = gate.sandbox.tree.make(gate.project / "sub")
    for name, program in (("a", programs.allowed), ("f", programs.forbidden)):
        (sub / name).symlink_to(program)
    outcome = gate.shell(
        "cd sub && ./a x; ../sub/a y; ./f; ../sub/../sub/f; cd .. && sub/f; ./sub/a z",
        gate.forbidding,
    )
    assert gate.ran(sub) == ["allowed x", "allowed y"], str(outcome)
    assert gate.ran() == ["allowed z"], str(outcome)


def test_random_exec_calls_do_not_end_the_supervisor(gate: Gate) -> None:
    """Calls with random addresses, descriptors and flags, then a valid call and a denied call."""
    programs = gate.sandbox.programs
    noise = f"{programs.probe} exec-noise %d 1500"
    for seed in (1, 20261115):
        text = (
            f"{noise % seed}; {programs.allowed} after; {programs.forbidden} after; echo status $?"
        )
        outcome = gate.shell(text, gate.forbidding)
        assert gate.ran() == ["allowed after"], str(outcome)
        lines = outcome.stdout.splitlines()
        assert lines[0] == "started", str(outcome)
        assert lines[1] == "ok 0 killed", str(outcome)
        assert lines[2] == "status 126", str(outcome)
