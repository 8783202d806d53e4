"""Serves the connections that the relay hands over (channel.py), until the supervisor closes its
socket. This process does not listen.

Each decision goes to the supervisor, one event in a message.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paddock.core.canonical import canonical
from paddock.http.channel import Channel, HandedConnection
from paddock.http.connection import Wire
from paddock.http.credentials import Injection
from paddock.http.exchange import ClientGone, Exchanges, RequestEvent, event
from paddock.http.http1 import Http1
from paddock.http.route_table import NoSite, Settings, Site
from paddock.http.upstream import Patience, Upstreams, verified
from paddock.policy.model import Upstream

if TYPE_CHECKING:
    from paddock.http.inspection import Authority

_MAX_CONNECTIONS = 1024  # at the same time, to bound memory
_MAX_WAITING_CONNECTIONS = 4096  # waiting for a free slot; further connections are closed
_MAX_PENDING_EVENTS = 1024  # unsent events; then requests wait
_TLS_HANDSHAKE = 0x16


def serve(
    sock: socket.socket,
    relay: socket.socket,
    settings: Settings,
    *,
    injections: Mapping[str, Injection],
    authority: Authority | None = None,
) -> None:
    """Runs until the socket closes, in its own process. ``injections`` by route (credentials.py);
    ``authority``: for inspected hosts.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Loaded objects stay, and the objects of a request are freed with it. Searching for cycles
    # takes a tenth of the time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    asyncio.run(
        RequestServer(sock, relay, settings, injections, authority, verified(), Patience()).run()
    )


