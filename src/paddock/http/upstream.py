"""Connections to upstreams. The relay dials them (channel.py).

They are kept for a while for the next request. The protocol is HTTP/1.1, over TLS that is verified
against the system's certificates.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from paddock.http.channel import NotDialled
from paddock.http.connection import Wire
from paddock.http.message import UNTIL_CLOSE, Answer, Reader, Writer, answer_extent, lasts
from paddock.policy.model import Upstream

Dialler = Callable[[str, int], Awaitable[tuple[socket.socket, str]]]
"""Dials host and port. Returns a connection and its remote address, or raises NotDialled."""

UpstreamKey = tuple[Upstream, str | None]
"""An upstream and its route. Routes share no connection, because surplus data of an upstream is
searched for the secret of the route that it was sent to."""

# Servers that close idle connections wait at least five seconds. A connection that closes during a
# request fails it.
_IDLE_LIFETIME_S = 4.0
_MAX_KEPT_CONNECTIONS = 32  # of one upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts for the other sides, in seconds."""

    head_s: float = 60  # client: from the end of one request to the head of the next one
    body_s: float = 120  # client: between two pieces of a body, and to take one
    connect_s: float = 10  # TLS, with either side
    answer_s: float = 900  # upstream: to begin an answer, and between two pieces of it


class Forbidden(Exception):  # noqa: N818 (it is an answer, not a failure)
    """The relay does not dial it; ``str()`` is the reason."""


class Unreachable(Exception):  # noqa: N818 (an error of the upstream)
    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Connection:
    """A connection to one upstream, for one request at a time."""

    __slots__ = ("_lasts", "address", "key", "reader", "used", "wire", "writer")

    def __init__(self, key: UpstreamKey, wire: Wire, address: str) -> None:
        self.key = key
        self.wire = wire
        self.address = address
        self.reader = Reader()
        self.writer = Writer()
        self.used = False  # by an earlier request
        self._lasts = False

    async def answer(self, within_s: float) -> Answer:
        """The head of the next answer. EOFError if none comes."""
        while (answer := self.reader.answer()) is None:
            self.reader.feed(await self.wire.read(within_s))
        return answer

    def begin(self, answer: Answer, method: str) -> None:
        """Starts the body of the answer to a request."""
        extent = answer_extent(answer, method)
        self.reader.begin(extent)
        self._lasts = lasts(answer.headers, modern=answer.modern) and extent != UNTIL_CLOSE

    async def more(self, within_s: float) -> bytes:
        """The next piece of the body; empty: the body is complete."""
        while not (data := self.reader.body()) and not self.reader.whole:
            self.reader.feed(await self.wire.read(within_s))
        return data

    @property
    def reusable(self) -> bool:
        complete = self.reader.whole and self.writer.whole and not self.reader.unread
        return complete and self._lasts and self.wire.silent


class Upstreams:
    def __init__(self, dialler: Dialler, tls: ssl.SSLContext, patience: Patience) -> None:
        self._dialler = dialler
        self._tls = tls
        self._patience = patience
        self._idle: dict[
            UpstreamKey, list[tuple[float, Connection]]
        ] = {}  # expiry time of each, oldest first
        self._sweep: asyncio.TimerHandle | None = None

    async def take(
        self, upstream: Upstream, route: str | None, *, fresh: bool = False
    ) -> Connection:
        """A kept connection, if there is one and ``fresh`` is false."""
        key = (upstream, route)
        idle = self._idle.get(key)
        while idle and not fresh:
            _, connection = idle.pop()
            if connection.wire.silent:
                connection.used = True
                return connection
            connection.wire.abort()
        return await self._dial(key)

    def give_back(self, connection: Connection) -> None:
        """After a request: keeps the connection if it is reusable."""
        idle = self._idle.setdefault(connection.key, [])
        if not connection.reusable or len(idle) >= _MAX_KEPT_CONNECTIONS:
            connection.wire.abort()
            return
        loop = asyncio.get_running_loop()
        idle.append((loop.time() + _IDLE_LIFETIME_S, connection))
        if self._sweep is None:
            self._sweep = loop.call_later(_IDLE_LIFETIME_S, self._forget)

    def _forget(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for idle in self._idle.values():
            while idle and idle[0][0] <= now:
                idle.pop(0)[1].wire.abort()
        first = min((idle[0][0] for idle in self._idle.values() if idle), default=None)
        self._sweep = None if first is None else loop.call_at(first, self._forget)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for idle in self._idle.values():
            for _, connection in idle:
                connection.wire.abort()
        self._idle.clear()

    async def _dial(self, key: UpstreamKey) -> Connection:
        upstream, _ = key
        try:
            end, address = await self._dialler(upstream.host, upstream.port)
        except NotDialled as why:
            if why.denied:
                raise Forbidden(f"{upstream.host}: {why}") from None
            raise Unreachable(f"{upstream}: {why}") from None
        try:
            async with asyncio.timeout(self._patience.connect_s):
                return Connection(key, await self._connect(upstream, end), address)
        except TimeoutError:
            raise Unreachable(
                f"{upstream} ({address}) did not answer within {self._patience.connect_s:g} s",
                late=True,
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {upstream} is not valid: {error.verify_message}"
            ) from None
        except (OSError, ssl.SSLError) as error:
            raise Unreachable(
                f"cannot connect to {upstream} ({address}): {error.strerror or error}"
            ) from None

    async def _connect(self, upstream: Upstream, end: socket.socket) -> Wire:
        loop = asyncio.get_running_loop()
        try:
            if upstream.scheme == "http":
                _, wire = await loop.create_connection(Wire, sock=end)
            else:
                _, wire = await loop.create_connection(
                    Wire, sock=end, ssl=self._tls, server_hostname=upstream.host
                )
        except BaseException:
            end.close()
            raise
        return wire


def verified() -> ssl.SSLContext:
    """The TLS settings for every upstream."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
