"""The output of a stream: its beginning and its end in memory, optionally all of it in a file."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """``dropped``: the number of discarded bytes between ``head`` and ``tail``."""

    head: bytes
    tail: bytes = b""
    dropped: int = 0

    @property
    def truncated(self) -> bool:
        return self.dropped > 0

    def __bytes__(self) -> bytes:
        if not self.dropped:
            return self.head + self.tail
        return b"%b\n[... %d bytes were dropped ...]\n%b" % (self.head, self.dropped, self.tail)

    @property
    def text(self) -> str:
        return bytes(self).decode("utf-8", "replace")


class Capture:
    """Takes chunks and keeps ``cap`` bytes: half from the beginning, half from the end."""

    def __init__(self, cap: int, spool: IO[bytes] | None = None) -> None:
        self._half = max(cap, 2) // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0  # bytes in the tail
        self._dropped = 0
        self._spool = spool

    def take(self, chunk: bytes) -> None:
        if self._spool is not None:
            self._spool.write(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        rest = chunk[room:] if room < len(chunk) else b""
        if not rest:
            return
        self._tail.append(rest)
        self._tail_bytes += len(rest)
        # Whole chunks are dropped first; the exact cut is made once, at the end.
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            gone = len(self._tail.popleft())
            self._tail_bytes -= gone
            self._dropped += gone

    def captured(self) -> Captured:
        tail = b"".join(self._tail)
        over = max(len(tail) - self._half, 0)
        return Captured(head=bytes(self._head), tail=tail[over:], dropped=self._dropped + over)
