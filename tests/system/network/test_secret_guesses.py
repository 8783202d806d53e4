"""A client that has guesses of a route's secret echoed learns nothing from the answers: neither
from the sizes and number of their pieces, nor from their time. The test measures at the client's
end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import h2.config
import h2.connection
import h2.events
import pytest

from paddock.http.inspection import Authority
from paddock.http.route_table import Settings
from tests.system.network.certificates import TestAuthority
from tests.system.network.relay import Relay, a_route, serving
from tests.system.network.upstreams import Asked, answer, read_head, upstream, websocket_accept
from tests.unit.http.test_secret_scrubber import SPELLINGS, guesses

SECRET = "ghp_Ur8eHK5j"
HOST = "api.paddock.internal"
OURS = TestAuthority()
BEFORE = b"no such item: "
Seen = tuple[object, ...]


class Echo:
    """An upstream that echoes the request, and ends its answer when the client has the
    beginning.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._going_on = asyncio.Event()

    def go_on(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._going_on.set)

    async def _two(self, writer: asyncio.StreamWriter, first: bytes, rest: bytes) -> None:
        writer.write(first)
        await writer.drain()
        await asyncio.wait_for(self._going_on.wait(), 60)
        self._going_on.clear()
        writer.write(rest)

    async def __call__(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._loop = asyncio.get_running_loop()
        kind, _, message = asked.target.removeprefix("/").partition("?")
        text = BEFORE + unquote_to_bytes(message)
        head = b"HTTP/1.1 200 OK\r\n"
        match kind:
            case "length":
                await self._two(
                    writer, head + b"Content-Length: %d\r\n\r\n%s" % (len(text) + 2, text), b"\n\n"
                )
            case "at-once":
                writer.write(answer(text))
            case "socket":
                writer.write(
                    head.replace(b"200 OK", b"101 Switching Protocols")
                    + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                    + websocket_accept(asked.header("sec-websocket-key") or "").encode()
                    + b"\r\n\r\n"
                )
                with contextlib.suppress(asyncio.IncompleteReadError):
                    while True:
                        size = (await reader.readexactly(8))[3]  # masked by zeros
                        text = BEFORE + await reader.readexactly(size)
                        await self._two(
                            writer, b"\x81\x7e" + struct.pack(">H", len(text) + 2) + text, b"\n\n"
                        )
                writer.close()
            case _:
                kind = "text/event-stream" if kind == "events" else "text/plain"
                head += f"Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
                await self._two(
                    writer, head + b"%x\r\n%s\r\n" % (len(text), text), b"2\r\n\n\n\r\n0\r\n\r\n"
                )


def received(client: socket.socket) -> bytes:
    data = client.recv(65536)
    assert data
    return data


def segments(client: socket.socket) -> int:
    """tcpi_data_segs_in."""
    return int(
        struct.unpack_from("I", client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)[0]
    )


Ask = Callable[[bytes], Seen]


@contextlib.contextmanager
def connected(relay: Relay) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", relay.listen("route", HOST))) as client:
        client.settimeout(60)
        yield client


@contextlib.contextmanager
def over_http1(kind: str) -> Iterator[Ask]:
    upstream_of = Echo()
    with (
        upstream(upstream_of) as server,
        serving(a_route("api", server.port, secret=True), secret=SECRET.encode()) as relay,
        connected(relay) as client,
    ):

        def ask(guess: bytes) -> Seen:
            before = segments(client)
            client.sendall(
                f"GET /{kind}?{quote(guess, safe='')} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
            )
            data = received(client)
            while BEFORE[:4] not in data:
                data += received(client)
            first = len(data)
            if kind != "at-once":
                upstream_of.go_on()
            end = (
                b"0\r\n\r\n"
                if b"chunked" in data.lower()
                else guess
                if kind == "at-once"
                else b"\n\n"
            )
            while not data.endswith(end):
                data += received(client)
            assert (
                guess in b"".join(data.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2])
                or b"chunked" not in data
            )
            sizes = tuple(map(len, data.split(b"\r\n")))
            return first, sizes, segments(client) - before

        yield ask


