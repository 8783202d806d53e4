"""Reads and writes HTTP/1.1 (RFC 9112). No sockets.

Only one spelling is accepted: lines end with CR LF, no line is folded, no blank precedes a colon, a
length is given once and in one form. Written messages must match the expressions of the reader, and
end where a reader of the head expects it. So no message can contain another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_CHUNK_LINE_BYTES: Final = 4096
Headers = list[tuple[bytes, bytes]]  # names in lower case

# The length of a body: a number of bytes, or
CHUNKED: Final = -1
UNTIL_CLOSE: Final = -2

_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TEXT = rb"[^\x00-\x08\n-\x1f\x7f]*"
_FIELD = re.compile(rb"(%s):(%s)\r\n" % (_NAME, _TEXT))
_FIELDS = re.compile(rb"(?:%s:%s\r\n)*" % (_NAME, _TEXT))
_REQUEST = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])\r\n" % _NAME)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (%s))?\r\n" % _TEXT)
_NUMBER = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;%s)?" % _TEXT)
_BARE = re.compile(rb"(?<!\r)\n")
# One word and a blank after it, or no evidence against this yet. Python's http.server accepts all
# of these as blanks. JSON, XML, forms and the parts of a multipart body begin differently.
_BLANK = rb"\t\x0b\x0c\x1c-\x20\x85\xa0"
_REQUEST_LIKE = re.compile(rb"[%s\r\n]*(?:%s(?:[%s]|\r(?!\n)|\Z)|\Z)" % (_BLANK, _NAME, _BLANK))


class Malformed(Exception):  # noqa: N818 (an error of the peer)
    """``str()`` names the error and quotes nothing of the message. ``status``: the answer of a
    server.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class UnwritableMessage(Exception):  # noqa: N818
    """HTTP/1.1 can not express it, or it contradicts the head."""


class RequestHead(NamedTuple):
    method: str
    target: str
    headers: Headers
    modern: bool = True  # HTTP/1.1, not 1.0


class Answer(NamedTuple):
    status: int
    reason: bytes
    headers: Headers
    modern: bool = True


class Reader:
    """One direction of a connection: heads, each followed by its announced body."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # no end of a head before this offset
        self._closed = False
        self._extent = self._left = 0
        self._between = False  # a chunk has ended
        self._last = False  # the last chunk was read
        self.whole = True  # the body, if any, was read
        self.trailers: Headers = []

    def feed(self, data: bytes) -> None:
        """Empty: no more data will arrive."""
        if data:
            self._buffer += data
        else:
            self._closed = True

    @property
    def unread(self) -> bytes:
        return bytes(self._buffer)

    def request(self) -> RequestHead | None:
        """The next one; None: more data is needed. EOFError if none will come."""
        if (head := self._head()) is None:
            return None
        if (first := _REQUEST.match(head)) is None:
            raise Malformed("the first line is not an HTTP/1.1 request")
        method, target, minor = first.groups()
        return RequestHead(
            method.decode("ascii"),
            target.decode("ascii"),
            _fields(head, first.end()),
            minor == b"1",
        )

    def answer(self) -> Answer | None:
        """Like ``request``."""
        if (head := self._head()) is None:
            return None
        if (first := _STATUS.match(head)) is None:
            raise Malformed("the first line is not an HTTP/1.1 answer")
        minor, status, reason = first.groups()
        return Answer(int(status), reason or b"", _fields(head, first.end()), minor == b"1")

    def _head(self) -> bytes | None:
        end = self._buffer.find(b"\r\n\r\n", self._searched)
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise Malformed(f"the head is larger than {MAX_HEAD_BYTES} bytes", status=431)
        if end < 0:
            if _BARE.search(self._buffer, self._searched):
                raise Malformed("a line of the head does not end with CR LF")
            if self._closed:
                if not self._buffer:
                    raise EOFError
                raise Malformed("the head is incomplete")
            self._searched = max(0, len(self._buffer) - 3)
            return None
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        self._searched = 0
        return head

    def begin(self, extent: int) -> None:
        """Starts the body of the last head."""
        self._extent, self._left = extent, max(extent, 0)
        self._between = self._last = False
        self.whole = extent == 0
        self.trailers = []

    def body(self) -> bytes:
        """The available part. Empty: the body is complete (``whole``), or more data is needed."""
        if self.whole:
            return b""
        if self._extent == CHUNKED:
            data = self._chunks()
        elif self._extent == UNTIL_CLOSE:
            data = self._consume(len(self._buffer))
            self.whole = self._closed
        else:
            data = self._consume(self._left)
            self._left -= len(data)
            self.whole = self._left == 0
        if not data and self._closed and not self.whole:
            raise Malformed("the body is incomplete")
        return data

    def _consume(self, size: int) -> bytes:
        if size >= len(self._buffer):
            data = bytes(self._buffer)
            self._buffer.clear()
        else:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
        return data

    def _chunks(self) -> bytes:
        pieces: list[bytes] = []
        while not self.whole:
            if self._left:
                pieces.append(self._consume(self._left))
                self._left -= len(pieces[-1])
                if self._left:
                    break
                self._between = True
            if not (self._trailed() if self._last else self._announced()):
                break
        return b"".join(pieces)

    def _announced(self) -> bool:
        """Whether the size line of the next chunk was complete and read."""
        start = 2 if self._between else 0
        if not b"\r\n".startswith(self._buffer[:start]):
            raise Malformed("a chunk is longer than its announced size")
        end = self._buffer.find(b"\r\n", start, start + _MAX_CHUNK_LINE_BYTES)
        if end < 0:
            if len(self._buffer) > start + _MAX_CHUNK_LINE_BYTES:
                raise Malformed("the size line of a chunk is too long")
            return False
        size = _CHUNK.fullmatch(self._buffer, start, end)
        if size is None:
            raise Malformed("the size of a chunk is not a number")
        self._left = int(size[1], 16)
        self._last = self._left == 0
        self._between = False
        del self._buffer[: end + 2]
        return True

    def _trailed(self) -> bool:
        if self._buffer[:2] == b"\r\n":
            del self._buffer[:2]
            self.whole = True
            return True
        if len(self._buffer) < 2 or (head := self._head()) is None:
            return False
        self.trailers = _fields(head, 0)
        self.whole = True
        return True


def request_extent(head: RequestHead) -> int:
    """RFC 9112, 6.3, without its exceptions."""
    extent = _declared_extent(head.headers)
    if extent == CHUNKED and not head.modern:
        raise Malformed("HTTP/1.0 does not have chunks")
    return 0 if extent is None else extent


def answer_extent(answer: Answer, method: str) -> int:
    if _is_bare(answer.status, method):
        return 0
    extent = _declared_extent(answer.headers, chunks_win=True)
    return UNTIL_CLOSE if extent is None else extent


def lasts(headers: Iterable[tuple[bytes, bytes]], *, modern: bool) -> bool:
    """Whether another message may follow on the connection. The ways of HTTP/1.0 to announce this
    are ignored.
    """
    return modern and b"close" not in tokens_of(headers, b"connection")


def tokens_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> frozenset[bytes]:
    """The tokens of all headers of that name, in lower case."""
    values = [value for key, value in headers if key == name]
    return (
        frozenset(token.strip(b" \t").lower() for value in values for token in value.split(b","))
        if values
        else _NONE
    )


_NONE: Final[frozenset[bytes]] = frozenset()


def _is_bare(status: int, method: str) -> bool:
    return status < 200 or status in (204, 304) or method == "HEAD"


def _fields(head: bytes, at: int) -> Headers:
    if _FIELDS.fullmatch(head, at) is None:
        raise Malformed("a line of the head is not a header")
    return [(name.lower(), value.strip(b" \t")) for name, value in _FIELD.findall(head, at)]


def _declared_extent(headers: Headers, *, chunks_win: bool = False) -> int | None:
    """None: not given."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if codings:
        if lengths and not chunks_win:
            raise Malformed("the head gives two lengths of the body")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Malformed("the transfer encoding of the body is not supported", status=501)
        return CHUNKED
    if not lengths:
        return None
    if len(lengths) > 1 or not _NUMBER.fullmatch(lengths[0]):
        raise Malformed("the length of the body is not a number")
    return int(lengths[0])


