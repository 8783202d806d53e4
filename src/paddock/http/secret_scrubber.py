"""Searches the answers of an upstream for a secret. No sockets.

Each occurrence is overwritten with as many ``*``, so that lengths and frames stay valid. The search
finds the secret itself, in base64 (both alphabets, at each of the three positions within a group)
and in hexadecimal. It finds each of these also behind escapes: percent, JSON and JavaScript
(``\\u0041``, ``\\/``) and HTML (decimal, hexadecimal, named), in any mixture and twice over. It
does not find other forms (encrypted, compressed, reversed, in two answers, base64 in several
lines).

A client can make an upstream echo its own text. So nothing that the client can measure may depend
on the characters of the secret, unless the whole secret was echoed:

- The retained part of an unfinished answer depends on the length of the secret and on classes of
  characters.
- The search takes the same time for every part of the secret in a text. It compares hashes, not
  characters, and the hash is keyed (``bytes.__hash__``: SipHash, with a key of this process).
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html.entities import html5
from itertools import repeat

MIN_SECRET_CHARS = 8  # a shorter secret would occur in answers by chance
_MASK = b"*"
_ROUNDS = 2  # an escape may be escaped again: JSON inside JSON, ``&amp;#43;``
# characters of an answer that encode one character of the secret; longer encodings are not awaited
_WIDEST = 12
# A piece may end here although more follows, and its reader waits for it. The first letters of most
# secrets are public ("ghp_").
_SHOWN = 4
_PRINTABLE = bytes(range(0x20, 0x7F))
# No part of an ordinary secret follows these, so the text up to them passes at once: events end in
# a newline, JSON in a bracket.
_CLOSING = b' ",]}>'
# Windows are taken from this many characters at the end of a form, because the beginning of a token
# is often known.
_TAIL_MAX = 64
_WINDOW_MIN = 6

_HTML = re.compile(
    rb"&(?:#[xX]0{0,4}(?P<hex>[0-9A-Fa-f]{2})|#0{0,4}(?P<decimal>[1-9][0-9]{1,2})|(?P<name>[A-Za-z]{2,18}));"
)
_LOOKS_ESCAPED = re.compile(rb"(?:u00|x)[0-9A-Fa-f]{2}")


def _escapes(digits: bytes = b"", begins: bytes = b"") -> tuple[re.Pattern[bytes], ...]:
    """Percent, JSON and JavaScript, HTML. Each begins with its own character, for a fast search. An
    escape with these digits, or with a character of ``begins`` after its first one, is not matched.
    """
    percent = b"%" + (b"(?!%b)" % digits if digits else b"")
    slash = rb"\\" + (
        rb"(?!(?:u00|x)(?:%b)%b)" % (digits, b"|" + begins if begins else b"") if digits else b""
    )
    return (
        re.compile(percent + rb"(?P<hex>[0-9A-Fa-f]{2})"),
        re.compile(slash + rb"(?:(?:u00|x)(?P<hex>[0-9A-Fa-f]{2})|(?P<letter>[!-/:-@\[-`{-~]))"),
        _HTML,
    )


_NAMED = {
    name.removesuffix(";").encode(): letter.encode()
    for name, letter in html5.items()
    if len(letter) == 1 and " " < letter <= "~"
}


class SecretSearch:
    """Searches for secrets of printable ASCII with at least ``MIN_SECRET_CHARS`` characters."""

    __slots__ = (
        "_escapes",
        "_forms",
        "_is_odd",
        "_layers",
        "_longest",
        "_nowhere",
        "_step",
        "_width",
        "held",
        "held_max",
    )

    def __init__(self, *secrets: bytes) -> None:
        letters = set(b"".join(secrets))
        shortest, longest = min(map(len, secrets)), max(map(len, secrets))
        self.held = (
            _PRINTABLE if letters & set(_CLOSING) else bytes(set(_PRINTABLE) - set(_CLOSING))
        )
        self.held_max = longest * _WIDEST
        self._forms = frozenset(form for secret in secrets for form in _forms(secret))
        # A secret may contain text that looks like an escape, and only one order of unfolding
        # preserves it.
        self._is_odd = bool(letters & set(b"%\\&"))
        # After a character that begins an escape, the first characters of the secret would be read
        # as its rest.
        digits = {form[:2] for form in self._forms if re.match(rb"[0-9A-Fa-f]{2}", form)}
        begins = {found[0] for form in self._forms if (found := _LOOKS_ESCAPED.match(form))}
        self._escapes = (_escapes(), _escapes(b"|".join(sorted(digits)), b"|".join(sorted(begins))))
        self._longest = max(map(len, self._forms))
        # Every text as long as `tail` contains a window at a multiple of `step`.
        tail = min(shortest, _TAIL_MAX)
        self._width = max(_WINDOW_MIN, (tail + 1) // 2)
        self._step = tail - self._width + 1
        # Window → offset of the form's beginning before it, and length to the form's end. A window
        # at several positions has another layer for each.
        self._layers: list[dict[bytes, tuple[int, int]]] = [{}]
        for form in self._forms:
            for at in range(len(form) - tail, len(form) - tail + self._step):
                window, position = form[at : at + self._width], (at, len(form) - at)
                layer = next(
                    (layer for layer in self._layers if layer.get(window, position) == position),
                    None,
                )
                if layer is None:
                    self._layers.append(layer := {})
                layer[window] = position
        self._nowhere = (0, longest)

    def masked(self, data: bytes) -> bytes:
        found = list(self._found(data))
        for escapes in self._escapes:
            folds = None
            for folds in _every_order(data, escapes) if self._is_odd else _in_order(data, escapes):
                for start, end in self._found(folds[-1].text):
                    for fold in reversed(folds):
                        start, end = fold.before(start), fold.before(end)
                    found.append((start, end))
            if folds is None:
                break  # there are no escapes
        if not found:
            return data
        out = bytearray(data)
        for start, end in found:
            out[start:end] = _MASK * (end - start)
        return bytes(out)

    def _found(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Each window takes the same time, whether it belongs to the secret or not: a text as long
        as a form is hashed in every case.
        """
        before, width = self._longest, self._width
        text = bytes(before) + text
        steps = range(before, len(text) - width + 1, self._step)
        windows = [text[at : at + width] for at in steps]
        for layer in self._layers:
            positions = list(map(layer.get, windows, repeat(self._nowhere)))
            texts = [
                text[at - back : at + on] for at, (back, on) in zip(steps, positions, strict=True)
            ]
            if not self._forms.isdisjoint(texts):
                for at, (back, _), one in zip(steps, positions, texts, strict=True):
                    if one in self._forms:
                        yield at - back - before, at - back - before + len(one)