@contextlib.contextmanager
def over_a_websocket() -> Iterator[Ask]:
    upstream_of = Echo()
    with (
        upstream(upstream_of) as server,
        serving(a_route("api", server.port, secret=True), secret=SECRET.encode()) as relay,
        connected(relay) as client,
    ):
        client.sendall(
            f"GET /socket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            "dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        head = received(client)
        while not head.endswith(b"\r\n\r\n"):
            head += received(client)

        def ask(guess: bytes) -> Seen:
            before = segments(client)
            client.sendall(b"\x81\xfe" + struct.pack(">H", len(guess)) + bytes(4) + guess)
            data = received(client)
            while BEFORE[:4] not in data:
                data += received(client)
            first = len(data)
            upstream_of.go_on()
            while not data.endswith(b"\n\n"):
                data += received(client)
            assert data[4:] == BEFORE + guess + b"\n\n"
            return first, len(data), segments(client) - before

        yield ask


@contextlib.contextmanager
def over_http2() -> Iterator[Ask]:
    upstream_of = Echo()
    with upstream(upstream_of, tls=OURS.server("localhost")) as server:
        route = a_route(
            "api", server.port, scheme="https", host="localhost", secret=True, inspect=True
        )
        settings, authority = Settings(routes=(route,)), Authority(["localhost"])
        with serving(
            route, settings=settings, authority=authority, tls=OURS.trust(), secret=SECRET.encode()
        ) as relay:
            context = ssl.create_default_context(cadata=authority.certificate.decode())
            context.set_alpn_protocols(["h2"])
            raw = socket.create_connection(
                ("127.0.0.1", relay.listen("inspect", "localhost", server.port))
            )
            raw.settimeout(60)
            with context.wrap_socket(raw, server_hostname="localhost") as client:
                http = h2.connection.H2Connection(h2.config.H2Configuration())
                http.initiate_connection()

                def events() -> list[Any]:
                    happened = http.receive_data(received(client))
                    client.sendall(http.data_to_send())
                    return list(happened)

                def ask(guess: bytes) -> Seen:
                    number = http.get_next_available_stream_id()
                    path = f"/chunked?{quote(guess, safe='')}"
                    where = f"localhost:{server.port}"
                    names = [
                        (":method", "GET"),
                        (":path", path),
                        (":scheme", "https"),
                        (":authority", where),
                    ]
                    http.send_headers(number, names, end_stream=True)
                    client.sendall(http.data_to_send())
                    frames: list[bytes] = []
                    while True:
                        for one in events():
                            if isinstance(one, h2.events.DataReceived):
                                frames.append(one.data)
                                http.acknowledge_received_data(one.flow_controlled_length, number)
                                if len(frames) == 1:
                                    upstream_of.go_on()
                            elif isinstance(one, h2.events.StreamEnded):
                                assert b"".join(frames) == BEFORE + guess + b"\n\n"
                                return tuple(map(len, frames))

                yield ask


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[Ask]]] = {
    "chunked": lambda: over_http1("chunked"),
    "events": lambda: over_http1("events"),
    "content-length": lambda: over_http1("length"),
    "in one piece": lambda: over_http1("at-once"),
    "websocket": over_a_websocket,
    "http/2": over_http2,
}


# A busy machine changes times and the number of writes in some rounds. A leak changes them in all
# rounds.
ROUNDS = 4


@pytest.mark.parametrize("way", WAYS)
def test_timing_and_pieces_are_the_same_for_a_right_and_a_wrong_guess(way: str) -> None:
    differences = []
    for _ in range(ROUNDS):
        ratio, writes = measured(way)
        if 0.7 < ratio < 1.4 and writes[0] == writes[1]:
            return
        differences.append((ratio, writes))
    raise AssertionError(f"a difference in all rounds: {differences}")


