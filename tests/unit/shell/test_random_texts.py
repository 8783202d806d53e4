"""The judge lists every program that a shell starts for a text, with the same words.

Random texts are made of fragments that a grammar and a shell may read differently. bash and dash
run them with a PATH of programs that only log their words. ``PADDOCK_STRESS=N`` runs N times as
many texts, from a new seed. A text that failed once stays in ``OTHERWISE`` for ever.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.executors.interface import shell_words
from paddock.shell.denied_commands import Reading, read
from paddock.shell.dialect import Dialect
from paddock.shell.words import unknown
from tests.support.features import need_program
from tests.support.stress import LEVEL, amount, seed_source

SHELLS = [("bash", Dialect.BASH), ("dash", Dialect.SH)]
TEXTS = amount(ordinary=1500, first=1500, more=1500)
SEED = seed_source(4).randrange(1 << 48) if LEVEL else 4
FRAGMENTS = (
    "ok", "ok a", "ok b", "a", "1", "E", "x", "-", "-c", ":", ",", "/", "%", "^", "=", "+=", "@",
    "~", " ", " ", " ", "\t", "\n", ";", ";", "&", "|", "&&", "||", "|&", "!", "#", " #", "\\",
    "\\\n", "\\ ", "\\\t", "\\;", "\\#", "\\`", '\\"', "\\'", "'", '"', "''", '""', "'a'", '"a"',
    "$'", "$'a'", '$"', '$"a"', "$", "$x", "$1", "$#", "$@", "${x}", "${#x}", "${!x}", "${x:-",
    "${x#", "${x%", "${x@P}", '"${x', '}"', "}", "{ ", "; }", "{ :;}", "{a,b}", "{a..b}", "{", "..",
    "``", "`", "`:`", "$(", ")", '"$(', ')"', "$()", "$(:)", "(", "(:)", "$((", "((", "))", "((1))",
    "$((1))", "$[", "[", "]", "[ a ]", "[[ ", " ]]", "[[ a ]]", "x[0]=", "a[0]=1", "a=", "a=b ",
    "a=(", "a=(1)", "x='$(pwn)';", "<<E\n", "\nE\n", "\nE", "<<'E'\n", "<<-E\n", "<<\\E\n", "<<E;",
    "<<\"E\" ", "<<E <<F\n", "\nF\n", "<<E\nE\n", "<<E\n$x\nE\n", "<<-E\n\tE\n", "<<<", "<<<a",
    ">f", "<f", "2>f", "2>&1", "&>", ">&", "<&", ">|", "<>", "<(", ">(", "<(:)", "if ", "then ",
    "fi", "if :;then :;fi", "for i in ", "for i in a;do :;done", "while ", "while false;do :;done",
    "do ", "done", "in", "case x in ", "x) ", ";; ", "esac", "case a in a);;esac", "function f ",
    "f()", "f(){ :;}", "function g { :;}", "declare a=1", "export a", "unset a", "time ", "eval ",
    "bash -c ", "sh -c ", "exec ", "command ", "env ", "env -S", "--split-s=", "xargs ", "nice ",
    "é", "\u00a0", "\u2003", "== ", "=~ ",
)  # fmt: skip
GOALS = ("pwn", ";pwn", "\npwn", " pwn ", "pwn z", "ok z", ";ok z", " ok z")
# Texts that the judge once read differently from bash.
OTHERWISE = (
    "\\ #; pwn", "[ -f x ]#;pwn", "ok status &\\ #;pwn", "ok status \\ #; pwn",
    "<<<\\  pwn ok status", "x[0]=\\\n pwn ok status", "ok status ``\npwn", "pwn ``x", "p``wn",
    "bash -c `` pwn", "p{w..w}n", "time x[0]=, pwn", "x='$(pwn)'; echo ${x@P}",
    "x='$'; y='(pwn)'; z=$x$y; echo ${z@P}", "ok status\n\\ function f pwn", "env --split-s=pwn",
    "env --split-s pwn", "echo pwn | xargs --replace=% bash -c %", "echo pwn | xargs -i bash -c {}",
    "echo a | xargs --replace pwn", "echo a | xargs -in pwn",
    "printf 'ok\\npwn\\n' | xargs -I% bash -c %", "echo ok pwn | xargs -n1 bash -c",
    "setarch -R pwn", "setarch x86_64 -R pwn", "choom -n 100 -- pwn", "env 1=2 pwn",
    "echo a | split --filter=pwn", "echo a | split - --filt=pwn", "ok za''\\ b", "ok z$",
    "ok z=~", "env -S ok z=~ |&\\#", "ok z=b:~:~/c", "ok z+=~", "ok z={~,b}", "ok --z=~",
    "a=(1)in\\\t pwn ", "x[0]=''#\\\t\npwn", "[ a ]#;pwn", "a=(1)\"a\" pwn for i in ", ">&\\ \npwn",
    "&> \\\t pwn ", "<&$\npwn", "a=\\  pwn ",
    "?>&esac>f;a=(1)@ pwn", "\"\"^done\\\t#;pwn${x}", "ok b\"\"pwn$@case x in ", "((1 # ));pwn\n))",
    "`ok #`; pwn; `ok\n`", "ok <<E\na\nE \npwn\nE\n", "ok a >\npwn", "ok 'a' z\\\t},",
    "env -S pwn \\;nice ", "ok a;ok z\\\n<(:)", "ok b<&-cwhile || pwn", "pwn<&--split-s=",
    "ok - <<E\na\nE", "xargs  pwn <<<a<<E\n$x\nE\n", "2>f|&\npwn -c2>&1",
    "nice \nE\n ok z<(:)env -S<<-E\n\tE\n1", ",;ok z{ \"\"~", ">&- pwn", "ok <&- pwn",
    "!-c\\\n\nF\n ok z{=$1", "env -Sok z--split-s=", "env -S'-u x' pwn", "\\ok zexec { {",
    "(ok == a\npwn\n)", "(ok == a;pwn)", "{ ok =~ a|pwn; }", "<& -pwn ok f", "1>& -pwn ok",
    "<&\\\n -pwn ok", "ok <<< \"${x-'$(pwn)'}\"", "ok <<< \"${x-$'$(pwn)'}\"",
    "ok <<E\n${x-'$(pwn)'}\nE", "ok \"${x-${y-'$(pwn)'}}\"", "ok `ok \\\\\"\npwn\n\"`",
    'ok "`ok "\\`pwn\\`"`"', "bash 0<<<pwn", "ok\u00a0z", "pwn\u00a0ok", "ok z\u2003z",
    "ok `ok&&2>\u00a0`", "env -S 'ok\u00a0z'", "echo 'ok\u00a0z' | xargs ok", "bash 0<<E\npwn\nE",
)  # fmt: skip
# Arithmetic evaluates the value of a variable, and runs the substitution in a subscript.
_SPLIT = "x='a[$'; y='(pwn)]'; z=$x$y; "
_OUTPUT = "z=\"a[$(printf '\\044')(pwn)]\"; "
_READ_BACK = "printf '%b\\n' 'a\\0133\\044(pwn)\\0135' > f; "
EVALUATED = (
    *(before + act for before in (_SPLIT, _OUTPUT) for act in (
        "((z))", "[[ $z -eq 0 ]]", "[[ z -eq 0 ]]", "[[ -v $z ]]", '[ -v "$z" ]', 'test -v "$z"',
        "let z", 'let "$z"', "declare -i w=z", "declare -i w; w=z", "echo ${a[z]}", "echo $((z))",
        "echo $[z]", "a[z]=1", "echo ${HOME:z}", "for ((z;0;)); do :; done", 'printf -v "$z" a',
        'a=1; unset "$z"', 'read "$z" <<<a', "echo ${!z}", 'declare "$z=1"',
        'f() { local "$z=1"; }; f', "declare -n r=$z; echo $r", "RANDOM=z", "w=z; v=w; ((v))",
        'f() { (($1)); }; f "$z"', "export z; bash -c '((z))'",
    )),
    *(_READ_BACK + act for act in (
        "z=$(cat f); ((z))", "z=$(<f); ((z))", "read z < f; ((z))", "mapfile -t z < f; ((z))",
        "while read z; do echo $((z)); done < f", "for z in $(cat f); do ((z)); done",
        "((`cat f`))", "let $(cat f)", "set -- $(cat f); (($1))",
        "cat f | { read z; [[ $z -gt 1 ]]; }",
    )),
    "printf -v 'a[$(pwn)]' x", "test -v 'a[$(pwn)]'", "a=1; unset 'a[$(pwn)]'",
    "read 'a[$(pwn)]' <<<x", "x=a[$; y='(pwn)]'; z=$x$y; ((z))",
    'x="a[$"; y="(pwn)]"; z=$x$y; ((z))', "x='a[`pwn'; y='`]'; z=$x$y; ((z))",
    "touch 'a[$'; for x in a*; do z=\"$x(pwn)]\"; ((z)); done",
    "printf -v x '\\044'; z=\"a[$x(pwn)]\"; ((z))",
)  # fmt: skip
_PROCESS = re.compile(r"/dev/fd/[0-9]+(-[0-9]+)?")
_GLOB = re.compile(r"[*?]|\[.*\]")
# Each process has a log of its own: two processes that write one file mix their words.
_LOG = '#!/bin/sh\n{ printf \'%s\\037\' "${0##*/}" "$@"; printf \'\\036\'; } >>"$CALLS/$$"\n'


class LoggedShell:
    """A shell in a directory with programs that log their arguments."""

    def __init__(self, place: Path, shell: str) -> None:
        self.logs, self.cwd, programs = place / "logs", place / "cwd", place / "programs"
        self.texts = 0
        self.words = shell_words(need_program(shell))
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": "/dev/null/nowhere",
            "LANG": "C.UTF-8",
        }
        for directory in (programs, self.cwd, self.logs):
            directory.mkdir()
        for name in ("ok", "pwn"):
            (programs / name).write_text(_LOG)
            (programs / name).chmod(0o755)

    def started(self, text: str) -> Iterator[tuple[str, ...]]:
        self.texts += 1
        logs = self.logs / str(
            self.texts
        )  # a new directory for each text: a program may outlive its shell
        logs.mkdir()
        try:  # waits for the end of the output, and so for background programs
            subprocess.run(
                [*self.words, text], env=self.environment | {"CALLS": str(logs)}, cwd=self.cwd,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=5,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return
        finally:
            for file in self.cwd.iterdir():
                file.unlink()
        for log in logs.iterdir():
            for call in log.read_bytes().decode("utf-8", "surrogateescape").split("\x1e")[:-1]:
                yield tuple(call.split("\x1f")[:-1])


def is_open(reading: Reading) -> bool:
    """Whether a person is asked, or no allow rule matches."""
    return (
        reading.line is None
        or bool(reading.line.doubts)
        or any(
            unknown(word) or _GLOB.search(word)
            for command in reading.line.commands
            for word in command.words
        )
    )


def hidden(text: str, logged_shell: LoggedShell, dialect: Dialect) -> list[tuple[str, ...]] | None:
    """Programs that run but are not listed by the judge. None if the judge cannot read the text."""
    reading = read(text, cwd=str(logged_shell.cwd), home="/dev/null/nowhere", dialect=dialect)
    if is_open(reading):
        return None
    assert reading.line is not None
    listed = {
        tuple(_PROCESS.sub("/dev/fd/N", word) for word in command.words)
        for command in reading.line.commands
    }
    listed = {(os.path.basename(words[0]), *words[1:]) for words in listed if words}
    ran = [
        tuple(_PROCESS.sub("/dev/fd/N", word) for word in call)
        for call in logged_shell.started(text)
    ]
    return [call for call in ran if call not in listed]


def texts(chance: random.Random) -> Iterator[str]:
    while True:
        before = "".join(chance.choices(FRAGMENTS, k=chance.randint(1, 7)))
        after = "".join(chance.choices(FRAGMENTS, k=chance.randint(0, 4)))
        yield before + chance.choice(GOALS) + after


@pytest.fixture(params=SHELLS, ids=[name for name, _ in SHELLS])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LoggedShell, Dialect]:
    name, dialect = request.param
    return LoggedShell(tmp_path, name), dialect


def test_a_text_that_failed_once_is_read_as_the_shell_reads_it(
    shell: tuple[LoggedShell, Dialect],
) -> None:
    found = {text: calls for text in OTHERWISE if (calls := hidden(text, *shell))}
    assert not found


@pytest.mark.parametrize("text", EVALUATED)
def test_a_command_in_arithmetic_is_asked_about(text: str, tmp_path: Path) -> None:
    logged_shell = LoggedShell(tmp_path, "bash")
    assert ("pwn",) in list(logged_shell.started(text)), "the control: bash runs it"
    reading = read(text, cwd=str(logged_shell.cwd), home="/dev/null/nowhere", dialect=Dialect.BASH)
    assert reading.line is None or reading.line.doubts


@pytest.mark.parametrize(
    "text",
    ["i=0; while ((i < 3)); do i=$((i + 1)); done", "n=$(wc -l < f); [[ $n -gt 3 ]] && ls",
     "read -r line < f; ls",
     "for i in $(seq 1 3); do echo $((i * 2)); done", "a=(1 2); echo ${a[0]} ${#a[@]}",
     "[[ -n $x && $y == a* ]]",
     "start=$(date +%s); ls; echo $(($(date +%s) - start))", "awk '{print $1}' f; ((1 + 1))",
     "local_x=$(cat f); ls"],
)  # fmt: skip
def test_plain_arithmetic_is_allowed(text: str) -> None:
    reading = read(text, cwd="/w", home="/h")
    assert reading.line is not None, reading.error
    assert not reading.line.doubts


def test_the_programs_of_random_texts_are_those_that_the_judge_lists(
    shell: tuple[LoggedShell, Dialect],
) -> None:
    chance = random.Random(SEED)
    found = {}
    claimed = 0
    for _, text in zip(range(TEXTS), texts(chance), strict=False):
        calls = hidden(text, *shell)
        claimed += calls is not None
        if calls:
            found[text] = calls
    assert not found, f"seed {SEED}: " + "\n".join(
        f"{text!r}: {calls}" for text, calls in found.items()
    )
    assert claimed > TEXTS // 50, "the control: the judge claims to know some of them"


def test_control_the_test_programs_log_their_calls(shell: tuple[LoggedShell, Dialect]) -> None:
    logged_shell, _ = shell
    assert sorted(logged_shell.started("ok 'a b' c; pwn")) == [("ok", "a b", "c"), ("pwn",)]


@pytest.mark.parametrize(
    "text",
    ["python3 - <<'E'\nprint(1)\nE", 'x="${y:-a b}" ls', "for ((i = 0; i < 3; i++)); do ls; done",
     "a=(1\n2 # c\n)",
     "git commit -m \"$(cat <<'E'\na # `b`\nE\n)\"", "ls \\\n  -l", "ls a\\ b # c",
     "{ ls; } 2>&1 # c", "exec 3>&-"],
)  # fmt: skip
def test_a_plain_text_is_read(text: str) -> None:
    reading = read(text, cwd="/w", home="/h")
    assert reading.line is not None, reading.error
    assert not reading.line.doubts


@pytest.mark.parametrize("text", ["ok $(>f)", 'ok "$(>f)"', "ok $(2>f)", "ok $(>&f)"])
def test_a_file_that_a_substitution_writes_is_not_overlooked(
    shell: tuple[LoggedShell, Dialect], text: str
) -> None:
    logged_shell, dialect = shell
    assert (
        read(text, cwd=str(logged_shell.cwd), home="/dev/null/nowhere", dialect=dialect).line
        is None
    )
    assert read("ok $(<f)", cwd=str(logged_shell.cwd), home="/dev/null/nowhere").line is not None
    subprocess.run(
        [*logged_shell.words, text],
        env=logged_shell.environment,
        cwd=logged_shell.cwd,
        stderr=subprocess.DEVNULL,
    )
    assert (logged_shell.cwd / "f").exists() or ">&" in text, "the control: the shell writes it"
