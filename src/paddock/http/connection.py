"""One connection, with or without TLS, as bytes to read and to write. Both directions apply
back-pressure.
"""

from __future__ import annotations

import asyncio
import contextlib
from math import inf

_MAX_BUFFERED_BYTES = 64 * 1024
_LINGER_TIMEOUT_S = 10


class Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is connected
        self.gone = (
            asyncio.get_running_loop().create_future()
        )  # done when nothing can be sent any more
        self._received: list[bytes] = []
        self._size = 0
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        # of the reader; it may fire before the deadline
        self._timer: asyncio.TimerHandle | None = None
        self._late_at = 0.0
        self._writer: asyncio.Future[None] | None = None
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        if self._size > _MAX_BUFFERED_BYTES:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        # A client that has sent everything may still read. TLS has no half-close.
        return self.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def ended(self) -> bool:
        """No more data will arrive than is buffered."""
        return self._ended

    @property
    def silent(self) -> bool:
        """No data has arrived: an idle connection can be reused."""
        return not self._ended and not self._received

    async def read(self, within_s: float | None = None) -> bytes:
        """The buffered bytes; waits until there are some. Empty: the end. TimeoutError after
        ``within_s``.
        """
        if not self._received and not self._ended:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            self._expect(None if within_s is None else loop.time() + within_s)
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        if self._size > _MAX_BUFFERED_BYTES and not self._ended:
            self.transport.resume_reading()
        self._size = 0
        return data

    def _expect(self, late_at: float | None) -> None:
        """A new timer for each read would cost a tenth of a request and nearly never fire. So an
        earlier timer stays and checks the deadline when it fires.
        """
        self._late_at = inf if late_at is None else late_at
        if self._timer is not None and self._timer.when() > self._late_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and late_at is not None:
            self._timer = asyncio.get_running_loop().call_at(late_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._reader is None or self._reader.done() or self._late_at == inf:
            return
        if self._late_at <= asyncio.get_running_loop().time():
            self._reader.set_exception(TimeoutError())
        else:
            self._expect(self._late_at)

    async def write(self, data: bytes, within_s: float | None = None) -> None:
        """Waits while the other side does not take earlier data."""
        if self.gone.done():
            raise ConnectionResetError("the other side closed the connection")
        if data:
            self.transport.write(data)
        while self._full and not self.gone.done():
            if self._writer is None or self._writer.done():
                self._writer = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._writer)  # others may wait for the same future

    def end(self) -> None:
        """No more data will be sent."""
        if not self.gone.done() and self.transport.can_write_eof():
            # the connection is gone, and the loop does not know it yet
            with contextlib.suppress(OSError):
                self.transport.write_eof()

    def close(self) -> None:
        """Buffered data is still sent, unless the other side does not take it."""
        if self.transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_LINGER_TIMEOUT_S, self.transport.abort)
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
