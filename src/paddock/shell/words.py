"""Words of a shell as characters: quoting, escapes, braces, and unknown parts.

While a word is assembled, characters without their special meaning (quoted blanks and braces) are
mapped to code points that no text contains: ``hidden`` does it, ``shown`` reverses it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

UNKNOWN = "\ud800"  # any text, also empty; no surrogate escape has this value
SOMETHING = "\ud801"  # any text, not empty
_BLANKS = re.compile(r"[ \t\n]+")
_OPEN, _COMMA, _CLOSE = "\ud802", "\ud803", "\ud804"  # braces that a shell would expand
_BRACES = str.maketrans({"{": _OPEN, ",": _COMMA, "}": _CLOSE})
_PLAIN = str.maketrans({_OPEN: "{", _COMMA: ",", _CLOSE: "}"})
_NESTED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
_SEQUENCE = re.compile(f"{_OPEN}[^{_COMMA}]*\\.\\.[^{_COMMA}]*{_CLOSE}")
MAX_EXPANSIONS = 32  # expansions of one word; more are unknown
MAX_EXPANDED_CHARS = 128 * 1024  # characters of one word; a longer one is unknown


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    splits: bool = False  # unquoted: its blanks separate words
    programs: frozenset[str] = frozenset()


def groups_of(nodes: Sequence[Node]) -> list[list[Node]]:
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].end_byte == node.start_byte:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def printed(words: Sequence[str]) -> str | None:
    program, *rest = words
    if os.path.basename(program) == "echo":
        while rest and re.fullmatch(r"-[neE]+", rest[0]):
            flags = rest.pop(0)
            if "e" in flags:
                rest = [ansi(word) for word in rest]
        return " ".join(rest) + "\n"
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        return ""
    form, *values = rest
    unused = iter(values)
    parts = re.split(r"(%.)", form.replace("%%", "\0"))
    if not {part for part in parts if part.startswith("%")} <= {"%s", "%b"}:
        return None
    shown = "".join(
        ansi(next(unused, "")) if part.startswith("%") else ansi(part) for part in parts
    )
    more = "".join(f" {ansi(value)}" for value in unused)  # the format is reused for these
    return (shown + more).replace("\0", "%")


def known_text(alternatives: Sequence[Piece]) -> str | None:
    texts = [shown(alternative.text) for alternative in alternatives]
    return "\n".join(texts) if texts and not any(map(unknown, texts)) else None


def too_many(parts: Sequence[Sequence[Piece]]) -> bool:
    """Whether the texts of a word are too many, or too long."""
    count, chars = 1, 0
    for part in parts:
        count *= len(part)
        chars += max((len(piece.text) for piece in part), default=0)
        if count > MAX_EXPANSIONS or count * chars > MAX_EXPANDED_CHARS:
            return True
    return False


# Blanks that do not separate words are mapped while words are assembled.
_HIDE = {ord(blank): 0xD900 + at for at, blank in enumerate(" \t\n{,}~")}
_SHOW = {code: chr(blank) for blank, code in _HIDE.items()}


def hidden(text: str) -> str:
    return text.translate(_HIDE)


def shown(text: str) -> str:
    return text.translate(_SHOW).translate(_PLAIN)


def guarded(piece: Piece) -> str:
    return (
        piece.text
        if piece.splits
        else re.sub(r"[ \t\n]", lambda blank: chr(_HIDE[ord(blank[0])]), piece.text)
    )


def fields_of(alternative: Piece) -> Iterator[str]:
    if not alternative.text:
        yield ""
    yield from map(shown, parted(alternative.text))


def parted(text: str) -> list[str]:
    """Splits at the blanks of a shell. ``str.split`` also splits at those of Unicode, which are
    letters to a shell.
    """
    return [word for word in _BLANKS.split(text) if word]


def braces(text: str) -> list[str]:
    """``a{b,c}`` → ``ab``, ``ac``. The result of a sequence (``{a..c}``) is unknown."""
    if _SEQUENCE.search(text):
        return [UNKNOWN]
    done: list[str] = []
    waiting = [text]
    while waiting:
        one = waiting.pop()
        found = next((match for match in _NESTED.finditer(one) if _COMMA in match[1]), None)
        if found is None:
            done.append(one.translate(_PLAIN))
        elif len(done) + len(waiting) > MAX_EXPANSIONS:
            return [UNKNOWN]
        else:
            options = found[1].split(_COMMA)
            waiting += [
                one[: found.start()] + option + one[found.end() :] for option in reversed(options)
            ]
    return done


def unescaped(text: str) -> str:
    """An unquoted word: a backslash removes the meaning of the next character, and a following line
    break disappears with it.
    """
    out: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and at + 1 < len(text):
            following = text[at + 1]
            out.append("" if following == "\n" else hidden(following))
            at += 2
            continue
        out.append(letter.translate(_BRACES))
        at += 1
    return "".join(out)


def unquoted(text: str) -> str:
    """Inside double quotes a backslash is special only before ``$ ` " \\`` and a line break."""
    return re.sub(r'\\([$`"\\\n])', lambda found: "" if found[1] == "\n" else found[1], text)


_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,4}|c.|.)", re.DOTALL
)


def ansi(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU" and len(code) > 1:
            return _character(int(code[1:], 16))
        if code[0] in "01234567":
            return _character(int(code, 8) & 0xFF)
        if code[0] == "c" and len(code) > 1:
            return _character(ord(code[1]) & 0x1F)
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(letter, text)


def _character(number: int) -> str:
    return chr(number) if 0 < number < 0x110000 and not 0xD800 <= number < 0xE000 else UNKNOWN


def quoted(word: str) -> str:
    """As text for a shell, unless a part of it is unknown."""
    return word if unknown(word) else shlex.quote(word)


def unknown(text: str) -> bool:
    return UNKNOWN in text or SOMETHING in text


def programs_of(pieces: Iterable[Piece]) -> frozenset[str]:
    return frozenset().union(*(piece.programs for piece in pieces))
