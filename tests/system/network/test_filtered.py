"""Every connection arrives at the relay, and nowhere else. No host is allowed here. Other files
test the decisions of the relay.
"""

from __future__ import annotations

import os
import signal
import socket
import textwrap
from pathlib import Path

import pytest

from tests.support import core
from tests.support.network import (
    MESSAGE,
    NetworkRunner,
    gone,
    network,
    own_address,
    relay_of,
    relays_of,
    serving,
)
from tests.support.outside_targets import alive
from tests.support.sandbox import Word
from tests.support.waiting import wait_for

FILTERED = network("filtered")
REFUSED = ("ECONNRESET", "EPIPE", "ENOTCONN")  # the last one: the peer closed before shutdown(2)
# Connects, prints the result, waits for a line, connects again.
_TWICE = """
import errno, itertools, socket, sys
for line in itertools.chain([""], sys.stdin):
    try:
        with socket.create_connection(("203.0.113.7", 8443), 60) as client:
            client.recv(1)
        print("ok")
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""


@pytest.mark.parametrize(
    "target",
    [
        "203.0.113.7/1",
        "203.0.113.7/443",
        "198.51.100.1/65535",
        "240.0.0.1/80",
        "2001:db8::1/22",
        "10.9.8.7/54",
    ],
)
def test_a_connection_to_any_address_and_port_arrives_and_is_refused(
    full_network: NetworkRunner, target: str
) -> None:
    """There is no control outside, because these addresses are for documentation. The host reads
    the journal.
    """
    address, _, port = target.partition("/")
    outcome = full_network.run(FILTERED, full_network.calling(f"SOCK_STREAM/{target}"))
    assert outcome.answer in REFUSED, str(outcome)
    events = full_network.events()
    assert [event["event"] for event in events] == ["session.start", "network", "session.end"]
    assert events[0]["actual"]["network"] == "filtered"
    reported = events[1]
    assert (reported["layer"], reported["action"], reported["address"], reported["port"]) == (
        "connect",
        "deny",
        address,
        int(port),
    )
    assert reported["exe"] == os.path.realpath(full_network.python)
    assert (
        f"paddock: denied: {f'[{address}]' if ':' in address else address}:{port} ("
        in outcome.stderr
    )


def test_the_hosts_own_servers_are_not_reached(full_network: NetworkRunner) -> None:
    with serving(own_address()) as near, serving("127.0.0.1") as local, serving("::1") as local6:
        targets = [near.target, local.target, local6.target]
        assert full_network.outside(full_network.sending(*targets)).started
        assert [server.received() for server in (near, local, local6)] == [[MESSAGE]] * 3
        outcome = full_network.run(FILTERED, full_network.calling(*targets))
        answers = outcome.stdout.split()[1:]
        assert answers[0] in REFUSED, str(outcome)
        assert answers[1:] == ["ECONNREFUSED", "ECONNREFUSED"], str(outcome)
        assert [server.received() for server in (near, local, local6)] == [[], [], []]


def test_datagrams_are_refused_at_once(full_network: NetworkRunner) -> None:
    with serving(own_address(), socket.SOCK_DGRAM) as server:
        words = full_network.calling(
            server.target, "SOCK_DGRAM/203.0.113.7/443", "SOCK_DGRAM/2001:db8::1/443"
        )
        control = full_network.outside(full_network.sending(server.target))
        assert (control.started, server.received()) == (True, [MESSAGE]), str(control)
        outcome = full_network.run(FILTERED, words)
        assert outcome.stdout.split()[1:] == ["ECONNREFUSED"] * 3, str(outcome)
        assert server.received() == []


def test_each_host_and_port_is_reported_once(full_network: NetworkRunner) -> None:
    targets = [
        "SOCK_STREAM/203.0.113.7/443",
        "SOCK_STREAM/203.0.113.7/443",
        "SOCK_STREAM/203.0.113.7/22",
    ]
    outcome = full_network.run(FILTERED, full_network.calling(*targets))
    assert outcome.stderr.count("denied: 203.0.113.7:443 (") == 1, str(outcome)
    assert outcome.stderr.count("denied: 203.0.113.7:22 (") == 1, str(outcome)
    assert [event["port"] for event in full_network.events() if event["event"] == "network"] == [
        443,
        443,
        22,
    ]


def test_relay_is_not_started_without_a_connection(full_network: NetworkRunner) -> None:
    with full_network.running(FILTERED, "print('started'); input()") as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert relays_of(process.pid) == []


def test_a_local_port_arrives_and_others_do_not(full_network: NetworkRunner) -> None:
    with serving("127.0.0.1") as listed, serving("127.0.0.1") as other:
        words = full_network.sending(other.target, listed.target)
        outcome = full_network.run(network("filtered", local_ports=[listed.port]), words)
        answers = outcome.stdout.split()[1:]
        assert answers == ["ECONNREFUSED", "ok"], str(outcome)
        assert listed.port in {event.get("port") for event in full_network.events()}
        assert other.received() == []


def test_when_the_relay_is_killed_connections_are_refused_and_the_run_goes_on(
    full_network: NetworkRunner,
) -> None:
    with full_network.running(FILTERED, _TWICE) as (process, lines):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().strip() in REFUSED
        relay = relay_of(process.pid)
        os.kill(relay, signal.SIGKILL)
        wait_for(
            lambda: any(event["event"] == "network.lost" for event in full_network.events()),
            "an event",
        )
        for _ in range(2):
            os.write(lines, b"again\n")
            assert process.stdout.readline() == "ECONNREFUSED\n"
        assert relays_of(process.pid) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr.read().count("the relay has ended") == 1
    names = [event["event"] for event in full_network.events()]
    assert names == ["session.start", "network", "network.lost", "session.end"]
    lost = next(event for event in full_network.events() if event["event"] == "network.lost")
    assert lost["reason"] == "it was killed by SIGKILL"


@pytest.mark.parametrize(
    "end", [signal.SIGTERM, signal.SIGKILL], ids=["the run ends", "the supervisor is killed"]
)
def test_relay_and_namespace_end_with_the_run(
    full_network: NetworkRunner, end: signal.Signals
) -> None:
    with full_network.running(FILTERED, _TWICE) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline().strip() in REFUSED
        relay = relay_of(process.pid)
        (command,) = wait_for(lambda: _inside(process.pid) or None, "the command")
        space = os.readlink(f"/proc/{command}/ns/net")
        assert space != os.readlink("/proc/self/ns/net")
        assert alive(relay)
        process.send_signal(end)
        process.wait(60)
        gone(relay)
        gone(command)
        wait_for(lambda: space not in _spaces(), "the end of the network namespace's last process")


def test_relay_has_only_the_descriptors_and_rights_it_needs(full_network: NetworkRunner) -> None:
    with full_network.running(FILTERED, _TWICE) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline().strip() in REFUSED
        relay = Path(f"/proc/{relay_of(process.pid)}")
        assert (relay / "environ").read_bytes() == b""
        assert os.readlink(relay / "cwd") == "/"
        status = dict(
            line.split(":\t", 1)
            for line in (relay / "status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["NoNewPrivs"] == "1"
        limit = next(
            line
            for line in (relay / "limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        assert limit.split()[3] == limit.split()[4]
        opened = sorted(os.readlink(one).partition(":")[0] for one in (relay / "fd").iterdir())
        assert set(opened) <= {
            "/dev/null",
            "/memfd",
            "/memfd:plan (deleted)",
            "socket",
            "anon_inode",
            "pipe",
        }, opened
        # Connections and DNS in both families, DNS over TCP, socket owners (sock_diag), and the
        # socket to the supervisor.
        assert opened.count("socket") == 8, opened


def test_a_denial_names_the_calling_process(full_network: NetworkRunner) -> None:
    """By its pid on the host, also if another process created the socket."""
    script = f"""
