"""HTTP/1.1 on loopback for the browser of one user, one request for each connection.
http/message.py reads and writes the protocol. This file transports the bytes and bounds waiting
time and memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from paddock.http.message import Answer, Malformed, Reader, Writer, answer_bytes, request_extent

# Connections that have sent nothing yet. A command with network access can open any number of them.
MAX_SILENT_CONNECTIONS = 256
MAX_CONNECTIONS = 64  # connections that are answered at the same time
REQUEST_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case; the values of a repeated name are joined
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """``stream`` continues after the body until the client closes the connection."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None


PageHandler = Callable[[PageRequest], Awaitable[Response]]


class HttpServer:
    def __init__(self, handler: PageHandler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # in the order of arrival

    async def listen(self, host: str, port: int) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._connected, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            conversation = _Conversation(reader, writer)
            request = await self._receive_request(task, conversation)
            if (
                request is not None
                and len(self._connections) - len(self._silent) <= MAX_CONNECTIONS
            ):
                await conversation.respond(await self._handler(request))
        except (OSError, EOFError, Malformed):
            pass  # the client is gone, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # the server is closing
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _receive_request(
        self, task: asyncio.Task[None], conversation: _Conversation
    ) -> PageRequest | None:
        """A new connection replaces the oldest silent one. A browser sends its request at once."""
        self._silent[task] = None
        if len(self._silent) > MAX_SILENT_CONNECTIONS:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()
        try:
            return await conversation.request()
        finally:
            self._silent.pop(task, None)


class _Conversation:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = Reader()
        self._body = Writer()

    async def request(self) -> PageRequest | None:
        """None: the request was invalid and has been answered."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await self._request()
        except Malformed:
            await self.respond(Response(status=HTTPStatus.BAD_REQUEST))
            return None
        if len(request.body) > MAX_BODY_BYTES:
            await self.respond(Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
            return None
        return request

    async def _request(self) -> PageRequest:
        while (head := self._http.request()) is None:
            await self._read()
        self._http.begin(request_extent(head))
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        body = self._http.body()
        if (
            not body
            and not self._http.whole
            and headers.get("expect", "").lower() == "100-continue"
        ):
            await self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._http.whole and len(body) <= MAX_BODY_BYTES:
            await self._read()
            body += self._http.body()
        return PageRequest(method=head.method, target=head.target, headers=headers, body=body)

    async def _read(self) -> None:
        self._http.feed(await self._reader.read(64 * 1024))

    async def respond(self, response: Response) -> None:
        headers = [
            (name.lower().encode("ascii"), value.encode("latin-1"))
            for name, value in response.headers
        ]
        if response.stream is None:
            headers.append((b"content-length", str(len(response.body)).encode("ascii")))
        answer = Answer(response.status, response.status.phrase.encode("ascii"), headers)
        head, extent = answer_bytes(answer, "GET", modern=True, last=True)
        self._body.begin(extent)
        await self._send(head + self._body.body(response.body))
        if response.stream is not None:
            await self._stream(response.stream)
        await self._send(self._body.end())

    async def _stream(self, stream: AsyncIterator[bytes]) -> None:
        """Streams until the client closes the connection. The client is not expected to send
        anything more.
        """
        sending = asyncio.ensure_future(self._send_all(stream))
        leaving = asyncio.ensure_future(self._reader.read())
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, stream: AsyncIterator[bytes]) -> None:
        async for piece in stream:
            await self._send(self._body.body(piece))

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await self._writer.drain()
