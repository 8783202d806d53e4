"""Take secrets out of text before it is written or shown: prompts, tool calls, reports.

The core holds the rules (core/src/journal/redact/) and applies them to its own journal too. This
module keeps one ``paddock-core redact`` running and asks it. Redaction is best effort: a secret
that looks like ordinary text stays, unless its value is known.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import os
import socket
import struct
import threading
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Any

from paddock.core.process import NAME, program
from paddock.errors import CoreError

MARK = "[redacted]"
_MIN_VALUE_CHARS = 4  # of a known value: a shorter one stands in half of all texts
_TEXT, _COMMAND, _PART, _WORDS, _FIELDS = b"t", b"c", b"p", b"w", b"f"


class Redactor:
    """``values``: secrets that are known. Each is taken out wherever it stands, also encoded as in
    an address or as base64.

    ``redact`` is for text that no shell runs. ``command`` keeps everything that a shell would
    execute. ``part`` does so for one line of a longer text.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = {
            spelling
            for value in values
            if len(value) >= _MIN_VALUE_CHARS
            for spelling in _spellings(value)
        }
        self._values = sorted(spellings, key=len, reverse=True)

    def redact(self, text: str) -> str:
        return self._ask(_TEXT, [text])[0]

    def command(self, text: str) -> str:
        return self._ask(_COMMAND, [text])[0]

    def part(self, text: str) -> str:
        return self._ask(_PART, [text])[0]

    def known(self, text: str) -> str:
        """Without the known values, and nothing else."""
        return self._without_known(text.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        )

    def all_of(self, value: Any) -> Any:
        """The same for every text inside lists and mappings."""
        match value:
            case str():
                return self.redact(value)
            case dict():
                return self._mapping(value)
            case list() | tuple():
                return type(value)(self._list(value))
            case _:
                return value

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        fields = [
            (key, each)
            for key, each in value.items()
            if isinstance(key, str) and isinstance(each, str)
        ]
        redacted = self._ask(_FIELDS, list(itertools.chain.from_iterable(fields)))
        texts = {key: text for (key, _), text in zip(fields, redacted[1::2], strict=True)}
        return {
            key: texts[key] if key in texts else self.all_of(each) for key, each in value.items()
        }

    def _list(self, value: Sequence[Any]) -> Iterable[Any]:
        """A list may be the words of a command: a flag and its value are two of them."""
        for is_text, group in itertools.groupby(value, lambda each: isinstance(each, str)):
            run = list(group)
            yield from self._ask(_WORDS, run) if is_text else map(self.all_of, run)

    def _ask(self, reading: bytes, texts: Sequence[str]) -> list[str]:
        if not any(texts):
            return list(texts)
        data = [self._without_known(text.encode("utf-8", "surrogatepass")) for text in texts]
        return [text.decode("utf-8", "surrogatepass") for text in _core.ask(reading, data)]

    def _without_known(self, data: bytes) -> bytes:
        for value in self._values:
            data = data.replace(value, MARK.encode())
        return data


def redact(text: str) -> str:
    return Redactor().redact(text)


def _spellings(value: str) -> Iterable[bytes]:
    data = value.encode("utf-8", "surrogatepass")
    yield data
    yield urllib.parse.quote(data, safe="").encode("ascii")
    yield base64.b64encode(data)
    yield base64.urlsafe_b64encode(data).rstrip(b"=")


class _RedactingCore:
    """One ``paddock-core redact``, started at the first question and again after it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._socket: socket.socket | None = None

    def ask(self, reading: bytes, texts: Sequence[bytes]) -> list[bytes]:
        request = b"".join(
            (
                struct.pack("<cI", reading, len(texts)),
                *(part for text in texts for part in (struct.pack("<I", len(text)), text)),
            )
        )
        with self._lock:
            try:
                if self._socket is not None:
                    with contextlib.suppress(OSError):  # it ended meanwhile: ask a new one
                        return self._answer(self._socket, request)
                    self._close()
                return self._answer(self._start(), request)
            except OSError as error:
                self._close()
                raise CoreError(f"{NAME} redact ended while it redacted a text") from error
            except BaseException:  # the rest of the answer must not be read as the next one
                self._close()
                raise

    @staticmethod
    def _answer(connection: socket.socket, request: bytes) -> list[bytes]:
        connection.sendall(request, socket.MSG_NOSIGNAL)
        with connection.makefile("rb") as answer:
            count = _number(answer.read(4))
            return [
                _whole(answer.read(size := _number(answer.read(4))), size) for _ in range(count)
            ]

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), fd) for fd in (0, 1)]
            # In a process group of its own: a Ctrl-C at the terminal is not for it.
            self._pid = os.posix_spawn(
                program(), [NAME, "redact"], {}, file_actions=actions, setpgroup=0
            )
        self._socket = ours
        return ours

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def close(self) -> None:
        with self._lock:
            self._close()

    def forget(self) -> None:
        """After a fork, in the child: the process belongs to the parent."""
        if self._socket is not None:
            self._socket.close()
        self._lock, self._socket = threading.Lock(), None


def _number(data: bytes) -> int:
    return int.from_bytes(_whole(data, 4), "little")


def _whole(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ConnectionError("the answer is cut off")
    return data


_core = _RedactingCore()
atexit.register(_core.close)
os.register_at_fork(after_in_child=_core.forget)
