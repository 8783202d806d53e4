"""Common programs without proxy variables reach only allowed names."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clients import ALLOWED, OTHER, SIXTH, Clients
from tests.support.clients import serving_site as serve
from tests.support.features import need_program
from tests.support.network import own_address
from tests.support.sandbox import SandboxRunner, Word

# If a client closes while Python wraps the socket, ssl.py does not close it. The garbage collector
# does.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

FETCH = (
    "fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t)).catch(e => "
    "process.exit(7))"
)
READ = (
    "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1], "
    "timeout=120).read().decode())"
)
WAYS: dict[str, Callable[[str], list[Word]]] = {
    "curl": lambda address: [need_program("curl"), "-sSm", "60", address],
    "node": lambda address: [need_program("node"), "-e", FETCH, address],
    "python3": lambda address: [need_program("python3"), "-c", READ, address],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_client_reaches_the_name_that_is_allowed_and_no_other(
    clients: Clients, tmp_path: Path, way: str
) -> None:
    with serve(tmp_path) as site:
        for name in (ALLOWED, OTHER):
            assert clients.outside(WAYS[way](site.at(name))).stdout == "from the host", (
                "the control"
            )
        site.seen.clear()
        outcome = clients.inside(WAYS[way](site.at(ALLOWED)), site.port)
        assert (outcome.stdout, outcome.exit_code) == ("from the host", 0), str(outcome)
        refused = clients.inside(WAYS[way](site.at(OTHER)), site.port)
        assert refused.exit_code != 0, str(refused)
        assert f"denied: {OTHER}" in refused.stderr
        assert site.seen == [ALLOWED]
        assert ("name", "deny", OTHER) in clients.decided()
        assert ("connect", "allow", ALLOWED) in clients.decided()


@pytest.mark.parametrize("way", ["udp", "tcp"])
def test_a_static_program_that_asks_for_names_itself(
    clients: Clients, tmp_path: Path, way: str
) -> None:
    """No name server outside gets a question. test_filter_bypass.py has the control."""
    caller = clients.sandbox.programs.caller
    with serve(tmp_path) as site:
        words: list[Word] = [caller, way, "192.0.2.53"]
        outcome = clients.inside([*words, ALLOWED, str(site.port)], site.port)
        assert outcome.stdout.endswith("from the host"), str(outcome)
        refused = clients.inside([*words, OTHER, str(site.port)], site.port)
        assert refused.answer == "no such name: 3", str(refused)
        assert site.seen == [ALLOWED]
        assert {("connect", "allow", ALLOWED), ("name", "deny", OTHER)} <= set(clients.decided())


def test_a_name_that_has_an_address_of_the_sixth_version(clients: Clients, tmp_path: Path) -> None:
    with serve(tmp_path, "::1") as site:
        outcome = clients.inside(
            [need_program("curl"), "-6", "-sSm", "60", site.at(SIXTH)], site.port
        )
        assert (outcome.stdout, site.seen) == ("from the host", [SIXTH]), str(outcome)


def test_a_request_for_another_host_on_an_allowed_connection(
    clients: Clients, tmp_path: Path
) -> None:
    """Domain fronting: a server with both names would answer."""
    words: list[Word] = [need_program("curl"), "-sSm", "60", "-H", f"Host: {OTHER}"]
    with serve(tmp_path) as site:
        assert clients.outside([*words, site.at(ALLOWED)]).stdout == "from the host"
        assert site.seen == [OTHER], "the control"
        outcome = clients.inside([*words, site.at(ALLOWED)], site.port)
        assert outcome.stdout.startswith(f"paddock: denied: {OTHER}"), str(outcome)
        assert site.seen == [OTHER]
        # Its address does not reach it either, listed or not: 127.0.0.1 is the sandbox itself.
        assert (
            clients.inside(
                [need_program("curl"), "-sSm", "60", site.at("127.0.0.1")], site.port
            ).exit_code
            == 7
        )


DISGUISED = """
import socket, sys
print("started", flush=True)
name, port, other = sys.argv[1], int(sys.argv[2]), "Host: " + sys.argv[3] + "\\r\\nConnection: \
close\\r\\n\\r\\n"
upgrade = f"GET /hello HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: Upgrade\\r\\nUpgrade: \
websocket\\r\\n\\r\\n"
plain = "GET /hello HTTP/1.1\\r\\n"
for request in (
    plain + other,
    "GET /hello HTTP/1.1\\n" + other.replace("\\r", ""),
    "GET\\x1c/hello\\x1cHTTP/1.1\\r\\n" + other,
    "\\xa0GET\\x85/hello HTTP/1.1\\r\\n" + other,
    "\\x0bGET /hello HTTP/1.1\\r\\n" + other,
    upgrade + plain + other,
):
    with socket.create_connection((name, port), timeout=120) as client:
        try:
            client.sendall(request.encode("latin-1"))
            while client.recv(4096):
                pass
        except ConnectionError:
            pass
