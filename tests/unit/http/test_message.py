"""HTTP/1.1 messages with exactly one meaning. Each refused message has an accepted counterpart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.http.headers import request_of
from paddock.http.message import (
    CHUNKED,
    MAX_HEAD_BYTES,
    UNTIL_CLOSE,
    Answer,
    Headers,
    Malformed,
    Reader,
    RequestHead,
    UnwritableMessage,
    Writer,
    answer_bytes,
    answer_extent,
    lasts,
    request_bytes,
    request_extent,
)

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def reading(data: bytes, *, size: int = 1 << 20, over: bool = True) -> Reader:
    reader = Reader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    if over:
        reader.feed(b"")
    return reader


def request(data: bytes) -> tuple[RequestHead, bytes, Headers]:
    """The first request of a connection, its body and its trailers."""
    reader = reading(data)
    head = reader.request()
    assert head is not None
    _, extent = request_of(head)
    reader.begin(extent)
    body = b""
    while not reader.whole:
        body += reader.body()
    return head, body, reader.trailers


def post(*headers: str, body: bytes = b"", version: str = "1.1") -> bytes:
    lines = [f"POST /x HTTP/{version}", "Host: a", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


CHUNKS = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (GET, b""),
        (b"FETCH * HTTP/1.0\r\n\r\n", b""),
        (post("X-Empty:", "X:\ty \t", "Y: \xff"), b""),
        (post("Content-Length: 3", body=b"abcGET"), b"abc"),
        (post("content-length:  3 ", body=b"abc"), b"abc"),
        (post(CHUNKS, body=b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n"), b"abc0123456789"),
        (post("transfer-encoding: CHUNKED", body=b"0\r\nX: y\r\n\r\n"), b""),
    ],
)
def test_a_request_and_its_body_are_read(data: bytes, body: bytes) -> None:
    assert request(data)[1] == body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n" + GET, 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
        (b"GET / HTTP/1.1\rHost: a\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\r\nHost: a\r\n\r\n", 400),
        (b"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400),
        (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (post("Host : a"), 400),
        (post(" X: y"), 400),
        (post("X: y", "  z"), 400),
        (post("X"), 400),
        (post(": y"), 400),
        (post("X@: y"), 400),
        (post("X: a\x00b"), 400),
        (post("X: a\x01b"), 400),
        (post("X: a\x7fb"), 400),
        (post("X: a\rb"), 400),
        (post("X: a\nb"), 400),
        (post("Content-Length: 3", "Content-Length: 3", body=b"abc"), 400),
        (post("Content-Length: 3, 3", body=b"abc"), 400),
        (post("Content-Length: +3", body=b"abc"), 400),
        (post("Content-Length: 0x3", body=b"abc"), 400),
        (post("Content-Length: -3", body=b"abc"), 400),
        (post("Content-Length: 3_0", body=b"abc"), 400),
        (post("Content-Length: \xb3", body=b"abc"), 400),
        (post("Content-Length:", body=b"abc"), 400),
        (post("Content-Length: 3", CHUNKS, body=b"0\r\n\r\n"), 400),
        (post(CHUNKS, version="1.0", body=b"0\r\n\r\n"), 400),
        (post(CHUNKS, CHUNKS, body=b"0\r\n\r\n"), 501),
        (post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501),
        (post("Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"), 501),
        (post("Transfer-Encoding: identity", body=b"0\r\n\r\n"), 501),
        (post("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), 400),
        (post("Transfer-Encoding:", body=b"0\r\n\r\n"), 501),
        (post(CHUNKS, body=b"3\nabc\n0\n\n"), 400),
        (post(CHUNKS, body=b"3\r\nabcd\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"3\r\nabc\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"3 \r\nabc\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"0x3\r\nabc\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"-3\r\nabc\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"3;a\nb\r\nabc\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"3;" + b"a" * 5000 + b"\r\nabc\r\n0\r\n\r\n"), 400),
        (post(CHUNKS, body=b"1" + b"0" * 12 + b"\r\n"), 400),
        (post(CHUNKS, body=b"0\r\nX : y\r\n\r\n"), 400),
        (post(CHUNKS, body=b"0\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"), 431),
        (post(CHUNKS, body=b"3\r\nab"), 400),
        (post(CHUNKS, body=b"0\r\n"), 400),
        (post("Content-Length: 3", body=b"ab"), 400),
        (GET[:-1], 400),
        (post("X: " + "a" * MAX_HEAD_BYTES), 431),
        (b"a" * (MAX_HEAD_BYTES + 1), 431),
    ],
)
def test_an_ambiguous_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Malformed) as refused:
        request(data)
    assert refused.value.status == status


def test_a_line_without_its_cr_is_refused_before_the_head_is_there() -> None:
    assert reading(b"GET / HTTP/1.1\r\nHost: a\r", over=False).request() is None
    with pytest.raises(Malformed, match="CR LF"):
        reading(b"GET / HTTP/1.1\nHost", over=False).request()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_bytes_may_arrive_in_any_pieces(size: int) -> None:
    first = post(CHUNKS, body=b"3;a\r\nabc\r\n00a\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n")
    reader, seen, body = Reader(), [], b""
    data = first + GET + post("Content-Length: 4", body=b"\r\n\r\n")
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        while True:
            if reader.whole:
                if (head := reader.request()) is None:
                    break
                reader.begin(request_extent(head))
                seen.append(head.target)
            body += (piece := reader.body())
            if not piece and not reader.whole:
                break
    assert (seen, body, reader.unread) == (["/x", "/", "/x"], b"abc0123456789\r\n\r\n", b"")
    reader.feed(b"")
    with pytest.raises(EOFError):
        reader.request()


def test_trailers_are_kept_apart() -> None:
    assert request(post(CHUNKS, body=b"0\r\nX: y\r\nZ:\r\n\r\n"))[2] == [(b"x", b"y"), (b"z", b"")]


@pytest.mark.parametrize(
    ("data", "method", "extent"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", 5),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", "HEAD", 0),
        (b"HTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n", "GET", 0),
        (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "GET", 0),
        (b"HTTP/1.0 200 OK\r\n\r\n", "GET", UNTIL_CLOSE),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET",
            CHUNKED,
        ),
    ],
)
def test_the_end_of_an_answer_is_where_its_head_says(data: bytes, method: str, extent: int) -> None:
    answer = reading(data).answer()
    assert answer is not None
    assert answer_extent(answer, method) == extent


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 099 OK\r\n\r\n",
     b"HTTP/1.1  200 OK\r\n\r\n",
     b"HTTP/1.1 200 O\x00K\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 200 OK\n\n",
     b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n"],
)  # fmt: skip
def test_an_invalid_answer_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        reading(data).answer()


def test_a_body_may_last_until_the_end() -> None:
    reader = reading(b"abc", over=False)
    reader.begin(UNTIL_CLOSE)
    assert (reader.body(), reader.whole) == (b"abc", False)
    reader.feed(b"")
    assert (reader.body(), reader.whole) == (b"", True)


def test_a_connection_lasts_unless_a_side_closes_it() -> None:
    assert lasts([(b"connection", b"keep-alive, x"), (b"x", b"close")], modern=True)
    assert not lasts([(b"connection", b"x"), (b"connection", b"y,\tClose")], modern=True)
    assert not lasts([(b"connection", b"keep-alive")], modern=False)


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/\r\nX: y", []),
        ("GET", "/ HTTP/1.1\r\nHost: b\r\n\r\nGET /", []),
        ("G T", "/", []),
        ("GET", "/é", []),
        ("", "/", []),
        ("GET", "", []),
        ("GET", "/", [(b"x", b"a\r\ny: b")]),
        ("GET", "/", [(b"x", b"a\nb")]),
        ("GET", "/", [(b"x", b"a\x00")]),
        ("GET", "/", [(b"x: y\r\nz", b"")]),
        ("GET", "/", [(b"", b"x")]),
        ("GET", "/", [(b"host: b, x", b"a")]),
        ("GET", "/", [(b"content-length", b"1"), (b"content-length", b"2")]),
        ("GET", "/", [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]),
    ],
)
def test_an_ambiguous_message_is_not_written(method: str, target: str, headers: Headers) -> None:
    assert request_bytes("GET", "/", [(b"x", b"a\tb \xff")]) == (
        b"GET / HTTP/1.1\r\nx: a\tb \xff\r\n\r\n",
        0,
    )
    with pytest.raises(UnwritableMessage):
        request_bytes(method, target, headers)
    with pytest.raises(UnwritableMessage):
        answer_bytes(Answer(200, b"a\r\nb", []), "GET", modern=True, last=False)


def test_a_body_is_as_long_as_was_announced() -> None:
    writer = Writer()
    writer.begin(3)
    assert writer.body(b"ab") == b"ab"
    with pytest.raises(UnwritableMessage):
        writer.end()
    with pytest.raises(UnwritableMessage):
        writer.body(b"cd")
    assert (writer.body(b"c"), writer.end(), writer.whole) == (b"c", b"", True)
    with pytest.raises(UnwritableMessage):
        writer.body(b"d")


@pytest.mark.parametrize(
    ("status", "method", "modern", "expected"),
    [
        (200, "GET", True, (b"transfer-encoding: chunked\r\n", CHUNKED)),
        (200, "GET", False, (b"", UNTIL_CLOSE)),
        (200, "HEAD", True, (b"", 0)),
        (304, "GET", True, (b"", 0)),
    ],
)
def test_an_answer_of_unknown_length(
    status: int, method: str, modern: bool, expected: tuple[bytes, int]
) -> None:
    head, extent = answer_bytes(Answer(status, b"", []), method, modern=modern, last=False)
    assert (head, extent) == (b"HTTP/1.1 %d \r\n%s\r\n" % (status, expected[0]), expected[1])


@given(st.lists(st.binary(max_size=40), max_size=6), st.booleans(), st.integers(1, 50))
def test_a_written_message_is_read_again(pieces: list[bytes], chunked: bool, size: int) -> None:
    length = sum(map(len, pieces))
    how = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % length)
    head, extent = request_bytes("PUT", "/x", [(b"host", b"a"), how])
    writer = Writer()
    writer.begin(extent)
    trailers: Headers = [(b"t", b"1")] if chunked else []
    data = b"".join([head, *map(writer.body, pieces), writer.end(trailers)])
    assert request(data) == (
        RequestHead("PUT", "/x", [(b"host", b"a"), how]),
        b"".join(pieces),
        trailers,
    )


@given(
    st.binary(max_size=60),
    st.sampled_from([GET, post(CHUNKS), post(CHUNKS, body=b"3\r\nabc\r\n0\r\n"), b""]),
)
def test_random_bytes_are_parsed_or_refused(noise: bytes, before: bytes) -> None:
    for data in (before + noise, noise + before):
        try:
            request(data)
        except (Malformed, EOFError):
            continue
