"""Unix sockets of services outside: a command reaches only those that a grant names. The services
are real ones of the same user, and record messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.outside_targets import Listener, listening
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

# Each named method sends a message to a socket and prints one line: ok, or the name of an errno.
_WAYS = """
import errno, os, socket, sys
print("started", flush=True)
path, directory = sys.argv[1], os.path.dirname(sys.argv[1])
message = b"from inside"

def connect(client, to=path):
    with client:
        client.connect(to)
        client.send(message)

def unix(kind=socket.SOCK_STREAM):
    return socket.socket(socket.AF_UNIX, kind)

def sending(how):
    with unix(socket.SOCK_DGRAM) as client:
        getattr(client, how)(*(([message], [], 0, path) if how == "sendmsg" else (message, path)))

def pair(how):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(message, path) if how == "send" else (one.connect(path), one.send(message))

def relative():
    os.chdir(directory)
    connect(unix(), os.path.basename(path))

def linked():
    link = os.path.join(os.environ["HERE"], "link")
    os.symlink(path, link)
    try:
        connect(unix(), link)
    finally:
        os.unlink(link)

def by_descriptor():
    held = os.open(path, os.O_PATH)
    try:
        connect(unix(), f"/proc/self/fd/{held}")
    finally:
        os.close(held)

