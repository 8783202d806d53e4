"""The cost of the network filter: bytes through one connection, and requests on new connections,
fifty at a time.

Traffic goes in turn directly, through a relay in C that decides nothing (the limit), through the
filter, and through its peers. The server listens on an address of the host, because 127.0.0.1
inside is the sandbox itself. Clients dial that address, where the filter judges the connection
only. They also dial a name, where the filter reads the Host of each request too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.fixture import Bench
from tests.support import core, installation
from tests.support.network import network, own_address
from tests.support.waiting import wait_for

LIMIT, OURS, NAMED = "the limit (wire.c)", "the filter", "the filter, by name: requests are read"
LEAST = 0.85  # of the limit
MEBIBYTES = 1024
CONNECTIONS, AT_ONCE = 5000, 50
SERVED, RELAYED, PROXIED = 17001, 17002, 17003
NAME = "served.bench.example"
# Sandlock judges the address of a connection, but no name in a request or in TLS. So its bytes take
# the direct path, and another site at the same address is reached. The table shows it, without a
# budget.
SANDLOCK = "sandlock, net_allow: looks at no byte"
SANDLOCK_HTTP = "sandlock, http_allow: requests are read"
MITMPROXY = "mitmproxy (TCP, decides nothing)"
SLOWER = {MITMPROXY: 16, SANDLOCK_HTTP: 4}  # these get so many times less work
# As root: mount our own /etc/hosts, then become the user again.
_NAMED = (
    'mount --bind "$1" /etc/hosts && shift && exec setpriv --reuid "$1" --regid "$2" '
    '--clear-groups "${@:3}"'
)
HOSTS, FEW = 100_000, 10
QUESTIONS = 20_000
EACH, CROWD = 1000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """One case: the median rate, its ratio to the limit, and the smallest allowed ratio."""

    name: str
    unit: str
    value: float
    of_limit: float
    least: float | None = None

    @property
    def kept(self) -> bool:
        return self.least is None or self.of_limit >= self.least

    def __str__(self) -> str:
        verdict = (
            "" if self.least is None else f"≥ {self.least:.2f}  {'pass' if self.kept else 'FAIL'}"
        )
        return (
            f"  {self.name:<44} {self.value:>9.0f} {self.unit:<13} {self.of_limit:>5.2f} x  "
            f"{verdict}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    port: int
    host: str | None = None  # None: dial the address
    as_root: bool = False
    around: Callable[[Sequence[str | Path]], Sequence[str | Path]] = list
    env: Mapping[str, str] | None = None


def through(bench: Bench, plan: core.Plan, rounds: int) -> list[Through]:
    """``plan`` is of a run that can start the clients."""
    wire, address = bench.build / "wire", own_address()
    listed = [{"source": "bench", "hosts": [[address, SERVED, None], [NAME, SERVED, None]]}]
    plan = core.changed(plan, network=network("filtered", allowed=listed))
    with ExitStack() as stack:
        stack.enter_context(_running([wire, "serve", address, str(SERVED)]))
        stack.enter_context(_running([wire, "relay", address, str(RELAYED), str(SERVED)]))
        wait_for(
            lambda: all(_accepts(address, port) for port in (SERVED, RELAYED)),
            "the ends of the wire",
        )
        fd = stack.enter_context(core.sealed(core.canonical(plan)))
        ways = {"direct": Way(port=SERVED), LIMIT: Way(port=RELAYED)}
        ways[OURS] = Way(port=SERVED, around=lambda words: bench.through_core(fd, words))
        ways |= _named(bench, address, fd)
        ways |= stack.enter_context(_mitmproxy(address)) | _sandlock(bench, address)
        taken: dict[str, dict[str, list[float]]] = {"bulk": {}, "rate": {}}
        for number in range(1 + rounds):
            for kind, amount, more in (("bulk", MEBIBYTES, []), ("rate", CONNECTIONS, [AT_ONCE])):
                for name, way in ways.items():
                    figures = map(str, (way.port, amount // SLOWER.get(name, 1), *more))
                    words = way.around([wire, kind, way.host or address, *figures])
                    value = _measure(bench, words, [fd], way.env, as_root=way.as_root)
                    if number:  # the first round only warms caches
                        taken[kind].setdefault(name, []).append(value)
    rows = []
    for kind, unit in (("bulk", "MiB/s"), ("rate", "connections/s")):
        medians = {name: statistics.median(values) for name, values in taken[kind].items()}
        limit = medians[LIMIT]
        peers = {
            name: medians[name] / limit for name in (MITMPROXY, SANDLOCK_HTTP) if name in medians
        }
        least = {OURS: max([LEAST, *peers.values()]), NAMED: max([LEAST, *peers.values()])}
        rows += [
            Through(
                name=name, unit=unit, value=value, of_limit=value / limit, least=least.get(name)
            )
            for name, value in medians.items()
        ]
    return rows


def lookups(bench: Bench, plan: core.Plan, rounds: int) -> list[Through]:
    """DNS questions, one after the other, with a small and with a large host table. The ratio is to
    the small one.
    """
    taken: dict[int, list[float]] = {FEW: [], HOSTS: []}
    for number in range(1 + rounds):
        for hosts, values in taken.items():
            listed = [
                {
                    "source": "bench",
                    "hosts": [[f"h{one}.example", None, None] for one in range(hosts)],
                }
            ]
            asking = core.changed(plan, network=network("filtered", allowed=listed))
            with core.sealed(core.canonical(asking)) as fd:
                words: list[str | Path] = [
                    bench.build / "wire",
                    "names",
                    "192.0.2.53",
                    str(hosts),
                    str(QUESTIONS),
                ]
                value = _measure(bench, bench.through_core(fd, words), [fd])
            if number:
                values.append(value)
    few, many = (statistics.median(values) for values in taken.values())
    return [
        Through(name=f"{FEW} hosts", unit="names/s", value=few, of_limit=1),
        Through(
            name=f"{HOSTS} hosts", unit="names/s", value=many, of_limit=many / few, least=LEAST
        ),
    ]


def connections(bench: Bench, full: core.Plan, landlock: core.Plan, rounds: int) -> list[Through]:
    """Connections, one after the other. They go directly, by supervised connect (a local port in
    the landlock tier), through the filter, and to a host that the filter denies. For a denial the
    filter looks up the calling process. The ratio is to the direct connection.
    """
    wire, address = bench.build / "wire", own_address()
    listed = [{"source": "bench", "hosts": [[address, SERVED, None]]}]
    plans = {
        "full": core.changed(full, network=network("filtered", allowed=listed)),
        "landlock": core.changed(landlock, network=network("filtered", local_ports=[SERVED])),
    }
    with ExitStack() as stack:
        for one in (address, "127.0.0.1"):
            stack.enter_context(_running([wire, "serve", one, str(SERVED)]))
            wait_for(partial(_accepts, one, SERVED), "an end of the wire")
        fds = {
            name: stack.enter_context(core.sealed(core.canonical(plan)))
            for name, plan in plans.items()
        }
        cases = {
            "direct": (None, address, SERVED, 0),
            "a local port, landlock tier": ("landlock", "127.0.0.1", SERVED, 0),
            "through the filter": ("full", address, SERVED, 0),
            "refused": ("full", address, RELAYED, 0),
            f"refused, of {CROWD} processes": ("full", address, RELAYED, CROWD),
        }
        taken: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(1 + rounds):
            for name, (plan, host, port, others) in cases.items():
                words: Sequence[str | Path] = [
                    wire,
                    "each",
                    host,
                    str(port),
                    str(EACH),
                    str(others),
                ]
                around = words if plan is None else bench.through_core(fds[plan], words)
                value = _measure(bench, around, [] if plan is None else [fds[plan]])
                if number:
                    taken[name].append(value)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return [
        Through(
            name=f"{name}: {1e6 / value:.0f} us",
            unit="connections/s",
            value=value,
            of_limit=value / medians["direct"],
        )
        for name, value in medians.items()
    ]


@contextmanager
def _running(words: Sequence[str | Path]) -> Iterator[None]:
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _accepts(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


def mitmdump() -> Path | None:
    """Mitmproxy in its own virtual environment. It is kept, because making it takes a minute."""
    place = Path.home() / ".cache/paddock-bench/mitmproxy"
    program = place / "bin/mitmdump"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        install: list[str | Path] = [
            place / "bin/pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "mitmproxy",
        ]
        if subprocess.run(install, check=False).returncode != 0:
            print("mitmproxy can not be had here, so it is not measured")
            return None
    return program


@contextmanager
def _mitmproxy(address: str) -> Iterator[dict[str, Way]]:
    """A mitmproxy that passes every connection on."""
    program = mitmdump()
    if program is None:
        yield {}
        return
    listen = ["--listen-host", address, "--listen-port", str(PROXIED)]
    with _running([program, "--quiet", "--mode", f"reverse:tcp://{address}:{SERVED}", *listen]):
        wait_for(lambda: _accepts(address, PROXIED), "mitmproxy", 60)
        yield {MITMPROXY: Way(port=PROXIED)}


def _named(bench: Bench, address: str, fd: int) -> dict[str, Way]:
    """Adds the name to /etc/hosts, where the relay finds it like the host does."""
    if os.getuid() != 0:
        print(
            "only root can give the host a name for the server, so the filter is not measured by "
            "name"
        )
        return {}
    hosts = bench.build / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")
    start: list[str | Path] = [
        "unshare", "--mount", "--propagation", "private", "bash", "-c", _NAMED, "as", hosts,
        str(bench.user.uid), str(bench.user.gid),
    ]  # fmt: skip
    around = lambda words: [*start, *bench.through_core(fd, words)]  # noqa: E731
    return {NAMED: Way(port=SERVED, host=NAME, as_root=True, around=around)}


def _sandlock(bench: Bench, address: str) -> dict[str, Way]:
    """The sandlock library, if the environment of the bench has it."""
    spec = importlib.util.find_spec("sandlock")
    if spec is None or spec.origin is None:
        print("sandlock is not installed here, so it is not measured")
        return {}
    interpreter, _ = installation.reachable_interpreter(bench.user)
    script = shutil.copy(Path(__file__).parent / "peer_sandlock_network.py", bench.build)
    env = {"PYTHONPATH": str(Path(spec.origin).parent.parent)}
    ways = {}
    for name, kind in ((SANDLOCK, "net_allow"), (SANDLOCK_HTTP, "http_allow")):
        start: list[str | Path] = [interpreter, script, kind, address, str(SERVED)]
        tried = bench.user.run([*start, "/bin/true"], cwd=bench.small, env=env)
        if tried.exit_code != 0:
            print(f"{name} does not run here, so it is not measured: {tried.stderr.strip()}")
            continue
        ways[name] = Way(port=SERVED, around=partial(_before, start), env=env)
    return ways


def _before(start: Sequence[str | Path], words: Sequence[str | Path]) -> list[str | Path]:
    return [*start, *words]


def _measure(
    bench: Bench,
    words: Sequence[str | Path],
    fds: Sequence[int],
    env: Mapping[str, str] | None = None,
    *,
    as_root: bool = False,
) -> float:
    done = bench.user.run(
        words, cwd=bench.small, pass_fds=fds, env=env, as_root=as_root, timeout_s=120
    )
    if done.exit_code != 0:
        sys.exit(f"bench: {done}")
    return float(done.stdout)
