"""An empty network namespace: no service of the host is reached, and loopback inside works."""

from __future__ import annotations

import socket

import pytest

from tests.support.features import need
from tests.support.network import MESSAGE, NetworkRunner, network, own_address, serving
from tests.support.outside_targets import listening
from tests.support.waiting import wait_for

NONE = network("none")


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", None], ids=["loopback", "loopback 6", "own address"]
)
def test_no_service_of_the_host_is_reached(
    full_network: NetworkRunner, address: str | None, kind: int
) -> None:
    with serving(address or own_address(), kind) as server:
        words = full_network.sending(server.target)
        for control in (full_network.outside(words), full_network.run(None, words)):
            assert control.answer == "ok", str(control)
        assert server.received() == [MESSAGE, MESSAGE]
        outcome = full_network.run(NONE, full_network.calling(server.target))
        assert outcome.answer in ("ECONNREFUSED", "ENETUNREACH"), str(outcome)
        assert server.received() == []


def test_an_abstract_socket_of_the_host_is_not_there(full_network: NetworkRunner) -> None:
    """Without Landlock's scope, so that only the namespace protects."""
    plan = full_network.plan
    changes = {
        "landlock": {**plan["landlock"], "scoped": ["signal"]},
        "seccomp": {**plan["seccomp"], "sockets": ["inet", "inet6", "netlink", "unix"]},
    }
    script = (
        "import socket, sys; print('started', flush=True); s = socket.socket(socket.AF_UNIX); "
        "s.connect('\\0' + sys.argv[1]); s.send(b'from a client')"
    )
    words = [full_network.python, "-c", script, "paddock-test-net"]
    with listening("\0paddock-test-net") as listener:
        control = full_network.run(None, words, **changes)
        assert control.exit_code == 0, str(control)
        wait_for(lambda: listener.received == [MESSAGE], "the control message arrived")
        outcome = full_network.run(NONE, words, **changes)
        assert outcome.started, str(outcome)
        assert "ConnectionRefusedError" in outcome.stderr
    assert listener.received == [MESSAGE]


@pytest.mark.parametrize("mode", ["none", "filtered"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_inside_works(full_network: NetworkRunner, address: str, mode: str) -> None:
    script = (
        "import socket, sys; s = socket.create_server((sys.argv[1], 0), family=int(sys.argv[2])); "
        "c = socket.create_connection(s.getsockname()[:2]); a, _ = s.accept(); c.send(b'x'); "
        "print('got', a.recv(1))"
    )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    outcome = full_network.run(
        network(mode), [full_network.python, "-c", script, address, str(int(family))]
    )
    assert outcome.stdout == "got b'x'\n", str(outcome)


def test_a_run_without_network_has_one_device_and_no_relay(full_network: NetworkRunner) -> None:
    outcome = full_network.run(NONE, ["/bin/cat", "/proc/net/dev"])
    devices = [line.split(":")[0].strip() for line in outcome.stdout.splitlines() if ":" in line]
    assert devices == ["lo"], str(outcome)
    assert (
        full_network.run(NONE, ["/bin/sh", "-c", "echo $PPID; cat /proc/[0-9]*/comm"]).stdout.count(
            "paddock-core"
        )
        == 1
    )


@pytest.mark.parametrize("mode", ["none", "filtered"])
def test_no_command_may_change_the_network(full_network: NetworkRunner, mode: str) -> None:
    need(
        "ip",
        full_network.outside(["/bin/sh", "-c", "command -v ip"]).exit_code == 0,
        "no ip on this machine",
    )
    script = (
        "ip link set lo down || echo kept; ip route flush table local || echo kept; "
        "ip link show lo | grep -c ,UP"
    )
    control = full_network.outside(
        ["unshare", "-rn", "/bin/sh", "-c", "ip link set lo up && ip link set lo down && echo done"]
    )
    assert control.stdout == "done\n", str(control)
    outcome = full_network.run(network(mode), ["/bin/sh", "-c", script])
    assert outcome.stdout.split() == ["kept", "kept", "1"], str(outcome)


_OTHERS = {"packet": (17, 3), "vsock": (40, 1), "raw": (2, 3), "raw 6": (10, 3)}


@pytest.mark.parametrize("mode", ["none", "filtered"])
@pytest.mark.parametrize("name", _OTHERS)
def test_no_other_socket_family_reaches_a_network(
    full_network: NetworkRunner, name: str, mode: str
) -> None:
    family, kind = _OTHERS[name]
    script = (
        f"import socket; print('started', flush=True); socket.socket({family}, {kind}, "
        f"{255 if kind == 3 else 0})"
    )
    outcome = full_network.run(network(mode), [full_network.python, "-c", script])
    assert outcome.started, str(outcome)
    assert outcome.stderr.rstrip().rpartition("OSError")[2] or "PermissionError" in outcome.stderr
    assert outcome.exit_code == 1, str(outcome)
    control = full_network.sandbox.tester.run([full_network.python, "-c", script], as_root=True)
    assert control.exit_code == 0 or "Errno 97" in control.stderr, str(control)