ways = {
    "stream": lambda: connect(unix()),
    "seqpacket": lambda: connect(unix(socket.SOCK_SEQPACKET)),
    "datagram": lambda: connect(unix(socket.SOCK_DGRAM)),
    "sendto": lambda: sending("sendto"),
    "sendmsg": lambda: sending("sendmsg"),
    "pair, send": lambda: pair("send"),
    "pair, connect": lambda: pair("connect"),
    "relative": relative,
    "linked": linked,
    "descriptor": by_descriptor,
}
for name in sys.argv[2:]:
    try:
        ways[name]()
        print("ok")
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
"""
STREAMS = ("stream", "relative", "linked", "descriptor")
DATAGRAMS = ("datagram", "sendto", "sendmsg", "pair, send", "pair, connect")
SAID = b"from inside"
_CLONE_NEWNET = 0x40000000


def ways(path: Path, *names: str) -> list[str]:
    return ["python3", "-c", _WAYS, str(path), *names]


def reached(outcome: Outcome) -> list[str]:
    started, *answers = outcome.stdout.splitlines()
    assert started == "started", str(outcome)
    return answers


@contextmanager
def services(directory: Path) -> Iterator[tuple[Listener, Listener]]:
    """Two services, for streams and for datagrams."""
    with (
        listening(str(directory / "stream")) as stream,
        listening(str(directory / "datagram"), socket.SOCK_DGRAM) as datagrams,
    ):
        yield stream, datagrams


@pytest.fixture(params=["landlock", "full"])
def either(request: pytest.FixtureRequest, sandbox: SandboxRunner) -> SandboxRunner:
    if request.param == "landlock":
        return sandbox
    full: SandboxRunner = request.getfixturevalue("full")
    return full


@pytest.mark.parametrize("place", ["outside", "project", "readable"])
def test_no_unix_service_is_reached(either: SandboxRunner, place: str) -> None:
    """C-028 F-158. Outside of all grants, in the workspace, and in a readable tree."""
    tree = either.tree
    readable = tree.root / "readable"
    readable.mkdir()
    os.chmod(readable, 0o777)
    directory = {"outside": tree.outside, "project": tree.project, "readable": readable}[place]
    here = {"HERE": str(tree.project)}
    with services(directory) as (stream, datagrams):
        calls = [ways(Path(stream.address), *STREAMS), ways(Path(datagrams.address), *DATAGRAMS)]
        for words, service, names in zip(
            calls, (stream, datagrams), (STREAMS, DATAGRAMS), strict=True
        ):
            control = either.outside(words, env=here)
            assert reached(control) == ["ok"] * len(names), str(control)
            wait_for(lambda: len(service.received) == len(names), "the control message arrived")  # noqa: B023
            service.received.clear()
            for flags in ((), ("--block-net",)):
                outcome = either.inside(
                    words, "-r", f"{readable}/**", "--env", f"HERE={tree.project}", *flags
                )
                assert "ok" not in reached(outcome), str(outcome)
        assert (stream.received, datagrams.received) == ([], [])


@pytest.fixture(params=["home", "system"])
def profiled(request: pytest.FixtureRequest, full: SandboxRunner) -> Iterator[Path]:
    """A directory in a grant of the profiles that is not searched for names."""
    above = full.tester.home / ".local" / "bin" if request.param == "home" else Path("/opt")
    missing = [path for path in (above, above.parent) if not path.exists()]
    above.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="paddock-services-", dir=above))
    try:
        for path in (*missing, directory):
            full.tester.give(path)
        yield directory
    finally:
        shutil.rmtree(directory)
        for path in missing:
            path.rmdir()


def test_no_service_in_what_profiles_grant_is_reached(full: SandboxRunner, profiled: Path) -> None:
    """C-028. Also if the bound path went through a link or has a line break."""
    (full.tree.root / "way").symlink_to(profiled)
    here = {"HERE": str(full.tree.project)}
    with (
        services(profiled) as (stream, datagrams),
        listening(str(full.tree.root / "way" / "line\nbreak")) as linked,
    ):
        calls = [
            (stream, "stream", STREAMS),
            (datagrams, "datagram", DATAGRAMS),
            (linked, "line\nbreak", STREAMS),
        ]
        for service, name, kinds in calls:
            words = ways(profiled / name, *kinds)
            control = full.outside(words, env=here)
            assert reached(control) == ["ok"] * len(kinds), str(control)
            wait_for(lambda: len(service.received) == len(kinds), "the control message arrived")  # noqa: B023
            service.received.clear()
            for flags in ((), ("--block-net",)):
                outcome = full.inside(words, "--env", f"HERE={full.tree.project}", *flags)
                assert "ok" not in reached(outcome), str(outcome)
        assert [service.received for service, _, _ in calls] == [[], [], []]


def test_a_covered_socket_does_not_stop_a_run(full: SandboxRunner, profiled: Path) -> None:
    """By a deny of the socket or of the directory, and if a new socket has its name."""
    with listening(str(profiled / "service")) as before:
        os.rename(before.address, profiled / "before")
        with listening(before.address) as service:
            for denied in ((), ("--deny", service.address), ("--deny", f"{profiled}/**")):
                outcome = full.inside(
                    ways(Path(service.address), *STREAMS),
                    "--env",
                    f"HERE={full.tree.project}",
                    *denied,
                )
                assert "ok" not in reached(outcome), str(outcome)
            assert reached(full.outside(ways(Path(service.address), "stream"))) == ["ok"], (
                "the control"
            )
            wait_for(lambda: service.received == [SAID], "only the control message arrived")


def test_a_service_in_what_profiles_grant_is_reached_if_a_grant_names_it(
    full: SandboxRunner, profiled: Path
) -> None:
    with listening(str(profiled / "granted")) as granted:
        outcome = full.inside(ways(Path(granted.address), "stream"), "--allow", granted.address)
        assert reached(outcome) == ["ok"], str(outcome)
        wait_for(lambda: granted.received == [SAID], "the granted service got the message")


def test_a_service_that_a_grant_names_is_reached_and_its_neighbour_is_not(
    either: SandboxRunner,
) -> None:
    """By its own name and by a link to it. Another socket renamed to it is not reached."""
    outside = either.tree.outside
    with listening(str(outside / "granted")) as granted, listening(str(outside / "other")) as other:
        flags = ("--allow", granted.address, "--env", f"HERE={either.tree.project}")
        outcome = either.inside(ways(Path(granted.address), "stream", "linked"), *flags)
        assert reached(outcome) == ["ok", "ok"], str(outcome)
        wait_for(lambda: granted.received == [SAID, SAID], "the granted service got the message")
        control = either.outside(ways(Path(other.address), "stream"))
        assert reached(control) == ["ok"]
        wait_for(lambda: other.received == [SAID], "the control message arrived")
        refused = either.inside(ways(Path(other.address), *STREAMS), *flags)
        assert "ok" not in reached(refused), str(refused)
        assert other.received == [SAID]


def test_a_granted_socket_means_that_one_and_not_its_name(either: SandboxRunner) -> None:
    """In the workspace, where the command can rename sockets."""
    project = either.tree.project
    script = (
        "import os, socket; print('started', flush=True); os.rename('granted', 'away'); "
        "os.rename('other', 'granted'); "
        "s = socket.socket(socket.AF_UNIX); s.connect('granted'); s.send(b'from inside')"
    )
    with listening(str(project / "granted")) as granted, listening(str(project / "other")) as other:
        for path in (granted.address, other.address):
            os.chown(path, either.tester.uid, either.tester.gid)
        found = either.inside(ways(Path(granted.address), "stream"), "--allow", granted.address)
        assert reached(found) == ["ok"], str(found)
        wait_for(lambda: granted.received == [SAID], "the granted service got the message")
        outcome = either.inside(["python3", "-c", script], "--allow", granted.address)
        assert (outcome.started, outcome.exit_code) == (True, 1), str(outcome)
        if (
            project / "granted"
        ).exists():  # in the full tier a mask covers the other socket, so it is not moved
            os.rename(project / "granted", project / "other")
        os.rename(project / "away", project / "granted")
        control = either.outside(["python3", "-c", script])
        assert control.exit_code == 0, str(control)
        wait_for(lambda: other.received == [SAID], "the control message arrived")
        assert granted.received == [SAID]


def test_unix_sockets_of_the_command_work_in_the_full_tier(full: SandboxRunner) -> None:
    """Streams, datagrams, abstract names, and the sockets of Python's multiprocessing managers."""
    script = """
import multiprocessing, socket
print("started", flush=True)
for address in ("own.sock", "\\0own"):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(address)
        server.listen()
        client.connect(address)
        client.send(b"x")
        with server.accept()[0] as peer:
            assert peer.recv(1) == b"x"
datagrams = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
with datagrams[0] as server, datagrams[1] as client:
    server.bind("own.datagram")
    client.sendto(b"x", "own.datagram")
    assert server.recv(1) == b"x"
with multiprocessing.Manager() as manager:
    print(list(manager.list([1, 2])))
"""
    outcome = full.inside(["python3", "-c", script])
    assert outcome.stdout.splitlines() == ["started", "[1, 2]"], str(outcome)


