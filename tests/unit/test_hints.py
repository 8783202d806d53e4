"""Every command and option that a message names exists. The parser of the command decides."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from paddock import cli
from paddock.cli.options import Parser
from paddock.errors import UsageError
from tests.unit.messages import ROOT, messages

_QUOTED = re.compile(r"`([^`]*)`")
_BARE = re.compile(rf"\bpaddock (?=(?:{'|'.join(cli.COMMANDS)}|--)(?![\w.]))")
# A command outside of backticks begins a message, or follows a colon or a gap.
_BEFORE_BARE = re.compile(r"(?:^|: |  |\\n *)$")
_END_OF_BARE = re.compile(r"  |\\n")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?:([= ])([^\s,;:)]+))?")

# What the placeholders of a message stand for, where one word is not enough.
_VALUES = {
    "paddock {}": "paddock doctor",
    "paddock run {} …": "paddock run --read /srv …",
}
_PROSE = ("takes", "needs")  # words after an option that are not its value
_NO_COMMAND = ("paddock approvals", "({}) paddock approvals")  # the title of the page
_NO_HINT = ("color-scheme", "(?:")  # style sheets and patterns
_OTHER_PROGRAMS = {
    "--create-home": "useradd",
    "--hard": "git",
    "--no-cache": "apk",
    "--remount-ro": "bubblewrap",
    "--security-opt": "container engines",
}


class _ParsedError(Exception):
    """The parser accepted the arguments. The command does not start."""


def test_every_command_in_a_message_is_accepted_by_its_parser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _stop_after_parsing(monkeypatch)
    wrong = []
    seen = 0
    for message, files in messages().items():
        for written in commands_in(message):
            seen += 1
            if error := _refusal(written):
                wrong.append(f"{written!r}: {error}, in {message!r} ({' '.join(files)})")
    assert not wrong, "\n".join(wrong)
    assert seen > 70  # the patterns find commands at all


def test_every_option_in_a_message_exists() -> None:
    wrong = []
    seen = 0
    for message, files in messages().items():
        for option, equals, value in options_in(message):
            seen += 1
            if not _is_option(option, equals, value):
                wrong.append(f"{option}{equals}{value}, in {message!r} ({' '.join(files)})")
    assert not wrong, "\n".join(wrong)
    assert seen > 70


def test_a_command_outside_of_backticks_stands_apart() -> None:
    wrong = [
        f"{message!r} ({' '.join(files)})"
        for message, files in messages().items()
        if message not in _NO_COMMAND
        for found in _BARE.finditer(_without_quotes(message))
        if not _BEFORE_BARE.search(_without_quotes(message)[: found.start()])
    ]
    assert not wrong, "put the command in backticks:\n" + "\n".join(wrong)


def test_wrong_hints_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _stop_after_parsing(monkeypatch)
    text = "type `paddock dctor`; or: paddock run --shut {} …"
    assert list(commands_in(text)) == ["paddock dctor", "paddock run --shut {} …"]
    for written in ("paddock dctor", "paddock run --shut -- true", "paddock audit see"):
        assert _refusal(written), written
    for written in ("paddock doctor", "paddock run", "paddock -- make …", "paddock why --help"):
        assert not _refusal(written), written
    assert list(options_in("add --off {}, or `paddock run --cow`, or --audit=FILE")) == [
        ("--off", " ", "{}"),
        ("--audit", "=", "FILE"),
    ]
    assert not _is_option("--shut", "", "")
    assert not _is_option("--tier", " ", "half")
    assert not _is_option("--cow", "=", "yes")
    assert _is_option("--tier", " ", "full")


def commands_in(message: str) -> Iterator[str]:
    """The commands of ``paddock`` in backticks, and those that stand apart."""
    if message in _NO_COMMAND:
        return
    yield from (one for one in _QUOTED.findall(message) if one.startswith("paddock "))
    text = _without_quotes(message)
    for found in _BARE.finditer(text):
        yield _END_OF_BARE.split(text[found.start() :], maxsplit=1)[0]


def options_in(message: str) -> Iterator[tuple[str, str, str]]:
    """Option, separator and next word, for each option outside of backticks."""
    if any(one in message for one in _NO_HINT):
        return
    yield from _OPTION.findall(_without_quotes(message))


def _without_quotes(message: str) -> str:
    return _QUOTED.sub("", message)


def _stop_after_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Parser.parse_args

    def parse_args(parser: Parser, arguments: list[str]) -> None:
        checked(parser, arguments)
        raise _ParsedError

    monkeypatch.setattr(Parser, "parse_args", parse_args)


def _refusal(written: str) -> str | None:
    """The error of the parser, if it does not accept the command."""
    written = _VALUES.get(written, written)
    for placeholder in ("[options]", "…", "[", "]"):
        written = written.replace(placeholder, "")
    program, *words = shlex.split(written)
    words = [word.partition("|")[0].replace("{}", "value") for word in words]
    words = [word for word in words if word != "--debug"]
    assert program == "paddock"
    if not words or (len(words) == 1 and words[0] in cli.COMMANDS):
        return None  # the name of a command, not a line to type
    if words[0] == "run" and "--" not in words:
        words = [*words, "--", "true"]
    try:
        cli._dispatch(words)
    except _ParsedError:
        return None
    except SystemExit as end:  # --help
        return None if end.code == 0 else f"exit {end.code}"
    except UsageError as error:
        return error.message
    return "no parser"


def _is_option(option: str, equals: str, value: str) -> bool:
    if option in _OTHER_PROGRAMS or option in _core_options():
        return True
    return any(_takes(action, equals, value) for action in _paddock_options()[option])


def _takes(action: argparse.Action, equals: str, value: str) -> bool:
    if equals == "=" and action.nargs == 0:
        return False
    if not action.choices or not value or value in ("{}", *_PROSE):
        return True
    return set(value.split("|")) <= set(action.choices)


@cache
def _paddock_options() -> dict[str, list[argparse.Action]]:
    """The options of every command."""
    found: dict[str, list[argparse.Action]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:

        def collect(parser: Parser, arguments: list[str]) -> None:
            for action in parser._actions:
                for option in action.option_strings:
                    found[option].append(action)
            raise _ParsedError

        patch.setattr(Parser, "parse_args", collect)
        for name in cli.COMMANDS:
            with pytest.raises(_ParsedError):
                cli._dispatch([name, "--", "true"])
    return found


@cache
def _core_options() -> set[str]:
    files = (ROOT / "core/src/commands").glob("*.rs")
    return {one for file in files for one in re.findall(r'b"(--[a-z-]+)"', file.read_text())}
