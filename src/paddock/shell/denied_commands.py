"""Denied commands: finds the reason why a shell line is denied.

The categories are in denied_commands.toml. The user adds own commands as plain words (``terraform
destroy``). Text that can not be read as a shell command is judged by a stricter rule: denied if any
part could be a denied command, otherwise a question.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from paddock.errors import PolicyError
from paddock.policy.glob import component_matches
from paddock.shell.dialect import Dialect
from paddock.shell.find_commands import ShellLine, read_line
from paddock.shell.parse_tree import Unparsed, parse, tokens
from paddock.shell.program_arguments import Command
from paddock.shell.words import SOMETHING, UNKNOWN, unknown

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "denied_commands.toml")
_GLOB = frozenset("*?[")
_ALL = re.compile(r"[*?.!\[\]-]*\*[*?]*")  # matches every name
_BOMB = re.compile(
    r"(?:^|[\s;&|])([^\s(){}|&;]{1,64})\s{0,9}\(\s{0,9}\)\s{0,9}\{[^}]{0,99}?\1\s{0,9}\|\s{0,9}\1"
)
_SHORT = {("git", "--force"): ("--force", "f"), ("git", "f"): ("--force", "f")}
_MAX_WORD_CHARS = 4096
_MAX_SEARCHED_CHARS = 4 * 1024  # of text that can not be read; it is asked about in any case
_PARTS = re.compile(r"[\s;&|(){}`<>!]+")
_OWN = re.compile(r"/proc/(?:self|thread-self|[0-9]+)/(?:task/[0-9]+/)?(root|cwd)(?=/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One entry of denied_commands.toml, which defines each key. ``sequence``: these arguments in
    this order; the form of the user's own commands.
    """

    program: tuple[str, ...] = ()
    flags: tuple[tuple[str, ...], ...] = ()
    without: tuple[tuple[str, ...], ...] = ()
    words: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    line: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    mode: str | None = None
    mode_in: tuple[str, ...] = ()
    redirect: tuple[str, ...] = ()
    writes: bool = False
    assigns: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    fed_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    name: str
    why: str
    patterns: tuple[Pattern, ...] = ()
    bombs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``sure`` False: the text only may be such a command; then a question is asked."""

    category: str
    why: str
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A shell line as it was parsed. ``line`` None: it was not; ``error`` has the reason, and
    ``text`` the visible parts. ``tokens``: the subject of an approval.
    """

    text: str
    cwd: str
    home: str
    line: ShellLine | None
    tokens: tuple[str, ...]
    error: str | None = None


def read(text: str, *, cwd: str, home: str, dialect: Dialect = Dialect.BASH) -> Reading:
    """Parsed in ``dialect``, because the parsed text must be the text that runs."""
    try:
        line = read_line(text, cwd=cwd, home=home, dialect=dialect)
        return Reading(text=text, cwd=cwd, home=home, line=line, tokens=tokens(parse(text)))
    except Unparsed as error:
        seen = f"{text}\n{error.inside}"
        return Reading(text=seen, cwd=cwd, home=home, line=None, tokens=(text,), error=str(error))
    except RecursionError:
        return Reading(
            text=text,
            cwd=cwd,
            home=home,
            line=None,
            tokens=(text,),
            error="it is nested too deeply",
        )


@cache  # part of the installation, like the code
def default_categories() -> tuple[Category, ...]:
    import tomllib

    with open(TABLE, "rb") as file:
        table = tomllib.load(file)
    sets = table.pop("sets")

    def listed(value: str | list[str]) -> tuple[str, ...]:
        words = [value] if isinstance(value, str) else value
        return tuple(
            one for word in words for one in (sets[word[1:]] if word.startswith("@") else [word])
        )

    def pattern(entry: dict[str, Any]) -> Pattern:
        keys: dict[str, Any] = {}
        for key, value in entry.items():
            if key in ("mode", "writes"):
                keys[key] = value
            elif key == "mode_in":
                keys[key] = tuple(value.split("|"))
            elif key in ("flags", "without"):
                keys[key] = tuple(tuple(flag.split("|")) for flag in value)
            else:
                keys[key] = listed(value)
        return Pattern(**keys)

    return tuple(
        Category(
            name=name,
            why=entry["why"],
            patterns=tuple(pattern(one) for one in entry.get("match", ())),
            bombs=entry.get("bombs", False),
        )
        for name, entry in table.items()
    )


