"""Real servers on loopback: the upstreams of routes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

Handler = Callable[["Asked", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    """A request as the upstream got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name]
        assert len(values) < 2, values
        return values[0] if values else None


@dataclass
class UpstreamServer:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    stop: Callable[[], None] = lambda: None


async def read_head(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *rest = head.split("\r\n")[:-2]
    method, target, _ = line.split(" ")
    return Asked(
        method,
        target,
        [(name, value.strip()) for name, _, value in (field.partition(":") for field in rest)],
    )


async def read_body(asked: Asked, reader: asyncio.StreamReader) -> bytes:
    if asked.header("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    return await reader.readexactly(int(asked.header("content-length") or 0))


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def echo(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The request as JSON: a hostile upstream that echoes everything."""
    asked.body = await read_body(asked, reader)
    output = {
        "method": asked.method,
        "target": asked.target,
        "headers": asked.headers,
        "body": asked.body.decode("latin-1"),
    }
    body = b"" if asked.method == "HEAD" else json.dumps(output).encode()
    writer.write(answer(body, "Content-Type: application/json"))


def websocket_accept(key: str) -> str:
    return base64.b64encode(
        hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
    ).decode()


async def websocket_echo(
    asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Sends hello in a frame, then echoes every frame unmasked. Ends with the client."""
    accept = websocket_accept(asked.header("sec-websocket-key") or "")
    hello = f"auth={asked.header('authorization')}".encode()
    writer.write(
        f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        + bytes([0x81, len(hello)])
        + hello
    )
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(2)
            size = head[1] & 0x7F
            mask = await reader.readexactly(4)
            masked = await reader.readexactly(size)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))
            writer.write(bytes([head[0], size]) + text)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def upstream(
    handler: Handler = echo, *, tls: ssl.SSLContext | None = None
) -> Iterator[UpstreamServer]:
    """Passes each request of each connection to ``handler``, until the handler closes the
    writer.
    """
    found = UpstreamServer()
    started = threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        try:
            while not writer.is_closing() and (asked := await read_head(reader)) is not None:
                found.asked.append(asked)
                await handler(asked, reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        found.stop = lambda: loop.call_soon_threadsafe(end.set)  # type: ignore[assignment]
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=512)
        found.port = server.sockets[0].getsockname()[1]
        started.set()
        await end.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield found
    finally:
        found.stop()
        thread.join(60)
