"""Two parsers on one connection: an upstream that splits requests differently acts on no unjudged
request. The upstreams here are careless. Each refusal has a control in which the same bytes do
harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.http.inspection import Authority
from paddock.http.message import may_begin_a_request
from paddock.http.route_table import Settings
from paddock.policy.model import BODILESS_METHODS, Source, Sourced
from tests.system.network.certificates import TestAuthority
from tests.system.network.relay import SECRET, Relay, a_route, asked, serving
from tests.system.network.test_inspection import fetched
from tests.system.network.test_route_requests import HOST, all_of, talking
from tests.system.network.upstreams import Asked, UpstreamServer, answer, echo, upstream

OURS = TestAuthority()
HIDDEN = b"DELETE /admin HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


async def careless(
    asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A server that never reads a body: bytes after a head are the next request."""
    writer.write(answer(b"" if asked.method == "HEAD" else b"ok"))
    if asked.header("connection") == "close":
        writer.close()


@contextlib.contextmanager
def routed(
    *rules: tuple[str, str], body_methods: tuple[str, ...] = ()
) -> Iterator[tuple[UpstreamServer, Relay]]:
    with upstream(careless) as server:
        route = a_route("api", server.port, rules=rules or None, secret=True)
        with serving(replace(route, body_methods=body_methods) if body_methods else route) as relay:
            yield server, relay


def seen(server: UpstreamServer) -> list[tuple[str, str]]:
    return [(one.method, one.target) for one in server.asked]


def test_control_a_careless_upstream_reads_a_body_as_a_request() -> None:
    with (
        upstream(careless) as server,
        socket.create_connection(("127.0.0.1", server.port)) as client,
    ):
        client.sendall(
            b"GET /items HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN
        )
        client.shutdown(socket.SHUT_WR)
        all_of(client)
        assert seen(server) == [("GET", "/items"), ("DELETE", "/admin")]


@pytest.mark.parametrize("method", BODILESS_METHODS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_body_that_servers_do_not_expect_is_refused(method: str, chunked: bool) -> None:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(HIDDEN)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN) if chunked else HIDDEN
    head = f"{method} /items HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n".encode()
    with routed(("*", "/items")) as (server, relay):
        with talking(relay) as client:
            client.sendall(head + framing + b"\r\n\r\n" + body)
            output = all_of(client)
        assert output.startswith(b"HTTP/1.1 403 ")
        assert (
            method == "HEAD"
            or f'body_methods = ["{method}"] in [network.routes.api]'.encode() in output
        )
        assert seen(server) == []
        for none in (b"", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n"):
            with talking(relay) as client:
                client.sendall(
                    head + none + b"\r\n" + (b"0\r\n\r\n" if b"chunked" in none else b"")
                )
                assert all_of(client).startswith(b"HTTP/1.1 200 "), "it has no body"
        assert seen(server) == [(method, "/items")] * 3
        assert [one["action"] for one in relay.wait_for(4)] == ["deny", "allow", "allow", "allow"]


def test_a_route_can_let_a_method_have_a_body_and_its_connection_is_not_used_again() -> None:
    with routed(("*", "/items"), body_methods=("DELETE",)) as (server, relay):
        for _ in range(2):
            assert (
                asked(relay, HOST, "/items", "-X", "DELETE", "--data-binary", HIDDEN.decode())[0]
                == 200
            )
        assert seen(server) == [("DELETE", "/items")] * 2, "the unread body is not a request"
        assert [one.header("connection") for one in server.asked] == ["close"] * 2
        assert server.connections == 2
        assert asked(relay, HOST, "/items", "-X", "GET", "-d", "x")[0] == 403, (
            "other methods may not"
        )


@pytest.mark.parametrize(
    "body",
    [HIDDEN, b"\r\n \x0b" + HIDDEN, b"GET /admin", b"word"],
    ids=["whole", "blanks", "old", "word"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["with its head", "behind its head"])
def test_a_body_that_could_be_a_request_is_the_last_of_its_connection(
    body: bytes, apart: bool
) -> None:
    """For any method: some upstreams answer an error without reading the body."""
    with routed(("POST", "/items")) as (server, relay), talking(relay) as client:
        head = (
            b"POST /items HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            % (
                HOST.encode(),
                len(body),
            )
        )
        for piece in [head, body] if apart else [head + body]:
            client.sendall(piece)
        assert all_of(client).startswith(b"HTTP/1.1 200")
        assert seen(server) == [("POST", "/items")]
        assert server.asked[0].header("connection") == "close"


def test_ordinary_bodies_share_a_connection() -> None:
    bodies = [
        b'{"a": "GET /x HTTP/1.1"}',
        b"a=1&b=GET /x",
        b"<a>GET /</a>",
        b"--x\r\nContent-Type: text/plain\r\n\r\nGET /\r\n--x--",
    ]
    with (
        upstream(echo) as server,
        serving(a_route("api", server.port)) as relay,
        talking(relay) as client,
    ):
        for body in bodies:
            head = b"POST /items HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (
                HOST.encode(),
                len(body),
            )
            client.sendall(head)
            client.sendall(body)
        client.sendall(
            b"GET /end HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % HOST.encode()
        )
        all_of(client)
        assert [one.body for one in server.asked] == [*bodies, b""]
        assert server.connections == 1


