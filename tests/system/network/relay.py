"""The relay's side of the handover: clients connect on loopback, and the accepted socket is handed
over with its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.core.canonical import canonical
from paddock.http.credentials import Injection, injection
from paddock.http.inspection import Authority
from paddock.http.route_table import Settings
from paddock.http.server import RequestServer
from paddock.http.upstream import Patience
from paddock.policy.model import (
    Credential,
    CredentialKind,
    EndpointRule,
    InjectMode,
    Route,
    Source,
    Upstream,
)
from tests.support.waiting import DEADLINE_S, NeverHappened

SECRET = b"sk-secret/0123456789+abcdef"
WRITTEN = Source(file="paddock.toml", line=7)


def a_route(
    name: str,
    port: int,
    *,
    scheme: str = "http",
    host: str = "127.0.0.1",
    base: str = "",
    rules: Sequence[tuple[str, str]] | None = None,
    mode: InjectMode | None = None,
    inject_name: str | None = None,
    secret: bool = False,
    inspect: bool = False,
) -> Route:
    return Route(
        name=name,
        upstream=Upstream(scheme=scheme, host=host, port=port, base=base),
        credential=Credential(kind=CredentialKind.ENV, place="KEY", source=WRITTEN)
        if secret
        else None,
        inject_mode=mode,
        inject_name=inject_name,
        endpoint_rules=None
        if rules is None
        else tuple(
            EndpointRule(method=method, path=path, source=Source(file="paddock.toml", line=20 + at))
            for at, (method, path) in enumerate(rules)
        ),
        inspect=inspect,
        source=WRITTEN,
    )


def anywhere(_address: str, _port: int) -> str | None:
    return None


@dataclass
class Relay:
    """``listen(kind, host, port)`` returns an address. Every connection to it is handed over as one
    to that host.
    """

    channel: socket.socket
    line: socket.socket
    may_dial: Callable[[str, int], str | None]
    events: list[dict[str, Any]] = field(default_factory=list)
    _reported: threading.Condition = field(default_factory=threading.Condition)
    _listeners: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def listen(self, kind: str, host: str, port: int = 80) -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listeners.append(listener)
        self._start(self._accept, listener, kind, host, port)
        return int(listener.getsockname()[1])

    def hand_over(
        self, end: socket.socket, kind: str, host: str, port: int, output: bytes = b""
    ) -> None:
        message = canonical({"kind": kind, "host": host, "port": port}).encode() + (
            b"\0" + output if output else b""
        )
        socket.send_fds(self.channel, [message], [end.fileno()])
        end.close()

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The events, when there are ``count`` of them."""
        with self._reported:
            if not self._reported.wait_for(lambda: len(self.events) >= count, timeout=DEADLINE_S):
                raise NeverHappened(f"{count} events: {self.events}")
            return list(self.events)

    def hear(self) -> None:
        self._start(self._hear)
        self._start(self._dial)

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for end in (self.channel, self.line):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR)
        for thread in self._threads:
            thread.join(60)
        self.channel.close()
        self.line.close()

    def _start(self, act: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self, listener: socket.socket, kind: str, host: str, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = listener.accept()
                self.hand_over(end, kind, host, port)

    def _dial(self) -> None:
        """Dials as the core's relay does, but resolves names on this machine."""
        with contextlib.suppress(OSError):
            while message := self.channel.recv(65536):
                asked = json.loads(message)
                answer: dict[str, Any] = {"id": asked["id"]}
                try:
                    found = socket.getaddrinfo(
                        asked["dial"], asked["port"], type=socket.SOCK_STREAM
                    )
                    address = str(found[0][4][0])
                    if reason := self.may_dial(address, asked["port"]):
                        raise PermissionError(reason)
                    with socket.create_connection((address, asked["port"])) as server:
                        socket.send_fds(
                            self.channel,
                            [canonical(answer | {"address": address}).encode()],
                            [server.fileno()],
                        )
                except OSError as error:
                    answer |= {"reason": str(error), "denied": isinstance(error, PermissionError)}
                    self.channel.send(canonical(answer).encode())

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while message := self.line.recv(65536):
                with self._reported:
                    self.events.append(json.loads(message))
                    self._reported.notify_all()


@contextlib.contextmanager
def serving(
    *routes: Route,
    settings: Settings | None = None,
    may_dial: Callable[[str, int], str | None] = anywhere,
    authority: Authority | None = None,
    tls: ssl.SSLContext | None = None,
    patience: Patience | None = None,
    secret: bytes = SECRET,
) -> Iterator[Relay]:
    """The real server in a thread, and the relay side of its channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    our_line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    injections: Mapping[str, Injection] = {
        route.name: injection(route, secret) for route in routes if route.credential
    }
    failed: list[BaseException] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: failed.append(context.get("exception") or Exception(context))
        )
        context = tls or ssl.create_default_context()
        await RequestServer(
            their_line,
            theirs,
            settings or Settings(routes=routes),
            injections,
            authority,
            context,
            patience or Patience(),
        ).run()

    def served() -> None:
        asyncio.run(run())
        # The reader of events gets their end.
        their_line.close()
        theirs.close()

    thread = threading.Thread(target=served, daemon=True)
    thread.start()
    relay = Relay(ours, our_line, may_dial)
    relay.hear()
    try:
        yield relay
    finally:
        relay.close()
        thread.join(60)
        alive = thread.is_alive()
        assert not alive, "the server ends with its channel"
        assert not failed, failed


def curl(*arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environ = {"PATH": os.environ["PATH"]}  # without the proxy of the user who runs the tests
    return subprocess.run(
        ["curl", "-sS", "--max-time", "60", *arguments],
        input=data,
        capture_output=True,
        env=environ,
        check=False,
    )


def asked(
    relay: Relay, host: str, path: str, *more: str, kind: str = "route", data: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of one request with curl, as a client inside makes it."""
    port = relay.listen(kind, host)
    done = curl(
        "--path-as-is", "-w", "\n%{http_code}", "--connect-to", f"{host}:80:127.0.0.1:{port}",
        *more, f"http://{host}{path}", data=data,
    )  # fmt: skip
    body, _, status = done.stdout.rpartition(b"\n")
    assert done.returncode == 0, done
    return int(status), body
