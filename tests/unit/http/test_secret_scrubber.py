"""The secret is found in every answer. The search reveals nothing to a client that guesses."""

from __future__ import annotations

import base64
import html
import json
import string
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paddock.http.secret_scrubber import Scrubber, SecretSearch

ODD = "sk-a/b+c\"d:0123456789 <&>'\\}"
ORDINARY = "q8V+zR3/Xy7!kLm2Pw"
TOKEN = "ghp_O9cGE5SIzgHqLRYq1bDDG1e5XnrwlNaENFV4"
PRINTABLE = some.text(
    some.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=60
)
_ALNUM = string.ascii_letters + string.digits


def each(form: str, safe: str = "") -> Callable[[str], str]:
    return lambda text: "".join(one if one in safe else form.format(ord(one)) for one in text)


def named(text: str) -> str:
    names = {
        "+": "&plus;",
        "/": "&sol;",
        "!": "&excl;",
        '"': "&quot;",
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
    }
    return "".join(names.get(one, one) for one in text)


def mixed(text: str) -> str:
    ways: list[Callable[[str], str]] = [
        str,
        each("%{:02X}"),
        each("\\u{:04x}"),
        each("&#{};"),
        each("&#x{:X};"),
    ]
    return "".join(ways[at % len(ways)](one) for at, one in enumerate(text))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "lower case, as the name of a header": str.lower,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64, one byte later": lambda text: base64.b64encode(b"x" + text.encode() + b"yz").decode(),
    "base64, two bytes later": lambda text: base64.b64encode(b"xy" + text.encode()).decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64, percent-encoded": lambda text: quote(base64.b64encode(text.encode()), safe=""),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal, upper case": lambda text: text.encode().hex().upper(),
    "percent": lambda text: quote(text, safe=""),
    "percent, lower case": lambda text: each("%{:02x}", _ALNUM + "-._~")(text),
    "percent, but for the slash": quote,
    "percent, as encodeURIComponent": lambda text: quote(text, safe="!'()*"),
    "percent, as a form": quote_plus,
    "percent, every letter": each("%{:02x}"),
    "percent, twice": lambda text: quote(quote(text, safe=""), safe=""),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, escaped slash": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON, System.Text.Json": each("\\u{:04X}", _ALNUM + " -_.!#$%()*,/:;=?@[]^{|}~"),
    "JSON, Go": lambda text: json.dumps(text)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c"),
    "JSON, not alphanumeric": each("\\u{:04x}", _ALNUM),
    "JSON, every letter": each("\\u{:04X}"),
    "JSON, within JSON": lambda text: json.dumps(each("\\u{:04x}", _ALNUM)(text))[1:-1],
    "JavaScript": each("\\x{:02x}", _ALNUM),
    "HTML": html.escape,
    "HTML, names": named,
    "HTML, decimal": each("&#{};", _ALNUM),
    "HTML, decimal with zeros": each("&#{:05};", _ALNUM),
    "HTML, hexadecimal": each("&#x{:x};", _ALNUM),
    "HTML, every letter": each("&#X{:02X};"),
    "HTML, twice": lambda text: html.escape(each("&#{};", _ALNUM)(text)),
    "a mixture": mixed,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", [ODD, ORDINARY, TOKEN])
def test_the_secret_is_found_in_each_spelling_wherever_the_stream_is_cut(
    secret: str, spelling: str
) -> None:
    form = SPELLINGS[spelling](secret).encode()
    search = SecretSearch(secret.encode())
    text = b"before\n" + form + b"\nafter"
    for cut in range(len(text) + 1):
        scrubber = Scrubber(search)
        out = scrubber.feed(text[:cut]) + scrubber.feed(text[cut:]) + scrubber.last(b"")
        assert len(out) == len(text)
        assert out.startswith(b"before\n")
        assert out.endswith(b"\nafter")
        # The first letters pass if a piece ends there. Base64 has other letters around the secret,
        # and shares some with it.
        assert out.count(b"*") >= len(form) - 12, (cut, out)


BEHIND: dict[str, tuple[str, Callable[[str], str]]] = {
    "percent": ("%", quote),
    "percent, with percent": ("%", each("%{:02x}", _ALNUM)),
    "percent, in JSON": ("%", lambda text: json.dumps(text)[1:-1].replace("/", "\\/")),
    "JavaScript": ("\\x", each("\\x{:02x}", _ALNUM)),
    "JSON": ("\\u00", each("\\u{:04x}", _ALNUM)),
    "a backslash": ("\\", each("%{:02x}", _ALNUM)),
    "percent, in HTML": ("&#37;", each("&#{};", _ALNUM)),
}


@pytest.mark.parametrize("spelling", BEHIND)
@pytest.mark.parametrize(
    "secret", ["abcd/ef+ghi", "12/34+567890", "xab/cd+efghi", "u00ab/cd+efghi"]
)
def test_the_secret_is_found_behind_the_beginning_of_an_escape(secret: str, spelling: str) -> None:
    before, spell = BEHIND[spelling]
    form = spell(secret).encode()
    out = SecretSearch(secret.encode()).masked(b"<" + before.encode() + form + b">")
    assert out.endswith(b"*" * len(form) + b">"), out