def test_only_a_token_followed_by_a_blank_begins_a_request() -> None:
    for beginning in (
        b"",
        b" \r\n",
        b"GET",
        b"GET /",
        b"get\t/",
        b"\n\nX y",
        b"GET\x0b/",
        b"\x85GET /",
        b"GET\r /",
    ):
        assert may_begin_a_request(beginning), beginning
    for beginning in (
        b"{",
        b"[1, 2]",
        b"<a />",
        b"a=b c",
        b"--x\r\nA: b",
        b"\x1f\x8b\x08\0",
        b"PK\x03\x04",
        b"word\r\nmore words",
    ):
        assert not may_begin_a_request(beginning), beginning


@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
def test_an_inspected_host_gets_no_unexpected_body(flag: str, tmp_path: Path) -> None:
    name = "localhost"
    with upstream(careless, tls=OURS.server(name)) as server:
        settings, authority = (
            Settings(inspect=(Sourced(name, Source(file="p.toml", line=4)),)),
            Authority([name]),
        )
        with serving(settings=settings, authority=authority, tls=OURS.trust()) as relay:
            more = (flag, "-X", "GET", "--data-binary", HIDDEN.decode())
            status, body, _ = fetched(relay, authority, tmp_path, server.port, "/items", *more)
            assert (status, b"inspect = true and body_methods" in body) == (403, True)
            assert seen(server) == []
            assert fetched(relay, authority, tmp_path, server.port, "/items", flag)[0] == 200
            assert seen(server) == [("GET", "/items")]


def test_routes_to_one_upstream_share_no_connection() -> None:
    """Surplus bytes of one route are not searched for the secret of the other route."""
    with upstream(echo) as server:
        one, other = a_route("api", server.port, secret=True), a_route("other", server.port)
        with serving(one, other) as relay:
            for name in ("api", "other", "api", "other"):
                assert asked(relay, f"{name}.paddock.internal", "/")[0] == 200
            assert server.connections == 2


def test_an_upstream_that_never_completes_an_answer_times_out() -> None:
    async def interim(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.target == "/some":
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 50 + answer(b"ok"))
            return
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)
                await writer.drain()

    with upstream(interim) as server, serving(a_route("api", server.port)) as relay:
        assert asked(relay, HOST, "/some") == (200, b"ok")
        assert asked(relay, HOST, "/endless")[0] == 502


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_surplus_bytes_of_an_upstream_do_not_answer_the_next_request(
    method: str, status: str
) -> None:
    async def too_much(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.target == "/next":
            writer.write(answer(b"the right one"))
        else:
            writer.write(
                answer(b"", status=status) + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
            )

    with upstream(too_much) as server, serving(a_route("api", server.port)) as relay:
        asked(relay, HOST, "/first", *(["-I"] if method == "HEAD" else []))
        assert asked(relay, HOST, "/next") == (200, b"the right one")
        assert server.connections == 2


def test_a_secret_is_not_read_as_the_body_of_a_request_that_was_hidden() -> None:
    """An unfinished request in a body would swallow the next request of the connection, with its
    secret.
    """
    hidden = "POST /paste HTTP/1.1\r\nHost: u\r\nContent-Length: 40\r\n\r\n"
    with routed(("GET", "/items")) as (server, relay):
        assert asked(relay, HOST, "/items", "-X", "GET", "--data-binary", hidden)[0] == 403
        assert asked(relay, HOST, "/items")[0] == 200
        assert seen(server) == [("GET", "/items")]
        assert SECRET.decode() not in json.dumps([one.body.decode() for one in server.asked])
