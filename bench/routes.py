"""Requests per second through a route, through mitmproxy as a reverse proxy, and to the upstream
directly. The ratio is to mitmproxy.

The upstream and the clients are small event loops in their own processes. Clients check every
answer. The route has a credential and endpoint rules, so the route judges each request and searches
each answer. Mitmproxy only passes bytes on.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from bench.network import Through, mitmdump
from paddock.core.canonical import canonical
from paddock.http.credentials import injection
from paddock.http.route_table import Settings
from paddock.http.server import serve
from paddock.plan.http_routes import DOMAIN
from paddock.policy.model import Credential, CredentialKind, EndpointRule, Route, Source, Upstream
from tests.support.waiting import wait_for

BODY = b'{"id":"1","object":"chat.completion"}' * 8
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)
HOST = f"api.{DOMAIN}"
CLIENTS = 50
ROUTE, MITMPROXY = "a route", "mitmproxy"
LEAST = 5.0  # times the rate of mitmproxy
SOURCE = Source(file="bench", line=1)


class Answering(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            _, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            self.transport.write(ANSWER)


def upstream(ready: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            Answering, "127.0.0.1", 0, backlog=1024
        )
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def relay(ready: Connection, channel: socket.socket, line: socket.socket) -> None:
    """Accepts and dials for the route as the core does, and reads its decisions."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    message = canonical({"kind": "route", "host": HOST, "port": 80}).encode()

    def hear() -> None:
        while line.recv(65536):
            pass

    def dial() -> None:
        while asked := channel.recv(65536):
            wanted = json.loads(asked)
            with socket.create_connection((wanted["dial"], wanted["port"])) as server:
                answer = canonical({"address": wanted["dial"], "id": wanted["id"]}).encode()
                socket.send_fds(channel, [answer], [server.fileno()])

    threading.Thread(target=hear, daemon=True).start()
    threading.Thread(target=dial, daemon=True).start()
    ready.send(listener.getsockname()[1])
    while True:
        end, _ = listener.accept()
        socket.send_fds(channel, [message], [end.fileno()])
        end.close()


def route(
    ready: Connection, channel: socket.socket, line: socket.socket, upstream_port: int
) -> None:
    one = Route(
        name="api",
        upstream=Upstream(scheme="http", host="127.0.0.1", port=upstream_port),
        credential=Credential(kind=CredentialKind.ENV, place="KEY", source=SOURCE),
        endpoint_rules=(EndpointRule(method="GET", path="/v1/**", source=SOURCE),),
        source=SOURCE,
    )
    ready.send(0)
    serve(
        line,
        channel,
        Settings(routes=(one,)),
        injections={"api": injection(one, b"sk-0123456789abcdefghijklmnopqrstuvwxyz")},
    )


class Asking(asyncio.Protocol):
    """One connection: a request, its whole answer, the next request. Without keep-alive the next
    request has a new connection.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.received = 0
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found or len(body) < len(BODY):
            return
        assert (head[:12], body) == (b"HTTP/1.1 200", BODY), self.data
        self.data = b""
        self.run.done += 1
        if self.run.keep and not self.run.over:
            self.transport.write(self.run.request)
        else:
            self.transport.abort()
            self.run.connect()


class Run:
    def __init__(self, port: int, keep: bool) -> None:
        self.port, self.keep, self.done, self.over = port, keep, 0, False
        self.request = (
            f"GET /v1/models HTTP/1.1\r\nHost: {HOST}\r\nUser-Agent: bench\r\nAccept: "
            "application/json\r\n"
            f"Authorization: Bearer paddock-placeholder-00\r\n\r\n"
        ).encode()

    def connect(self) -> None:
        if self.over:
            return
        loop = asyncio.get_running_loop()
        self.tasks.append(
            loop.create_task(loop.create_connection(lambda: Asking(self), "127.0.0.1", self.port))
        )

    async def measure(self, seconds: float) -> float:
        self.tasks: list[asyncio.Task[object]] = []
        for _ in range(CLIENTS):
            self.connect()
        await asyncio.sleep(seconds / 4)
        before, started = self.done, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (self.done - before) / (time.perf_counter() - started)
        self.over = True
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return rate


def started(target: Callable[..., None], *arguments: object) -> tuple[int, int]:
    """Starts a process that ends with this one. Returns its pid and the port that it reports."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    assert process.pid is not None
    return process.pid, ours.recv()


def cpu_s(pid: int) -> float:
    """CPU time of a process. Unlike a rate it does not depend on other load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mitmproxy(program: Path, upstream_port: int) -> tuple[subprocess.Popen[bytes], int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, "-q", "--mode", f"reverse:http://127.0.0.1:{upstream_port}", "--listen-port",
        str(port),
         "--set", "flow_detail=0", "--set", "connection_strategy=lazy"]
    )  # fmt: skip
    wait_for(lambda: _accepts(port), "mitmproxy", 60)
    return process, port


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def through(rounds: int, seconds: float = 1) -> list[Through]:
    """``seconds`` is the time of each measurement."""
    if multiprocessing.get_start_method(allow_none=True) != "spawn":
        multiprocessing.set_start_method("spawn", force=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    our_line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    upstream_pid, upstream_port = started(upstream)
    route_pid, _ = started(route, theirs, their_line, upstream_port)
    _, relay_port = started(relay, ours, our_line)
    ways = {"direct": (upstream_pid, upstream_port), ROUTE: (route_pid, relay_port)}
    program, peer = mitmdump(), None
    if program is not None:
        peer, peer_port = mitmproxy(program, upstream_port)
        ways[MITMPROXY] = (peer.pid, peer_port)
    try:
        return [row for keep in (True, False) for row in compared(ways, keep, rounds, seconds)]
    finally:
        if peer is not None:
            peer.kill()
            peer.wait()


def compared(
    ways: dict[str, tuple[int, int]], keep: bool, rounds: int, seconds: float
) -> list[Through]:
    """The medians of the rounds. The cases run in turn, so that all get the same load."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    costs: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(1 + rounds):
        for way, (pid, port) in ways.items():
            run, before = Run(port, keep), cpu_s(pid)
            rate = asyncio.run(run.measure(seconds))
            if number:  # the first round only warms caches
                rates[way].append(max(rate, 1.0))
                costs[way].append((cpu_s(pid) - before) / max(run.done, 1) * 1e6)
    base = rates.get(MITMPROXY, rates["direct"])
    kept = "kept connections" if keep else "new connections"
    return [
        Through(
            name=f"{way}, {kept}: {statistics.median(costs[way]):.0f} us of CPU",
            unit="requests/s",
            value=statistics.median(rates[way]),
            of_limit=statistics.median(a / b for a, b in zip(rates[way], base, strict=True)),
            least=LEAST if way == ROUTE and MITMPROXY in ways else None,
        )
        for way in ways
    ]
