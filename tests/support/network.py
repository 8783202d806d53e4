"""A command in a network namespace, the same command without one, and servers on the host."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import core
from tests.support.features import need, need_program
from tests.support.outside_targets import alive
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

MESSAGE = b"from a client"
# Prints one line for each target: ok, or the name of an errno. A denial can come at any point after
# the handshake.
_CALL = """
import errno, socket, sys
print("started", flush=True)
for target in sys.argv[2:]:
    kind, address, port = target.split("/")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, getattr(socket, kind)) as client:
            client.settimeout(60)
            client.connect((address, int(port)))
            client.send(b"from a client")
            client.shutdown(socket.SHUT_WR) if kind == "SOCK_STREAM" else None
            client.recv(1) if sys.argv[1] == "wait" else None
        print("ok")
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""


# Each worker has its own ports.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_OWN_PORTS = range(20_000 + _WORKER, 30_000, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
_CANDIDATES = random.sample(_OWN_PORTS, len(_OWN_PORTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server on the host. Arrived data waits in the kernel until a test reads it."""

    socket: socket.socket
    address: str
    port: int

    @property
    def target(self) -> str:
        return f"{self.socket.type.name}/{self.address}/{self.port}"

    def received(self) -> list[bytes]:
        found = []
        while True:
            try:
                if self.socket.type == socket.SOCK_DGRAM:
                    found.append(self.socket.recv(64))
                else:
                    client, _ = self.socket.accept()
                    with client:
                        found.append(client.recv(64))
            except BlockingIOError:
                return found


@contextmanager
def serving(address: str, kind: int = socket.SOCK_STREAM, port: int = 0) -> Iterator[Server]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as server:
        server.bind((address, port))
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        yield Server(socket=server, address=address, port=server.getsockname()[1])


def free_port() -> int:
    """A port below the kernel's ephemeral range, so that no client takes it before the run does.
    Each call returns another one.
    """
    while True:
        port = _CANDIDATES.pop()
        try:
            with serving("127.0.0.1", port=port), serving("::1", port=port):
                return port
        except OSError:
            continue


def own_address() -> str:
    """An address of the host that is not on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.99", 9))  # sends nothing
        except OSError:
            need("address", False, "this machine has no address but loopback")
        return str(asked.getsockname()[0])


def network(mode: str, **changes: Any) -> dict[str, Any]:
    lists: dict[str, Any] = {
        "denied": [],
        "allowed": [],
        "approved": [],
        "local_ports": [],
        "published": [],
    }
    no_hosts = {**lists, "http": None}
    return {
        "mode": mode,
        "default": "deny",
        "default_source": None,
        "ask_timeout_s": 60,
        **no_hosts,
        **changes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRunner:
    sandbox: SandboxRunner
    plan: core.Plan
    python: str

    def calling(self, *targets: str) -> list[str]:
        return [self.python, "-c", _CALL, "wait", *targets]

    def sending(self, *targets: str) -> list[str]:
        """The same command, which does not wait for an answer."""
        return [self.python, "-c", _CALL, "go", *targets]

    def outside(self, words: Sequence[str]) -> Outcome:
        return self.sandbox.tester.run(words, cwd=self.sandbox.tree.project)

    def with_network(self, network: dict[str, Any] | None, **changes: Any) -> core.Plan:
        return core.changed(self.plan, network=network, **changes)

    def run(self, network: dict[str, Any] | None, words: Sequence[str], **changes: Any) -> Outcome:
        return core.run_core(
            self.sandbox.tester,
            self.sandbox.installation.core,
            self.with_network(network, **changes),
            words,
        )

    @contextmanager
    def running(
        self, network: dict[str, Any], script: str, *arguments: str
    ) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """Starts a Python script inside that reads lines from stdin. Yields the core process and a
        descriptor to write lines.
        """
        with ExitStack() as stack:
            fd = stack.enter_context(core.sealed(core.canonical(self.with_network(network))))
            reader, writer = os.pipe()
            try:
                words: list[Word] = [
                    self.sandbox.installation.core,
                    "run",
                    "--plan-fd",
                    str(fd),
                    "--",
                    self.python,
                    "-uc",
                    script,
                ]
                process = stack.enter_context(
                    self.sandbox.tester.starting(
                        [*words, *arguments],
                        cwd=self.sandbox.tree.project,
                        pass_fds=[fd],
                        stdin=reader,
                    )
                )
                yield process, writer
            finally:
                os.close(reader)
                os.close(writer)

    def events(self) -> list[dict[str, Any]]:
        return self.sandbox.events()


def relays_of(core_pid: int) -> list[int]:
    """The relay processes among the children of a supervisor."""
    try:
        children = Path(f"/proc/{core_pid}/task/{core_pid}/children").read_text().split()
        return [
            pid
            for pid in map(int, children)
            if b"relay" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def relay_of(core_pid: int) -> int:
    (relay,) = wait_for(lambda: relays_of(core_pid) or None, "a relay")
    return relay


def gone(pid: int) -> None:
    wait_for(lambda: not alive(pid), f"the end of {pid}")


def network_runner(sandbox: SandboxRunner, landlock_abi: int) -> NetworkRunner:
    """A ``NetworkRunner`` in the tier of the sandbox."""
    plan = core.plan_for(
        sandbox.tester,
        sandbox.tree.project,
        landlock_abi=landlock_abi,
        allow=[sandbox.tree.project],
    )
    plan["tier"] = sandbox.tier
    if sandbox.tier == "full":
        plan["namespaces"] = {"nested": False, "hostname": "", "tmp_mb": None}
    plan["journal"] = {"dir": str(sandbox.journal), "file": None, "stderr": False}
    return NetworkRunner(sandbox=sandbox, plan=plan, python=need_program("python3"))