"""


def test_requests_for_another_host_that_look_like_something_else(
    clients: Clients, tmp_path: Path
) -> None:
    """Python's server accepts all of these, and records the requests."""
    with serve(tmp_path) as site:
        words = ["python3", "-c", DISGUISED, ALLOWED, str(site.port), OTHER]
        assert clients.outside(words).exit_code == 0
        assert site.seen == [OTHER] * 5 + [ALLOWED, OTHER], "the control"
        site.seen.clear()
        outcome = clients.inside(words, site.port)
        assert (outcome.started, outcome.exit_code) == (True, 0), str(outcome)
        assert site.seen == [ALLOWED]


CUT = """
import socket, sys
print("started", flush=True)
name, port, other = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for request in (f"GET http://{other}/hello HTTP/1.0", f"GET http://{other}/hello HTTP/1.1\\r", \
f"GET //{other}/hello"):
    with socket.create_connection((name, port), timeout=120) as client:
        try:
            client.sendall(request.encode())
            client.shutdown(socket.SHUT_WR)
            print(client.recv(4096)[:5])
        except ConnectionError:
            print("reset")
"""


def test_a_request_line_that_only_the_end_of_the_stream_ends(
    clients: Clients, tmp_path: Path
) -> None:
    """Python's server accepts it as a complete request."""
    with serve(tmp_path) as site:
        words = ["python3", "-c", CUT, ALLOWED, str(site.port), OTHER]
        served = clients.outside(words).stdout.split()[1:]
        assert len(served) == 3
        assert "b'paddo" not in str(served), "the control"
        assert len(site.seen) == 3, "the control"
        site.seen.clear()
        outcome = clients.inside(words, site.port)
        assert (outcome.started, outcome.exit_code) == (True, 0), str(outcome)
        assert site.seen == []
        assert clients.decided().count(("request", "deny", ALLOWED)) == 3


LEFT = """
import os, socket, sys
print("started", flush=True)
address = sys.argv[1], int(sys.argv[2])
ends = [socket.socket() for _ in range(40)]
for end in ends:
    end.setblocking(False)
    end.connect_ex(address)
os._exit(0)
"""


def test_a_client_that_leaves_during_a_dial_is_in_the_journal(clients: Clients) -> None:
    address = own_address()
    with socket.create_server((address, 0), backlog=128) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        flags = ("--allow-domain", f"{address}:{port}")
        outcome = clients.inside(["python3", "-c", LEFT, address, str(port)], port, *flags)
        assert (outcome.started, outcome.exit_code) == (True, 0), str(outcome)
        reached = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                reached += 1
        reported = sum(action == "allow" for _, action, _ in clients.decided())
        assert reported >= reached > 0, (reported, reached)


FLOOD = """
import socket, struct, sys, threading
names = [f"n{number}.flood.example" for number in range(int(sys.argv[1]))]
asked = [b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + bytes(1) \
for name in names]
questions = [struct.pack(">6H", number % 65536, 0x100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
             for number, name in enumerate(asked)]
said = [struct.pack(">H", len(question)) + question for question in questions]
with socket.create_connection(("192.0.2.53", 53), timeout=120) as server:
    answers = server.makefile("rb")
    refused = 0
    def hear():
        global refused
        refused += answers.read(struct.unpack(">H", answers.read(2))[0])[3] & 15 == 3
    server.sendall(said[0])
    hear()
    print("started", flush=True)
    sys.stdin.readline()
    threading.Thread(target=server.sendall, args=(b"".join(said[1:]),), daemon=True).start()
    for _ in said[1:]:
        hear()
print(refused, flush=True)
"""