import os, socket
if (child := os.fork()) == 0:
{textwrap.indent(_TWICE, "    ")}
else:
    os.waitpid(child, 0)
"""
    with full_network.running(FILTERED, script) as (process, _):
        assert process.stdout is not None
        assert process.stdout.readline().strip() in REFUSED
        (reported,) = wait_for(
            lambda: [one for one in full_network.events() if one["event"] == "network"] or None,
            "an event",
        )
        (command,) = _inside(process.pid)
        (child,) = map(int, Path(f"/proc/{command}/task/{command}/children").read_text().split())
        assert (reported["pid"], reported["exe"]) == (child, os.path.realpath(full_network.python))


def test_a_name_server_on_loopback_answers_by_tcp_as_well(full_network: NetworkRunner) -> None:
    """Many /etc/resolv.conf files name 127.0.0.53. The answer for a missing name is 3
    (NXDOMAIN).
    """
    script = (
        "import socket, struct\n"
        "question = struct.pack('!6H', 7, 0x100, 1, 0, 0, "
        "0) + b'\\4nope\\7example\\0' + struct.pack('!2H', 1, 1)\n"
        "for address in ('127.0.0.53', '9.9.9.9', '::1', '2620:fe::9'):\n"
        "    with socket.create_connection((address, 53), 20) as server:\n"
        "        server.sendall(struct.pack('!H', len(question)) + question)\n"
        "        print(server.recv(512)[5] & 15)\n"
    )
    outcome = full_network.run(FILTERED, [full_network.python, "-c", script])
    assert outcome.stdout.split() == ["3", "3", "3", "3"], str(outcome)


def test_two_sandboxes_and_the_host_use_the_same_port(full_network: NetworkRunner) -> None:
    script = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
        "print('bound'); "
        "input(); a, _ = s.accept(); print(a.recv(1))"
    )
    with serving("127.0.0.1") as server:
        taken = full_network.outside([full_network.python, "-c", script, str(server.port)])
        assert "Address already in use" in taken.stderr, str(taken)
        with (
            full_network.running(FILTERED, script, str(server.port)) as (one, _),
            full_network.running(network("none"), script, str(server.port)) as (two, _),
        ):
            for process in (one, two):
                assert process.stdout is not None
                assert process.stdout.readline() == "bound\n"
            control = full_network.outside(full_network.sending(server.target))
            assert (control.started, server.received()) == (True, [MESSAGE]), str(control)


@pytest.mark.parametrize(
    ("mode", "lacking", "words", "hint"),
    [
        (
            "none",
            ("--no-netns", "28"),
            "cannot create a network namespace: No space left on device",
            "max_net_namespaces",
        ),
        (
            "filtered",
            ("--no-netns", "1"),
            "cannot create a network namespace: Operation not permitted",
            "filter",
        ),
        (
            "filtered",
            ("--no-netfilter", "93"),
            "cannot redirect connections (nf_tables, tproxy): Protocol not",
            "nft_tproxy",
        ),
    ],
)
def test_a_missing_feature_is_named_and_nothing_runs(
    full_network: NetworkRunner, mode: str, lacking: tuple[str, str], words: str, hint: str
) -> None:
    def run(*options: str) -> tuple[int, str, str]:
        with core.sealed(core.canonical(full_network.with_network(network(mode)))) as fd:
            argv: list[Word] = [
                full_network.sandbox.programs.oldkernel,
                *options,
                "--",
                full_network.sandbox.installation.core,
                "run",
            ]
            outcome = full_network.sandbox.tester.run(
                [*argv, "--plan-fd", str(fd), "--", "/bin/echo", "ran"],
                cwd=full_network.sandbox.tree.project,
                pass_fds=[fd],
            )
            return outcome.exit_code, outcome.stdout, outcome.stderr

    assert run("--landlock-abi", "7")[:2] == (0, "ran\n")
    code, output, complaint = run(*lacking)
    assert (code, output) == (125, "")
    assert f"cannot create the network of the command: {words}" in complaint
    assert hint in complaint.splitlines()[1]
    assert full_network.events()[-1]["event"] == "session.refused"


def test_a_kernel_without_ipv6_filters_the_rest(full_network: NetworkRunner) -> None:
    words = full_network.calling(
        "SOCK_STREAM/203.0.113.7/443", "SOCK_DGRAM/203.0.113.7/443", "SOCK_STREAM/2001:db8::1/443"
    )
    oldkernel: list[Word] = [full_network.sandbox.programs.oldkernel, "--no-ipv6", "--"]
    control = full_network.outside(
        [str(word) for word in (*oldkernel, *full_network.sending("SOCK_STREAM/::1/1"))]
    )
    assert control.answer == "EAFNOSUPPORT", str(control)
    with core.sealed(core.canonical(full_network.with_network(FILTERED))) as fd:
        run: list[Word] = [
            *oldkernel,
            full_network.sandbox.installation.core,
            "run",
            "--plan-fd",
            str(fd),
            "--",
            *words,
        ]
        outcome = full_network.sandbox.tester.run(
            run, cwd=full_network.sandbox.tree.project, pass_fds=[fd]
        )
    answers = outcome.stdout.split()[1:]
    assert answers[0] in REFUSED, str(outcome)
    assert answers[1:] == ["ECONNREFUSED", "EAFNOSUPPORT"], str(outcome)
    assert [event["address"] for event in full_network.events() if event["event"] == "network"] == [
        "203.0.113.7"
    ]


def _inside(core_pid: int) -> list[int]:
    """The command, a child of init."""
    children = Path(f"/proc/{core_pid}/task/{core_pid}/children").read_text().split()
    below = [Path(f"/proc/{pid}/task/{pid}/children") for pid in children]
    return [int(pid) for path in below if path.exists() for pid in path.read_text().split()]


def _spaces() -> set[str]:
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                found.add(os.readlink(process / "ns/net"))
            except OSError:  # the process has ended
                continue
    return found
