"""One request and its answer: judge the request, send it with the secret of its route, and return
the answer without it.

Both bodies flow at the same time, in pieces. An upstream may answer before it got the whole
request, and a stream of events reaches the client event by event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from paddock.http.connection import Wire
from paddock.http.credentials import Injection, searched_at
from paddock.http.endpoints import Target
from paddock.http.headers import (
    BadAnswer,
    Denied,
    HttpRequest,
    announces_body,
    backward,
    is_bodiless,
    onward,
    own_answer,
    target_of,
    unexpected_body,
)
from paddock.http.message import Answer, Headers, Malformed, UnwritableMessage, may_begin_a_request
from paddock.http.route_table import Site, judge
from paddock.http.upstream import Connection, Forbidden, Patience, Unreachable, Upstreams
from paddock.http.websocket import Frames

_PATH_MAX, _METHOD_MAX, _REASON_MAX = (
    1024,
    32,
    512,
)  # limits of an event: it has to fit into one message
# Repeating these changes nothing (RFC 9110, 9.2.2); a kept connection may turn out to be closed.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
_BODY_START_TIMEOUT_S = 1.0  # wait for the beginning of a body before its head is sent
# interim answers (1xx): an upstream that sends more never sends a final one
_MAX_INTERIM_ANSWERS = 100

RequestEvent = dict[str, Any]
ReportEvent = Callable[[RequestEvent], Awaitable[None]]


class ClientGone(Exception):  # noqa: N818 (not an error)
    """The client is gone, or does not send valid HTTP."""


class Client(Protocol):
    """One request of a client connection, for any version of HTTP."""

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done when the client is gone."""

    def at_hand(self) -> tuple[list[bytes], bool]:
        """The part of the body that has arrived, and whether it is complete."""

    async def piece(self) -> bytes | None:
        """The next piece of the body; None at its end."""

    async def begin(self, answer: Answer, *, follows: bool) -> None:
        """``follows``: the next piece or the end comes at once. Raises Unsayable, as the next two
        do, if it can not be written.
        """

    async def more(self, data: bytes) -> None: ...

    async def end(self, trailers: Headers) -> None: ...

    async def switch(self, answer: Answer) -> tuple[Wire, bytes]:
        """After a 101: the raw connection, and the bytes that arrived on it meanwhile."""


class Exchanges:
    """The state that all requests of a session share."""

    def __init__(
        self,
        upstreams: Upstreams,
        injections: Mapping[str, Injection],
        report: ReportEvent,
        patience: Patience,
    ) -> None:
        self._upstreams = upstreams
        self._injections = injections
        self.report = report
        self._patience = patience

    async def carry(self, site: Site, request: HttpRequest, client: Client) -> None:
        """Raises ClientGone if the connection to the client can not be used any more."""
        await _Exchange(
            self._upstreams,
            self._injections.get(site.route or searched_at(site.upstream.host)),
            self._patience,
            site,
            request,
            client,
        ).run(self.report)


