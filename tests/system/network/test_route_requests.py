"""Routes with real clients and upstreams: requests, answers and denials. Each denial has the same
request as an allowed control, and a check of what the upstream got.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from paddock.http.upstream import Patience
from paddock.policy.model import InjectMode
from tests.support.waiting import wait_for
from tests.system.network.relay import SECRET, Relay, a_route, asked, serving
from tests.system.network.upstreams import (
    Asked,
    answer,
    echo,
    read_body,
    upstream,
    websocket_accept,
    websocket_echo,
)

HOST = "api.paddock.internal"
# Short only for the side that a test delays. A busy machine must not time out the other side.
HASTY_WITH_CLIENTS, HASTY_WITH_UPSTREAMS = Patience(head_s=0.3, body_s=0.3), Patience(answer_s=0.3)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.contextmanager
def talking(relay: Relay, kind: str = "route", host: str = HOST) -> Iterator[socket.socket]:
    """A client that sends any bytes."""
    with socket.create_connection(("127.0.0.1", relay.listen(kind, host))) as client:
        client.settimeout(60)
        yield client


def all_of(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = client.recv(65536)
        assert piece, data
        data += piece
    return data


def test_a_request_reaches_the_upstream_under_its_own_name() -> None:
    with upstream() as server, serving(a_route("api", server.port, base="/v1")) as relay:
        status, body = asked(
            relay,
            HOST,
            "/models?x=1",
            "-H",
            "X-Mine: yes",
            "-H",
            "Connection: X-Hop",
            "-H",
            "X-Hop: 1",
        )
        assert status == 200
        output = json.loads(body)
        assert (output["method"], output["target"]) == ("GET", "/v1/models?x=1")
        (request,) = server.asked
        assert request.header("host") == f"127.0.0.1:{server.port}"
        assert (
            request.header("x-mine"),
            request.header("x-hop"),
            request.header("connection"),
        ) == ("yes", None, None)
        (reported,) = relay.wait_for(1)
        assert reported == {
            "event": "network", "layer": "request", "action": "allow", "host": "127.0.0.1",
            "port": server.port, "address": "127.0.0.1", "rule": "paddock.toml:7", "reason": None,
            "sent": 0, "received": len(body), "ms": reported["ms"], "pid": None, "exe": None,
            "by": None, "asked_ms": None,
            "request": {"method": "GET", "path": "/models", "status": 200, "route": "api",
            "hint": None},
        }  # fmt: skip


def test_an_endpoint_without_a_rule_is_refused_and_nothing_goes_out() -> None:
    rules = [("GET", "/v1/models"), ("POST", "/v1/chat/*")]
    with upstream() as server, serving(a_route("api", server.port, rules=rules)) as relay:
        assert asked(relay, HOST, "/v1/models")[0] == 200
        assert asked(relay, HOST, "/v1/chat/x", "-d", "hello")[0] == 200
        for method, path in [
            ("POST", "/v1/models"), ("GET", "/v1/files"), ("GET", "/v1/models/../files"),
            ("GET", "/v1/models%2f..%2ffiles"), ("GET", "/v1/%2e%2e/v1/models"),
            ("POST", "/v1/chat/x%2fy"), ("GET", "/v1/models;x"), ("GET", "/v1/models%00"),
        ]:  # fmt: skip
            status, body = asked(relay, HOST, path, "-X", method)
            assert status == 403, (method, path)
            assert body.startswith(b"paddock: denied: ")
            assert b"rule: paddock.toml:7\n" in body
        status, body = asked(relay, HOST, "/v1/files")
        assert b"--allow-endpoint api:GET:/v1/files\n" in body, (
            "the answer names the flag that allows it"
        )
        assert [one.target for one in server.asked] == ["/v1/models", "/v1/chat/x"], (
            "the upstream saw nothing else"
        )
        events = relay.wait_for(11)
        assert [one["action"] for one in events] == ["allow"] * 2 + ["deny"] * 9
        assert [one["rule"] for one in events[:2]] == ["paddock.toml:20", "paddock.toml:21"]


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "x_http_method", "X-Original-URL", "X-Rewrite-Url"]
)
def test_no_header_makes_another_request_of_the_one_that_is_judged(name: str) -> None:
    with (
        upstream() as server,
        serving(
            a_route("api", server.port, rules=[("POST", "/v1/items/*")]),
            a_route("open", server.port),
        ) as relay,
    ):
        words = ["-X", "POST", "-H", f"{name}: DELETE"]
        status, body = asked(relay, HOST, "/v1/items/7", *words)
        assert status == 403
        assert name.lower().encode() in body
        assert server.asked == []
        assert asked(relay, "open.paddock.internal", "/v1/items/7", *words)[0] == 200, (
            "the control: no rules"
        )
        assert [one.header(name.lower()) for one in server.asked] == ["DELETE"]


def test_the_judged_request_is_the_sent_request() -> None:
    with (
        upstream() as server,
        serving(a_route("api", server.port, base="/base", rules=[("GET", "/**")])) as relay,
    ):
        assert asked(relay, HOST, "//a/./b/../%41?q=%2e")[0] == 200
        assert asked(relay, HOST, "/../../etc")[0] == 200
        assert [one.target for one in server.asked] == ["/base/a/A?q=%2e", "/base/etc"]


@pytest.mark.parametrize(
    ("mode", "name", "where", "expected"),
    [
        (InjectMode.BEARER, None, "authorization", f"Bearer {SECRET.decode()}"),
        (InjectMode.HEADER, "x-api-key", "x-api-key", SECRET.decode()),
        (InjectMode.BASIC, "ada", "authorization",
         f"Basic {base64.b64encode(b'ada:' + SECRET).decode()}"),
    ],
)  # fmt: skip
def test_the_upstream_gets_the_secret_and_the_client_never(
    mode: InjectMode, name: str | None, where: str, expected: str
) -> None:
    route = a_route("api", 0, secret=True, mode=mode, inject_name=name)
    with upstream() as server:
        route = a_route("api", server.port, secret=True, mode=mode, inject_name=name)
        with serving(route) as relay:
            status, body = asked(
                relay,
                HOST,
                "/",
                "-i",
                "-H",
                f"{where}: paddock-placeholder-1",
                "-H",
                "Accept-Encoding: gzip",
            )
            assert status == 200
            (request,) = server.asked
            assert request.header(where) == expected
            assert request.header("accept-encoding") == "identity"
            assert SECRET not in body
            assert base64.b64encode(SECRET)[:-4] not in body
            assert b"*" * 20 in body, "the upstream did echo it"


def test_a_secret_in_the_query_takes_the_place_of_what_was_there() -> None:
    with (
        upstream() as server,
        serving(a_route("api", server.port, secret=True, mode=InjectMode.QUERY)) as relay,
    ):
        _, body = asked(relay, HOST, "/a?key=placeholder&x=1&%6bey=2")
        (request,) = server.asked
        assert request.target == "/a?x=1&key=sk-secret%2F0123456789%2Babcdef"
        assert b"0123456789" not in body


def test_secrets_are_taken_out_of_headers_streams_and_redirections() -> None:
    async def leak(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 "
            + SECRET
            + b"\r\nX-Leak: a"
            + SECRET
            + b"b\r\nTransfer-Encoding: chunked\r\n"
        )
        writer.write(b"Location: http://127.0.0.1:%d/next?t=%s\r\n\r\n" % (server.port, SECRET))
        for byte in b"<" + SECRET + b">":
            writer.write(b"1\r\n" + bytes([byte]) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\nX-Trailer: " + SECRET + b"\r\n\r\n")

    with upstream(leak) as server, serving(a_route("api", server.port, secret=True)) as relay:
        status, body = asked(relay, HOST, "/", "-i")
        assert status == 200
        assert SECRET not in body
        assert SECRET[5:] not in body
        assert b"x-leak: a***" in body.lower()
        assert b"location: http://api.paddock.internal/next?t=***" in body


def test_an_answer_that_cannot_be_searched_is_not_passed_on() -> None:
    async def zipped(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(answer(b"\x1f\x8b", "Content-Encoding: gzip"))

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(upstream(zipped))
        relay = stack.enter_context(
            serving(a_route("api", server.port, secret=True), a_route("open", server.port))
        )
        status, body = asked(relay, HOST, "/")
        assert (status, b"compresses" in body) == (502, True)
        assert asked(relay, "open.paddock.internal", "/") == (200, b"\x1f\x8b"), (
            "without a secret it is passed on unchanged"
        )


def test_events_arrive_one_by_one() -> None:
    go = threading.Event()

    async def events(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n"
        )
        for number in range(3):
            await writer.drain()
            await asyncio.to_thread(go.wait)  # the client has the last event, or the head at first
            go.clear()
            text = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
        await writer.drain()
        await asyncio.to_thread(go.wait)
        writer.write(b"0\r\n\r\n")

    with (
        upstream(events) as server,
        serving(a_route("api", server.port, secret=True)) as relay,
        talking(relay) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: api.paddock.internal\r\n\r\n")
        assert b"text/event-stream" in until(client, b"\r\n\r\n")
        for number in range(3):
            go.set()
            assert b"data: %d\n\n" % number in until(client, b"\n\n\r\n")
        go.set()
        assert until(client, b"0\r\n\r\n")


def test_bodies_flow_both_ways_in_any_framing() -> None:
    big = os.urandom(3_000_000)

    async def back(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        body = await read_body(asked, reader)
        if asked.header("content-length"):
            writer.write(answer(body))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
            writer.close()

    with upstream(back) as server, serving(a_route("api", server.port)) as relay:
        for more in (
            ["-H", "Transfer-Encoding: chunked"],
            [],
            ["-H", "Expect: 100-continue"],
            ["--http1.0"],
        ):
            status, body = asked(relay, HOST, "/", "--data-binary", "@-", *more, data=big)
            assert (status, body == big) == (200, True), more
        assert all(one["sent"] == one["received"] == len(big) for one in relay.wait_for(4))
        assert all(one.header("expect") is None for one in server.asked)


def test_a_body_is_not_asked_for_if_it_is_not_allowed() -> None:
    with (
        upstream() as server,
        serving(a_route("api", server.port, rules=[("PUT", "/ok")])) as relay,
    ):
        for path, expected in (("/ok", b"HTTP/1.1 100 "), ("/no", b"HTTP/1.1 403 ")):
            with talking(relay) as client:
                client.sendall(
                    (
                        f"PUT {path} HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\n"
                        f"Content-Length: 3\r\n\r\n"
                    ).encode()
                )
                assert client.recv(13) == expected
                if path == "/ok":
                    client.sendall(b"abc")
                    received = b""
                    while b"200 OK" not in received:
                        more = client.recv(65536)
                        assert more, received
                        received += more
        assert [one.body for one in server.asked] == [b"abc"]


def test_the_end_of_a_message_cannot_be_moved() -> None:
    async def twice(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked.body = await read_body(asked, reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"
            b"abc\r\n0\r\nX: y\r\n\r\n"
        )

    with upstream(twice) as server, serving(a_route("api", server.port)) as relay:
        hop = ["-H", "Connection: Content-Length, Host, X-Y"]
        assert asked(relay, HOST, "/", *hop, "-d", "hello") == (200, b"abc")
        assert asked(relay, HOST, "/", *hop, "-d", "hello", "--http1.0") == (200, b"abc")
        assert [one.body for one in server.asked] == [b"hello", b"hello"]


def test_answers_without_a_body_have_none() -> None:
    async def bare(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status = asked.target.removeprefix("/")
        length = "Content-Length: 5\r\n" if status != "204" else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{length}\r\n".encode())

    with (
        upstream(bare) as server,
        serving(a_route("api", server.port)) as relay,
        talking(relay) as client,
    ):
        for method, path in (("HEAD", "/200"), ("GET", "/204"), ("GET", "/304"), ("HEAD", "/200")):
            client.sendall(f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            head = until(client, b"\r\n\r\n")
            assert head.startswith(f"HTTP/1.1 {path[1:]}".encode())
        assert server.connections == 1, "one connection serves all of them"


def test_requests_that_come_at_once_are_answered_in_turn() -> None:
    with upstream() as server, serving(a_route("api", server.port, rules=[("GET", "/*")])) as relay:
        with talking(relay) as client:
            one = f"GET /%s HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
            client.sendall("".join(one % path for path in ("a", "b/c", "d")).encode())
            client.shutdown(socket.SHUT_WR)
            output = all_of(client)
        assert [piece[:3] for piece in output.split(b"HTTP/1.1 ")[1:]] == [b"200", b"403", b"200"]
        assert [one.target for one in server.asked] == ["/a", "/d"]


def test_a_websocket_flows_after_its_upgrade_and_is_searched() -> None:
    with (
        upstream(websocket_echo) as server,
        serving(a_route("api", server.port, secret=True)) as relay,
    ):
        with talking(relay) as client:
            key = base64.b64encode(b"0123456789abcdef").decode()
            client.sendall(
                f"GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: keep-alive, Upgrade\r\n"
                f"Upgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
            )
            hello = b"auth=Bearer " + b"*" * len(SECRET)
            output = until(client, hello)
            head, _, frame = output.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            assert websocket_accept(key).encode() in head
            assert frame == bytes([0x81, len(hello)]) + hello
            for text in (b"one", b"sk-"):
                client.sendall(bytes([0x81, 0x80 | len(text)]) + bytes(4) + text)
                assert until(client, text) == bytes([0x81, len(text)]) + text
            client.shutdown(socket.SHUT_WR)
            assert all_of(client) == b""
        (request,) = server.asked
        assert request.header("sec-websocket-extensions") is None
        assert relay.wait_for(1)[0]["sent"] == 18


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: other.paddock.internal\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: api.paddock.internal:81\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: api.paddock.internal\r\nHost: other\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\nHost: api.paddock.internal\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: api.paddock.internal\r\nContent-Length: 3\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: api.paddock.internal\r\nContent-Length: 3\r\n"
         b"Content-Length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: api.paddock.internal\r\nTransfer-Encoding: xchunked\r\n\r\n",
         501),
        (b"GET / HTTP/1.1\r\nHost: api.paddock.internal\r\nX : y\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: api.paddock.internal\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: api.paddock.internal\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431),
    ],
)  # fmt: skip
def test_a_malformed_request_reaches_no_upstream(request_bytes: bytes, status: int) -> None:
    with upstream() as server, serving(a_route("api", server.port)) as relay:
        with talking(relay) as client:
            client.sendall(request_bytes)
            client.shutdown(socket.SHUT_WR)
            assert all_of(client).startswith(b"HTTP/1.1 %d " % status)
        assert server.asked == []
        assert relay.wait_for(1)[0]["action"] == "deny"
        assert asked(relay, HOST, "/")[0] == 200, "a valid request arrives"


def test_a_request_in_absolute_form_is_one_to_that_host() -> None:
    with (
        upstream() as server,
        serving(a_route("api", server.port)) as relay,
        talking(relay) as client,
    ):
        client.sendall(
            f"GET http://{HOST}?x HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
        )
        assert all_of(client).startswith(b"HTTP/1.1 200")
        assert server.asked[0].target == "/?x"


def test_a_name_without_a_route_leads_nowhere() -> None:
    with upstream() as server, serving(a_route("api", server.port)) as relay:
        status, body = asked(relay, "none.paddock.internal", "/")
        assert (status, b"no route has the name none.paddock.internal" in body) == (403, True)


def test_a_forbidden_address_is_not_dialled() -> None:
    def may_dial(address: str, port: int) -> str | None:
        return f"{address} is this machine's own" if port == server.port else None

    with upstream() as server:
        with serving(a_route("api", server.port, host="localhost"), may_dial=may_dial) as relay:
            status, body = asked(relay, HOST, "/")
            assert status == 403
            assert b"this machine's own" in body
            assert server.connections == 0
            assert relay.wait_for(1)[0]["action"] == "deny"
        with serving(a_route("api", server.port, host="localhost")) as relay:
            assert asked(relay, HOST, "/")[0] == 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_an_unreachable_upstream_is_reported() -> None:
    with serving(a_route("api", free_port())) as relay:
        status, body = asked(relay, HOST, "/")
        assert (status, b"Connection refused" in body) == (502, True)


def test_slow_broken_or_closed_upstreams_are_reported() -> None:
    async def odd(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match asked.target:
            case "/silent":
                await reader.read()
            case "/gone":
                writer.close()
            case "/nonsense":
                writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            case "/leak":
                writer.write((asked.header("authorization") or "").encode() + b"\r\n\r\n")
            case "/half":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
                writer.close()
            case "/huge":
                writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n")
            case _:
                writer.write(answer(b"fine"))

    with (
        upstream(odd) as server,
        serving(a_route("api", server.port), patience=HASTY_WITH_UPSTREAMS) as relay,
    ):
        assert asked(relay, HOST, "/silent")[0] == 504
    with upstream(odd) as server, serving(a_route("api", server.port, secret=True)) as relay:
        status, body = asked(relay, HOST, "/leak")
        assert (status, SECRET in body) == (502, False)
        for path, status in (("/gone", 502), ("/nonsense", 502), ("/huge", 502), ("/fine", 200)):
            assert asked(relay, HOST, path)[0] == status, path
        with talking(relay) as client:
            client.sendall(f"GET /half HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            output = all_of(client)
            assert output.endswith(b"abc"), (
                "it breaks off here too, so no client takes it as complete"
            )
            assert b"content-length: 10" in output.lower()


def test_a_kept_connection_that_was_closed_is_dialled_again() -> None:
    async def once(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(server.asked) == 2:
            writer.close()  # the kept connection is closed at the second request without an answer
        else:
            await echo(asked, reader, writer)

    with upstream(once) as server, serving(a_route("api", server.port)) as relay:
        assert asked(relay, HOST, "/1")[0] == 200
        assert asked(relay, HOST, "/2")[0] == 200
        assert [one.target for one in server.asked] == ["/1", "/2", "/2"]
        assert server.connections == 2


def test_slow_clients_are_disconnected() -> None:
    with (
        upstream() as server,
        serving(a_route("api", server.port), patience=HASTY_WITH_CLIENTS) as relay,
    ):
        for beginning in (
            b"",
            b"GET / HT",
            f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\nabc".encode(),
        ):
            with talking(relay) as client:
                client.sendall(beginning)
                with contextlib.suppress(ConnectionResetError):
                    all_of(client)
    with upstream() as server, serving(a_route("api", server.port)) as relay:
        assert asked(relay, HOST, "/")[0] == 200


def test_a_client_that_leaves_ends_its_request_upstream() -> None:
    left = threading.Event()

    async def endless(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(0)
        left.set()

    with upstream(endless) as server, serving(a_route("api", server.port)) as relay:
        with talking(relay) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            client.recv(100)
        assert left.wait(60)
        assert relay.wait_for(1)[0]["reason"] == "the client closed the connection"


def test_descriptors_are_given_back() -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    with upstream() as server, serving(a_route("api", server.port)) as relay:
        asked(relay, HOST, "/")
        port, before = relay.listen("route", HOST), held()
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        for client in clients:
            client.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        for client in clients:
            assert all_of(client).startswith(b"HTTP/1.1 200")
            client.close()
        relay.wait_for(301)
        kept = 64  # connections to the upstream; both ends are in this process
        wait_for(lambda: held() <= before + kept + 8, "descriptors are given back")


@pytest.mark.parametrize(
    ("message", "descriptors"),
    [(b"{}", 1), (b"nonsense", 1), (b"[]", 1), (b'{"kind":"other","host":"x","port":80}', 1),
     (b'{"kind":"route","host":"x","port":"80"}', 1),
     (b'{"kind":"route","host":"x","port":80,"more":1}', 1),
     (b"x" * 150_000, 1)],
)  # fmt: skip
def test_an_invalid_handover_message_ends_the_server(message: bytes, descriptors: int) -> None:
    import paddock.http.server as served
    from paddock.errors import CoreError
    from paddock.http.route_table import Settings

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    our_line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = [socket.socketpair() for _ in range(descriptors)]
    with ours, theirs, our_line, their_line:
        socket.send_fds(ours, [message], [theirs_end.fileno() for _, theirs_end in ends])
        for _, theirs_end in ends:
            theirs_end.close()
        with pytest.raises(CoreError, match="the relay"):
            served.serve(their_line, theirs, Settings(), injections={})
        for our_end, _ in ends:
            assert our_end.recv(1) == b"", "connections that were handed over are closed"
            our_end.close()


@pytest.mark.parametrize("pieces", [1, 20])
def test_bytes_read_before_the_handover_come_first(pieces: int) -> None:
    """A proxy has read some bytes before it knew the host."""
    with upstream() as server, serving(a_route("api", server.port)) as relay:
        client, end = socket.socketpair()
        text = f"GET /early HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
        with client:
            relay.hand_over(end, "route", HOST, 80, output=text[: len(text) // pieces])
            client.sendall(text[len(text) // pieces :])
            assert all_of(client).startswith(b"HTTP/1.1 200")
        assert server.asked[0].target == "/early"