class Scrubber:
    """Removes the secret from a stream of pieces, also if the secret spans pieces."""

    __slots__ = ("_retained", "_search", "_shown")

    def __init__(self, search: SecretSearch) -> None:
        self._search = search
        # the end of the stream so far that may contain a beginning of the secret
        self._retained = b""
        self._shown = 0  # characters of it that were passed on

    def feed(self, data: bytes) -> bytes:
        """A piece that is followed by more."""
        stream = self._search.masked(self._retained + data)
        end = stream[-self._search.held_max :]
        run = len(end) - len(end.rstrip(self._search.held))
        begin = len(stream) - run
        shown = begin if run == self._search.held_max else min(begin + _SHOWN, len(stream))
        shown = max(self._shown, shown)
        passed = stream[self._shown : shown]
        self._retained, self._shown = stream[begin:], max(shown - begin, 0)
        return passed

    def last(self, data: bytes) -> bytes:
        """The last piece, with all retained text. Another stream may follow."""
        rest = self._search.masked(self._retained + data)[self._shown :]
        self._retained, self._shown = b"", 0
        return rest

    def whole(self, data: bytes) -> bytes:
        """A complete text."""
        return self._search.masked(data)


class _Fold:
    """A text with each escape replaced by its character, and the mapping back."""

    __slots__ = ("_lost", "_marks", "text")

    def __init__(self, text: bytes, marks: list[int], lost: list[int]) -> None:
        self.text = text
        self._marks = marks  # after each of these characters
        self._lost = lost  # the number of bytes removed up to there

    def before(self, at: int) -> int:
        """The position in the text before folding."""
        known = bisect_right(self._marks, at)
        return at + self._lost[known - 1] if known else at


def _in_order(data: bytes, escapes: Sequence[re.Pattern[bytes]]) -> Iterator[tuple[_Fold, ...]]:
    folds: tuple[_Fold, ...] = ()
    for escape in (*escapes,) * _ROUNDS:
        if (folded := _folded(folds[-1].text if folds else data, escape)) is not None:
            folds = (*folds, folded)
            yield folds


def _every_order(data: bytes, escapes: Sequence[re.Pattern[bytes]]) -> Iterator[tuple[_Fold, ...]]:
    """Each escape as often as there are rounds. Most orders give the same text."""
    waiting: list[tuple[tuple[_Fold, ...], tuple[int, ...]]] = [((), (_ROUNDS,) * len(escapes))]
    seen = set()
    while waiting:
        folds, left = waiting.pop()
        text = folds[-1].text if folds else data
        for kind, escape in enumerate(escapes):
            rest = tuple(count - (kind == at) for at, count in enumerate(left))
            if (
                rest[kind] < 0
                or (folded := _folded(text, escape)) is None
                or (folded.text, rest) in seen
            ):
                continue
            seen.add((folded.text, rest))
            waiting.append(((*folds, folded), rest))
            yield waiting[-1][0]


def _folded(text: bytes, escape: re.Pattern[bytes]) -> _Fold | None:
    """None: there is no such escape."""
    pieces, marks, lost = list[bytes](), list[int](), list[int]()
    size = end = 0
    for found in escape.finditer(text):
        if (letter := _letter(found)) is None:
            continue
        start = found.start()
        pieces += (text[end:start], letter)
        size += start - end + 1
        end = found.end()
        marks.append(size)
        lost.append(end - size)
    if not pieces:
        return None
    pieces.append(text[end:])
    return _Fold(b"".join(pieces), marks, lost)


def _letter(found: re.Match[bytes]) -> bytes | None:
    kind, digits = found.lastgroup, found[found.lastindex or 0]
    match kind:
        case "hex":
            return bytes.fromhex(digits.decode("ascii"))
        case "decimal":
            return bytes((int(digits),)) if int(digits) < 0x100 else None
        case "name":
            return _NAMED.get(digits)
        case _:
            return digits


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield secret.lower()  # as the name of a header, which is compared in lower case
    yield secret.replace(b" ", b"+")  # as web forms encode it
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for before in range(3):
        # The base64 characters that depend on the secret alone, if it begins after so many bytes.
        encoded = base64.b64encode(bytes(before) + secret)
        part = encoded[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        yield part
        yield part.replace(b"+", b"-").replace(b"/", b"_")
