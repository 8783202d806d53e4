"""Without namespaces: the filter allows few socket types, and the supervisor connects them. No
trick reaches another server. The servers on the host record connections.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import core
from tests.support.clients import ALLOWED, OTHER, Clients, serving_site
from tests.support.features import need_program
from tests.support.network import (
    MESSAGE,
    NetworkRunner,
    Server,
    gone,
    network,
    own_address,
    relay_of,
    serving,
)
from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for

NONE = network("none")
FILTERED = network("filtered")

# Each named trick sends a message to an address and prints one line: ok, or the name of an errno.
_TRICKS = """
import ctypes, errno, os, socket, struct, sys, threading
print("started", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
address, port, message = sys.argv[1], int(sys.argv[2]), b"from a client"
FASTOPEN, there = 0x20000000, (address, port)

def tcp(kind=socket.SOCK_STREAM, protocol=0):
    return socket.socket(socket.AF_INET, kind, protocol)

def connect(client, to=there):
    with client:
        client.settimeout(60)
        client.connect(to)
        client.send(message)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")

def blocking():
    with tcp() as client:
        client.connect(there)
        client.send(message)

def polled():
    import select
    with tcp() as client:
        client.setblocking(False)
        if (error := client.connect_ex(there)) not in (0, errno.EINPROGRESS):
            raise OSError(error, "")
        select.select([], [client], [], 60)
        client.send(message)

def duplicated():
    with tcp() as client:
        connect(socket.socket(fileno=os.dup(client.fileno())))

def threaded():
    failed = []
    def work():
        try:
            connect(tcp())
        except OSError as error:
            failed.append(error)
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    if failed:
        raise failed[0]

def received():
    ours, theirs = socket.socketpair()
    with ours, theirs, tcp() as client:
        socket.send_fds(ours, [b"x"], [client.fileno()])
        _, (fd,), _, _ = socket.recv_fds(theirs, 1, 1)
        connect(socket.socket(fileno=fd))

def fast_sendmmsg():
    class Iovec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]
    class Header(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("namelen", ctypes.c_uint), ("iov", \
ctypes.POINTER(Iovec)),
                    ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", \
ctypes.c_size_t),
                    ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]
    name = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(address))
    header = Header(name, len(name), ctypes.pointer(Iovec(message, len(message))), 1, None, 0, 0, 0)
    with tcp() as client:
        check(libc.sendmmsg(client.fileno(), ctypes.byref(header), 1, FASTOPEN))

def fast_connect():
    with tcp() as client:
        client.setsockopt(socket.IPPROTO_TCP, 30, 1)
        client.connect(there)
        client.send(message)

def sending(flags, how):
    with tcp() as client:
        getattr(client, how)(*(([message], [], flags, there) if how == "sendmsg" else (message, \
flags, there)))

def datagram(how):
    with tcp(socket.SOCK_DGRAM) as client:
        if how == "connect":
            client.connect(there)
            client.send(message)
        elif how == "sendmsg":
            client.sendmsg([message], [], 0, there)
        else:
            client.sendto(message, there)

def source_route():
    with tcp() as client:
        client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\\x83\\x07\\x04" + \
socket.inet_aton(address) + b"\\0")

def listening(*at):
    with tcp() as server:
        if at:
            server.bind(at)
        server.listen()

