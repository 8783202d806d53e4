"""Ports of the host's 127.0.0.1 that a policy lists, and ports of the sandbox."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.network import NetworkRunner, network, serving
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Tester


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    port: int
    log: Path
    psql: Path

    def asking(self, question: str) -> list[Word]:
        where = f"host=127.0.0.1 port={self.port} dbname=postgres user=owner connect_timeout=120"
        return [self.psql, "-XAtc", question, where]

    def asked(self) -> int:
        return self.log.read_text().count("connection authorized")


@contextmanager
def _database(tester: Tester, directory: Path) -> Iterator[Database]:
    """A PostgreSQL server for the test."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    need("postgresql", bool(found), "no postgresql on this machine")
    programs, log = found[-1].parent, directory / "log"

    def done(*words: Word) -> bool:
        return tester.run(words, cwd=directory).exit_code == 0

    made: list[Word] = [
        "-D",
        directory / "data",
        "-U",
        "owner",
        "-A",
        "trust",
        "--locale=C",
        "--no-sync",
    ]
    assert done(programs / "initdb", *made)
    control: list[Word] = [programs / "pg_ctl", "-D", directory / "data", "-s", "-w"]
    for _ in range(5):  # another process may take the free port
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        settings = (
            f"-p {port} -c listen_addresses=127.0.0.1 -k '' -c fsync=off -c log_connections=on"
        )
        if done(*control, "-l", log, "-o", settings, "start"):
            break
    else:
        pytest.fail(f"postgresql does not start: {log.read_text()}")
    try:
        yield Database(port=port, log=log, psql=programs / "psql")
    finally:
        assert done(*control, "-m", "immediate", "stop")


def test_psql_asks_a_database_at_a_port_that_is_named(full: SandboxRunner) -> None:
    with _database(full.tester, full.tree.make(full.tree.root / "database")) as database:
        question = database.asking("select 6 * 7")
        control = full.outside(question)
        assert (control.stdout, database.asked()) == ("42\n", 1), str(control)

        def policy(port: int) -> Path:
            text = f"[network]\nallowed_hosts = []\nallowed_local_ports = [{port}]\n"
            return full.tree.put(full.tree.root / "policy.toml", text)

        outcome = full.inside(question, "--policy", policy(database.port))
        assert (outcome.stdout, database.asked()) == ("42\n", 2), str(outcome)
        reported = [event for event in full.events() if event["event"] == "network"]
        assert [(one["action"], one["port"]) for one in reported] == [("allow", database.port)]
        refused = full.inside(question, "--policy", policy(9))
        assert "Connection refused" in refused.stderr, str(refused)
        assert (refused.exit_code, database.asked()) == (2, 2)


# A background server, as developers use it. For each line of input the script prints its answer to
# a client.
_VISIT = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def serve():
    while True:
        client, _ = server.accept()
        with client:
            client.sendall(sys.argv[2].encode())
threading.Thread(target=serve, daemon=True).start()
print("ready")
for _ in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as visitor:
        print(visitor.makefile().read())
"""


def test_servers_inside_share_no_port_with_each_other_or_the_host(
    full_network: NetworkRunner,
) -> None:
    with ExitStack() as stack:
        host = stack.enter_context(serving("127.0.0.1"))
        words = [full_network.python, "-c", _VISIT, str(host.port), "outside"]
        assert "Address already in use" in full_network.outside(words).stderr, "the control"
        inside = [
            stack.enter_context(
                full_network.running(network("filtered"), _VISIT, str(host.port), name)
            )
            for name in ("one", "two")
        ]
        for process, _ in inside:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for (process, lines), name in zip(inside, ("one", "two"), strict=True):
            assert process.stdout is not None
            os.write(lines, b"visit\n")
            assert process.stdout.readline() == f"{name}\n"
        assert host.received() == []