def own_command(written: str) -> Pattern:
    """``terraform destroy``: that program with these options and words in this order, and any
    others.
    """
    reading = read(written, cwd="/", home="/")
    commands = reading.line.commands if reading.line is not None and not reading.line.doubts else []
    if not commands or not commands[0].bare or len(tokens_of(written)) != len(commands[0].words):
        raise PolicyError(
            f"not one plain command: {written!r}",
            hint="write program, options and words as they are typed; a word may contain '*'",
        )
    program, *rest = commands[0].words
    flags, operands = _options(rest)
    spelled = tuple(_SHORT.get((program, flag), (flag,)) for flag in flags)
    return Pattern(program=(program,), flags=spelled, sequence=tuple(operands))


def tokens_of(written: str) -> list[str]:
    return [
        token for token in tokens(parse(written)) if not token.startswith("<") and token.strip()
    ]


def findings(reading: Reading, categories: Sequence[Category]) -> Iterator[Finding]:
    if reading.line is None:
        yield from _textual(reading, categories)
        return
    for category in categories:
        if category.bombs and reading.line.bombs:
            yield Finding(category=category.name, why=category.why, sure=True)
        for pattern in category.patterns:
            for command in reading.line.commands:
                held = _holds(pattern, command, reading.home)
                if held is not False:
                    yield Finding(category=category.name, why=category.why, sure=held is True)
    for text in reading.line.texts:
        other = Reading(text=text, cwd=reading.cwd, home=reading.home, line=None, tokens=())
        for found in _textual(other, categories):
            yield Finding(category=found.category, why=found.why, sure=False)


def _textual(reading: Reading, categories: Sequence[Category]) -> Iterator[Finding]:
    """Judges every position of the text where a command could begin."""
    text = re.sub(
        r"\$\{?HOME\}?|(?<![^\s'\"])~(?=[/\s;&|'\")]|$)",
        lambda _: reading.home,
        reading.text[:_MAX_SEARCHED_CHARS],
    )
    words = [word.translate({ord(mark): None for mark in "\"'\\$"}) for word in _PARTS.split(text)]
    words = [word[-_MAX_WORD_CHARS:] for word in words if word]
    known = {
        name for category in categories for pattern in category.patterns for name in pattern.program
    }
    exact = {name for name in known if "*" not in name}
    masks = known - exact
    found: set[str] = set()
    for at, word in enumerate(words):
        name = os.path.basename(word)
        if name not in exact and not any(component_matches(mask, name) for mask in masks):
            continue
        command = Command(words=tuple(words[at : at + 64]), cwd=reading.cwd, bare=False)
        for category in categories:
            if category.name not in found and any(
                _holds(pattern, command, reading.home) is not False
                for pattern in category.patterns
                if not pattern.program or name in pattern.program or name not in exact
            ):
                found.add(category.name)
                yield Finding(category=category.name, why=category.why, sure=True)
    downloads = next((p.runs for c in categories for p in c.patterns if p.runs), ())
    names = {os.path.basename(word) for word in words}
    if names & set(downloads) and names & {
        "sh",
        "bash",
        "dash",
        "zsh",
        "ksh",
        "eval",
        "source",
        "python",
        "python3",
        "perl",
    }:
        yield from (
            Finding(category=c.name, why=c.why, sure=True)
            for c in categories
            if any(p.runs for p in c.patterns)
        )
    for category in categories:
        targets = [mask for pattern in category.patterns for mask in pattern.redirect]
        if any(component_matches(mask, word) for mask in targets for word in words):
            yield Finding(category=category.name, why=category.why, sure=True)
        if category.bombs and _BOMB.search(reading.text):
            yield Finding(category=category.name, why=category.why, sure=True)