tricks = {
    "blocking": blocking,
    "polled": polled,
    "duplicated": duplicated,
    "threaded": threaded,
    "received": received,
    "mapped": lambda: connect(socket.socket(socket.AF_INET6), ("::ffff:" + address, port)),
    "mptcp": lambda: connect(tcp(protocol=262)),
    "fast sendto": lambda: sending(FASTOPEN, "sendto"),
    "fast sendmsg": lambda: sending(FASTOPEN, "sendmsg"),
    "fast sendmmsg": fast_sendmmsg,
    "fast connect": fast_connect,
    "udp sendto": lambda: datagram("sendto"),
    "udp sendmsg": lambda: datagram("sendmsg"),
    "udp connect": lambda: datagram("connect"),
    "raw": lambda: tcp(socket.SOCK_RAW, 255).close(),
    "ping": lambda: tcp(socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close(),
    "sctp": lambda: tcp(protocol=132).close(),
    "packet": lambda: socket.socket(17, socket.SOCK_DGRAM).close(),
    "vsock": lambda: socket.socket(40, socket.SOCK_STREAM).close(),
    "generic netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16).close(),
    "route netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
    "io_uring": lambda: check(libc.syscall(425, 0, None)),
    "source route": source_route,
    "own device": lambda: tcp().setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),
    "listen": listening,
    "listen everywhere": lambda: listening("0.0.0.0", 0),
    "listen here": lambda: listening("127.0.0.1", 0),
}
for name in sys.argv[3:]:
    try:
        tricks[name]()
        print("ok")
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""
CONNECTING = ("blocking", "polled", "duplicated", "threaded", "received", "mapped")
# The results with filtered hosts. None: the control cannot do it either.
WAYS_AROUND = {
    "mptcp": "EPROTONOSUPPORT",
    "fast sendto": "ENOTSUP",  # EOPNOTSUPP
    "fast sendmsg": "ENOTSUP",  # EOPNOTSUPP
    "fast sendmmsg": "ENOTSUP",  # EOPNOTSUPP
    "fast connect": "ENOPROTOOPT",
}
DATAGRAMS = ("udp sendto", "udp sendmsg", "udp connect")
OTHERS = {
    "raw": "EACCES",
    "ping": "EACCES",
    "sctp": "EPROTONOSUPPORT",
    "packet": "EAFNOSUPPORT",
    "vsock": "EAFNOSUPPORT",
    "generic netlink": "EPROTONOSUPPORT",
    "io_uring": "ENOSYS",
    "source route": "EPERM",
    "own device": "EPERM",
    "listen": "EACCES",
    "listen everywhere": "EACCES",
}


def tricks(full_network: NetworkRunner, server: Server, *names: str) -> list[str]:
    return [full_network.python, "-c", _TRICKS, server.address, str(server.port), *names]


def answers(stdout: str, names: tuple[str, ...]) -> dict[str, str]:
    started, *lines = stdout.splitlines()
    assert started == "started"
    return dict(zip(names, lines, strict=True))


@contextmanager
def both(address: str) -> Iterator[tuple[Server, Server]]:
    """Two servers on the same port, for streams and for datagrams."""
    with ExitStack() as stack:
        stream = stack.enter_context(serving(address))
        yield stream, stack.enter_context(serving(address, socket.SOCK_DGRAM, stream.port))


@pytest.mark.parametrize("mode", ["none", "filtered"])
@pytest.mark.parametrize("near", [False, True], ids=["loopback", "own address"])
def test_no_trick_reaches_a_denied_server(
    landlock_network: NetworkRunner, mode: str, near: bool
) -> None:
    """F-131 F-152 F-154 F-158 F-159"""
    names = (*CONNECTING, *WAYS_AROUND, *DATAGRAMS)
    with both(own_address() if near else "127.0.0.1") as (server, datagrams):
        words = tricks(landlock_network, server, *names)
        control = answers(landlock_network.outside(words).stdout, names)
        assert {name: control[name] for name in (*CONNECTING, *DATAGRAMS)} == dict.fromkeys(
            (*CONNECTING, *DATAGRAMS), "ok"
        )
        received = server.received()
        assert received == [MESSAGE] * sum(
            control[name] == "ok" for name in (*CONNECTING, *WAYS_AROUND)
        ), control
        assert datagrams.received() == [MESSAGE] * 3
        outcome = landlock_network.run(network(mode), words)
        found = answers(outcome.stdout, names)
        if mode == "none":
            assert set(found.values()) == {"EAFNOSUPPORT"}, str(outcome)
        else:
            expected = {**dict.fromkeys((*CONNECTING, *DATAGRAMS), "EACCES"), **WAYS_AROUND}
            assert found == expected, str(outcome)
        assert (server.received(), datagrams.received()) == ([], [])


