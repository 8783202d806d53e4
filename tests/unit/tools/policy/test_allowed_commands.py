"""Rules and approvals cover the whole line, also the text around an allowed command."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from paddock import Action, CommandRule, ToolCall, ToolPolicy

GIT = r"^git (status|diff|log)( --(stat|short|oneline)| [\w./][\w./~^-]*)*$"
# Rules for commands that set variables too: a rule about one command does not cover its effect on
# the next.
BUILTINS = (
    "read", "printf", "test", "[", "getopts", "mapfile", "readarray", "declare", "typeset",
    "export", "local", "readonly", "let", "unset", "wait", "set", "shopt", "eval", "exec", "source",
    ".", "alias", "hash", "trap", "command", "builtin", "enable", "cat", "echo", ":", "true",
)  # fmt: skip
POLICY = ToolPolicy(
    allowed_paths=None,
    cwd="/w",
    home="/home/ada",
    command_rules=[
        CommandRule(action=Action.ALLOW, exe="git", argv_regex=GIT),
        *(CommandRule(action=Action.ALLOW, exe=name) for name in BUILTINS),
    ],
)
PLAIN = (
    "git status",
    "git status # for PATH in x",
    "git log --oneline src | cat",
    "git status && git log; git diff || git log",
    "git status &",
    "git status\ngit log",
    "(git status)",
    "{ git status; }",
    "{ git status; } 2>&1",
    "! git status",
    "if git status; then git log; elif git diff; then git log; else :; fi",
    "while git status; do git log; done",
    "case x in x | y*) git status;; esac",
    "case ${x:-y} in y) git status;; esac",
    "case ${x%.c} in y) git status;; esac",
    'case "$x" in y) git status;; esac',
    "case $((1 + 2)) in 3) git status;; esac",
    "[ -f x ] && git status",
    '[[ $x == y ]] && git status',
    '[ -n "$x" ] && git status',
    "test -f x && git status",
    "git log a{b,c}",
    "echo PATH=x 'for PATH in x' '$((PATH=1))' \"a  b\"",
    "printf %s x",
    "cat <<E\n  hello $x\nE",
    "cat <<'E'\n $((PATH=1)) ${PATH:=x} $[PATH=1]\nE",
    "cat <<< x && git status",
)  # fmt: skip
# Words that set a variable when they are expanded, at any position.
WORDS = (
    "$((PATH=1))",
    "$((PATH++))",
    "$((--PATH))",
    "$((x))",
    "$((a[PATH=1]))",
    "$[PATH=1]",
    "${PATH=x}",
    "${PATH:=x}",
    "${x:-${PATH:=x}}",
    "${x:-$((PATH=1))}",
    "${x#$((PATH=1))}",
    "${x%${PATH:=1}}",
    "${x/y/$((PATH=1))}",
    "${x^$((PATH=1))}",
    "${x:PATH=1}",
    "${x:1:PATH=1}",
    "${a[PATH=1]}",
    "${!x}",
    "${x@P}",
    "x$((PATH=1))y",
    '"$((PATH=1))"',
    '"${PATH:=x}"',
    '"$[PATH=1]"',
    "$(echo $((PATH=1)))",
    "<(echo ${PATH:=x})",
)
AROUND = (
    "for x in {}; do git status; done",
    "select x in {}; do git status; done",
    "case {} in *) git status;; esac",
    "case x in {}) ;; *) git status;; esac",
    "case x in a*{}) ;; *) git status;; esac",
    "{{ git status; }} 3<&{}",
    "{{ git status; }} < {}",
    "( git status ) < {}",
    "while git status; do git log; done < {}",
    "if git status; then git log; fi <<E\n{}\nE",
    "cat <<E && git status\n{}\nE",
    "cat <<E && git status\n  {}\nE",
    "cat <<-E && git status\n\t{}\nE",
    "cat <<< {} && git status",
    "git status {}",
    "git status 2>/dev/null < {}",
    "echo {}; git status",
    "[[ {} ]] && git status",
    "[ {} ] && git status",
    "(( {} )); git status",
    "eval 'echo {}'; git status",
)
SETS = (
    "for PATH in evil; do git status; done",
    "for HOME in evil\ndo git status\ndone",
    "for PATH in evil; do for x in a; do git status; done; done",
    "for PATH in evil; do git status & done",
    "for PATH in evil; do git log; done | git status",
    "for PATH; do git status; done",
    "select PATH in evil; do git status; done <<< 1",
    "for ((PATH=1;PATH<2;PATH++)); do git status; done",
    "(( PATH=1 )); git status",
    "(( PATH++ )) && git status",
    "(( 'a[PATH=1]' )); git status",
    "PATH=evil git status",
    "PATH=evil; git status",
    "PATH+=evil; git status",
    "PATH[0]=evil; git status",
    "PATH[0]+=evil git status",
    "PATH=(evil); git status",
    "! PATH=evil git status",
    "time PATH=evil git status",
    ">/dev/null PATH=evil git status",
    "git status; PATH=evil",
    "printf -v PATH evil; git status",
    "printf -vPATH evil; git status",
    "command printf -v PATH evil; git status",
    "read PATH <<< evil; git status",
    "while read PATH; do git status; done <<< evil",
    "getopts x PATH; git status",
    "mapfile PATH; git status",
    "readarray PATH; git status",
    "export PATH=evil; git status",
    "declare PATH=evil; git status",
    "declare 'PATH=evil'; git status",
    "builtin declare PATH=evil; git status",
    "command export PATH=evil; git status",
    "local PATH=evil; git status",
    "readonly PATH=evil; git status",
    "typeset PATH=evil; git status",
    "let PATH=1; git status",
    "unset PATH; git status",
    "wait -n -p PATH; git status",
    "set -a; git status",
    "eval PATH=evil; git status",
    ". ./evil; git status",
    "source evil; git status",
    "trap 'git log' EXIT; git status",
    "alias git='git log'; git status",
    "hash -p /evil git; git status",
    "git() { git log; }; git status",
    "function echo { git log; }; git status",
    "{ git status; } {PATH}>&1",
    "git status {PATH}</dev/null",
    "exec {PATH}</dev/null; git status",
    "[[ PATH=1 -eq 1 ]] && git status",
    "[[ 'a[PATH=1]' -eq 0 ]] && git status",
    "[[ -v 'a[PATH=1]' ]] && git status",
    "[[ x =~ y ]] && git status",
    "[ '-v' 'a[PATH=1]' ] && git status",
    "test -v 'a[PATH=1]'",
    "test x -eq 'a[PATH=1]'",
)


def checked(line: str) -> Action:
    return POLICY.check(ToolCall(name="bash", arguments={"command": line})).action


def subject(line: str) -> tuple[str, ...]:
    return POLICY.check(ToolCall(name="bash", arguments={"command": line})).scope.subject


@pytest.mark.parametrize("line", PLAIN)
def test_a_line_that_sets_nothing_is_covered(line: str) -> None:
    assert checked(line) is Action.ALLOW


@pytest.mark.parametrize("line", SETS)
def test_no_rule_covers_a_line_that_sets_a_variable(line: str) -> None:
    assert checked(line) is not Action.ALLOW


@pytest.mark.parametrize("around", AROUND)
def test_no_rule_covers_a_line_with_a_word_that_sets_a_variable(around: str) -> None:
    for word in WORDS:
        assert checked(around.format(word)) is not Action.ALLOW, around.format(word)


SOME = st.lists(st.sampled_from(PLAIN), max_size=2)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SETS),
    st.lists(st.sampled_from(PLAIN), max_size=2),
    st.lists(st.sampled_from(PLAIN), max_size=2),
)
def test_an_assignment_anywhere_in_the_line_is_not_covered(
    sets: str, before: list[str], after: list[str]
) -> None:
    assert checked("\n".join((*before, sets, *after))) is not Action.ALLOW


# An approval covers the whole text.

PIECES = (
    "a",
    "2",
    "$x",
    "${x:-a b}",
    "$(a b)",
    "`a`",
    "'b  c'",
    '"d  e"',
    '" $x  $y "',
    "\\ ",
    "\\\n",
    "{a,b}",
    "x=1",
    ";",
    "&&",
    "|",
    "&",
    ">",
    "2>",
    "<",
    "<<<",
    "(",
    ")",
    "!",
    "[[",
    "]]",
    "$((1 + 2))",
    "\n",
)
LETTERS = (" ", "\t", "\n", "\\", "'", '"', "a", "2", "$", ";", "&", ">", "=", "-")


def collapsed(line: str) -> str:
    """The text without blanks between words, as far as that is possible without a grammar."""
    parts = re.findall(
        r"""'[^']*'|"(?:\\.|[^"\\])*"|\$\{[^}]*\}|\\.|[ \t]+|\\?.""",
        line.replace("\\\n", ""),
        re.DOTALL,
    )
    text = "".join(
        " " if not part.strip(" \t") else part.replace(" ", "\0").replace("\t", "\1")
        for part in parts
    )
    text = re.sub(r" ?\n ?", "\n", re.sub(" +", " ", text))
    return re.sub(r"([<>]) ", r"\1", text).strip()


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PIECES), st.sampled_from(("", " ", "  "))), min_size=1, max_size=6
    ),
    st.integers(0, 60),
    st.sampled_from(LETTERS),
)
def test_a_line_that_differs_in_more_than_blanks_is_another(
    pieces: list[tuple[str, str]], at: int, more: str
) -> None:
    line = "".join(piece + blank for piece, blank in pieces)
    other = line[:at] + more + line[at:]
    assume(line.strip() and other.strip() and collapsed(line) != collapsed(other))
    assert subject(line) != subject(other)


BODIES = st.text(alphabet=" \t\nab$x\\#;", max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(("<<E", "<<'E'", "<<E | sh", "<<-E", "<<'E' > x")), BODIES, BODIES)
@example("<<'E' | sh", ": > x", "\n: > x")
@example("<<'E'", "  b", "b")
@example("<<E", "$x $x", "$x$x")
@example("<<E", "a", "a\n")
def test_another_here_document_is_another_command(mark: str, one: str, other: str) -> None:
    assume(one != other)
    assert subject(f"cat {mark}\n{one}\nE") != subject(f"cat {mark}\n{other}\nE")


def test_blanks_between_words_make_no_difference() -> None:
    assert subject("git  log\ta # why") == subject("git log a") == subject("git \\\n log a\n")
    assert subject("cat  <<E\n a\nE") == subject("cat <<E\n a\nE")
