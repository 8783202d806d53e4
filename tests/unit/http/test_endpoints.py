"""Normal forms of paths, and the rules that match them."""

from __future__ import annotations

import contextlib
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paddock.http.endpoints import AmbiguousPath, allowed_by, normalise
from paddock.policy.model import EndpointRule, Source


def rules(*written: str) -> tuple[EndpointRule, ...]:
    pairs = (one.split(" ") for one in written)
    return tuple(
        EndpointRule(method=method, path=path, source=Source(file="p.toml", line=at + 1))
        for at, (method, path) in enumerate(pairs)
    )


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/", "/"), ("/a", "/a"), ("/a/", "/a/"), ("/a/./b", "/a/b"), ("/a/../b", "/b"),
        ("/a/..", "/"), ("/a/.", "/a/"), ("/../../b", "/b"), ("//a///b", "/a/b"), ("/a//", "/a/"),
        ("//", "/"), ("/%61%2Db", "/a-b"), ("/a%2eb", "/a.b"), ("/a%20b", "/a%20b"),
        ("/%e2%82%ac", "/%E2%82%AC"), ("/100%25", "/100%25"), ("/a%2fb", "/a%2Fb"),
        ("/a:b@c,d=e", "/a:b@c,d=e"), ("/...", "/..."), ("/..a", "/..a"), ("/a%3Fb", "/a%3Fb"),
        ("/%25x", "/%25x"),
    ],
)  # fmt: skip
def test_a_path_has_one_form(written: str, path: str) -> None:
    assert normalise(written).path == path
    assert normalise(f"{written}?q=/../%2e%2e;x").path == path, "the query is not looked at"


@pytest.mark.parametrize(
    "written",
    [
        "/%2e%2e/x", "/%2e", "/.%2e/x", "/%2E./x", "/..%2fx", "/a%2f..", "/a%2f%2e%2e%2fb", "/%2fx",
        "/x%2f", "/a%2f%2fb", "/a/%252e%252e/b", "/%252f", "/%25%32%66", "/%25%2566", "/%255c",
        "/a\\b", "/a%5cb", "/..\\x", "/a;b", "/..;/x", "/a%3bb", "/a%00b", "/a%0d%0ab", "/a%7f",
        "/%", "/%1", "/%zz", "/a b", "/a\tb", "/é", "/a#b", "/a\x00", "x", "", "*", "http://h/",
        '/a"b', "/a<b", "/a|b", "/a^b", "/a`b", "/{a}", "/[a]",
    ],
)  # fmt: skip
def test_a_request_that_servers_read_differently_is_refused(written: str) -> None:
    with pytest.raises(AmbiguousPath):
        normalise(written)


def test_the_query_is_kept_as_it_came() -> None:
    assert str(normalise("/a?x=%2e%2e&y=a;b?c")) == "/a?x=%2e%2e&y=a;b?c"
    assert str(normalise("/a?")) == "/a?"


@pytest.mark.parametrize(
    ("rule", "allowed", "denied"),
    [
        ("GET /v1/models", ["GET /v1/models", "GET /v1/x/../models", "GET //v1/models"],
         ["POST /v1/models", "get /v1/models", "GET /v1/models/", "GET /v1", "GET /v1/models/x",
          "GET /V1/models"]),
        ("* /v1/*", ["DELETE /v1/a", "GET /v1/a%20b"], ["GET /v1", "GET /v1/", "GET /v1/a/b",
         "GET /v1/a%2fb"]),
        ("GET /v1/**", ["GET /v1", "GET /v1/", "GET /v1/a/b", "GET /v1/a%2fb"], ["GET /v1x",
         "GET /v1/../v2", "GET /"]),
        ("GET /**/log", ["GET /log", "GET /a/b/log"], ["GET /log/x", "GET /a/logs"]),
        ("GET /a/**/b/*", ["GET /a/b/c", "GET /a/b/b/b"], ["GET /a/b", "GET /b/b/c"]),
        ("GET /", ["GET /", "GET /a/.."], ["GET /a"]),
        ("* /**", ["PATCH /", "GET /@scope%2fname"], []),
        ("GET /*/name", ["GET /x/name"], ["GET /@scope%2fname", "GET /x%2fname"]),
    ],
)  # fmt: skip
def test_a_rule_matches_the_listed_requests_only(
    rule: str, allowed: list[str], denied: list[str]
) -> None:
    for expected, requests in ((True, allowed), (False, denied)):
        for request in requests:
            method, target = request.split(" ")
            found = allowed_by(rules(rule), method, normalise(target).path)
            assert (found is not None) is expected, request


def test_allowing_rule_is_returned_or_none() -> None:
    found = allowed_by(rules("GET /a", "* /b", "GET /b"), "GET", "/b")
    assert found is not None
    assert found.source.line == 2
    assert allowed_by((), "GET", "/") is None


def test_many_wildcards_and_a_long_path_take_no_time() -> None:
    path = "/" + "a/" * 20000 + "x"
    assert allowed_by(rules("GET " + "/**/a" * 20 + "/b"), "GET", path) is None
    assert allowed_by(rules("GET " + "/**/a" * 20 + "/x"), "GET", path) is not None


PIECES = [
    "a",
    "b",
    ".",
    "..",
    "/",
    "//",
    "%2e",
    "%2f",
    "%25",
    "%41",
    "%5c",
    ";",
    "\\",
    "%",
    "%00",
    "é",
    "?",
    "*",
    "%2F..",
    "~",
]


@given(some.lists(some.sampled_from(PIECES), max_size=12))
def test_a_normal_path_is_stable_and_has_no_parent_steps(pieces: list[str]) -> None:
    try:
        once = normalise("/" + "".join(pieces))
    except AmbiguousPath:
        return
    assert normalise(once.path).path == once.path
    for reading in (once.path, unquote(once.path)):  # decoded once or twice
        assert not {"..", "."} & set(reading.split("/"))
        assert "//" not in reading
        assert "\\" not in reading


@given(some.text(max_size=60))
def test_any_text_is_normalised_or_refused(text: str) -> None:
    with contextlib.suppress(AmbiguousPath):
        assert normalise(text).path.startswith("/")
