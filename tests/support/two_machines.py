"""Two network namespaces with a wire between them: this machine, and the rest of the internet.

On the far side every address answers. This machine has a public address and servers on loopback. It
asks a name server on the far side. No packet leaves the two namespaces, so tests can use addresses
of real hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.features import need, need_program
from tests.support.programs import SOURCES
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

OWN, OWN_SIXTH = "20.0.0.2", "2a00:1::2"
NAME_SERVER = "93.184.216.53"
_HERE = (
    'mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf && '
    'shift && exec "$@"'
)
_WIRE = f"""set -e
ip link add wire netns "$1" type veth peer name wire netns "$2"
here() {{ nsenter -t "$here" -n "$@"; }}
there() {{ nsenter -t "$there" -n "$@"; }}
here=$1 there=$2
for side in here there; do $side ip link set lo up; done
here ip address add {OWN}/24 dev wire
there ip address add 20.0.0.1/24 dev wire
here ip address add {OWN_SIXTH}/64 dev wire nodad
there ip address add 2a00:1::1/64 dev wire nodad
for side in here there; do $side ip link set wire up; done
here ip route add default via 20.0.0.1
here ip -6 route add default via 2a00:1::1
there ip route add local default dev lo table main
there ip -6 route add local default dev lo table main
"""


@dataclass(slots=True, kw_only=True)
class TwoMachines:
    here: int  # a process in the namespaces of this machine
    log: Path
    read: int = field(default=0)

    def command(self, sandbox: SandboxRunner, words: Sequence[Word]) -> list[Word]:
        tester = sandbox.tester
        user = ["setpriv", "--reuid", str(tester.uid), "--regid", str(tester.gid), "--clear-groups"]
        entered: list[Word] = ["nsenter", "-t", str(self.here), "-n", "-m", "--", *user]
        return [*entered, "env", "-C", sandbox.tree.project, *words]

    def outside(self, sandbox: SandboxRunner, words: Sequence[Word]) -> Outcome:
        return sandbox.tester.run(self.command(sandbox, words), as_root=True)

    def inside(self, sandbox: SandboxRunner, words: Sequence[Word], policy: str) -> Outcome:
        file = sandbox.tree.put(sandbox.tree.root / "policy.toml", policy)
        return self.outside(sandbox, sandbox.command(words, "--policy", file))

    def received(self) -> list[dict[str, Any]]:
        """The requests that the servers got since the last call."""
        lines = self.log.read_text().splitlines()
        new, self.read = lines[self.read :], len(lines)
        return [json.loads(line) for line in new]


@contextmanager
def two_machines(
    zone: Mapping[str, Sequence[str] | Sequence[Sequence[str]]],
) -> Iterator[TwoMachines]:
    need(
        "root",
        os.getuid() == 0,
        "only root can make two network namespaces with a wire",
    )
    need_program("ip")
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="paddock-machines-", dir="/var/tmp")
            )
        )
        directory.chmod(0o755)
        for name, text in (
            ("hosts", "127.0.0.1 localhost\n"),
            ("resolv.conf", f"nameserver {NAME_SERVER}\n"),
        ):
            (directory / name).write_text(text)
        log = stack.enter_context((directory / "log").open("a"))
        servers = [need_program("python3"), str(SOURCES / "all_servers.py")]
        sides: list[subprocess.Popen[bytes]] = []
        for entering in (
            ["unshare", "-nm", "bash", "-c", _HERE, "here", str(directory)],
            ["unshare", "-n"],
        ):
            place = "there" if sides else "here"
            words = [*entering, *servers, place, json.dumps(zone)]
            sides.append(
                stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log))
            )
        lines = [
            stack.enter_context(side.stdin) for side in sides if side.stdin
        ]  # a server ends when its stdin is closed
        written = directory / "log"
        wait_for(lambda: written.read_text().count('"waits"') == 2, "both machines wait")
        subprocess.run(
            ["bash", "-c", _WIRE, "wire", *(str(side.pid) for side in sides)], check=True
        )
        for line in lines:
            line.write(b"\n")
            line.flush()
        wait_for(lambda: written.read_text().count('"ready"') == 2, "the servers")
        made = TwoMachines(here=sides[0].pid, log=written)
        made.received()
        yield made
