"""Random connections through every part that judges HTTP, to three servers that parse differently.
A server acts only on requests that were judged and journaled.

``PADDOCK_STRESS=N`` plays N rounds of new seeds. The seed of a round that fails is kept in
``protocol_seeds.txt``.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

import pytest

from tests.support.clients import Clients
from tests.support.features import need, need_program
from tests.support.programs import SOURCES
from tests.support.sandbox import SandboxRunner, Word
from tests.support.stress import LEVEL, seed_source
from tests.system.network.protocol import (
    DENIED,
    KINDS,
    Acted,
    Endpoint,
    Play,
    Upstream,
    plays,
    upstreams,
)

SEEDS = Path(__file__).with_name("protocol_seeds.txt")
CONNECTIONS = 150
CHANCE = seed_source(7)
SECRET = "sk-protocol-0123456789abcdef"
_NAMES = {
    (way, kind): f"{way}-{kind}.protocol.example" for way in ("relay", "inspect") for kind in KINDS
}


def kept() -> list[int]:
    lines = (line.partition("#")[0].strip() for line in SEEDS.read_text().splitlines())
    return [int(line) for line in lines if line]


def seeds() -> list[int]:
    return [*kept(), *(CHANCE.randrange(1 << 32) for _ in range(LEVEL))]


def endpoints(served: dict[str, list[Upstream]]) -> list[Endpoint]:
    found = [
        Endpoint(host=f"{kind}.paddock.internal", port=80, way="route", kind=kind) for kind in KINDS
    ]
    for (way, kind), host in _NAMES.items():
        found.append(Endpoint(host=host, port=served[kind][1].port, way=way, kind=kind))
    return found


def policy(served: dict[str, list[Upstream]], key: Path) -> str:
    allowed = [f"{name}:{served[kind][1].port}" for (_, kind), name in _NAMES.items()]
    inspected = [name for (way, _), name in _NAMES.items() if way == "inspect"]
    routes = "".join(
        f"""[network.routes.{kind}]
upstream = "http://127.0.0.1:{served[kind][0].port}"
credential = "file:{key}"
endpoint_rules = [{{ method = "*", path = "/r/**" }}]
"""
        for kind in KINDS
    )
    lists = (
        f"allowed_hosts = {json.dumps([*allowed, '127.0.0.1'])}\n"
        f"inspect = {json.dumps(inspected)}\n"
    )
    return f'[meta]\ninherit = "ai-agent"\n[network]\n{lists}{routes}'


def one_slash(path: str) -> str:
    """Without rules a path is passed on unchanged. Python's server merges slashes at its
    beginning.
    """
    return "/" + path.lstrip("/") if path.startswith("/") else path


def judged(sandbox: SandboxRunner) -> collections.Counter[tuple[object, ...]]:
    """The allowed requests of the journal: route, host, method and path."""
    return collections.Counter(
        (one["route"], one["host"], one["method"], one["path"] and one_slash(str(one["path"])))
        for one in sandbox.events()
        if one["event"] == "network" and one["layer"] == "request" and one["action"] != "deny"
    )


def wrongs(
    served: dict[str, list[Upstream]], played: list[Play], sandbox: SandboxRunner
) -> list[str]:
    """Requests that servers acted on without such a decision in the journal."""
    found: list[str] = []
    allowed = judged(sandbox)
    bodies = {tag: body for play in played for tag, body in play.bodies.items()}
    spent: tuple[object, ...]
    for kind in KINDS:
        routed, open_ = served[kind]
        for one in routed.acted():
            path = one.path.partition("?")[0]
            spent = (kind, "127.0.0.1", one.method, path)
            allowed[spent] -= 1
            if allowed[spent] < 0 or one.host != f"127.0.0.1:{routed.port}":
                found.append(f"{kind}, by its route: {one}")
            found += unlike(kind, one, bodies)
        for one in open_.acted():
            host = one.host.lower().partition(":")[0]
            found += unlike(kind, one, bodies)
            if host == _NAMES["inspect", kind]:
                spent = (None, host, one.method, one_slash(one.path.partition("?")[0]))
                allowed[spent] -= 1
                if allowed[spent] < 0:
                    found.append(f"{kind}, inspected: {one}")
            elif host not in ("", _NAMES["relay", kind]) or DENIED in one.path:
                found.append(f"{kind}, by the relay: {one}")
    return found


def unlike(kind: str, one: Acted, bodies: dict[str, str]) -> list[str]:
    """Bodies of other requests, and the secret in any body."""
    sent = bodies.get(one.path.removeprefix("/r/"), one.body)
    return (
        [f"{kind}, another body: {one}"]
        if (one.body and one.body != sent) or SECRET in one.body
        else []
    )


@pytest.mark.parametrize("seed", seeds())
def test_a_server_acts_on_the_judged_request(
    full: SandboxRunner, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    need("root", os.getuid() == 0, "only root can mount a list of names for one process")
    hosts = "127.0.0.1 localhost " + " ".join(_NAMES.values())
    clients = Clients(sandbox=full, hosts=full.tree.put(full.tree.root / "hosts", f"{hosts}\n"))
    key = full.tree.put(full.tree.root / "key", f"{SECRET}\n")
    key.chmod(0o600)
    full.tester.give(key)
    with upstreams(tmp_path_factory.mktemp("protocol"), 2) as served:
        played = plays(seed, endpoints(served), CONNECTIONS)
        script = full.tree.put(
            full.tree.project / "script", "".join(f"{play.line()}\n" for play in played)
        )
        player = full.tree.put(full.tree.project / "player.py", (SOURCES / "player.py").read_text())
        file = full.tree.put(full.tree.root / "protocol.toml", policy(served, key))
        words: list[Word] = [need_program("python3"), player, script]
        outcome = clients.outside(full.command(words, "--policy", file))
        reported = [json.loads(line) for line in outcome.stdout.splitlines()[1:]]
        assert len(reported) == CONNECTIONS, outcome
        found = wrongs(served, played, full)
        if found and seed not in kept():
            with SEEDS.open("a") as kept_file:
                kept_file.write(f"{seed}  # {found[0]}\n")
        assert not found, f"seed {seed}: {json.dumps(found, indent=1)}"
        assert not any(SECRET in one["said"] for one in reported), f"seed {seed}"
        answered = [status for one in reported for status in one["statuses"]]
        for status in (200, 400, 403):
            assert answered.count(status) > CONNECTIONS // 10, (
                f"the sandbox works and denies: {status}"
            )
        ways = {
            play.endpoint.way
            for play, one in zip(played, reported, strict=True)
            if 200 in one["statuses"]
        }
        assert ways == {"route", "inspect", "relay"}
