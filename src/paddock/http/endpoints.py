"""Which method and path a rule is about. Pure.

A path is brought into one form first, and that form is what is judged *and* what is sent on: nobody
behind it gets to read the original differently. What several servers would read in several ways has
no such form and is refused.

- ``%41`` and the other letters that need no encoding are decoded, once; other encodings are kept,
  in upper case.
- ``.`` and ``..`` are resolved, never above the root; ``//`` is ``/``. Encoded dots (``%2e``) as a
  whole segment, and an encoding that was encoded again (``%252f``), are nobody's honest spelling:
  refused.
- Backslashes and ``;`` (plain or encoded), control characters and bytes beyond ASCII: refused.
- ``%2f`` is a part of its segment to one server and a ``/`` to another: a rule has to allow both
  readings.
- The query is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paddock.policy.model import EndpointRule

_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PLAIN = _UNRESERVED | frozenset("!$&'()*+,=:@/")  # RFC 3986, 3.3, but ";"
_VISIBLE = re.compile(r"[!\"$-~]*")  # "#" begins what no request has
_HEX = frozenset("0123456789abcdefABCDEF")
_SLASH = "%2F"
_DOTS = (".", "..")


class AmbiguousPath(Exception):  # noqa: N818 (it is an answer, not a failure)
    """``str()`` says what is in the path that servers read differently."""


@dataclass(frozen=True, slots=True)
class Target:
    """A request's target. ``path`` begins with ``/``; ``query`` is as it came, None if there was no
    ``?``.
    """

    path: str
    query: str | None

    def __str__(self) -> str:
        return self.path if self.query is None else f"{self.path}?{self.query}"


def normalise(target: str) -> Target:
    """Of an origin-form target (RFC 9112, 3.2.1)."""
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
            segments.append("")  # it names what is below, as a "/" at the end does
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
    # "%25" was followed by nothing that it could encode; what was decoded since may have brought
    # that about.
    if any(_HEX.issuperset(after[:2]) and len(after) >= 2 for after in decoded.split("%25")[1:]):
        raise AmbiguousPath("a character that is encoded twice")
    return decoded


def _check_plain(text: str) -> None:
    if not _PLAIN.issuperset(text):
        letter = next(letter for letter in text if letter not in _PLAIN)
        raise AmbiguousPath(f"a {letter!r}")


def _check_readings(path: str) -> None:
    """With ``%2F`` read as a slash nothing may be left that would have to be resolved."""
    if _SLASH in path:
        segments = path[1:].replace(_SLASH, "/").split("/")
        if any(segment in _DOTS or not segment for segment in segments):
            raise AmbiguousPath("an encoded '/' beside dots or another '/'")


def allowed_by(rules: Sequence[EndpointRule], method: str, path: str) -> EndpointRule | None:
    """The first rule that allows it, in every reading of the path. ``path`` is in its one form."""
    readings = (path, path.replace(_SLASH, "/")) if _SLASH in path else (path,)
    for rule in rules:
        if rule.method in ("*", method) and all(
            _matches(rule.path, reading) for reading in readings
        ):
            return rule
    return None


def _matches(pattern: str, path: str) -> bool:
    """In time of segments times segments of the pattern, whatever they are."""
    wanted = pattern[1:].split("/")
    at = _with_skips(wanted, {0})
    for segment in path[1:].split("/"):
        forward = {
            place if wanted[place] == "**" else place + 1
            for place in at
            if place < len(wanted)
            and (
                wanted[place] == "**"
                or wanted[place] == segment
                or (wanted[place] == "*" and segment)
            )
        }
        at = _with_skips(wanted, forward)
        if not at:
            return False
    return len(wanted) in at


def _with_skips(wanted: Sequence[str], places: set[int]) -> set[int]:
    """``**`` may stand for nothing."""
    for place in sorted(places):
        while place < len(wanted) and wanted[place] == "**":
            place += 1
            places.add(place)
    return places