class RequestServer:
    def __init__(
        self,
        sock: socket.socket,
        relay: socket.socket,
        settings: Settings,
        injections: Mapping[str, Injection],
        authority: Authority | None,
        tls: ssl.SSLContext,
        patience: Patience,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._relay = relay
        self._settings = settings
        self._injections = injections
        self._authority = authority
        self._tls = tls
        self._patience = patience
        self._events: asyncio.Queue[bytes] = asyncio.Queue(_MAX_PENDING_EVENTS)
        self._unsent_events = 0  # events that the socket did not accept at once
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[HandedConnection, socket.socket]] = deque()

    async def run(self) -> None:
        channel = Channel(self._relay, self._take)
        self._upstreams = Upstreams(channel.dial, self._tls, self._patience)
        self._exchanges = Exchanges(self._upstreams, self._injections, self._report, self._patience)
        teller = asyncio.create_task(self._send_pending_events())
        over = asyncio.create_task(self._over())
        try:
            # A relay that is gone hands over nothing more; existing connections continue.
            await asyncio.wait([over, channel.ended], return_when=asyncio.FIRST_COMPLETED)
            if channel.ended.done():
                channel.ended.result()
            await over
        finally:
            over.cancel()
            channel.close()
            for _, end in self._waiting:
                end.close()
            self._waiting.clear()
            for connection in self._connections:
                connection.cancel()
            if self._connections:
                await asyncio.wait(self._connections)
            while self._unsent_events and not teller.done():
                await asyncio.sleep(0)
            teller.cancel()
            await asyncio.wait([teller, over])
            self._upstreams.close()

    async def _over(self) -> None:
        """Waits for the end of the supervisor, which sends nothing else."""
        while await asyncio.get_running_loop().sock_recv(self._sock, 16):
            pass

    async def _report(self, event: RequestEvent) -> None:
        message = canonical(event).encode("ascii")
        if self._unsent_events == 0:
            try:
                self._sock.send(message)
                return
            except BlockingIOError:
                pass  # it is sent later
            except OSError:
                return  # no reader is left
        self._unsent_events += 1
        await self._events.put(message)

    async def _send_pending_events(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await self._events.get()
            try:
                await loop.sock_sendall(self._sock, message)
            except OSError:
                return
            self._unsent_events -= 1

    def _take(self, handed: HandedConnection, end: socket.socket) -> None:
        if len(self._connections) < _MAX_CONNECTIONS:
            self._start(handed, end)
        elif len(self._waiting) < _MAX_WAITING_CONNECTIONS:
            self._waiting.append((handed, end))
        else:
            end.close()

    def _start(self, handed: HandedConnection, end: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(handed, end))
        self._connections.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if self._waiting:
            self._start(*self._waiting.popleft())
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a connection", "exception": error}
            )

    async def _serve(self, handed: HandedConnection, end: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._patience.head_s):
                tls = (
                    handed.received[0] == _TLS_HANDSHAKE
                    if handed.received
                    else await _speaks_tls(end)
                )
            site = self._site(handed, tls=tls)
            wire = (
                await self._secured(site, end, handed.received)
                if tls
                else await _plain(end, handed.received)
            )
        except (OSError, EOFError):  # TimeoutError is a subclass
            end.close()
            return
        except asyncio.CancelledError:
            end.close()
            raise
        try:
            ssl_object = wire.transport.get_extra_info("ssl_object")
            if ssl_object is not None and ssl_object.selected_alpn_protocol() == "h2":
                from paddock.http.http2 import Http2

                await Http2(wire, site, self._exchanges, self._patience).run()
            else:
                await Http1(wire, site, self._exchanges, self._patience).run()
        except ClientGone:
            wire.abort()
        except TimeoutError:
            pass  # no further request came
        finally:
            wire.close()

    def _site(self, handed: HandedConnection, *, tls: bool) -> Site:
        try:
            return self._settings.site(handed.kind, handed.host, handed.port, tls=tls)
        except NoSite as why:
            upstream = Upstream(
                scheme="https" if tls else "http", host=handed.host, port=handed.port
            )
            return Site(
                host=handed.host,
                port=handed.port,
                upstream=upstream,
                route=None,
                rules=(),
                source="",
                closed=str(why),
            )

    async def _secured(self, site: Site, end: socket.socket, received: bytes) -> Wire:
        """Terminates TLS with the client."""
        why = site.closed
        if why is None and self._authority is None:
            why = "the HTTP helper has no certificate authority"
        if why is None:
            assert self._authority is not None
            try:
                _, wire = await asyncio.get_running_loop().connect_accepted_socket(
                    Wire,
                    await _unread(end, received),
                    ssl=self._authority.context(site.host),
                    ssl_handshake_timeout=self._patience.connect_s,
                )
                return wire
            except OSError as error:  # ssl.SSLError is a subclass
                # The callback compares the names.
                named = getattr(error, "reason", None) != "CALLBACK_FAILED"
                why = (
                    f"the client ended the TLS handshake: {error}"
                    if named
                    else f"the TLS server name is not {site.host}"
                )
        await self._report(event(site, "deny", why, rule=site.source or None))
        raise OSError(why)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _speaks_tls(end: socket.socket) -> bool:
    """By the first byte, which is only peeked."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            first = end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_reader(end, _set, ready)
            try:
                await ready
            finally:
                loop.remove_reader(end)
            continue
        if not first:
            raise EOFError
        return first[0] == _TLS_HANDSHAKE


async def _plain(end: socket.socket, received: bytes) -> Wire:
    _, wire = await asyncio.get_running_loop().connect_accepted_socket(Wire, end)
    if received:
        wire.data_received(received)
    return wire


async def _unread(end: socket.socket, received: bytes) -> socket.socket:
    """asyncio reads TLS only from a socket, so bytes that were read before go through another
    socket pair. Few clients send data before they may.
    """
    if not received:
        return end
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    _, client = await loop.connect_accepted_socket(Wire, end)
    _, inner = await loop.connect_accepted_socket(Wire, ours)
    client.data_received(received)
    for source, sink in ((client, inner), (inner, client)):
        pump = loop.create_task(_pumped(source, sink))
        _PUMPS.add(pump)
        pump.add_done_callback(_PUMPS.discard)
    return theirs


# keeps a reference, because asyncio may collect a task without one
_PUMPS: set[asyncio.Task[None]] = set()


async def _pumped(source: Wire, sink: Wire) -> None:
    try:
        while data := await source.read():
            await sink.write(data)
        sink.end()
    except ConnectionError:
        source.abort()
        sink.abort()
