"""The socket to the relay: connections that it hands over, and connections that it dials for us.
This process does not listen.

``{"host":…,"kind":"route"|"inspect","port":…}`` with a descriptor is a connection; bytes that were
already read may follow after a NUL. ``{"dial":…,"id":…,"port":…}`` requests one; the answer has its
id, and a descriptor or a reason. Only the relay decides which hosts may be dialled, and it resolves
names. An invalid message ends the server: open connections are lost, and nothing is passed on
unjudged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.http.route_table import ConnectionKind

_MAX_MESSAGE_BYTES = 128 * 1024
_DIAL_TIMEOUT_S = 60  # the relay answers much earlier


@dataclass(frozen=True, slots=True)
class HandedConnection:
    kind: ConnectionKind
    host: str
    port: int
    received: bytes = b""  # bytes that the client sent before

    @classmethod
    def read(cls, values: dict[str, Any], received: bytes) -> HandedConnection:
        try:
            kind, host, port = (
                ConnectionKind(values.pop("kind")),
                values.pop("host"),
                values.pop("port"),
            )
        except (ValueError, KeyError):
            raise CoreError("the relay sent a message that is not a connection") from None
        if values or not isinstance(host, str) or type(port) is not int or not 0 < port < 65536:
            raise CoreError("the relay sent a message that is not a connection")
        return cls(kind, host, port, received)


class NotDialled(Exception):  # noqa: N818 (it is an answer, not a failure)
    """``denied``: by a rule; otherwise the host does not answer. ``str()`` is the reason."""

    def __init__(self, reason: str, *, denied: bool) -> None:
        super().__init__(reason)
        self.denied = denied


class Channel:
    def __init__(
        self, sock: socket.socket, take: Callable[[HandedConnection, socket.socket], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._take = take
        self._ids = itertools.count(1)
        self._dialling: dict[int, asyncio.Future[tuple[socket.socket, str]]] = {}
        self._send_lock = asyncio.Lock()  # a descriptor has one writer
        self.ended = (
            asyncio.get_running_loop().create_future()
        )  # the socket is closed; an exception is the reason
        asyncio.get_running_loop().add_reader(sock, self._readable)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        for waiting in self._dialling.values():
            if not waiting.done():
                waiting.set_exception(NotDialled("the relay has ended", denied=False))

    async def dial(self, host: str, port: int) -> tuple[socket.socket, str]:
        """A connection, and its remote address."""
        number = next(self._ids)
        answer: asyncio.Future[tuple[socket.socket, str]] = (
            asyncio.get_running_loop().create_future()
        )
        self._dialling[number] = answer
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                await self._send(
                    canonical({"dial": host, "id": number, "port": port}).encode("ascii")
                )
                return await answer
        except TimeoutError:
            raise NotDialled("the relay does not answer", denied=False) from None
        except OSError:
            _let_go(answer)
            raise NotDialled("the relay has ended", denied=False) from None
        except asyncio.CancelledError:
            _let_go(answer)
            raise
        finally:
            del self._dialling[number]

    async def _send(self, message: bytes) -> None:
        """Sends a whole message when the relay has room for it."""
        async with self._send_lock:
            await asyncio.get_running_loop().sock_sendall(self._sock, message)

    def _readable(self) -> None:
        try:
            while self._receive():
                pass
        except BlockingIOError:
            return
        except CoreError as error:
            self._end(error)
        except OSError:
            self._end(None)

    def _receive(self) -> bool:
        message, descriptors, flags, _ = socket.recv_fds(
            self._sock, _MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        try:
            if not message and not ends:
                self._end(None)
                return False
            if flags & socket.MSG_TRUNC:
                raise CoreError("the relay sent a message that is too long")
            self._handle_message(message, ends)
        finally:
            for end in ends:
                end.close()  # unless it was taken
        return True

    def _handle_message(self, message: bytes, ends: list[socket.socket]) -> None:
        text, _, received = message.partition(b"\0")
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise CoreError("the relay sent an invalid message")
        if "id" in values:
            self._answered(values, ends)
        elif ends:  # otherwise no descriptor was left for it, and it is lost
            handed = HandedConnection.read(values, received)
            self._take(handed, _take_socket(ends))

    def _answered(self, values: dict[str, Any], ends: list[socket.socket]) -> None:
        waiting = self._dialling.get(values["id"])
        if waiting is None or waiting.done():
            return  # the waiter is gone
        if "reason" in values:
            waiting.set_exception(
                NotDialled(str(values["reason"]), denied=values.get("denied") is True)
            )
        elif ends:
            waiting.set_result((_take_socket(ends), str(values.get("address"))))
        else:
            waiting.set_exception(NotDialled("too many connections are open", denied=False))

    def _end(self, error: CoreError | None) -> None:
        with contextlib.suppress(ValueError):
            asyncio.get_running_loop().remove_reader(self._sock)
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        for waiting in self._dialling.values():
            if not waiting.done():
                waiting.set_exception(NotDialled("the relay has ended", denied=False))


def _let_go(answer: asyncio.Future[tuple[socket.socket, str]]) -> None:
    """The waiter is gone, but the connection may have arrived at the same moment."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        answer.result()[0].close()


def _take_socket(ends: list[socket.socket]) -> socket.socket:
    end = ends.pop()
    end.setblocking(False)
    return end
