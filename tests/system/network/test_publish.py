"""A port inside is reachable on the host's loopback only if it is published."""

from __future__ import annotations

import errno
import socket
import subprocess
from contextlib import ExitStack

import pytest

from tests.support.network import (
    NetworkRunner,
    free_port,
    gone,
    network,
    own_address,
    relay_of,
    serving,
)
from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for

# A server inside: it echoes all bytes of a client after its own name.
ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], int(sys.argv[2])), family=family) as server:
    print("listens", flush=True)
    while True:
        client, _ = server.accept()
        with client:
            heard = b"".join(iter(lambda: client.recv(65536), b""))
            client.sendall(sys.argv[3].encode() + heard)
"""
MODES = ("filtered", "none")


def ask(address: str, port: int, text: bytes = b" hears") -> bytes | str:
    """The answer of the server, or the name of an errno."""
    try:
        with socket.create_connection((address, port), 60) as client:
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65536), b""))
    except OSError as error:
        return errno.errorcode[error.errno] if error.errno else str(error)


def listens(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_server_inside_is_reached_from_the_host_if_it_is_published(
    full_network: NetworkRunner, mode: str, at: str
) -> None:
    """The control is the port of the server itself, which is not published."""
    host, inside = free_port(), free_port()
    text = b"x" * 300_000
    with full_network.running(
        network(mode, published=[{"inside": inside, "host": host}]), ECHO, at, str(inside), "one"
    ) as (
        process,
        _,
    ):
        listens(process)
        assert ask("127.0.0.1", inside) == "ECONNREFUSED"
        assert ask("127.0.0.1", host) == b"one hears"
        assert ask("::1", host, text) == b"one" + text
        assert ask(own_address(), host) == "ECONNREFUSED", "loopback alone"
        relay = relay_of(process.pid)
        process.terminate()
        process.wait(60)
        gone(relay)
    assert ask("127.0.0.1", host) == "ECONNREFUSED", "it ends with the run"
    reported = [event for event in full_network.events() if event["event"] == "network"]
    assert {
        (event["layer"], event["action"], event["port"], event["host"]) for event in reported
    } == {("publish", "allow", inside, None)}
    assert {event["rule"] for event in reported} == {f"--publish {host}:{inside}"}
    assert sorted((event["sent"], event["received"]) for event in reported) == [
        (6, 9),
        (len(text), len(text) + 3),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_publishing_a_port_opens_nothing_else(full_network: NetworkRunner, mode: str) -> None:
    """A command inside still reaches no port of the host, not even the published one."""
    host = free_port()
    with serving("127.0.0.1") as server:
        targets = [server.target, f"SOCK_STREAM/127.0.0.1/{host}", f"SOCK_STREAM/::1/{host}"]
        outcome = full_network.run(
            network(mode, published=[{"inside": 80, "host": host}]), full_network.calling(*targets)
        )
        assert outcome.stdout.split()[1:] == ["ECONNREFUSED"] * 3, str(outcome)
        assert server.received() == []


def test_a_client_before_the_server_is_cut_off_and_may_retry(full_network: NetworkRunner) -> None:
    host, inside = free_port(), free_port()
    script = "print('waits'); input()\n" + ECHO
    plan = network("none", published=[{"inside": inside, "host": host}])
    with full_network.running(plan, script, "127.0.0.1", str(inside), "one") as (process, lines):
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        assert ask("127.0.0.1", host) in ("ECONNRESET", "EPIPE", "ENOTCONN", b"")
        with open(lines, "w", closefd=False) as stdin:
            print("go", file=stdin)
        listens(process)
        assert ask("127.0.0.1", host) == b"one hears"
        wait_for(lambda: len(_reported(full_network)) == 2, "two events")
    refused, reached = _reported(full_network)
    assert (refused["action"], refused["reason"]) == (
        "fail",
        "cannot connect: Connection refused (os error 111)",
    )
    assert reached["action"] == "allow"


def _reported(full_network: NetworkRunner) -> list[dict[str, object]]:
    return [event for event in full_network.events() if event["event"] == "network"]


def test_two_sandboxes_publish_the_same_port_on_two_host_ports(full_network: NetworkRunner) -> None:
    inside = free_port()
    ports = {word: free_port() for word in ("one", "two")}
    with ExitStack() as stack:
        for word, host in ports.items():
            plan = network("filtered", published=[{"inside": inside, "host": host}])
            process, _ = stack.enter_context(
                full_network.running(plan, ECHO, "127.0.0.1", str(inside), word)
            )
            listens(process)
        for word, host in ports.items():
            assert ask("127.0.0.1", host) == f"{word} hears".encode()


def test_many_connections_leave_nothing_in_the_relay(full_network: NetworkRunner) -> None:
    host, inside = free_port(), free_port()
    plan = network("none", published=[{"inside": inside, "host": host}])
    with full_network.running(plan, ECHO, "127.0.0.1", str(inside), "one") as (process, _):
        listens(process)
        for number in range(100):
            assert ask("127.0.0.1", host, str(number).encode()) == f"one{number}".encode()
        relay = relay_of(process.pid)
        with open(f"/proc/{relay}/status") as status:
            assert "Threads:\t1\n" in status
        with open(f"/proc/{relay}/task/{relay}/children") as children:
            assert children.read() == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_taken_host_port_refuses_the_run(full: SandboxRunner, address: str) -> None:
    with serving(address) as server:
        refused = full.inside(
            ["/bin/touch", "ran"], "--block-net", "--publish", f"{server.port}:80"
        )
        assert (refused.exit_code, (full.tree.project / "ran").exists()) == (125, False), str(
            refused
        )
        taken = (
            f"paddock: cannot publish port 80 of the sandbox on port {server.port} of this "
            "machine's loopback: Address"
        )
        assert taken in refused.stderr
        assert "hint: another program uses this port" in refused.stderr
        assert full.events()[-1]["event"] == "session.refused"
        rehearsed = full.inside(
            ["/bin/true"], "--block-net", "--publish", f"{server.port}:80", "--dry-run"
        )
        assert (rehearsed.exit_code, taken in rehearsed.stderr) == (125, True), str(rehearsed)
    free = full.inside(["/bin/touch", "ran"], "--block-net", "--publish", f"{free_port()}:80")
    assert (free.exit_code, (full.tree.project / "ran").exists()) == (0, True), str(free)


@pytest.mark.parametrize("flags", [("--block-net",), ("--allow-domain", "a.example")])
def test_the_flag_takes_the_hosts_port_first(full: SandboxRunner, flags: tuple[str, ...]) -> None:
    host, same = free_port(), free_port()
    published = ["--publish", f"{host}:{same}", "--publish", str(same)]
    with full.starting(
        ["python3", "-uc", ECHO, "127.0.0.1", str(same), "one"], *flags, *published
    ) as process:
        listens(process)
        assert ask("127.0.0.1", host) == b"one hears"
        assert ask("127.0.0.1", same) == b"one hears"
        process.terminate()
        process.wait(60)
    assert {event["rule"] for event in full.events() if event["event"] == "network"} == {
        f"--publish {host}:{same}",
        f"--publish {same}:{same}",
    }
