"""The client side of HTTP/1: the requests of one connection, in sequence."""

from __future__ import annotations

import asyncio
import time

from paddock.http.connection import Wire
from paddock.http.exchange import ClientGone, Exchanges, event
from paddock.http.headers import Denied, HttpRequest, own_answer, request_of
from paddock.http.message import (
    Answer,
    Headers,
    Malformed,
    Reader,
    Writer,
    answer_bytes,
    lasts,
    tokens_of,
)
from paddock.http.route_table import Site
from paddock.http.upstream import Patience

_MAX_DISCARDED_BYTES = (
    1024 * 1024
)  # of a body that is not needed, so that its sender reads the answer


class Http1:
    """It is the Client of one exchange at a time."""

    def __init__(self, wire: Wire, site: Site, exchanges: Exchanges, patience: Patience) -> None:
        self._wire = wire
        self._site = site
        self._exchanges = exchanges
        self._patience = patience
        self._reader = Reader()
        self._writer = Writer()
        self._method, self._modern, self._last = "", True, True
        self._held_back = False  # the client waits for "100 Continue"
        self._switched = False
        self._unsent = b""  # a head that is sent with the beginning of its body

    async def run(self) -> None:
        while True:
            try:
                request = await self._request()
            except EOFError:
                return
            except (Malformed, Denied) as error:
                await self._bad(error.status, str(error))
                return
            await self._exchanges.carry(self._site, request, self)
            if self._switched or not await self._finished():
                return

    async def _request(self) -> HttpRequest:
        """The whole head must arrive in time; single bytes do not extend it."""
        self._method, self._modern, self._last = (
            "",
            True,
            True,
        )  # unless it turns out to be a request
        until = time.monotonic() + self._patience.head_s
        while (head := self._reader.request()) is None:
            self._reader.feed(await self._wire.read(until - time.monotonic()))
        request, extent = request_of(head)
        self._reader.begin(extent)
        self._method, self._modern = head.method, head.modern
        self._last = not lasts(head.headers, modern=head.modern)
        self._held_back = (
            extent != 0 and head.modern and b"100-continue" in tokens_of(head.headers, b"expect")
        )
        return request

    async def _bad(self, status: int, why: str) -> None:
        await self._exchanges.report(event(self._site, "deny", why))
        answer, body = own_answer(status, why)
        await self.begin(answer, follows=True)
        await self.more(body)
        await self.end([])
        await self._linger()

    async def _finished(self) -> bool:
        """Whether another request can follow. The rest of an unwanted body is read, so that its
        sender reaches the answer.
        """
        if self._reader.whole and not self._last:
            return True
        discarded = 0
        try:
            async with asyncio.timeout(self._patience.body_s):
                while (
                    not self._last and not self._reader.whole and discarded <= _MAX_DISCARDED_BYTES
                ):
                    discarded += len(await self.piece() or b"")
        except ClientGone:
            return False
        if self._last or not self._reader.whole:
            await self._linger()
            return False
        return True

    async def _linger(self) -> None:
        """Closing with unread data would discard the answer (RFC 9112, 9.6)."""
        self._wire.end()
        discarded = 0
        try:
            async with asyncio.timeout(2):
                while discarded < _MAX_DISCARDED_BYTES and (data := await self._wire.read()):
                    discarded += len(data)
        except TimeoutError:
            pass

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._wire.gone

    def at_hand(self) -> tuple[list[bytes], bool]:
        try:
            data = self._reader.body()
        except Malformed:
            return [], False  # the next reader gets the error again
        self._held_back = self._held_back and not data
        return [data] if data else [], self._reader.whole

    async def piece(self) -> bytes | None:
        if self._held_back:
            self._held_back = False
            await self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            while not (data := self._reader.body()) and not self._reader.whole:
                self._reader.feed(await self._wire.read(self._patience.body_s))
        except (Malformed, TimeoutError) as error:
            raise ClientGone(f"the body is incomplete: {error}") from None
        return data or None

    async def begin(self, answer: Answer, *, follows: bool) -> None:
        self._last = self._last or self._held_back  # it is unknown whether the body will come
        self._held_back = False
        head, extent = answer_bytes(answer, self._method, modern=self._modern, last=self._last)
        self._writer.begin(extent)
        await self._write(head, later=follows)

    async def more(self, data: bytes) -> None:
        await self._write(self._writer.body(data))

    async def end(self, trailers: Headers) -> None:
        await self._write(self._writer.end(trailers))

    async def switch(self, answer: Answer) -> tuple[Wire, bytes]:
        head, _ = answer_bytes(answer, self._method, modern=True, last=False)
        self._switched = True
        await self._write(head)
        return self._wire, self._reader.unread

    async def _write(self, data: bytes, *, later: bool = False) -> None:
        self._unsent += data
        if not later:
            data, self._unsent = self._unsent, b""
            try:
                await self._wire.write(data, self._patience.body_s)
            except (ConnectionError, TimeoutError) as error:
                raise ClientGone(str(error)) from None
