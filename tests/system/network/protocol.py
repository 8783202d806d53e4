"""Random connections of HTTP/1, good and bad, and three servers that read them differently.

A seed determines a connection. Every request has its own path (``/r/TAG``). Requests hidden in
bodies and headers ask for ``/x/TAG``. A server that acts on one of those got a request that the
filter did not judge.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import random
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.features import need, need_program
from tests.support.waiting import wait_for

KINDS = ("python", "node", "nginx")
DENIED = "denied.protocol.example"
_METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "get",
    "FOO",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The target of a client: a name inside, and the part that judges its requests (``route``,
    ``inspect``, ``relay``).
    """

    host: str
    port: int
    way: str
    kind: str

    @property
    def authority(self) -> str:
        return self.host if self.port == 80 else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Play:
    """The bytes of one connection. ``bodies`` has the body of each ordinary request by its tag."""

    endpoint: Endpoint
    pieces: list[str]
    bodies: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        return json.dumps(
            {"host": self.endpoint.host, "port": self.endpoint.port, "pieces": self.pieces}
        )


def plays(seed: int, endpoints: list[Endpoint], count: int) -> list[Play]:
    return [
        _play(random.Random(f"{seed}/{number}"), endpoints, f"{seed}-{number}")
        for number in range(count)
    ]


def _play(chance: random.Random, endpoints: list[Endpoint], name: str) -> Play:
    play = Play(chance.choice(endpoints), [])
    encoded = "".join(
        _request(chance, play, f"{name}-{at}") for at in range(chance.choice((1, 1, 2, 3, 4)))
    )
    match chance.randrange(4):
        case 0:
            play.pieces = list(encoded)
        case 1:
            cuts = sorted(chance.sample(range(len(encoded) + 1), min(6, len(encoded))))
            play.pieces = [
                encoded[start:end]
                for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)
            ]
        case _:
            play.pieces = [encoded]
    return play


def _hidden(chance: random.Random, play: Play, tag: str) -> str:
    """Text that looks like a request, at a position without a request."""
    host = chance.choice((DENIED, play.endpoint.authority))
    method = chance.choice(("GET", "DELETE", "POST"))
    line = chance.choice(
        (
            f"{method} /x/{tag} HTTP/1.1",
            f"{method} http://{DENIED}/x/{tag} HTTP/1.1",
            f"GET /x/{tag}",
        )
    )
    unfinished = f"Content-Length: {chance.randrange(20, 200)}\r\n" if method == "POST" else ""
    before = chance.choice(("", "", "", "\r\n", "\n", " "))
    return f"{before}{line}\r\nHost: {host}\r\n{unfinished}\r\n"


def _body(chance: random.Random, play: Play, tag: str) -> str:
    match chance.randrange(7):
        case 0 | 1 | 2:
            return _hidden(chance, play, tag)
        case 3:
            return json.dumps({"query": "x" * chance.randrange(40)})
        case 4:
            return "a=1&b=2"
        case 5:
            return f"some text /x/{tag}\r\n" + _hidden(chance, play, tag)
        case _:
            return ""


def _request(chance: random.Random, play: Play, tag: str) -> str:
    endpoint = play.endpoint
    odd = chance.random() < 0.4
    method = chance.choice(_METHODS)
    target = f"/r/{tag}"
    version = "HTTP/1.1" if chance.random() < 0.9 else "HTTP/1.0"
    headers = [f"Host: {endpoint.authority}"]
    body = _body(chance, play, tag) if chance.random() < 0.6 else ""
    encoded = body
    if body and chance.random() < 0.3:
        size = chance.randrange(1, len(body) + 1)
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        encoded = "".join(f"{len(part):x}\r\n{part}\r\n" for part in parts) + "0\r\n\r\n"
        headers.append("Transfer-Encoding: chunked")
    elif body or chance.random() < 0.2:
        headers.append(f"Content-Length: {len(body)}")
    usual = (
        "X-A: b",
        "Expect: 100-continue",
        "Connection: close",
        "Connection: keep-alive",
        "Accept: */*",
    )
    headers += chance.sample(usual, chance.choice((0, 0, 1, 2)))
    end, line_end = "\r\n", "\r\n"
    if odd:
        match chance.randrange(16):
            case 0:
                target = chance.choice(
                    (
                        f"//r/{tag}",
                        f"/r/./{tag}",
                        f"/r/{tag}?q=/x/",
                        f"/r/%2e%2e/x/{tag}",
                        f"/r/../x/{tag}",
                        "*",
                    )
                )
            case 1:
                target = f"http://{chance.choice((endpoint.authority, DENIED))}/r/{tag}"
            case 2:
                headers[0] = chance.choice(
                    (
                        f"Host: {DENIED}",
                        f"host:{endpoint.authority.upper()}",
                        f"X-Host: {DENIED}",
                        "Host:",
                    )
                )
            case 3:
                headers.insert(chance.randrange(2), f"Host: {DENIED}")
            case 4:
                headers += [
                    "Connection: Upgrade",
                    "Upgrade: " + chance.choice(("websocket", "h2c", "x")),
                ]
                encoded += _hidden(chance, play, tag)
            case 5:
                headers.append(
                    chance.choice(
                        (
                            "Content-Length: 0",
                            "Content-Length: 5",
                            "Content-Length: +7",
                            "Content-Length: 0x4",
                        )
                    )
                )
            case 6:
                headers.append(
                    chance.choice(
                        ("Transfer-Encoding: chunked", "Transfer-Encoding: xchunked",
                         "Transfer-Encoding : chunked",
                         "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked, identity",
                         "Transfer_Encoding: chunked")
                    )
                )  # fmt: skip
            case 7:
                encoded += _hidden(chance, play, tag)
            case 8:
                encoded = encoded[: chance.randrange(len(encoded) + 1)]
            case 9:
                headers.append(f" folded: {_hidden(chance, play, tag)[:20]}")
            case 10:
                line_end = "\n"
            case 11:
                headers.append(f"X-B: {chr(chance.randrange(256))}")
            case 12:
                headers.append(f"X-C: a\r\r\n\r\n{_hidden(chance, play, tag)}")
            case 13:
                hidden = _hidden(chance, play, tag).strip()
                encoded = (
                    f"1;{hidden.splitlines()[0]}\r\na\r\n0\r\n"
                    f"{chance.choice(('', f'Host: {DENIED}', hidden))}\r\n\r\n"
                )
                headers = [headers[0], "Transfer-Encoding: chunked"]
            case 14:
                headers.append("X-HTTP-Method-Override: DELETE")
            case _:
                version = chance.choice(("HTTP/1.2", "HTTP/0.9", "http/1.1", "HTTP/2.0", ""))
    else:
        play.bodies[tag] = body
    head = line_end.join([f"{method} {target} {version}", *headers])
    return f"{head}{line_end}{end}{encoded}"


