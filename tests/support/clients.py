"""Servers on the host, and clients inside and outside the sandbox that connect to them.

Only these runs know the names of the servers.
"""

from __future__ import annotations

import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

ALLOWED, OTHER, SIXTH = "web.clients.example", "other.clients.example", "six.clients.example"
HOSTS = f"127.0.0.1 localhost {ALLOWED} {OTHER}\n::1 {SIXTH}\n"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# As root: mount the list of names, then become the tester again.
_AS = (
    'mount --bind "$1" /etc/hosts && shift && exec setpriv --reuid "$1" --regid "$2" '
    '--clear-groups "${@:3}"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    port: int
    scheme: str
    seen: list[str]  # the Host header of each request
    fields: list[Message]  # all headers of each request

    def at(self, name: str, path: str = "hello") -> str:
        return f"{self.scheme}://{name}:{self.port}/{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    sandbox: SandboxRunner
    hosts: Path

    def outside(self, words: Sequence[Word]) -> Outcome:
        tester = self.sandbox.tester
        named = [
            "unshare",
            "-m",
            "bash",
            "-c",
            _AS,
            "as",
            str(self.hosts),
            str(tester.uid),
            str(tester.gid),
        ]
        return tester.run([*named, *words], cwd=self.sandbox.tree.project, as_root=True)

    def inside(self, words: Sequence[Word], port: int, *flags: Word) -> Outcome:
        """The environment without proxy variables."""
        unset = [word for name in PROXIES for word in ("-u", name, "-u", name.upper())]
        return self.proxied(["/usr/bin/env", *unset, *words], port, *flags)

    def proxied(self, words: Sequence[Word], port: int, *flags: Word) -> Outcome:
        """A policy that allows one name and its addresses, which belong to the host."""
        listed: list[Word] = []
        for host in (f"{ALLOWED}:{port}", f"{SIXTH}:{port}", "127.0.0.1", "::1"):
            listed += ["--allow-domain", host]
        return self.outside(self.sandbox.command(words, *listed, *flags))

    def decided(self) -> list[tuple[object, ...]]:
        return [
            (event["layer"], event["action"], event["host"])
            for event in self.sandbox.events()
            if event["event"] == "network"
        ]


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[str]
    fields: list[Message]

    def do_POST(self) -> None:
        """Answers with the number of bytes in the body."""
        self.fields.append(self.headers)
        body = str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.seen.append(str(self.headers["Host"]).partition(":")[0])
        if self.path != "/hello":
            super().do_GET()
            return
        body = b"from the host"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            super().finish_request(request, client_address)
            return
        # Not during accept: a client that closes in the middle would leave a socket open.
        with request, self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores the error of a client that closes because it was refused."""


class _Six(_Server):
    address_family = socket.AF_INET6


@contextmanager
def serving_site(
    directory: Path, address: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[Site]:
    kind = _Six if ":" in address else _Server
    seen: list[str] = []
    fields: list[Message] = []
    handler = type("Handler", (_Handler,), {"seen": seen, "fields": fields})
    with kind((address, 0), partial(handler, directory=str(directory))) as server:
        server.context = context
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Site(
                port=server.server_address[1],
                scheme="https" if context else "http",
                seen=seen,
                fields=fields,
            )
        finally:
            server.shutdown()


def certified(directory: Path) -> tuple[Path, ssl.SSLContext]:
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    names = f"subjectAltName=DNS:{ALLOWED},DNS:{OTHER}"
    made = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=test",
    ]
    command: list[Word] = [
        need_program("openssl"),
        "req",
        "-x509",
        *made,
        "-addext",
        names,
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