_LATER = """
import sys
print("started", flush=True)
sys.stdin.readline()
""" + _WAYS.replace('print("started", flush=True)\n', "")
OWN = """
import os, socket
print("started", flush=True)
for _ in range(300):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("own.sock")
        server.listen()
        client.connect("own.sock")
    os.rename("own.sock", "stale.sock")
os.unlink("stale.sock")
"""


@pytest.fixture(params=["this network", "no network"])
def network(request: pytest.FixtureRequest) -> list[str]:
    return ["--block-net"] if request.param == "no network" else []


@pytest.mark.parametrize(
    "how", ["bound", "relatively", "datagrams", "again", "moved", "linked", "elsewhere"]
)
def test_a_service_that_comes_during_the_run_is_covered(
    full: SandboxRunner, how: str, network: list[str]
) -> None:
    """Under any bound name and in any network namespace."""
    need(
        "root",
        how != "elsewhere" or os.getuid() == 0,
        "only root can make a second network for a service",
    )
    tree = full.tree
    path = tree.project / "deep" / "service"
    path.parent.mkdir()
    tree.tester.give(path.parent)
    names = DATAGRAMS if how == "datagrams" else STREAMS
    with contextlib.ExitStack() as stack:
        if how == "again":
            with listening(str(path)):
                pass
        words = ["python3", "-c", _LATER, str(path), *names]
        flags = ["--env", f"HERE={tree.project}", "--env", f"PATH={os.environ['PATH']}", *network]
        inside = stack.enter_context(full.starting(words, *flags, stdin=subprocess.PIPE))
        assert inside.stdout is not None
        assert inside.stdout.readline() == "started\n"
        match how:
            case "relatively":
                with contextlib.chdir(path.parent):
                    service = stack.enter_context(listening(path.name))
            case "datagrams":
                service = stack.enter_context(listening(str(path), socket.SOCK_DGRAM))
            case "again":
                path.unlink()
                service = stack.enter_context(listening(str(path)))
            case "moved" | "linked":
                service = stack.enter_context(listening(str(tree.outside / "service")))
                (os.rename if how == "moved" else os.link)(tree.outside / "service", path)
            case "elsewhere":
                with another_network():
                    service = stack.enter_context(listening(str(path)))
            case _:
                service = stack.enter_context(listening(str(path)))
        masked = wait_for(lambda: masked_names(full) or None, "it is covered")
        assert masked == [str(path)]
        output, errors = inside.communicate("go\n", timeout=120)
        assert len(output.splitlines()) == len(names), output + errors
        assert "ok" not in output.split()
        assert service.received == []
        control = full.outside(ways(path, *names), env={"HERE": str(tree.project)})
        assert reached(control) == ["ok"] * len(names), str(control)
        wait_for(lambda: service.received == [SAID] * len(names), "the control message arrived")


