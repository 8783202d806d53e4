"""Compares method and path of a request with the rules. Pure.

A path is normalised first. The normalised path is judged *and* sent, so the next server can not
read the original differently. A path that servers read differently has no such form and is refused.

- ``%41`` and the other encodings of unreserved letters are decoded, once. Other encodings are kept,
  in upper case.
- ``.`` and ``..`` are resolved, never above the root; ``//`` is ``/``. Encoded dots (``%2e``) as a
  whole segment, and a doubly encoded character (``%252f``), are refused.
- Backslashes and ``;`` (plain or encoded), control characters and bytes beyond ASCII are refused.
- ``%2f`` is a part of its segment to one server and a ``/`` to another: a rule must allow both
  readings.
- The query is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paddock.policy.model import EndpointRule

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PLAIN = _UNRESERVED | frozenset("!$&'()*+,=:@/")  # RFC 3986, 3.3, without ";"
_VISIBLE = re.compile(r"[!\"$-~]*")  # "#" begins a fragment, which no request has
_HEX = frozenset("0123456789abcdefABCDEF")
_SLASH = "%2F"
_DOTS = (".", "..")


class AmbiguousPath(Exception):  # noqa: N818 (it is an answer, not a failure)
    """``str()`` names the part of the path that servers read differently."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a request. ``path`` begins with ``/``. ``query`` is unchanged; None without a
    ``?``.
    """

    path: str
    query: str | None

    def __str__(self) -> str:
        return self.path if self.query is None else f"{self.path}?{self.query}"


def normalise(target: str) -> Target:
    """Normalises an origin-form target (RFC 9112, 3.2.1)."""
    raw, question, query = target.partition("?")
    if not raw.startswith("/"):
        raise AmbiguousPath("no '/' at its beginning")
    if not _VISIBLE.fullmatch(target):
        raise AmbiguousPath("a character that must be encoded")
    segments: list[str] = []
    parts = raw[1:].split("/")
    for index, part in enumerate(parts):
        segment = _decoded(part)
        if segment in _DOTS:
            if segment != part:
                raise AmbiguousPath("encoded dots")
            if segment == ".." and segments:
                segments.pop()
        elif segment:
            segments.append(segment)
        if index == len(parts) - 1 and (not segment or segment in _DOTS) and segments:
            segments.append("")  # like a final "/", it names the content
    path = "/" + "/".join(segments)
    _check_readings(path)
    return Target(path, query if question else None)


def _decoded(segment: str) -> str:
    if "%" not in segment:
        _check_plain(segment)
        return segment
    first, *rest = segment.split("%")
    _check_plain(first)
    out = [first]
    for piece in rest:
        code, plain = piece[:2], piece[2:]
        if len(code) != 2 or not _HEX.issuperset(code):
            raise AmbiguousPath("a '%' without two hexadecimal digits")
        _check_plain(plain)
        letter = chr(int(code, 16))
        if letter < " " or letter == "\x7f":
            raise AmbiguousPath("an encoded control character")
        if letter in "\\;":
            raise AmbiguousPath(f"an encoded {letter!r}")
        if letter == "%" and len(plain) >= 2 and _HEX.issuperset(plain[:2]):
            raise AmbiguousPath("a character that is encoded twice")
        out += [letter if letter in _UNRESERVED else f"%{code.upper()}", plain]
    decoded = "".join(out)
    # "%25" was not followed by an encoding before; decoding may have produced one.
    if any(_HEX.issuperset(after[:2]) and len(after) >= 2 for after in decoded.split("%25")[1:]):
        raise AmbiguousPath("a character that is encoded twice")
    return decoded


def _check_plain(text: str) -> None:
    if not _PLAIN.issuperset(text):
        letter = next(letter for letter in text if letter not in _PLAIN)
        raise AmbiguousPath(f"a {letter!r}")


def _check_readings(path: str) -> None:
    """With ``%2F`` read as a slash, no segment may need resolving."""
    if _SLASH in path:
        segments = path[1:].replace(_SLASH, "/").split("/")
        if any(segment in _DOTS or not segment for segment in segments):
            raise AmbiguousPath("an encoded '/' beside dots or another '/'")


def allowed_by(rules: Sequence[EndpointRule], method: str, path: str) -> EndpointRule | None:
    """The first rule that allows it, in every reading of the path. ``path`` is normalised."""
    readings = (path, path.replace(_SLASH, "/")) if _SLASH in path else (path,)
    for rule in rules:
        if rule.method in ("*", method) and all(
            _matches(rule.path, reading) for reading in readings
        ):
            return rule
    return None


def _matches(pattern: str, path: str) -> bool:
    """Takes time of segments times segments of the pattern, for every input."""
    wanted = pattern[1:].split("/")
    at = _with_skips(wanted, {0})
    for segment in path[1:].split("/"):
        forward = {
            index if wanted[index] == "**" else index + 1
            for index in at
            if index < len(wanted)
            and (
                wanted[index] == "**"
                or wanted[index] == segment
                or (wanted[index] == "*" and segment)
            )
        }
        at = _with_skips(wanted, forward)
        if not at:
            return False
    return len(wanted) in at


def _with_skips(wanted: Sequence[str], positions: set[int]) -> set[int]:
    """``**`` may match no segment."""
    for index in sorted(positions):
        while index < len(wanted) and wanted[index] == "**":
            index += 1
            positions.add(index)
    return positions
