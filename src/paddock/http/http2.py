"""The client side of HTTP/2 on an inspected connection: each stream is the Client of its own
exchange.

All requests go to the upstream by HTTP/1.1, so gRPC and other HTTP/2-only protocols do not work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from paddock.http.connection import Wire
from paddock.http.exchange import ClientGone, Exchanges, event
from paddock.http.headers import Denied, HttpRequest, own_answer
from paddock.http.message import MAX_HEAD_BYTES, Answer, Headers
from paddock.http.route_table import Site
from paddock.http.upstream import Patience

_MAX_STREAMS = 100
_STREAM_WINDOW_BYTES = 256 * 1024  # of one stream, and the bound for buffered body data
_CONFIG = h2.config.H2Configuration(client_side=False, header_encoding=None)
_SETTINGS = {
    h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
    h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
    h2.settings.SettingCodes.ENABLE_PUSH: 0,
}


class Http2:
    def __init__(self, wire: Wire, site: Site, exchanges: Exchanges, patience: Patience) -> None:
        self.wire = wire
        self.http = h2.connection.H2Connection(config=_CONFIG)
        self.patience = patience
        self._site = site
        self._exchanges = exchanges
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self.http.local_settings = h2.settings.Settings(client=False, initial_values=_SETTINGS)
        self.http.initiate_connection()
        self.http.increment_flow_control_window(_STREAM_WINDOW_BYTES * 4)
        try:
            await self.flush()
            while data := await self._next():
                for happened in self.http.receive_data(data):
                    self._happened(happened)
                await self.flush()
        except (h2.exceptions.ProtocolError, TimeoutError):
            await self.flush()  # it contains the reason
        finally:
            for stream in self._streams.values():
                stream.leave()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _next(self) -> bytes:
        """Without a request it may be silent as long as a request may take to arrive."""
        while True:
            try:
                return await self.wire.read(self.patience.head_s)
            except TimeoutError:
                if not self._streams:
                    self.http.close_connection()
                    raise

    async def flush(self) -> None:
        if data := self.http.data_to_send():
            try:
                await self.wire.write(data, self.patience.body_s)
            except (ConnectionError, TimeoutError) as error:
                raise ClientGone(str(error)) from None

    def _happened(self, happened: h2.events.Event) -> None:
        match happened:
            case h2.events.RequestReceived():
                self._begin(happened)
            case h2.events.DataReceived(stream_id=int(number)) if stream := self._streams.get(
                number
            ):
                stream.received(happened.data or b"", happened.flow_controlled_length or 0)
            case h2.events.DataReceived(stream_id=int(number)):
                # Data of a finished stream: it is dropped, and the connection continues.
                self.http.acknowledge_received_data(happened.flow_controlled_length or 0, number)
            case h2.events.StreamEnded(stream_id=int(number)) if stream := self._streams.get(
                number
            ):
                stream.complete()
            case h2.events.StreamReset(stream_id=int(number)) if stream := self._streams.get(
                number
            ):
                stream.leave()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in self._streams.values():
                    stream.wake()
            case _:
                pass

    def _begin(self, happened: h2.events.RequestReceived) -> None:
        number = happened.stream_id
        assert number is not None
        stream = _Stream(self, number)
        if happened.stream_ended is not None:
            stream.complete()
        self._streams[number] = stream
        task = asyncio.get_running_loop().create_task(
            self._serve(stream, list(happened.headers or []), bodiless=stream.whole)
        )
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a request", "exception": error}
            )
            self.wire.abort()

    async def _serve(self, stream: _Stream, headers: Headers, *, bodiless: bool) -> None:
        """``bodiless``: the head ended the stream. Later a whole body may have arrived."""
        try:
            try:
                request = _request(headers, whole=bodiless)
            except Denied as denied:
                await self._exchanges.report(event(self._site, "deny", str(denied)))
                answer, body = own_answer(denied.status, str(denied))
                await stream.begin(answer, follows=True)
                await stream.more(body)
                await stream.end([])
            else:
                await self._exchanges.carry(self._site, request, stream)
            code = (
                h2.errors.ErrorCodes.NO_ERROR
            )  # the rest of the body is not wanted (RFC 9113, 8.1)
        except ClientGone:
            code = h2.errors.ErrorCodes.INTERNAL_ERROR
        del self._streams[stream.number]
        try:
            if not stream.gone.done() and not (
                stream.whole and code is h2.errors.ErrorCodes.NO_ERROR
            ):
                self.http.reset_stream(stream.number, code)
                await self.flush()
        except (h2.exceptions.ProtocolError, ClientGone):
            pass  # it is closed already


class _Stream:
    def __init__(self, connection: Http2, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.gone: asyncio.Future[None] = loop.create_future()
        self.whole = False  # the whole body has arrived
        self._connection = connection
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._woken = asyncio.Event()

    def received(self, data: bytes, size: int) -> None:
        self._pieces.append((data, size))
        self._woken.set()

    def complete(self) -> None:
        self.whole = True
        self._woken.set()

    def leave(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def _take(self) -> bytes:
        data, size = self._pieces.popleft()
        try:
            self._connection.http.acknowledge_received_data(size, self.number)
        except h2.exceptions.ProtocolError:
            raise ClientGone("the stream is closed") from None
        return data

    async def _wait(self) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(self._connection.patience.body_s):
                await self._woken.wait()
        except TimeoutError:
            raise ClientGone("the client sent no more data") from None
        if self.gone.done():
            raise ClientGone("the client cancelled the request")

    def at_hand(self) -> tuple[list[bytes], bool]:
        return [self._take() for _ in range(len(self._pieces))], self.whole

    async def piece(self) -> bytes | None:
        while not self._pieces and not self.whole:
            await self._wait()
        if not self._pieces:
            return None
        data = self._take()
        await self._connection.flush()
        return data

    async def begin(self, answer: Answer, *, follows: bool) -> None:
        headers = [(b":status", str(answer.status).encode()), *answer.headers]
        await self._send(lambda http: http.send_headers(self.number, headers), flush=not follows)

    async def more(self, data: bytes) -> None:
        while data:
            room = 0 if self.gone.done() else self._room()
            if not room:
                await self._connection.flush()
                await self._wait()
                continue
            part, data = data[:room], data[room:]
            await self._send(partial(_send_data, self.number, part))

    def _room(self) -> int:
        http = self._connection.http
        try:
            return min(http.local_flow_control_window(self.number), http.max_outbound_frame_size)
        except h2.exceptions.ProtocolError:
            raise ClientGone("the stream is closed") from None

    async def end(self, trailers: Headers) -> None:
        if trailers:
            await self._send(lambda http: http.send_headers(self.number, trailers, end_stream=True))
        else:
            await self._send(lambda http: http.end_stream(self.number))

    async def switch(self, answer: Answer) -> tuple[Wire, bytes]:
        raise ClientGone("HTTP/2 has no protocol upgrade")

    async def _send(
        self, act: Callable[[h2.connection.H2Connection], None], *, flush: bool = True
    ) -> None:
        try:
            act(self._connection.http)
        except h2.exceptions.ProtocolError as error:
            raise ClientGone(str(error)) from None
        if flush:
            await self._connection.flush()


def _send_data(number: int, data: bytes, http: h2.connection.H2Connection) -> None:
    http.send_data(number, data)


def _request(headers: Headers, *, whole: bool) -> HttpRequest:
    pseudo = {name: value.decode("latin-1") for name, value in headers if name.startswith(b":")}
    plain: Headers = [(name, value) for name, value in headers if not name.startswith(b":")]
    hosts = {value.decode("latin-1") for name, value in plain if name == b"host"}
    authority = pseudo.get(b":authority", next(iter(hosts), ""))
    if hosts - {authority}:
        raise Denied(
            f"the request is for {authority!r}, and its Host header names another host", status=400
        )
    cookies = [value for name, value in plain if name == b"cookie"]
    if len(cookies) > 1:  # RFC 9113, 8.2.3
        plain = [(name, value) for name, value in plain if name != b"cookie"] + [
            (b"cookie", b"; ".join(cookies))
        ]
    return HttpRequest(
        method=pseudo.get(b":method", ""),
        target=pseudo.get(b":path", ""),
        authority=authority,
        headers=plain,
        endless=not whole and not any(name == b"content-length" for name, _ in plain),
    )