def test_other_sockets_rings_and_socket_options_are_refused(
    landlock_network: NetworkRunner,
) -> None:
    """F-158; F-045. As root a control can create nearly all of them."""
    names = (*OTHERS, "route netlink", "listen here")
    with serving("127.0.0.1") as server:
        words = tricks(landlock_network, server, *names)
        outcome = landlock_network.run(FILTERED, words)
        assert answers(outcome.stdout, names) == {
            **OTHERS,
            "route netlink": "ok",
            "listen here": "ok",
        }, str(outcome)
        control = answers(landlock_network.sandbox.tester.run(words, as_root=True).stdout, names)
        for name in (
            "raw",
            "packet",
            "generic netlink",
            "source route",
            "own device",
            "listen",
            "listen everywhere",
        ):
            assert control[name] == "ok", control
        assert control["io_uring"] != "ENOSYS", control


def test_every_kind_of_connect_reaches_a_listed_port_and_no_other(
    landlock_network: NetworkRunner,
) -> None:
    """F-153 F-155"""
    with (
        serving("127.0.0.1") as listed,
        serving("127.0.0.1") as other,
        serving(own_address(), port=listed.port) as near,
    ):
        allowed = network("filtered", local_ports=[listed.port])
        outcome = landlock_network.run(allowed, tricks(landlock_network, listed, *CONNECTING))
        assert answers(outcome.stdout, CONNECTING) == dict.fromkeys(CONNECTING, "ok"), str(outcome)
        assert listed.received() == [MESSAGE] * len(CONNECTING)
        for server in (other, near):
            assert (
                landlock_network.outside(tricks(landlock_network, server, "blocking")).answer
                == "ok"
            )
            assert server.received() == [MESSAGE]
            refused = landlock_network.run(
                allowed, tricks(landlock_network, server, "blocking", "mapped")
            )
            assert refused.stdout.split() == ["started", "EACCES", "EACCES"], str(refused)
            assert server.received() == []
    reported = [event for event in landlock_network.events() if event["event"] == "network"]
    assert {(one["action"], one["address"], one["port"]) for one in reported} == {
        ("deny", "127.0.0.1", other.port), ("deny", near.address, near.port),
    }  # fmt: skip
    assert (
        f"paddock: denied: {near.address}:{near.port} (this tier allows only the proxy"
        in refused.stderr
    )


# Threads that all connect at once, so that many calls wait for the supervisor.
_CROWD = """
import socket, sys, threading
print("started", flush=True)
port, threads, each = (int(word) for word in sys.argv[1:])
gate, refused = threading.Barrier(threads), []
def call():
    gate.wait()
    for _ in range(each):
        with socket.socket() as client:
            refused.append(client.connect_ex(("127.0.0.1", port)))
crowd = [threading.Thread(target=call) for _ in range(threads)]
for thread in crowd:
    thread.start()
for thread in crowd:
    thread.join()
print(len(refused), sorted(set(refused)))
"""


def test_each_of_many_refused_connections_is_in_the_journal(
    landlock_network: NetworkRunner,
) -> None:
    threads, each = 400, 5
    with serving("127.0.0.1") as server:
        server.socket.listen(4096)
        words = [landlock_network.python, "-c", _CROWD, *map(str, (server.port, threads, each))]
        control = landlock_network.outside(words)
        assert control.stdout.splitlines() == ["started", f"{threads * each} [0]"], str(control)
        assert len(server.received()) == threads * each
        outcome = landlock_network.run(FILTERED, words)
        denied = f"{threads * each} [{errno.EACCES}]"
        assert outcome.stdout.splitlines() == ["started", denied], str(outcome)
        assert server.received() == []
    reported = [event for event in landlock_network.events() if event["event"] == "network"]
    assert len(reported) == threads * each
    assert {(one["action"], one["port"]) for one in reported} == {("deny", server.port)}


# One process connects, and another swaps the port in the shared address. The second read by the
# kernel could get either port.
_RACE = """
import ctypes, mmap, os, signal, socket, struct, sys
print("started", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
first, second = (struct.pack("!H", int(port)) for port in sys.argv[1:3])
memory = mmap.mmap(-1, 4096)
memory[:16] = struct.pack("=H2s4s8x", socket.AF_INET, first, bytes([127, 0, 0, 1]))
swapper = os.fork()
while swapper == 0:
    memory[2:4] = second
    memory[2:4] = first
address = ctypes.byref(ctypes.c_char.from_buffer(memory))
results = {}
for _ in range(int(sys.argv[3])):
    with socket.socket() as client:
        result = libc.connect(client.fileno(), address, 16)
        results[result] = results.get(result, 0) + 1
os.kill(swapper, signal.SIGKILL)
os.waitpid(swapper, 0)
print("connected", results.get(0, 0), "refused", results.get(-1, 0))
"""