def may_begin_a_request(beginning: bytes) -> bool:
    """Whether a server that does not read a body could parse its beginning as the next request."""
    return _REQUEST_LIKE.match(beginning) is not None


def request_bytes(method: str, target: str, headers: Headers) -> tuple[bytes, int]:
    """A head, and the extent of the body that must follow."""
    try:
        first = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    except UnicodeError:
        raise UnwritableMessage("characters outside ASCII") from None
    if not _REQUEST.fullmatch(first):
        raise UnwritableMessage("no method and target")
    return first + _section(headers), _extent(headers) or 0


def answer_bytes(answer: Answer, method: str, *, modern: bool, last: bool) -> tuple[bytes, int]:
    """``method``, ``modern``: of the request. ``last``: nothing follows on this connection. Without
    a length the body is sent in chunks, or until the connection is closed.
    """
    headers, extent = answer.headers, 0
    if not _is_bare(answer.status, method):
        declared = _extent(headers)
        extent = declared if declared is not None else CHUNKED if modern else UNTIL_CLOSE
        if declared is None and modern:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
    if last:
        headers = [*headers, (b"connection", b"close")]
    first = b"HTTP/1.1 %d %s\r\n" % (answer.status, answer.reason)
    if not _STATUS.fullmatch(first):
        raise UnwritableMessage("no status and reason")
    return first + _section(headers), extent


def _section(headers: Headers) -> bytes:
    fields = b"".join([b"%s: %s\r\n" % field for field in headers])
    if not _FIELDS.fullmatch(fields) or _FIELD.findall(fields) != [
        (name, b" " + value) for name, value in headers
    ]:
        raise UnwritableMessage("a header with invalid characters")
    return fields + b"\r\n"


def _extent(headers: Headers) -> int | None:
    try:
        return _declared_extent(headers)
    except Malformed as error:
        raise UnwritableMessage(str(error)) from None


class Writer:
    """Writes a body as its head announced it. Anything else raises Unsayable."""

    def __init__(self) -> None:
        self._extent = self._left = 0
        self.whole = True  # the current body was written completely

    def begin(self, extent: int) -> None:
        self._extent, self._left = extent, max(extent, 0)
        self.whole = extent == 0

    def body(self, data: bytes) -> bytes:
        if not data:
            return b""  # an empty chunk would end the body
        if self._extent == CHUNKED:
            return b"%x\r\n%s\r\n" % (len(data), data)
        if self._extent != UNTIL_CLOSE:
            if len(data) > self._left:
                raise UnwritableMessage("the body is longer than announced")
            self._left -= len(data)
        return data

    def end(self, trailers: Headers | None = None) -> bytes:
        """Trailers are only possible after chunks."""
        if self._left:
            raise UnwritableMessage("the body is shorter than announced")
        last = b"0\r\n" + _section(trailers or []) if self._extent == CHUNKED else b""
        self._extent = 0
        self.whole = True
        return last