def _holds(pattern: Pattern, command: Command, home: str) -> bool | None:
    """None: unknown."""
    words = command.words[1:]
    named = _program_is(pattern.program, command) if pattern.program else True
    if named is False or (named is None and not _more_than_a_name(pattern)):
        return False
    results: list[bool | None] = [True if named is None else named]
    if pattern.flags or pattern.without or pattern.target or pattern.whole or pattern.sequence:
        flags, operands = _options(words)
        results += [
            any(_has(flags, spelling) for spelling in spellings) for spellings in pattern.flags
        ]
        results += [
            not any(_has(flags, spelling) for spelling in spellings)
            for spellings in pattern.without
        ]
        if pattern.target:
            results.append(
                _any(
                    _is_target(operand, pattern.target, command.cwd, home)
                    for operand in dict.fromkeys(operands)
                )
            )
        if pattern.whole:
            globs = [operand for operand in dict.fromkeys(operands) if _ALL.search(operand)]
            results.append(
                _any(_is_target(operand, pattern.whole, command.cwd, home) for operand in globs)
            )
        if pattern.sequence:
            results.append(_in_order(pattern.sequence, operands))
    if pattern.words:
        results.append(any(_matches(mask, word) for mask in pattern.words for word in words))
    if pattern.line:
        whole = " ".join((command.program, *words))
        results.append(any(component_matches(mask, whole) for mask in pattern.line))
    if pattern.mode is not None:
        check = _everyone if pattern.mode == "everyone" else _setuid
        if pattern.mode_in:
            results.append(any(map(check, _values(words, pattern.mode_in))))
        else:
            _, operands = _options(words)
            known = bool(operands) and UNKNOWN not in operands[0]
            results.append(any(check(word) for word in (operands[:1] if known else operands)))
    if pattern.redirect:
        given = [one.target for one in command.redirects if one.writes or not pattern.writes]
        results.append(
            any(component_matches(mask, target) for mask in pattern.redirect for target in given)
        )
    if pattern.assigns:
        results.append(not set(pattern.assigns).isdisjoint(command.assigned))
    if pattern.runs:
        results.append(not command.runs.isdisjoint(pattern.runs))
    if pattern.fed_by:
        results.append(not command.fed_by.isdisjoint(pattern.fed_by))
    if False in results:
        return False
    return None if None in results else True


def _more_than_a_name(pattern: Pattern) -> bool:
    return bool(pattern.flags and (pattern.target or pattern.sequence)) or bool(pattern.runs)


def _program_is(names: Sequence[str], command: Command) -> bool | None:
    if not command.words:
        return False
    program = command.program
    if unknown(program):
        return None
    if program != "[" and not _GLOB.isdisjoint(program):
        return any(fnmatch.fnmatchcase(name, program) for name in names)
    return any(component_matches(name, program) or name == command.words[0] for name in names)


def _options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the options, each letter by itself and long ones by name; and the rest."""
    flags: list[str] = []
    operands: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            operands += words[at + 1 :]
            break
        if word.startswith("--"):
            flags.append(word.partition("=")[0])
        elif word.startswith("-") and len(word) > 1:
            flags += list(word[1:])
            flags.append(word[1:])  # the long options of find, terraform and java
        else:
            operands.append(word)
    return flags, operands


def _values(words: Sequence[str], spellings: Sequence[str]) -> Iterator[str]:
    """The values of an option: in the same word, in the next word, or after ``=``."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        for spelling in spellings:
            if name == f"--{spelling}" and len(spelling) > 1:
                yield value if equals else "".join(words[at + 1 : at + 2])
            elif len(spelling) == 1 and re.match(f"-[a-zA-Z]*{spelling}", word):
                yield word.partition(spelling)[2] or "".join(words[at + 1 : at + 2])