def test_a_swapped_address_reaches_no_other_server(landlock_network: NetworkRunner) -> None:
    """F-157"""
    with serving("127.0.0.1") as listed, serving("127.0.0.1") as other:
        for server in (listed, other):
            server.socket.listen(4096)
        words = [landlock_network.python, "-c", _RACE, str(listed.port), str(other.port)]
        reached: set[int] = set()

        def both_are_reached() -> bool:
            control = landlock_network.outside([*words, "200"])
            assert control.stdout.split()[1:] == ["connected", "200", "refused", "0"], str(control)
            reached.update(server.port for server in (listed, other) if server.received())
            return len(reached) == 2

        wait_for(both_are_reached, "a port that is swapped during the call")
        outcome = landlock_network.run(
            network("filtered", local_ports=[listed.port]), [*words, "4000"]
        )
        _, _, connected, _, refused = outcome.stdout.split()
        assert int(connected) + int(refused) == 4000, str(outcome)
        assert min(int(connected), int(refused)) > 0, str(outcome)
        assert (len(listed.received()), other.received()) == (int(connected), [])


def test_an_unanswered_connection_blocks_only_its_owner(landlock_network: NetworkRunner) -> None:
    """A server that never accepts: the second connection waits in the kernel, and other connections
    do not wait for it.
    """
    script = """
import socket, sys, threading
print("started", flush=True)
full, free = int(sys.argv[1]), int(sys.argv[2])
clients = [socket.socket() for _ in range(6)]
for client in clients:
    client.settimeout(None)
def call(client):
    try:
        client.connect(("127.0.0.1", full))
    except OSError:
        pass
threads = [threading.Thread(target=call, args=[client], daemon=True) for client in clients]
for thread in threads:
    thread.start()
while all(thread.is_alive() for thread in threads):
    pass
with socket.create_connection(("127.0.0.1", free)) as client:
    client.send(b"from a client")
print("met", sum(thread.is_alive() for thread in threads) > 0, flush=True)
import os
os._exit(0)
"""
    with serving("127.0.0.1") as full, serving("127.0.0.1") as free:
        full.socket.listen(0)
        ports = [full.port, free.port]
        words = [landlock_network.python, "-c", script, *map(str, ports)]
        outcome = landlock_network.run(network("filtered", local_ports=ports), words)
        assert outcome.stdout.split() == ["started", "met", "True"], str(outcome)
        assert free.received() == [MESSAGE]


@pytest.mark.parametrize("mode", ["none", "filtered"])
def test_a_socket_on_stdin_cannot_be_connected(
    landlock_network: NetworkRunner, full_network: NetworkRunner, mode: str
) -> None:
    """The socket belongs to the network of its creator, and could be connected to another
    server.
    """
    script = (
        "import socket; print('started', flush=True); s = socket.socket(fileno=0); "
        "s.connect(('127.0.0.1', {port})); s.send(b'from a client')"
    )
    with serving("127.0.0.1") as server:
        words = [landlock_network.python, "-c", script.format(port=server.port)]
        with socket.socket() as control:
            assert landlock_network.sandbox.tester.run(words, stdin=control.fileno()).exit_code == 0
        assert server.received() == [MESSAGE]
        for tier in (landlock_network, full_network):
            with socket.socket() as given:
                plan = tier.with_network(network(mode))
                refused = core.run_core(
                    tier.sandbox.tester,
                    tier.sandbox.installation.core,
                    plan,
                    words,
                    stdin=given.fileno(),
                )
            assert (refused.exit_code, refused.stdout) == (125, ""), str(refused)
            assert "stdin is a socket that the command could reconnect" in refused.stderr
        assert server.received() == []
        # A connected pair of unix sockets is allowed, because Node gives one to its children as a
        # pipe.
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.send(b"met")
            ours.shutdown(socket.SHUT_WR)
            piped = core.run_core(
                landlock_network.sandbox.tester, landlock_network.sandbox.installation.core,
                landlock_network.with_network(network(mode)), ["/bin/cat"], stdin=theirs.fileno(),
            )  # fmt: skip
        assert piped.stdout == "met", str(piped)


