"""The line to the relay: connections that it hands over, and those that it dials for us. Nothing
listens here.

``{"host":…,"kind":"route"|"inspect","port":…}`` and a descriptor is a connection; behind a NUL may
stand what was read from it already. ``{"dial":…,"id":…,"port":…}`` asks for one; the answer has its
id, and a descriptor or a reason. The relay alone decides whom we may call, and resolves names. What
is not understood ends the server: whoever has a connection then loses it, and nothing is passed on
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

_MESSAGE_MAX = 128 * 1024
_DIALLED_S = 60  # the relay answers long before


@dataclass(frozen=True, slots=True)
class Handed:
    kind: ConnectionKind
    host: str
    port: int
    said: bytes = b""  # what the client said before

    @classmethod
    def read(cls, values: dict[str, Any], said: bytes) -> Handed:
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
        return cls(kind, host, port, said)


class NotDialled(Exception):  # noqa: N818 (it is an answer, not a failure)
    """``denied``: by a rule; else nobody answers. ``str()`` says why."""

    def __init__(self, reason: str, *, denied: bool) -> None:
        super().__init__(reason)
        self.denied = denied


class Channel:
    def __init__(self, line: socket.socket, take: Callable[[Handed, socket.socket], None]) -> None:
        line.setblocking(False)
        self._line = line
        self._take = take
        self._ids = itertools.count(1)
        self._dialling: dict[int, asyncio.Future[tuple[socket.socket, str]]] = {}
        self._speaking = asyncio.Lock()  # a descriptor has one writer
        self.ended = (
            asyncio.get_running_loop().create_future()
        )  # nothing comes any more; an exception: and why
        asyncio.get_running_loop().add_reader(line, self._readable)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._line)
        for waiting in self._dialling.values():
            if not waiting.done():
                waiting.set_exception(NotDialled("the relay has ended", denied=False))

    async def dial(self, host: str, port: int) -> tuple[socket.socket, str]:
        """A connection, and the address that it leads to."""
        number = next(self._ids)
        answer: asyncio.Future[tuple[socket.socket, str]] = (
            asyncio.get_running_loop().create_future()
        )
        self._dialling[number] = answer
        try:
            async with asyncio.timeout(_DIALLED_S):
                await self._say(
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

    async def _say(self, message: bytes) -> None:
        """Whole, and when the relay has room for it."""
        async with self._speaking:
            await asyncio.get_running_loop().sock_sendall(self._line, message)

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
            self._line, _MESSAGE_MAX, 1, socket.MSG_CMSG_CLOEXEC
        )
        ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        try:
            if not message and not ends:
                self._end(None)
                return False
            if flags & socket.MSG_TRUNC:
                raise CoreError("the relay sent a message that is too long")
            self._heard(message, ends)
        finally:
            for end in ends:
                end.close()  # unless somebody took it
        return True

    def _heard(self, message: bytes, ends: list[socket.socket]) -> None:
        text, _, said = message.partition(b"\0")
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise CoreError("the relay sent an invalid message")
        if "id" in values:
            self._answered(values, ends)
        elif ends:  # none: there was no descriptor left for it, and it is lost
            handed = Handed.read(values, said)
            self._take(handed, _taken(ends))

    def _answered(self, values: dict[str, Any], ends: list[socket.socket]) -> None:
        waiting = self._dialling.get(values["id"])
        if waiting is None or waiting.done():
            return  # nobody waits for it any more
        if "reason" in values:
            waiting.set_exception(
                NotDialled(str(values["reason"]), denied=values.get("denied") is True)
            )
        elif ends:
            waiting.set_result((_taken(ends), str(values.get("address"))))
        else:
            waiting.set_exception(NotDialled("too many connections are open", denied=False))

    def _end(self, error: CoreError | None) -> None:
        with contextlib.suppress(ValueError):
            asyncio.get_running_loop().remove_reader(self._line)
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        for waiting in self._dialling.values():
            if not waiting.done():
                waiting.set_exception(NotDialled("the relay has ended", denied=False))


def _let_go(answer: asyncio.Future[tuple[socket.socket, str]]) -> None:
    """Nobody waits for it any more, and yet it may have come at that very moment."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        answer.result()[0].close()


def _taken(ends: list[socket.socket]) -> socket.socket:
    end = ends.pop()
    end.setblocking(False)
    return end