@pytest.mark.parametrize("secret", ["a\\<b&c>'d\"e\\&f", "a\\b\\c\\d\\e&lt;f", "%3Ca\\<b%&c\\%41"])
@pytest.mark.parametrize("spell", [html.escape, quote, lambda text: json.dumps(text)[1:-1], named])
def test_a_secret_that_looks_escaped_is_found_once_and_twice_over(
    secret: str, spell: Callable[[str], str]
) -> None:
    for form in (spell(secret).encode(), spell(spell(secret)).encode()):
        out = SecretSearch(secret.encode()).masked(b"<" + form + b">")
        assert out == b"<" + b"*" * len(form) + b">"


@given(PRINTABLE, some.lists(some.binary(max_size=40), max_size=6), some.data())
def test_a_stream_in_any_pieces_keeps_its_length_and_loses_the_secret(
    secret: str, parts: list[bytes], data: some.DataObject
) -> None:
    raw = secret.encode()
    stream = raw.join(parts)
    cuts = sorted(data.draw(some.lists(some.integers(0, len(stream)), max_size=8)))
    scrubber = Scrubber(SecretSearch(raw))
    edges = [0, *cuts, len(stream)]
    out = b"".join(scrubber.feed(stream[a:b]) for a, b in pairwise(edges)) + scrubber.last(b"")
    assert len(out) == len(stream)
    assert raw not in out
    if raw not in stream and b"*" not in out:
        assert out == stream


@pytest.mark.parametrize("secret", [ODD, ORDINARY, TOKEN])
def test_an_event_passes_at_once(secret: str) -> None:
    """A reader may wait for the event."""
    scrubber = Scrubber(SecretSearch(secret.encode()))
    ordinary = [b'{"a": 1}', b'["a"]', b'"a"', b"data: ends in s", b"k-a"] if secret != ODD else []
    for event in (
        b"data: one\n\n",
        b"data: " + secret[:9].encode() + b"\n\n",
        b"\0\0\x05\xff",
        *ordinary,
    ):
        assert scrubber.feed(event) == event


def guesses(
    secret: str, spellings: Iterable[Callable[[str], str]] = SPELLINGS.values()
) -> list[tuple[bytes, bytes]]:
    """A right and a wrong guess for each length and each spelling. Both end in letters of the same
    kind.
    """
    search, found = SecretSearch(secret.encode()), []
    for spell in spellings:
        form = spell(secret)
        for size in range(1, len(form)):
            last = form[size - 1]
            kind = next(
                (kind for kind in ("0123456789", "abcdef", "ABCDEF", _ALNUM) if last in kind), None
            )
            if kind is not None:
                wrong = next(one for one in kind if one != last)
                if (
                    search.masked(form[:size].encode()) == form[:size].encode()
                ):  # a complete secret may be detected
                    found.append((form[:size].encode(), (form[: size - 1] + wrong).encode()))
    return found


@pytest.mark.parametrize("secret", [ORDINARY, TOKEN])
def test_pieces_have_the_same_sizes_for_a_right_and_a_wrong_guess(secret: str) -> None:
    search = SecretSearch(secret.encode())

    def sizes(guess: bytes) -> tuple[int, ...]:
        scrubber = Scrubber(search)
        pieces = [
            scrubber.feed(b"no such item: " + guess),
            scrubber.feed(b"?"),
            scrubber.last(b" at all"),
        ]
        assert b"".join(pieces) == b"no such item: " + guess + b"? at all", (
            "a part of the secret changes nothing"
        )
        return tuple(map(len, pieces))

    both = guesses(secret)
    assert len(both) > 500
    for right, wrong in both:
        assert sizes(right) == sizes(wrong), (right, wrong)


@pytest.mark.parametrize("secret", [ORDINARY, TOKEN, "hunter2!x"])
def test_a_part_of_the_secret_is_never_overwritten(secret: str) -> None:
    search = SecretSearch(secret.encode())
    for spell in (str, SPELLINGS["JSON, every letter"], SPELLINGS["hexadecimal"]):
        for start in range(len(secret)):
            for end in range(start + 1, len(secret) + 1):
                text = spell(secret[start:end]).encode()
                assert (search.masked(text) == text) == (end - start < len(secret))


def test_the_search_takes_as_long_for_a_right_guess_as_for_a_wrong_one() -> None:
    """A client can have a guess echoed a thousand times to measure a small difference."""
    search = SecretSearch(TOKEN.encode())

    def seconds(text: bytes) -> float:
        begun = time.thread_time()
        search.masked(text)
        return time.thread_time() - begun

    for known in (4, 5, 20, 36, 39):
        right = (TOKEN[:known].encode() + b"\n") * (400_000 // (known + 1))
        wrong = (b"~" * known + b"\n") * (400_000 // (known + 1))
        ratios: list[float] = []
        # A difference of the search shows in every round, one of the machine does not.
        while len(ratios) < 8 and not any(0.9 < ratio < 1.11 for ratio in ratios):
            both = [(seconds(right), seconds(wrong)) for _ in range(15)]
            ratios.append(min(one for one, _ in both) / min(two for _, two in both))
        assert any(0.9 < ratio < 1.11 for ratio in ratios), (known, ratios)