def test_supervisor_is_not_needed_without_a_network(landlock_network: NetworkRunner) -> None:
    """F-131: no proxy runs, and without a journal no supervisor stays."""
    outcome = landlock_network.run(
        NONE, ["/bin/sh", "-c", "echo $PPID; ls /proc/$$/fd | wc -l"], journal=None
    )
    assert outcome.exit_code == 0, str(outcome)
    script = "import os; print(open(f'/proc/{os.getppid()}/comm').read())"
    alone = landlock_network.run(NONE, [landlock_network.python, "-c", script], journal=None)
    assert "paddock" not in alone.stdout, str(alone)
    assert (
        landlock_network.run(NONE, [landlock_network.python, "-c", script]).stdout.strip()
        == "paddock-core"
    )


def test_interfaces_can_be_listed(landlock_network: NetworkRunner) -> None:
    """The netlink requests of libc."""
    script = "import socket; print([name for _, name in socket.if_nameindex()])"
    for mode in (NONE, FILTERED):
        assert "'lo'" in landlock_network.run(mode, [landlock_network.python, "-c", script]).stdout


def test_a_rule_that_this_tier_cannot_enforce_is_refused(landlock_network: NetworkRunner) -> None:
    for changes in ({"seccomp": None}, {"landlock": None, "files": None}):
        refused = landlock_network.run(FILTERED, ["/bin/true"], **changes)
        assert refused.exit_code == 125, str(refused)
        assert "Landlock and seccomp" in refused.stderr
    asking = landlock_network.run(network("filtered", default="ask"), ["/bin/true"])
    assert (asking.exit_code, "questions about hosts" in asking.stderr) == (125, True), str(asking)


def test_journal_records_the_mechanism_of_the_network(
    landlock_network: NetworkRunner, full_network: NetworkRunner
) -> None:
    """F-156"""
    for tier, held in (
        (landlock_network, {"none": "seccomp", "filtered": "supervised connect"}),
        (full_network, {"none": "namespace", "filtered": "namespace"}),
    ):
        for mode, by in held.items():
            assert tier.run(network(mode), ["/bin/true"]).exit_code == 0
            start = [event for event in tier.events() if event["event"] == "session.start"][-1]
            assert (start["network_by"], start["actual"]["network"]) == (by, mode)
        assert tier.run(None, ["/bin/true"]).exit_code == 0
        start = [event for event in tier.events() if event["event"] == "session.start"][-1]
        assert (start["network_by"], start["actual"]["network"]) == ("none", None)


@pytest.fixture(name="callers")
def _callers(sandbox: SandboxRunner, clients: Clients) -> Clients:
    """In the landlock tier."""
    return replace(clients, sandbox=sandbox)