def masked_names(sandbox: SandboxRunner) -> list[object]:
    return [event["path"] for event in sandbox.events() if event["event"] == "name.masked"]


@contextmanager
def another_network() -> Iterator[None]:
    """Moves this thread to a network namespace for a while. Its new sockets belong there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as ours:
        assert libc.unshare(_CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(ours.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


def test_a_socket_made_inside_is_never_taken_for_a_service(
    full: SandboxRunner, network: list[str]
) -> None:
    outcome = full.inside(["python3", "-c", OWN], *network)
    assert (outcome.exit_code, outcome.stdout) == (0, "started\n"), str(outcome)
    assert masked_names(full) == []


def test_a_datagram_socket_on_stdin_is_refused(either: SandboxRunner) -> None:
    """The socket belongs to the host's network namespace, which has abstract names, in any
    process.
    """
    script = (
        "import socket; print('started', flush=True); "
        "socket.socket(fileno=0).sendto(b'from inside', {!r})"
    )
    for address in (str(either.tree.outside / "datagram"), f"\0paddock-{os.getpid()}"):
        with listening(address, socket.SOCK_DGRAM) as service:
            words = ["python3", "-c", script.format(address)]
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            with one, other:
                assert either.outside(words, stdin=one.fileno()).exit_code == 0
                wait_for(lambda: service.received == [SAID], "the control message arrived")
                refused = either.inside(words, stdin=one.fileno())
            assert (refused.exit_code, refused.stdout) == (125, ""), str(refused)
            assert "stdin is a socket" in refused.stderr
            assert service.received == [SAID]


def test_an_unconnected_stream_socket_on_stdin_is_refused(
    either: SandboxRunner,
) -> None:
    script = (
        "import socket; print('started', flush=True); s = socket.socket(fileno=0); "
        f"s.connect('\\0paddock-{os.getpid()}'); s.send(b'from inside')"
    )
    with listening(f"\0paddock-{os.getpid()}") as service:
        words = ["python3", "-c", script]
        with socket.socket(socket.AF_UNIX) as unconnected:
            refused = either.inside(words, stdin=unconnected.fileno())
            assert (refused.exit_code, refused.stdout) == (125, ""), str(refused)
            assert (service.received, "stdin is a socket" in refused.stderr) == ([], True), str(
                refused
            )
            assert either.outside(words, stdin=unconnected.fileno()).exit_code == 0
            wait_for(lambda: service.received == [SAID], "the control message arrived")


def test_a_connected_socket_pair_on_stdin_is_allowed(either: SandboxRunner) -> None:
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"from outside\n")
        outcome = either.inside(["head", "-n1"], stdin=one.fileno())
        assert (outcome.exit_code, outcome.stdout) == (0, "from outside\n"), str(outcome)