def measured(way: str) -> tuple[float, tuple[float, float]]:
    """The time ratio of a right to a wrong guess, and the number of writes in each answer."""
    spelled = [
        SPELLINGS[one]
        for one in ("plain", "hexadecimal", "base64", "JSON, every letter", "HTML, every letter")
    ]
    took: tuple[list[float], list[float]] = [], []
    counts: tuple[list[int], list[int]] = [], []
    with WAYS[way]() as ask:
        for spell in spelled:
            for both in guesses(SECRET, [spell]):
                seen: list[Seen] = []
                for at, guess in enumerate(both):
                    begun = time.perf_counter()
                    found = ask(guess)
                    took[at].append(time.perf_counter() - begun)
                    if (
                        way != "http/2"
                    ):  # TCP may join two writes, so their number is compared over all guesses
                        counts[at].append(int(str(found[-1])))
                        found = found[:-1]
                    seen.append(found)
                assert seen[0] == seen[1], both
    assert len(took[0]) > 60
    right, wrong = map(statistics.median, took)
    writes = (
        (0.0, 0.0)
        if way == "http/2"
        else (statistics.median(counts[0]), statistics.median(counts[1]))
    )
    return right / wrong, writes


def test_a_compressed_answer_does_not_pass_whatever_its_headers_say() -> None:
    """`Connection: content-encoding` removes the header that names the compression."""

    async def compressed(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        hidden = ["Connection: content-encoding"] if asked.target == "/hidden" else []
        coding = [] if asked.target == "/plain" else ["Content-Encoding: gzip"]
        writer.write(answer(b"\x1f\x8b...", *coding, *hidden))

    with upstream(compressed) as server, serving(a_route("api", server.port, secret=True)) as relay:
        for path, status in (("plain", b"200"), ("message", b"502"), ("hidden", b"502")):
            with connected(relay) as client:
                client.sendall(
                    f"GET /{path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
                )
                assert received(client).split(b" ")[1] == status, path


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        (b"\x81\x05hello", b"\x81\x05hello"),
        (b"\x01\x03ghp\x89\x02hi\x80\x03xyz", b"\x01\x03ghp\x89\x02hi\x80\x03xyz"),
        (b"\x01\x06ghp_Ur\x89\x02hi\x80\x078eHK5j!", b"\x01\x06ghp_**\x89\x02hi\x80\x07******!"),
        (b"\x01\x06ghp_Ur\x00\x00\x80\x06zzHK5j", b"\x01\x06ghp_Ur\x00\x00\x80\x06zzHK5j"),
        (b"\x88\x0e\x03\xe8ghp_Ur8eHK5j", b"\x88\x0e\x03\xe8************"),
        (b"\xc1\x05hello", None),
        (b"\x81\x85\0\0\0\0hello", None),
    ],
    ids=[
        "message",
        "fragments",
        "across frames",
        "beginning alone",
        "control",
        "compressed",
        "masked",
    ],
)
def test_messages_of_a_websocket_pass_when_they_are_complete(
    message: bytes, passes: bytes | None
) -> None:
    """No message follows, so a passed message did not wait for the next one."""
    over = threading.Event()

    async def speak(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        accept = websocket_accept(asked.header("sec-websocket-key") or "").encode()
        head = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: "
        )
        writer.write(head + accept + b"\r\n\r\n" + message)
        assert await read_head(reader) is None  # until the client closes
        writer.close()
        over.set()

    with (
        upstream(speak) as server,
        serving(a_route("api", server.port, secret=True), secret=SECRET.encode()) as relay,
        connected(relay) as client,
    ):
        client.sendall(
            f"GET /socket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            "dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        data = b""
        while b"\r\n\r\n" not in data:
            data += received(client)
        found = data.partition(b"\r\n\r\n")[2]
        if passes is None:
            with contextlib.suppress(ConnectionError):
                while more := client.recv(65536):
                    found += more
            assert found == b""
        else:
            while len(found) < len(passes):
                found += received(client)
            assert found == passes
        client.close()
        assert over.wait(60)
