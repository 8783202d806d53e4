"""How programs use their arguments: which start others (wrappers.toml), which run text, which write
files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paddock.shell.words import MAX_EXPANSIONS, SOMETHING, UNKNOWN, parted
from paddock.shell.wrappers import Wrapper

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[.*\])?\+?=")
_PLAIN = re.compile(r"[\w \t\n./=:,@%+-]*")
_REPLACE = re.compile(r"(?:-[0optrx]*(?P<short>[iI])|--r[a-z]*=?)(?P<mark>.*)", re.DOTALL)
_INPUTS = frozenset({":::", ":::+", "::::", "::::+"})  # of parallel
_BATCH = re.compile(r"-[0-9a-zA-Z]*[nLlsP]|--max")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish"})
INTERPRETERS = frozenset({"python", "python2", "python3", "perl", "ruby", "node", "php", "lua"})
# The criteria of find; without one it matches everything.
_TESTS = frozenset(
    (
        "-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex", "-newer", "-mtime",
        "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-size", "-empty", "-user", "-group",
        "-perm",
        "-inum", "-samefile", "-links", "-lname", "-nouser", "-nogroup",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellStream:
    """The content of a pipe or a file: its text, if known, and the programs it came from."""

    text: str | None = None
    programs: frozenset[str] = frozenset()
    matches: tuple[str, ...] = ()  # paths of everything there, as find prints them


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """``copies``: another descriptor (``2>&1``), no file."""

    operator: str
    target: str
    copies: bool = False

    @property
    def writes(self) -> bool:
        return ">" in self.operator and not self.copies

    @property
    def changes_nothing(self) -> bool:
        """Whether it only reads or discards; not for network paths of bash."""
        return (not self.writes or self.target == "/dev/null") and not self.target.startswith(
            ("/dev/tcp", "/dev/udp")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """``words``: program and arguments after expansion. ``bare``: no assignment in the whole text,
    no file written, and no unknown word. ``runs``: the programs whose output it runs as code.
    """

    words: tuple[str, ...]
    cwd: str
    bare: bool
    assigned: tuple[str, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    fed_by: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()

    @property
    def program(self) -> str:
        return os.path.basename(self.words[0]) if self.words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    """The text that it runs, the words of the inner command, the variables it sets for that
    command, and its working directory.
    """

    text: str | None = None
    words: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(slots=True)
class _Options:
    """The options of a wrapper, and their end."""

    at: int
    script: str | None = None
    cwd: str | None = None
    stopped: bool = False


def _own_options(
    wrapper: Wrapper, words: Sequence[str], at: int, *, anywhere: bool = False
) -> _Options:
    found = _Options(at)
    while at < len(words):
        word = words[at]
        login = word == "-" and bool(wrapper.scripts)  # an option of su and of env
        if login or (anywhere and (word == "--" or not word.startswith("-"))):
            at += 1
            continue
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.lstrip("-").partition("=")
        at += 1
        if word.startswith("--"):
            name = _long_option(wrapper, name)
            takes, attached = name in wrapper.taking, value if equals else None
        else:
            letter = next(
                (one for one in word[1:] if one in wrapper.taking or one in wrapper.optional), None
            )
            name, takes = letter or word[1:2], letter is not None and letter not in wrapper.optional
            attached = (word[1:].partition(letter)[2] or None) if letter else None
        if name in wrapper.stops:
            found.stopped = True
            return found
        if takes and attached is None:
            attached = words[at] if at < len(words) else ""
            at += 2 if name in wrapper.pairs else 1
        if takes and name in wrapper.scripts:
            found.script = attached
            if wrapper.splits:
                break
        if takes and name in wrapper.chdir:
            found.cwd = attached
    found.at = at
    return found


def _long_option(wrapper: Wrapper, name: str) -> str:
    """GNU accepts any unique prefix of a long option."""
    known = (*wrapper.taking, *wrapper.optional, *wrapper.stops)
    if name in known or len(name) < 1:
        return name
    return next((option for option in known if len(option) > 1 and option.startswith(name)), name)


def unwrap(wrapper: Wrapper, words: Sequence[str]) -> Unwrapped:
    own = _own_options(
        wrapper, words, 2 if wrapper.leading and words[1:2] and not words[1].startswith("-") else 1
    )
    for option, value in pairwise(words):
        if option in wrapper.lists:
            return Unwrapped(words=tuple(value.split(",")))
    if wrapper.verbs and not own.stopped:
        if words[own.at : own.at + 1] and words[own.at] not in wrapper.verbs:
            return Unwrapped()
        behind = _own_options(wrapper, words, own.at + 1)
        behind.cwd = behind.cwd or own.cwd
        own = behind
    if own.stopped:
        return Unwrapped()
    at, script, cwd = own.at, own.script, own.cwd
    if (
        script is not None and wrapper.splits
    ):  # its words precede the others, with options of the wrapper among them
        if _PLAIN.fullmatch(script):
            return Unwrapped(words=(words[0], *parted(script), *words[at:]), cwd=cwd)
        return Unwrapped(text=" ".join((script, *words[at:], UNKNOWN)))
    settings: list[str] = []
    while (
        wrapper.assigns
        and at < len(words)
        and (_NAME.match(words[at]) or (wrapper.any_name and "=" in words[at]))
    ):
        settings.append(words[at])
        at += 1
    if wrapper.operands:
        behind = _own_options(wrapper, words, at + wrapper.operands)
        at, script, cwd = (
            behind.at,
            script if behind.script is None else behind.script,
            behind.cwd or cwd,
        )
    rest = tuple(words[at:])
    rest = (*wrapper.before, *rest) if rest else ()
    if script is not None:
        return Unwrapped(text=script, settings=tuple(settings))
    if wrapper.anywhere:  # su takes it as its own option in any position
        script = _own_options(wrapper, words, 1, anywhere=True).script
    return Unwrapped(text=script or None, words=rest, settings=tuple(settings), cwd=cwd)


def startup_file(words: Sequence[str]) -> str | None:
    """The file that an interactive bash runs first."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--rcfile", "--init-file"):
            return value if equals else "".join(words[at + 1 : at + 2])
    return None


