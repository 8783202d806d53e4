"""Compares the judge's reading of a line with the programs that real shells start for it."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from paddock.executors.interface import shell_words
from paddock.policy.model import Action
from paddock.shell.denied_commands import read
from paddock.shell.dialect import Dialect
from paddock.tools.policy.calls import ToolCall
from paddock.tools.policy.tool_policy import ToolPolicy, _doubts
from tests.support.features import need_program

PROGRAMS = (
    "p0",
    "p1",
    "p2",
    "p3",
    "]",
    "[[",
    "((p1))",
    "function",
    "{p1,p2}",
    "p1,p2",
    "time",
    "source",
    "select",
)
SHELLS = [("bash", Dialect.BASH), ("dash", Dialect.SH)]
LINES = 400


def policy(dialect: Dialect = Dialect.BASH) -> ToolPolicy:
    denied = ["evilprog"]
    return ToolPolicy(
        cwd="/w",
        home="/h",
        require_approval_for_execute=False,
        writes_confined=True,
        denied_commands=denied,
    ).confined(True, dialect)


def action(line: str, dialect: Dialect = Dialect.BASH) -> Action:
    return policy(dialect).check(ToolCall(name="bash", arguments={"command": line})).action


@pytest.mark.parametrize(
    "line",
    [
        "[ a || bin/evilprog ]",
        "[ a && evilprog ]",
        "[ a | evilprog ]",
        "[ a &\nevilprog ]",
        "[ a\nevilprog ]",
    ],
)
def test_an_operator_in_a_test_command_starts_the_program_behind_it(line: str) -> None:
    """``[`` is a program. Its command ends at the operator in every shell."""
    assert action(line) is Action.DENY


@pytest.mark.parametrize(
    "line", ['[ "$a" = b ]', "[ ! -e x ] || ls", "[ -n '|' ]", '[ "$(ls | wc -l)" -gt 3 ] && ls']
)
def test_a_plain_test_command_is_read(line: str) -> None:
    assert action(line) is Action.ALLOW
    assert action(line, Dialect.SH) is Action.ALLOW


@pytest.mark.parametrize("line", ["[[ a || bin/evilprog ]]", "sh -c '[[ a || bin/evilprog ]]'"])
def test_a_line_that_dash_reads_as_a_denied_program_is_denied_for_dash(line: str) -> None:
    assert action(line, Dialect.SH) is Action.DENY
    assert action("[[ a || bin/evilprog ]]") is Action.ALLOW, "the control: bash compares two words"


BASHISMS = (
    "a=(1 2); echo ${a[1]}", "[[ a == b ]]", "ls |& cat", "diff <(ls) <(ls)", "((reboot))",
    "echo $'a'", "cat <<<x", "ls &>x", "function f { ls; }", "echo {a,b}", "for ((;;)) do ls; done",
    "echo ${a//b/c}", "echo ${a:1:2}", "x+=1", "select x in a; do ls; done", "echo $[1]",
)  # fmt: skip


@pytest.mark.parametrize("line", BASHISMS)
def test_a_bash_only_construct_is_not_allowed_for_sh(line: str) -> None:
    assert action(line) is Action.ALLOW, "the control: bash runs it as it is judged"
    assert action(line, Dialect.SH) is not Action.ALLOW


@pytest.mark.parametrize(
    "line",
    ["x='a[$(evilprog)]'; ((x))", "test -v 'a[$(evilprog)]'", "[[ -v 'a[$(evilprog)]' ]]",
     "mapfile -C evilprog -c 1",
     "compgen -C evilprog", r"x=a\[\$\(evilprog\)\]; echo $((x))"],
)  # fmt: skip
def test_a_command_inside_a_quoted_word_is_not_allowed_silently(line: str) -> None:
    assert action(line) is not Action.ALLOW


def test_tool_description_names_the_shell() -> None:
    assert "Run a bash command line" in policy().spec("bash").description
    assert "Bash is not available" in policy(Dialect.SH).spec("bash").description


@pytest.mark.parametrize(("shell", "dialect"), SHELLS, ids=[name for name, _ in SHELLS])
def test_no_program_runs_that_the_judge_did_not_list(
    shell: str, dialect: Dialect, tmp_path: Path
) -> None:
    """Random lines with a fixed seed. The real shell runs them with a PATH of programs that only
    print their name.
    """
    path = need_program(shell)
    trip, log = tmp_path / "trip", tmp_path / "log"
    trip.mkdir()
    for name in PROGRAMS:
        program = trip / name
        program.write_text(
            f"#!/bin/sh\necho '{name}' >>{log}\ncase '{name}' in p1|p3) exit 1;; esac\n"
        )
        program.chmod(0o755)
    chance = random.Random(20)
    readable = ran = 0
    for _ in range(LINES):
        line = _line(chance, 3)
        reading = read(line, cwd=str(tmp_path), home="/dev/null/nowhere", dialect=dialect)
        if any(_doubts(reading)):
            continue  # a person is asked
        assert reading.line is not None
        readable += 1
        log.write_text("")
        environment = {
            "PATH": str(trip),
            "HOME": "/dev/null/nowhere",
            "BASH_ENV": str(trip / "p3"),
            "BASH_FUNC_p0%%": "() { p3; }",
        }
        subprocess.run(
            [*shell_words(path), line], env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=120,
        )  # fmt: skip
        started = set(log.read_text().split("\n")) - {""}
        listed = {
            os.path.basename(word)
            for command in reading.line.commands
            for word in command.words[:1]
        }
        ran += len(started)
        assert started <= listed, f"{line!r}: {started - listed} ran, and the judge saw {listed}"
    assert readable > LINES // 10
    assert ran > LINES // 10, "the control: programs were really started"


def test_the_environment_does_not_change_the_meaning_of_a_line(tmp_path: Path) -> None:
    startup = tmp_path / "startup"
    startup.write_text("echo startup\nls() { echo function; }\n")
    environment = {
        "PATH": "/usr/bin:/bin",
        "BASH_ENV": str(startup),
        "BASH_FUNC_ls%%": "() { echo exported; }",
    }
    line = f"ls {startup}"
    plain = subprocess.run(
        ["/bin/bash", "-c", line], env=environment, capture_output=True, text=True
    )
    assert plain.stdout == "startup\nfunction\n", "the control: bash without these options"
    ours = subprocess.run(
        [*shell_words("/bin/bash"), line], env=environment, capture_output=True, text=True
    )
    assert ours.stdout == f"{startup}\n"


def _line(chance: random.Random, depth: int) -> str:
    def part() -> str:
        return _line(chance, depth - 1)

    def word() -> str:
        return chance.choice(
            [
                "p0",
                "p1",
                "p2",
                "a",
                "$x",
                '"b c"',
                "'d'",
                "-n",
                "=",
                "!",
                "e\\f",
                "x=1",
                "{p1,p2}",
                "*",
            ]
        )

    simple = f"{chance.choice(['p0', 'p1', 'p2', 'p3'])} {word()}"
    if depth == 0:
        return chance.choice(
            [simple, simple, f"x={word()}", f"x=1 {simple}", f"{simple} >out", f"[ {word()} ]"]
        )
    forms = [
        lambda: f"{part()} || {part()}", lambda: f"{part()} && {part()}",
        lambda: f"{part()} | {part()}", lambda: f"{part()}; {part()}", lambda: f"( {part()} )",
        lambda: f"({part()})", lambda: f"{{ {part()}; }}", lambda: f"! {part()}",
        lambda: f"if {part()}; then {part()}; else {part()}; fi",
        lambda: f"while {part()}; do {part()}; break; done",
        lambda: f"for x in {word()} {word()}; do {part()}; done",
        lambda: f"case {word()} in a) {part()};; *) {part()};; esac",
        lambda: f"f() {{ {part()}; }}; f", lambda: f"p0 $({part()})", lambda: f'p0 "$({part()})"',
        lambda: f"x=`{simple}`; $x",
        lambda: f"[ {word()} {chance.choice(['||', '&&', '|', ';', '&', '-a'])} {word()} ]",
        lambda: f"[[ {word()} {chance.choice(['||', '&&', '==', '<', '|'])} {word()} ]]",
        lambda: f"(({chance.choice(['p1', 'x=1', 'p0 || p1', '(p1)', 'p2)'])}))",
        lambda: f"(({part()}) )", lambda: f"a=({word()} $({part()})); p0 ${{a[0]}}",
        lambda: f"p0 <({part()})", lambda: f"{part()} |& {part()}",
        lambda: f"function g {{ {part()}; }}", lambda: f"{simple} &>out",
        lambda: f"p0 <<<$({part()})", lambda: f"p0 <<E\n$({simple})\nE\n",
        lambda: f"eval '{simple}'", lambda: f"set -o pipefail; {part()}", lambda: f"time {part()}",
        lambda: f"{{p1,p2}} {word()}", lambda: f"trap '{simple}' EXIT", lambda: f"exec {simple}",
        lambda: f"p0 $(( {chance.choice(['1', 'x', '$(p1)'])} ))",
        lambda: f"p0 ${{x:-$({simple})}}",
        lambda: f"{part()} &\nwait", lambda: f"p0 \\\n{word()}",
        lambda: f"{part()} # {word()}\n{part()}",
    ]  # fmt: skip
    return chance.choice(forms)()
