"""Removes the secret from the answers of a WebSocket (RFC 6455, 5.2). No sockets.

A message is complete with its last frame, so nothing is retained longer. The secret may span frames
of one message; frames keep their sizes.
"""

from __future__ import annotations

from collections import deque

from paddock.http.message import Malformed
from paddock.http.secret_scrubber import Scrubber

_LAST, _RESERVED, _OPCODE, _CONTROL = 0x80, 0x70, 0x0F, 0x08
_MASKED, _SIZE = 0x80, 0x7F
_LONG, _LONGER = 126, 127  # the size is in the next two or eight bytes


class Frames:
    """Takes the frames of the upstream and returns them with the secret overwritten."""

    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber
        self._unread = bytearray()
        self._left = 0  # payload bytes of the current frame that are still to come
        self._last = True  # the current frame ends its message
        self._ready = bytearray()  # payload that may pass
        self._order: deque[bytes | int] = (
            deque()
        )  # the output queue: literal bytes, or a number of payload bytes

    def feed(self, data: bytes) -> bytes:
        """Raises Malformed for a frame that can not be searched."""
        self._unread += data
        while self._left or self._began():
            piece = self._consume(min(self._left, len(self._unread)))
            if not piece and self._left:
                break
            self._left -= len(piece)
            over = self._last and not self._left
            self._ready += self._scrubber.last(piece) if over else self._scrubber.feed(piece)
            self._order.append(len(piece))
        return self._passed()

    def end(self) -> bytes:
        """No more data will come."""
        self._ready += self._scrubber.last(b"")
        return self._passed()

    def _began(self) -> bool:
        """Whether the head of a data frame was complete and read. Control frames between them are
        handled as a whole.
        """
        while (head := self._head()) is not None:
            first, at, size = head
            if not first & _CONTROL:
                self._last, self._left = bool(first & _LAST), size
                self._order.append(self._consume(at))
                return True
            if len(self._unread) < at + size:
                return False
            self._order.append(self._consume(at) + self._scrubber.whole(self._consume(size)))
        return False

    def _head(self) -> tuple[int, int, int] | None:
        """Its first byte, its own size and that of the payload. None: more data is needed."""
        if len(self._unread) < 2:
            return None
        first, second = self._unread[:2]
        if first & _RESERVED or second & _MASKED:
            raise Malformed("a frame is compressed or masked")
        size, at = second & _SIZE, 2
        if size >= _LONG:
            if first & _CONTROL:
                raise Malformed("a control frame is too long")
            at = 4 if size == _LONG else 10
            size = int.from_bytes(self._unread[2:at])
        return None if len(self._unread) < at else (first, at, size)

    def _consume(self, size: int) -> bytes:
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def _passed(self) -> bytes:
        out = bytearray()
        while self._order:
            first = self._order.popleft()
            if isinstance(first, bytes):
                out += first
                continue
            size = min(first, len(self._ready))
            out += self._ready[:size]
            del self._ready[:size]
            if size < first:
                self._order.appendleft(first - size)
                break
        return bytes(out)