def shell_script(words: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the text after ``-c``, or the file it runs; neither: it reads stdin."""
    at, command, stdin = 1, False, False
    while at < len(words):
        word = words[at]
        if word == "--" or (word == "-" and at == 1):
            at += 1
            break
        if not word.startswith(("-", "+")) or len(word) < 2:
            break
        at += 1
        if word.startswith("--"):
            at += word in ("--rcfile", "--init-file")
            continue
        command = command or "c" in word[1:]
        stdin = stdin or "s" in word[1:]
        at += word[-1] in "oO"
    operand = words[at] if at < len(words) else None
    if command:
        return operand or "", None
    return None, None if stdin else operand


def matches_of(words: Sequence[str]) -> tuple[str, ...]:
    """The matches of find: its starting point with everything below, if there are no criteria."""
    first = next(
        (at for at, word in enumerate(words) if at and word.startswith(("-", "(", "!"))), len(words)
    )
    narrowed = any(
        word in _TESTS and not set(words[at + 1 : at + 2] or ("x",)) <= {"*", "?*", "*?", ".*"}
        for at, word in enumerate(words)
    )
    return (
        (SOMETHING,)
        if narrowed
        else tuple(one for start in words[1:first] or (".",) for one in (start, f"{start}/*"))
    )


def found_by(command: Command) -> Iterator[Command]:
    """The commands that find runs on its matches."""
    words, paths = command.words, matches_of(command.words)
    inner = replace(command, redirects=(), assigned=())
    if "-delete" in words and paths != (SOMETHING,):
        yield replace(inner, words=("rm", "-r", *paths))
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((i for i in range(at + 1, len(words)) if words[i] in (";", "+")), len(words))
            body = [
                one for item in words[at + 1 : end] for one in (paths if item == "{}" else (item,))
            ]
            yield replace(inner, words=tuple(body), bare=False)


def appended(
    rest: tuple[str, ...], words: Sequence[str], stdin: ShellStream | None
) -> Iterator[tuple[str, ...]]:
    """xargs and parallel: their input becomes words. With a replacement mark each line is a
    command. Without a command of its own, parallel runs each line as a text (``feeds``); then the
    program is empty.
    """
    known = stdin.text if stdin is not None else None
    given: tuple[str, ...]
    lines: tuple[str, ...]
    at = next((at for at, word in enumerate(rest) if word in _INPUTS), None)
    if at is not None:
        rest, given = rest[:at], rest[at:]
        named = any(word.startswith("::::") for word in given)  # the lines of files
        given = (SOMETHING,) if named else tuple(word for word in given if word not in _INPUTS)
        lines = given
    elif known is not None:
        given, lines = (
            tuple(map(_read, pieces))
            for pieces in (parted(known), known.removesuffix("\n").split("\n"))
        )
    else:
        given = lines = (stdin.matches if stdin is not None else ()) or (SOMETHING,)
    if not rest:
        yield from (("", line) for line in dict.fromkeys(lines[:MAX_EXPANSIONS]))
        return
    mark = next(filter(None, map(_mark, words[1:], (*words[2:], ""))), "")
    program, *arguments = rest
    if mark or any("{}" in word for word in arguments):  # parallel needs no option
        lines = lines if len(lines) <= MAX_EXPANSIONS else (SOMETHING,)
        yield from (
            (program, *(word.replace(mark or "{}", line) for word in arguments)) for line in lines
        )
        return
    yield (*rest, *given)
    if any(_BATCH.match(word) for word in words[1:]) or os.path.basename(words[0]) == "parallel":
        batches = given if len(given) <= MAX_EXPANSIONS else (SOMETHING,)
        yield from ((*rest, *batches[at:]) for at in range(1, len(batches)))
        if batches != given:
            yield (*rest, SOMETHING)


def _read(text: str) -> str:
    """A here-document may be here unexpanded."""
    return SOMETHING if "$" in text or "`" in text else text


def _mark(word: str, following: str) -> str:
    """The mark for an input line, from one option of xargs; empty: it is another option."""
    if (found := _REPLACE.fullmatch(word)) is None:
        return ""
    if found["short"] == "I":
        return found["mark"] or following
    return found["mark"] or "{}"


def interprets(program: str) -> bool:
    return program in INTERPRETERS or program.rstrip("0123456789.") in INTERPRETERS


def reads_its_program(words: Sequence[str]) -> bool:
    rest = [word for word in words[1:] if word not in ("-u", "-s", "-E", "-I", "-B", "-q")]
    return not rest or rest[0] == "-"


def decodes(words: Sequence[str]) -> bool:
    return any(
        word in ("-d", "-D", "--decode") or (word.startswith("-") and "d" in word[1:3])
        for word in words[1:]
    )


def written_by(words: Sequence[str]) -> Iterator[str]:
    """The files that a download program writes."""
    program = os.path.basename(words[0])
    if program not in ("curl", "wget", "aria2c", "fetch"):
        return
    option = "o" if program != "wget" else "O"
    for at, word in enumerate(words):
        if word in ("--output", "--output-document", "--out") or (
            word.startswith("-") and word[1:2] != "-" and word.endswith(option)
        ):
            yield from words[at + 1 : at + 2]
        elif word.startswith(("--output=", "--output-document=", "--out=")):
            yield word.partition("=")[2]
        elif word.startswith(f"-{option}") and len(word) > 2:
            yield word[2:]
        elif (
            at
            and not word.startswith("-")
            and (program == "wget" or any(re.match("-[a-zA-Z]*O", w) for w in words))
        ):
            yield word.rpartition("/")[2]


def copies_descriptor(operator: str, target: str) -> bool:
    """``>&2``; but ``>&2x`` and ``>&file`` write files."""
    return operator.startswith((">&", "<&")) and re.fullmatch(r"[0-9]+-?|-", target) is not None


def joined(streams: Sequence[ShellStream]) -> ShellStream:
    texts = [stream.text for stream in streams]
    known = [text for text in texts if text is not None]
    return ShellStream(
        text="".join(known) if len(known) == len(texts) else None,
        programs=frozenset().union(*(stream.programs for stream in streams)),
    )
