"""HTTP/1.1 as it is read and written (RFC 9112). No sockets.

There is one spelling, and what has another is refused: lines end with CR LF, none is folded, no
blank stands before a colon, a length is said once and in one way. What is written has to fit the
expressions that read, and its end is where a reader of its head would look for it: so no message
can hold another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_CHUNK_LINE_BYTES: Final = 4096
Headers = list[tuple[bytes, bytes]]  # names in lower case

# How long a body is: so many bytes, or
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
# One word and a blank behind it, or nothing yet that shows another thing. Python's http.server
# takes all of these for blanks. JSON, XML, forms and the parts of a multipart body begin with
# something else.
_BLANK = rb"\t\x0b\x0c\x1c-\x20\x85\xa0"
_REQUEST_LIKE = re.compile(rb"[%s\r\n]*(?:%s(?:[%s]|\r(?!\n)|\Z)|\Z)" % (_BLANK, _NAME, _BLANK))


class Malformed(Exception):  # noqa: N818 (whose fault it is: the other side's)
    """``str()`` says what is wrong with what was said, and quotes nothing of it. ``status``: a
    server's answer.
    """

    def __init__(self, what: str, *, status: int = 400) -> None:
        super().__init__(what)
        self.status = status


class Unsayable(Exception):  # noqa: N818
    """What HTTP/1.1 has no words for, or what does not fit what was said before."""


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
    """What one side of a connection says: heads, and behind each the body that it announces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # so far there is no end of a head
        self._closed = False
        self._extent = self._left = 0
        self._between = False  # two chunks
        self._last = False  # no chunk comes any more
        self.whole = True  # the body, if there is one, was read
        self.trailers: Headers = []

    def feed(self, data: bytes) -> None:
        """Nothing: nothing more will come."""
        if data:
            self._buffer += data
        else:
            self._closed = True

    @property
    def unread(self) -> bytes:
        return bytes(self._buffer)

    def request(self) -> RequestHead | None:
        """The next one; None: more has to come. EOFError if none will."""
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
        """As ``request``."""
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
        """The body of the head that was read."""
        self._extent, self._left = extent, max(extent, 0)
        self._between = self._last = False
        self.whole = extent == 0
        self.trailers = []

    def body(self) -> bytes:
        """What there is of it. Nothing: that was all (``whole``), or more has to come."""
        if self.whole:
            return b""
        if self._extent == CHUNKED:
            data = self._chunks()
        elif self._extent == UNTIL_CLOSE:
            data = self._taken(len(self._buffer))
            self.whole = self._closed
        else:
            data = self._taken(self._left)
            self._left -= len(data)
            self.whole = self._left == 0
        if not data and self._closed and not self.whole:
            raise Malformed("the body is incomplete")
        return data

    def _taken(self, size: int) -> bytes:
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
                pieces.append(self._taken(self._left))
                self._left -= len(pieces[-1])
                if self._left:
                    break
                self._between = True
            if not (self._trailed() if self._last else self._announced()):
                break
        return b"".join(pieces)

    def _announced(self) -> bool:
        """Whether the line that says how long the next chunk is was there, and read."""
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
    """RFC 9112, 6.3, without its leniences."""
    extent = _said(head.headers)
    if extent == CHUNKED and not head.modern:
        raise Malformed("HTTP/1.0 does not have chunks")
    return 0 if extent is None else extent


def answer_extent(answer: Answer, method: str) -> int:
    if _is_bare(answer.status, method):
        return 0
    extent = _said(answer.headers, chunks_win=True)
    return UNTIL_CLOSE if extent is None else extent


def lasts(headers: Iterable[tuple[bytes, bytes]], *, modern: bool) -> bool:
    """Whether another message may follow on the connection. HTTP/1.0 had several ways to say so;
    none is followed.
    """
    return modern and b"close" not in tokens_of(headers, b"connection")


def tokens_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> frozenset[bytes]:
    """The words of all headers of that name, in lower case."""
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


def _said(headers: Headers, *, chunks_win: bool = False) -> int | None:
    """None: nothing about it."""
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
    """Whether a server that does not read a body could take this beginning of it for the next
    request.
    """
    return _REQUEST_LIKE.match(beginning) is not None


def request_bytes(method: str, target: str, headers: Headers) -> tuple[bytes, int]:
    """A head, and the extent of the body that has to follow."""
    try:
        first = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    except UnicodeError:
        raise Unsayable("characters outside ASCII") from None
    if not _REQUEST.fullmatch(first):
        raise Unsayable("no method and target")
    return first + _section(headers), _extent(headers) or 0


def answer_bytes(answer: Answer, method: str, *, modern: bool, last: bool) -> tuple[bytes, int]:
    """``method``, ``modern``: of the request. ``last``: nothing follows on this connection. If the
    answer does not say how long its body is, that goes in chunks, or until the connection is
    closed.
    """
    headers, extent = answer.headers, 0
    if not _is_bare(answer.status, method):
        said = _extent(headers)
        extent = said if said is not None else CHUNKED if modern else UNTIL_CLOSE
        if said is None and modern:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
    if last:
        headers = [*headers, (b"connection", b"close")]
    first = b"HTTP/1.1 %d %s\r\n" % (answer.status, answer.reason)
    if not _STATUS.fullmatch(first):
        raise Unsayable("no status and reason")
    return first + _section(headers), extent


def _section(headers: Headers) -> bytes:
    fields = b"".join([b"%s: %s\r\n" % field for field in headers])
    if not _FIELDS.fullmatch(fields) or _FIELD.findall(fields) != [
        (name, b" " + value) for name, value in headers
    ]:
        raise Unsayable("a header with invalid characters")
    return fields + b"\r\n"


def _extent(headers: Headers) -> int | None:
    try:
        return _said(headers)
    except Malformed as error:
        raise Unsayable(str(error)) from None


class Writer:
    """A body as its head has announced it. What is not is Unsayable."""

    def __init__(self) -> None:
        self._extent = self._left = 0
        self.whole = True  # what was begun was said to its end

    def begin(self, extent: int) -> None:
        self._extent, self._left = extent, max(extent, 0)
        self.whole = extent == 0

    def body(self, data: bytes) -> bytes:
        if not data:
            return b""  # as a chunk it would be the end
        if self._extent == CHUNKED:
            return b"%x\r\n%s\r\n" % (len(data), data)
        if self._extent != UNTIL_CLOSE:
            if len(data) > self._left:
                raise Unsayable("the body is longer than announced")
            self._left -= len(data)
        return data

    def end(self, trailers: Headers | None = None) -> bytes:
        """Trailers follow chunks; elsewhere there is no place for them."""
        if self._left:
            raise Unsayable("the body is shorter than announced")
        last = b"0\r\n" + _section(trailers or []) if self._extent == CHUNKED else b""
        self._extent = 0
        self.whole = True
        return last