_WAYS = {
    "curl": '"$1" -sSm 10 "$2"',
    "curl, a tunnel": '"$1" -sSm 10 --proxytunnel "$2"',
    "curl, socks": '"$1" -sSm 10 --socks5-hostname "${ALL_PROXY#http://}" "$2"',
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_client_of_the_proxy_reaches_the_name_that_is_allowed_and_no_other(
    callers: Clients, tmp_path: Path, way: str
) -> None:
    """F-112 F-114 F-152"""
    shell = ["/bin/sh", "-c", _WAYS[way], "sh", need_program("curl")]
    with serving_site(tmp_path) as site:
        assert (
            callers.outside([need_program("curl"), "-sSm", "60", site.at(OTHER)]).stdout
            == "from the host"
        )
        site.seen.clear()
        outcome = callers.proxied([*shell, site.at(ALLOWED)], site.port)
        assert outcome.stdout == "from the host", str(outcome)
        refused = callers.proxied([*shell, site.at(OTHER)], site.port)
        assert "from the host" not in refused.stdout, str(refused)
        assert f"paddock: denied: {OTHER}:{site.port} (" in refused.stderr, str(refused)
        assert site.seen == [ALLOWED]
    assert callers.decided() == [("connect", "allow", ALLOWED), ("connect", "deny", OTHER)]


def test_a_program_that_ignores_the_proxy_reaches_no_server_and_resolves_nothing(
    callers: Clients, tmp_path: Path
) -> None:
    """F-119 F-154"""
    with serving_site(tmp_path) as site:
        for address in (site.at(ALLOWED), site.at("127.0.0.1")):
            outcome = callers.inside([need_program("curl"), "-sSm", "60", address], site.port)
            assert (outcome.exit_code, outcome.stdout) == (7, ""), str(outcome)
        assert (
            f"paddock: denied: 127.0.0.1:{site.port} (this tier allows only the proxy"
            in outcome.stderr
        )
        assert site.seen == []


# Prints the address of the proxy, uses it once, and continues after a line of input.
_SHOWN = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
print(proxy.port, proxy.password, flush=True)
for line in sys.stdin:
    try:
        with socket.create_connection((proxy.hostname, proxy.port), 60) as client:
            client.sendall(b"CONNECT a.example:443 HTTP/1.1\\r\\n\\r\\n")
            print(client.makefile().readline().strip() or "hung up", flush=True)
    except OSError as error:
        print(error, flush=True)
"""


# Connects a socket to an allowed server, and then the same socket to the proxy, which fails.
_CONNECTED_TWICE = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.bind(("127.0.0.1", 0))
client.connect(("127.0.0.1", int(sys.argv[1])))
print(proxy.port, client.getsockname()[1], client.connect_ex((proxy.hostname, proxy.port)))
sys.stdin.readline()
with socket.create_connection((proxy.hostname, proxy.port), 60) as other:
    other.sendall(b"CONNECT a.example:443 HTTP/1.1\\r\\n\\r\\n")
    print(other.makefile().readline().strip())
"""


def test_a_failed_connection_to_the_proxy_opens_it_to_no_other_program(
    landlock_network: NetworkRunner,
) -> None:
    with serving("127.0.0.1") as server:
        allowed = network("filtered", local_ports=[server.port])
        with landlock_network.running(allowed, _CONNECTED_TWICE, str(server.port)) as (
            process,
            stdin,
        ):
            assert process.stdout is not None
            proxy, own, result = map(int, process.stdout.readline().split())
            assert result == errno.EISCONN
            with socket.socket() as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                stranger.bind(("127.0.0.1", own))
                stranger.settimeout(60)
                try:
                    stranger.connect(("127.0.0.1", proxy))
                    stranger.sendall(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
                    answer = stranger.recv(64)
                except (ConnectionResetError, BrokenPipeError):
                    answer = b""
            assert answer == b""
            os.write(stdin, b"\n")
            assert re.match(r"HTTP/1\.[01] 407 ", process.stdout.readline()), "the control"


def test_proxy_refuses_clients_outside_the_sandbox_even_with_the_token(
    landlock_network: NetworkRunner,
) -> None:
    """F-113: other users of the machine, and the same user outside. The port stays taken after the
    end of the relay.
    """
    with landlock_network.running(FILTERED, _SHOWN) as (process, stdin):
        assert process.stdout is not None
        port, token = process.stdout.readline().split()
        credentials = b64encode(f"paddock:{token}".encode()).decode()
        asked = (
            f"CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
        ).encode()

        def stranger() -> bytes:
            with socket.create_connection(("127.0.0.1", int(port)), 60) as client:
                try:
                    client.sendall(asked)
                    return client.recv(64)
                except (ConnectionResetError, BrokenPipeError):
                    return b""

        assert stranger() == b""
        os.write(stdin, b"\n")
        assert re.match(r"HTTP/1\.[01] 407 ", process.stdout.readline()), (
            "inside, the proxy answers and asks for credentials"
        )
        assert stranger() == b""
        relay = relay_of(process.pid)
        os.kill(relay, signal.SIGKILL)
        gone(relay)
        os.write(stdin, b"\n")
        assert process.stdout.readline().strip() != ""
        assert stranger() == b""
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(port)))
