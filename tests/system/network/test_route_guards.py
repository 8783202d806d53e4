"""Only the route reaches an upstream with rules, under any name or address. The test checks the
requests that the servers got.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.support.two_machines import TwoMachines, two_machines

UP, OTHER, CORP = "93.184.216.40", "93.184.216.41", "10.9.9.5"
ZONE: dict[str, list[str] | list[list[str]]] = {
    "up.test": [UP],
    "alias.test": [UP],
    "behind.test": ["=up.test"],
    "mixed.test": [UP, OTHER],
    "nat64.test": ["64:ff9b::5db8:d828"],
    "other.test": [OTHER],
    "corp.test": [CORP],
    "here.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
}
RULES = 'endpoint_rules = [{ method = "GET", path = "/items" }]\n'
_POST = """
import json, socket, sys
print("started", flush=True)
def post(host, path):
    name = host.strip("[]")
    try:
        with socket.create_connection((name, 80), 15) as end:
            method = "POST" if path == "/admin" else "GET"
            head = f"{method} {path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n"
            end.sendall(head.encode())
            return end.recv(4096).decode().split("\\r\\n")[0].split(" ")[1]
    except (OSError, IndexError) as error:
        return type(error).__name__
print(json.dumps([post(*one.split(" ")) for one in sys.argv[1:]]))
"""


@pytest.fixture(name="machines", scope="module")
def _machines() -> Iterator[TwoMachines]:
    with two_machines(ZONE) as made:
        yield made


def policy(allowed: list[str], *routes: str) -> str:
    lists = f'[meta]\ninherit = "ai-agent"\n[network]\nallowed_hosts = {json.dumps(allowed)}\n'
    return lists + "".join(
        f"[network.routes.{name}]\n{rest}" for name, rest in (one.split(" ", 1) for one in routes)
    )


def asked(
    full: SandboxRunner, machines: TwoMachines, text: str, *asks: str
) -> tuple[list[str], list[tuple[str, str]], str]:
    """The answers, the requests that the servers got (address and request), and the stderr of the
    run.
    """
    machines.received()
    outcome = machines.inside(full, [need_program("python3"), "-c", _POST, *asks], text)
    started, statuses = outcome.stdout.splitlines()
    assert started == "started", outcome
    received: list[dict[str, Any]] = [one for one in machines.received() if "request" in one]
    return (
        json.loads(statuses),
        [(one["to"], one["request"].split(" HTTP")[0]) for one in received],
        outcome.stderr,
    )


def test_no_other_name_leads_to_an_upstream_with_rules(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    names = ("up.test", "alias.test", "behind.test")
    asks = [f"{name} /admin" for name in names]
    plain = policy(["*"], 'api upstream = "http://up.test"\n')
    assert asked(full, machines, plain, *asks)[1] == [(UP, "POST /admin")] * 3, (
        "the control: without rules"
    )
    ruled = policy(["*"], f'api upstream = "http://up.test"\n{RULES}')
    # The first of them comes before any request to the route.
    statuses, received, reported = asked(
        full, machines, ruled, *asks, "api.paddock.internal /items", "other.test /admin", *asks
    )
    shut = ["gaierror", "403", "403"]
    assert statuses == [*shut, "200", "200", *shut], reported
    assert received == [(UP, "GET /items"), (OTHER, "POST /admin")]
    assert "this address is reserved for a route with endpoint rules" in reported
    statuses, received, reported = asked(
        full, machines, ruled, "mixed.test /admin", "nat64.test /admin"
    )
    assert received == [(OTHER, "POST /admin")], "only its address that no route has"


def test_no_listed_address_leads_to_an_upstream_with_rules(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    text = policy([f"{CORP}:80", f"{OTHER}:80"], f'api upstream = "http://corp.test"\n{RULES}')
    statuses, received, reported = asked(
        full, machines, text, f"{CORP} /admin", "api.paddock.internal /items", f"{OTHER} /admin"
    )
    assert statuses == ["403", "200", "200"], reported
    assert received == [(CORP, "GET /items"), (OTHER, "POST /admin")]
    control = policy([f"{CORP}:80"], 'api upstream = "http://corp.test"\n')
    assert asked(full, machines, control, f"{CORP} /admin")[1] == [(CORP, "POST /admin")]


def test_a_local_port_does_not_lead_around_the_rules_of_an_upstream_on_this_machine(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    """The server listens on 127.0.0.1 and on ::1. The name of the route resolves to one of them."""

    def text(rules: str) -> str:
        whole = policy(
            [], f'api upstream = "http://here.test"\nupstream_addresses = ["127.0.0.1"]\n{rules}'
        )
        return whole.replace("[network]\n", "[network]\nallowed_local_ports = [80]\n")

    asks = ("127.0.0.1 /admin", "[::1] /admin")
    statuses, received, reported = asked(full, machines, text(""), *asks)
    assert (statuses[0], received[0]) == ("200", ("127.0.0.1", "POST /admin")), (
        f"the control: without rules; {reported}"
    )
    statuses, received, reported = asked(
        full, machines, text(RULES), *asks, "api.paddock.internal /items"
    )
    assert (statuses[0], statuses[2]) == ("403", "200"), reported
    assert received == [("127.0.0.1", "GET /items")], "the server of ::1 got nothing"


def test_an_inspected_name_does_not_bypass_the_rules_of_a_route(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    def text(rules: str) -> str:
        whole = policy(["alias.test", "other.test"], f'api upstream = "http://up.test"\n{rules}')
        return whole.replace("[network]\n", '[network]\ninspect = ["alias.test", "other.test"]\n')

    assert asked(full, machines, text(""), "alias.test /admin")[1] == [(UP, "POST /admin")], (
        "the control"
    )
    statuses, received, reported = asked(
        full, machines, text(RULES), "alias.test /admin", "other.test /admin"
    )
    assert (statuses, received) == (["403", "200"], [(OTHER, "POST /admin")]), reported


def test_a_route_can_say_that_others_share_its_addresses(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    shared = f'api upstream = "http://up.test"\nshared_addresses = true\n{RULES}'
    text = policy(["alias.test", UP], shared)
    statuses, received, reported = asked(
        full, machines, text, "alias.test /admin", f"{UP} /admin", "up.test /admin"
    )
    assert (statuses[0], received) == ("200", [(UP, "POST /admin")]), reported
    assert statuses[1:] == ["403", "gaierror"], (
        "the bare address and the upstream's own name stay closed"
    )


def test_a_route_can_name_private_addresses_that_no_other_name_gets(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    def text(addresses: str) -> str:
        return policy([], f'api upstream = "http://corp.test"\n{addresses}')

    statuses, received, reported = asked(full, machines, text(""), "api.paddock.internal /items")
    assert (statuses, received) == (["403"], []), reported
    statuses, received, reported = asked(
        full,
        machines,
        text(f'upstream_addresses = ["{CORP}"]\n'),
        "api.paddock.internal /items",
        f"{CORP} /admin",
        "corp.test /admin",
    )
    assert statuses == ["200", "403", "gaierror"], reported
    assert received == [(CORP, "GET /items")]
    statuses, received, reported = asked(
        full,
        machines,
        text('upstream_addresses = ["10.1.0.0/16"]\n'),
        "api.paddock.internal /items",
    )
    assert (statuses, received, "upstream_addresses do not list it" in reported) == (
        ["403"],
        [],
        True,
    ), reported
    never = policy(
        [], 'api upstream = "http://metadata.test"\nupstream_addresses = ["169.254.0.0/16"]\n'
    )
    assert asked(full, machines, never, "api.paddock.internal /items")[1] == []


def test_a_refused_address_names_the_key_that_opens_it_to_the_route_alone(
    full: SandboxRunner, machines: TwoMachines
) -> None:
    text = policy([], 'api upstream = "http://corp.test"\n')
    words = ["curl", "-s", "-m", "20", "http://api.paddock.internal/items"]
    answer = machines.inside(full, words, text).stdout
    assert "to allow it: name the address in upstream_addresses of [network.routes.api]" in answer
    assert "allowed_hosts" not in answer