# ---- servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """A request as a server read it."""

    method: str
    path: str
    host: str
    body: str


@dataclass(slots=True)
class Upstream:
    """A server of one kind, on one port of this machine."""

    kind: str
    port: int
    log: Path

    def acted(self) -> list[Acted]:
        """The requests, after everything sent before this call is recorded."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/end", timeout=120).read()
        wait_for(
            lambda: '"/end"' in self.log.read_text(errors="replace"),
            f"the last line of {self.kind}",
        )
        lines = [json.loads(line) for line in self.log.read_text(errors="replace").splitlines()]
        reported = [
            line
            for line in lines
            if line["path"] != "/end" and line.get("status") not in ("400", "408")
        ]
        return [
            Acted(method=one["method"], path=one["path"], host=one["host"], body=one["body"])
            for one in reported
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    """A common simple server: it reads a body by its length, only where it expects one."""

    protocol_version = "HTTP/1.1"
    log: Path

    def _answer(self) -> None:
        reads = self.command in ("POST", "PUT", "PATCH")
        length = self.headers["Content-Length"] or "0"
        body = self.rfile.read(int(length) if length.isdecimal() else 0) if reads else b""
        reported = {
            "method": self.command,
            "path": self.path,
            "host": self.headers["Host"] or "",
            "body": body.decode("latin-1"),
        }
        with self.log.open("a") as log:
            log.write(json.dumps(reported) + "\n")
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"ok")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_TRACE = do_PATCH = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


_NODE = """
const http = require("http"), fs = require("fs");
for (const [log, port] of JSON.parse(process.argv[1])) {
  http.createServer((request, response) => {
    const parts = [];
    const tell = () => fs.appendFileSync(log, JSON.stringify({ method: request.method, path: \
request.url,
      host: request.headers.host || "", body: Buffer.concat(parts).toString("latin1") }) + "\\n");
    request.on("data", (part) => parts.push(part));
    request.on("end", () => { tell(); response.end("ok"); });
    request.on("error", tell);
  }).listen(port, "127.0.0.1");
}
"""
_NGINX = """
daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.err;
events {{}}
http {{
  log_format told escape=json \
'{{"method":"$request_method","path":"$request_uri","host":"$http_host",'
    '"body":"$request_body","status":"$status"}}';
  client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; lingering_close off;
  client_body_timeout 3s; client_header_timeout 3s;
  server {{ listen unix:{root}/inner; access_log off; return 200 "ok"; }}
  {servers}
}}
"""
_NGINX_SERVER = (
    "server {{ listen 127.0.0.1:{port}; access_log {log} told; "
    "location / {{ proxy_pass http://unix:{root}/inner; }} }}"
)


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [end.getsockname()[1] for end in sockets]


class _Python(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores the error of a client that closes because it was refused."""


@contextlib.contextmanager
def upstreams(root: Path, each: int) -> Iterator[dict[str, list[Upstream]]]:
    """Starts ``count`` servers of each kind."""
    node, nginx = need_program("node"), "/usr/sbin/nginx"
    need("nginx", os.access(nginx, os.X_OK), "no nginx on this machine")
    found: dict[str, list[Upstream]] = {}
    for kind in KINDS:
        found[kind] = [Upstream(kind, port, root / f"{kind}-{port}.log") for port in _ports(each)]
        for one in found[kind]:
            one.log.touch()
    with contextlib.ExitStack() as stack:
        for one in found["python"]:
            server = _Python(
                ("127.0.0.1", one.port), type("Handler", (_Handler,), {"log": one.log})
            )
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        words = json.dumps([[str(one.log), one.port] for one in found["node"]])
        _started(stack, [node, "-e", _NODE, words])
        servers = "\n".join(
            _NGINX_SERVER.format(root=root, port=one.port, log=one.log) for one in found["nginx"]
        )
        (root / "nginx.conf").write_text(_NGINX.format(root=root, servers=servers))
        _started(stack, [nginx, "-p", str(root), "-c", str(root / "nginx.conf")])
        for one in (one for ones in found.values() for one in ones):
            wait_for(lambda port=one.port: _listens(port), f"{one.kind} at {one.port}")  # type: ignore[misc]
        yield found


def _started(stack: contextlib.ExitStack, words: list[str]) -> None:
    process: subprocess.Popen[Any] = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait, 30)
    stack.callback(process.kill)


def _listens(port: int) -> bool | None:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return None
    return True