def _has(flags: Sequence[str], spelling: str) -> bool:
    if spelling.startswith("--"):
        spelling = spelling[2:]
    if len(spelling) == 1:
        return spelling in flags
    # GNU accepts any unique prefix of a long option.
    return spelling in flags or any(
        flag.startswith("--") and flag[2:] and spelling.startswith(flag[2:]) for flag in flags
    )


def _any(results: Iterator[bool | None]) -> bool | None:
    found = set(results)
    return True if True in found else None if None in found else False


def _in_order(wanted: Sequence[str], words: Sequence[str]) -> bool | None:
    rest = iter(words)
    if all(any(_matches(mask, word) for word in rest) for mask in wanted):
        return True
    return None if any(map(unknown, words)) else False


def _matches(mask: str, word: str) -> bool:
    if component_matches(mask, word):
        return True
    return not _GLOB.isdisjoint(word) and "*" not in mask and fnmatch.fnmatchcase(mask, word)


def _is_target(written: str, targets: Sequence[str], cwd: str, home: str) -> bool | None:
    """The path, or everything inside it. An unknown part may be empty, which leaves the text around
    it.
    """
    if unknown(written):
        if UNKNOWN in written and written.strip(UNKNOWN):
            left = _is_target(written.replace(UNKNOWN, ""), targets, cwd, home)
            if left is True:
                return (
                    True
                    if os.path.normpath(written.replace(UNKNOWN, "")).strip("/*.") == ""
                    else None
                )
        bare = written.replace(UNKNOWN, "").replace(SOMETHING, "").strip("/*.") == ""
        return None if bare else False
    if not written:
        return False
    if UNKNOWN in cwd and not written.startswith("/"):
        return (
            None
            if _ALL.fullmatch(written) or written in (".", "..", "./") or written.startswith("../")
            else False
        )
    path = os.path.normpath(os.path.join(cwd, written)).replace("//", "/")
    while (own := _OWN.match(path)) is not None:
        path = os.path.normpath(
            ("/" if own[1] == "root" else cwd) + "/" + path[own.end() :]
        ).replace("//", "/")
    parts = [part for part in path.split("/") if part]
    while parts and _ALL.fullmatch(parts[-1]) and parts[-1] not in (".", ".."):
        parts.pop()  # everything inside it
    if not parts and len(path) > 1 and written.startswith("/tmp"):
        return False
    protected = {os.path.normpath(home) if target == "~" else target for target in targets}
    above = os.path.dirname(os.path.normpath(home))
    protected |= {above} if above != "/" else set()
    everything = path != "/" + "/".join(parts)
    if (
        everything
        and not written.startswith(("/", "~"))
        and os.path.normpath(cwd) == "/" + "/".join(parts)
    ):
        # "*" in the current directory counts only if that is such a path
        return "/" + "/".join(parts) in protected
    return any(_same(parts, target) for target in protected)


def _same(parts: Sequence[str], target: str) -> bool:
    names = [part for part in target.split("/") if part]
    return len(names) == len(parts) and all(
        name == part or (not _GLOB.isdisjoint(part) and fnmatch.fnmatchcase(name, part))
        for name, part in zip(names, parts, strict=True)
    )


def _everyone(mode: str) -> bool:
    if re.fullmatch(r"=?[0-7]{3,5}", mode):
        return mode[-3:] == "777"
    for clause in mode.split(","):
        found = re.fullmatch(r"([ugoa]*)([+=])([rwxXst]+)", clause)
        if (
            found
            and (not found[1] or set(found[1]) & set("ao"))
            and {"r", "w"} <= set(found[3])
            and set(found[3]) & set("xX")
        ):
            return True
    return False


def _setuid(mode: str) -> bool:
    if re.fullmatch(r"[0-7]{4,5}", mode):
        return bool(int(mode[-4], 8) & 6) and mode[-3:] != "000"
    return any(
        re.fullmatch(r"([ugoa]*)[+=][rwxXt]*s[rwxXst]*", clause) for clause in mode.split(",")
    )