def test_every_denial_of_a_flood_is_in_the_journal(full: SandboxRunner) -> None:
    """A flood of connections while the journal is not written.
    tests/system/network/test_filter_bypass.py has the control outside.
    """
    count = 10_000
    words: list[Word] = ["python3", "-c", FLOOD, str(count)]
    with full.starting(words, "--allow-domain", ALLOWED, stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        print(file=process.stdin, flush=True)
        # Denials without an event would have happened by now.
        assert select.select([process.stdout], [], [], 2)[0] == [], "all of them got their answers"
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == f"{count}\n"
        assert process.wait(timeout=120) == 0
    denied = [event["host"] for event in full.events() if event["event"] == "network"]
    assert denied == [f"n{number}.flood.example" for number in range(count)]


def test_the_name_in_a_tls_hello_has_to_be_the_allowed_name(
    clients: Clients, certified: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    certificate, context = certified
    trusted = clients.sandbox.tree.put(
        clients.sandbox.tree.project / "ca.pem", certificate.read_text()
    )
    curl: list[Word] = [need_program("curl"), "-sSm", "60", "--cacert", trusted]
    with serve(tmp_path, context=context) as site:
        outcome = clients.inside([*curl, site.at(ALLOWED)], site.port)
        assert (outcome.stdout, site.seen) == ("from the host", [ALLOWED]), str(outcome)
        # The denied name in the ClientHello, to the address of the allowed name.
        fronting: list[Word] = [
            *curl,
            "--connect-to",
            f"{OTHER}:{site.port}:{ALLOWED}:{site.port}",
            site.at(OTHER),
        ]
        assert clients.outside(fronting).stdout == "from the host", "the control"
        site.seen.clear()
        assert clients.inside(fronting, site.port).exit_code != 0
        assert site.seen == []


# OpenSSL by its library: the name changes after the first ClientHello. An alert that the server
# ignores may come between.
TWICE = """
import _ssl, ctypes, select, socket, sys
print("started", flush=True)
port, (address, first, second), between = int(sys.argv[1]), sys.argv[2:5], \
bytes.fromhex(sys.argv[5])
openssl, pointer = ctypes.CDLL(_ssl.__file__), ctypes.c_void_p
for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
    getattr(openssl, name).restype = pointer
KEY_SHARES, SERVER_NAME, WANT_READ = 92, 55, 2
context = pointer(openssl.SSL_CTX_new(pointer(openssl.TLS_client_method())))
assert openssl.SSL_CTX_ctrl(context, KEY_SHARES, ctypes.c_long(0), b"X25519:P-384") == 1
with socket.create_connection((address, port), timeout=120) as client:
    client.setblocking(False)
    tls = pointer(openssl.SSL_new(context))
    # Nothing is read before the name is another: the answer may be there already.
    quiet, other_end = socket.socketpair()
    quiet.setblocking(False)
    openssl.SSL_set_wfd(tls, client.fileno())
    openssl.SSL_set_rfd(tls, quiet.fileno())
    openssl.SSL_ctrl(tls, SERVER_NAME, ctypes.c_long(0), first.encode())
    done = openssl.SSL_connect(tls)
    assert openssl.SSL_get_error(tls, done) == WANT_READ
    openssl.SSL_set_rfd(tls, client.fileno())
    client.send(between)
    openssl.SSL_ctrl(tls, SERVER_NAME, ctypes.c_long(0), second.encode())
    select.select([client], [], [])
    while (done := openssl.SSL_connect(tls)) != 1 and openssl.SSL_get_error(tls, done) == WANT_READ:
        select.select([client], [], [])
    if done != 1:
        sys.exit("no handshake")
    request = f"GET /hello HTTP/1.1\\r\\nHost: {second}\\r\\nConnection: close\\r\\n\\r\\n".encode()
    openssl.SSL_write(tls, request, len(request))
    answer = ctypes.create_string_buffer(4096)
    while (length := openssl.SSL_read(tls, answer, 4096)) > 0 or openssl.SSL_get_error(tls, \
length) == WANT_READ:
        if length > 0:
            print(answer.raw[:length].decode(), end="")
        else:
            select.select([client], [], [])
"""
USER_CANCELED = "1503030002015a"


def test_the_second_tls_hello_has_to_have_the_allowed_name_too(
    clients: Clients, certified: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    """A server that supports none of the offered keys asks for another ClientHello and uses the
    name in that.
    """
    _, context = certified
    context.set_ecdh_curve("secp384r1")
    named: list[str | None] = []
    context.sni_callback = lambda _tls, name, _context: named.append(name)
    with serve(tmp_path, context=context) as site:
        words: list[Word] = [need_program("python3"), "-c", TWICE, str(site.port), ALLOWED, ALLOWED]
        for between in ("", USER_CANCELED):
            outcome = clients.outside([*words, OTHER, between])
            assert outcome.stdout.endswith("from the host"), str(outcome)
            assert (named.pop(), site.seen.pop()) == (OTHER, OTHER), "the control"
            named.clear()
            outcome = clients.inside([*words, ALLOWED, between], site.port)
            assert outcome.stdout.endswith("from the host"), str(outcome)
            assert (set(named), site.seen.pop()) == ({ALLOWED}, ALLOWED)
            outcome = clients.inside([*words, OTHER, between], site.port)
            assert outcome.started, str(outcome)
            assert "no handshake" in outcome.stderr, str(outcome)
            assert f"its TLS handshake is for {OTHER}" in outcome.stderr, str(outcome)
            assert (set(named), site.seen) == ({ALLOWED}, [])


RESUMED = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[3])
context.maximum_version = ssl.TLSVersion.TLSv1_2
session = None
for _ in range(2):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=120) as client:
        with context.wrap_socket(client, server_hostname=sys.argv[1], session=session) as tls:
            tls.sendall(f"GET /hello HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nConnection: \
close\\r\\n\\r\\n".encode())
            while tls.recv(4096):
                pass
            session = tls.session
            print(tls.version(), tls.session_reused)
"""


def test_a_session_of_tls_1_2_is_resumed(
    clients: Clients, certified: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    certificate, context = certified
    trusted = clients.sandbox.tree.put(
        clients.sandbox.tree.project / "ca.pem", certificate.read_text()
    )
    with serve(tmp_path, context=context) as site:
        words: list[Word] = [
            need_program("python3"),
            "-c",
            RESUMED,
            ALLOWED,
            str(site.port),
            trusted,
        ]
        outcome = clients.inside(words, site.port)
        assert outcome.stdout.splitlines() == ["TLSv1.2 False", "TLSv1.2 True"], str(outcome)
        assert site.seen == [ALLOWED] * 2