class _Exchange:
    def __init__(
        self,
        upstreams: Upstreams,
        injection: Injection | None,
        patience: Patience,
        site: Site,
        request: HttpRequest,
        client: Client,
    ) -> None:
        self._upstreams = upstreams
        self._injection = injection
        self._patience = patience
        self._site = site
        self._request = request
        self._client = client
        self._begun = False  # the client has the head of an answer
        self._address: str | None = None
        self._status: int | None = None
        self._sent = self._received = 0

    async def run(self, report: ReportEvent) -> None:
        started = time.monotonic()
        path = self._request.target.partition("?")[0]
        rule: str | None = None
        reason: str | None
        # the default, until there is another result
        action, reason = "allow", "the client closed the connection"
        hint: str | None = None
        try:
            target = target_of(self._site, self._request)
            path = target.path
            decision = judge(self._site, self._request.method, path)
            if not decision.allowed:
                raise Denied(decision.reason or "", hint=decision.hint, rule=decision.rule)
            rule = decision.rule
            reason = await self._allowed(target)
            action = "allow" if reason is None else "fail"
        except Denied as denied:
            action, reason, rule, hint = "deny", str(denied), denied.rule, denied.hint
            await self._respond(denied.status, reason, rule=rule, hint=denied.hint)
        except Forbidden as forbidden:
            action, reason = "deny", str(forbidden)
            await self._respond(403, reason, rule=rule, hint=_addresses_hint(self._site))
        finally:
            await report(
                event(
                    self._site,
                    action,
                    reason,
                    rule=rule,
                    method=self._request.method,
                    path=path,
                    status=self._status,
                    hint=hint,
                    address=self._address,
                    sent=self._sent,
                    received=self._received,
                    ms=int((time.monotonic() - started) * 1000),
                )
            )

    async def _respond(
        self, status: int, message: str, *, rule: str | None = None, hint: str | None = None
    ) -> None:
        answer, body = own_answer(status, message, rule=rule, hint=hint)
        self._status = status
        await self._client.begin(answer, follows=True)
        if self._request.method != "HEAD":
            await self._client.more(body)
        await self._client.end([])

    async def _allowed(self, target: Target) -> str | None:
        """The reason of a failure, if there is one."""
        pieces, whole = await self._beginning()
        # An upstream that does not read the body closes the connection and does not parse the body
        # as a request.
        last = bool(pieces or not whole) and (
            is_bodiless(self._request) or may_begin_a_request(b"".join(pieces))
        )
        head, extent = onward(self._site, self._request, target, self._injection, last=last)
        upstream_key = (self._site.upstream, self._site.route)
        try:
            connection = await self._upstreams.take(*upstream_key)
            try:
                return await self._through(connection, head, extent, pieces, whole, last)
            except _Stale:
                if not (connection.used and whole and self._request.method in _REPEATABLE):
                    raise
            connection = await self._upstreams.take(*upstream_key, fresh=True)
            return await self._through(connection, head, extent, pieces, whole, last)
        except (Unreachable, BadAnswer, _Stale) as failed:
            if self._begun:
                raise ClientGone(str(failed)) from None
            await self._respond(
                504 if isinstance(failed, Unreachable) and failed.late else 502, str(failed)
            )
            return str(failed)

    async def _beginning(self) -> tuple[list[bytes], bool]:
        """The part of the body that has arrived, and whether it is complete. Raises Denied if no
        body is allowed.
        """
        bodiless = (
            is_bodiless(self._request)
            and self._request.method.upper() not in self._site.body_methods
        )
        if bodiless and announces_body(self._request) and not self._request.endless:
            raise unexpected_body(self._site, self._request)
        pieces, whole = self._client.at_hand()
        if not pieces and not whole:
            # Its length is unknown: it may be empty, and then there is no body.
            wait_s = (
                None
                if self._request.endless and is_bodiless(self._request)
                else _BODY_START_TIMEOUT_S
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    piece = await self._client.piece()
                    pieces, whole = ([], True) if piece is None else ([piece], False)
        if bodiless and (pieces or not whole):
            raise unexpected_body(self._site, self._request)
        if is_bodiless(self._request) and self._request.endless and not pieces:
            self._request = replace(self._request, endless=False)
        return pieces, whole

    async def _through(
        self,
        connection: Connection,
        head: bytes,
        extent: int,
        pieces: list[bytes],
        whole: bool,
        last: bool,
    ) -> str | None:
        self._address = connection.address
        wire, writer = connection.wire, connection.writer
        pump: asyncio.Task[None] | None = None
        done = False

        def leave(_: asyncio.Future[None]) -> None:
            wire.abort()

        self._client.gone.add_done_callback(leave)
        try:
            writer.begin(extent)
            first = [head, *map(writer.body, pieces)]
            if whole:
                first.append(writer.end())
            self._sent += sum(map(len, pieces))
            await _written(wire, b"".join(first))
            if not whole:
                pump = asyncio.create_task(self._pump(connection))
            switched = await self._answer(connection)
            done = True
        except TimeoutError:
            raise Unreachable(
                f"{self._site.upstream} sent no data for {self._patience.answer_s:g} s",
                late=not self._begun,
            ) from None
        except UnwritableMessage as error:
            raise ClientGone(str(error)) from None
        except EOFError:
            if self._client.gone.done():
                raise ClientGone from None
            raise _Stale(f"{self._site.upstream} closed the connection without an answer") from None
        except Malformed:
            if self._client.gone.done():
                raise ClientGone from None
            # Not the upstream's text: it may contain the secret.
            raise BadAnswer(
                f"{self._site.upstream} sent an invalid or incomplete HTTP answer"
            ) from None
        finally:
            self._client.gone.remove_done_callback(leave)
            if pump is not None:
                pump.cancel()
                await asyncio.wait([pump])
            if done and not switched and not last:
                self._upstreams.give_back(connection)
            else:
                wire.abort()
        if pump is not None and not pump.cancelled() and isinstance(pump.exception(), ClientGone):
            raise ClientGone(str(pump.exception()))
        return None

    async def _pump(self, connection: Connection) -> None:
        """Sends the rest of the request's body."""
        try:
            while (piece := await self._client.piece()) is not None:
                self._sent += len(piece)
                await connection.wire.write(connection.writer.body(piece))
            await connection.wire.write(connection.writer.end())
        except ConnectionError:
            pass  # the upstream does not read it; its answer or its silence is the result
        except UnwritableMessage as error:
            connection.wire.abort()
            raise ClientGone(str(error)) from None
        except ClientGone:
            connection.wire.abort()
            raise

    async def _answer(self, connection: Connection) -> bool:
        """Sends the answer to the client. Returns whether the connection became a tunnel."""
        answered = await connection.answer(self._patience.answer_s)
        for _ in range(_MAX_INTERIM_ANSWERS):
            if answered.status >= 200 or answered.status == 101:
                break
            answered = await connection.answer(self._patience.answer_s)
        else:
            raise Malformed("the upstream sent too many interim (1xx) answers")
        if answered.status == 101:
            if not self._request.websocket:
                raise Malformed(
                    "the upstream switches the protocol, and the client did not request it"
                )
            self._status = answered.status
            await self._tunnel(connection, backward(self._site, answered, self._injection))
            return True
        answer = backward(self._site, answered, self._injection)
        scrubber = None if self._injection is None else self._injection.scrubber()
        connection.begin(answered, self._request.method)
        self._begun = True
        self._status = answer.status
        begun = whole = False
        data = connection.reader.body()
        while True:
            whole = connection.reader.whole
            self._received += len(data)
            if scrubber is not None:
                data = scrubber.last(data) if whole else scrubber.feed(data)
            if not begun:
                await self._client.begin(answer, follows=bool(data) or whole)
                begun = True
            if data:
                await self._client.more(data)
            if whole:
                break
            data = await connection.more(self._patience.answer_s)
        trailers = connection.reader.trailers
        if scrubber is not None:
            trailers = [(scrubber.whole(name), scrubber.whole(value)) for name, value in trailers]
        await self._client.end(trailers)
        return False

    async def _tunnel(self, connection: Connection, answer: Answer) -> None:
        client, early = await self._client.switch(answer)
        frames = None if self._injection is None else Frames(self._injection.scrubber())
        first = connection.reader.unread
        there = asyncio.create_task(self._flow(client, connection.wire, early, None))
        back = asyncio.create_task(self._flow(connection.wire, client, first, frames, back=True))
        try:
            await asyncio.wait([there, back])
        finally:
            there.cancel()
            back.cancel()
            await asyncio.wait([there, back])

    async def _flow(
        self, source: Wire, sink: Wire, first: bytes, frames: Frames | None, *, back: bool = False
    ) -> None:
        """One direction of a tunnel. Its end is passed on; the other direction continues."""
        data = first or await source.read()
        try:
            while data:
                self._sent += 0 if back else len(data)
                self._received += len(data) if back else 0
                if data := data if frames is None else frames.feed(data):
                    await sink.write(data)
                data = await source.read()
            if frames is not None and (rest := frames.end()):
                await sink.write(rest)
        except ConnectionError:
            source.abort()
            return
        except Malformed:  # it can not be searched
            source.abort()
            sink.abort()
            return
        if sink.transport.can_write_eof():
            sink.end()
        else:
            sink.close()


class _Stale(Exception):  # noqa: N818
    """The connection was closed without an answer; it may have been kept for too long."""


def _addresses_hint(site: Site) -> str:
    """An entry in allowed_hosts would open the address to the command without the route."""
    if site.route is None:
        return "list the address in allowed_hosts"
    return f"name the address in upstream_addresses of [network.routes.{site.route}]"


async def _written(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it may have answered before it closed
        await wire.write(data)


def event(
    site: Site,
    action: str,
    reason: str | None,
    *,
    rule: str | None = None,
    method: str | None = None,
    path: str | None = None,
    status: int | None = None,
    hint: str | None = None,
    address: str | None = None,
    sent: int | None = None,
    received: int | None = None,
    ms: int | None = None,
) -> RequestEvent:
    return {
        "event": "network",
        "layer": "request",
        "action": action,
        "host": site.upstream.host,
        "port": site.upstream.port,
        "address": address,
        "rule": rule,
        "reason": None if reason is None else reason[:_REASON_MAX],
        "sent": sent,
        "received": received,
        "ms": ms,
        # The relay knows the caller and the approval.
        "pid": None,
        "exe": None,
        "by": None,
        "asked_ms": None,
        "request": {
            "method": None if method is None else method[:_METHOD_MAX],
            "path": None if path is None else path[:_PATH_MAX],
            "status": status,
            "route": site.route,
            "hint": None if hint is None else hint[:_PATH_MAX],
        },
    }
