"""The HTTP helper of a run: its start, its death, its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import core
from tests.support.features import need_program
from tests.support.network import relays_of
from tests.support.outside_targets import alive
from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for
from tests.system.network.served import KEY, SECRET, policy, route, served_by
from tests.system.network.upstreams import Asked, echo, upstream


@pytest.mark.parametrize("comes", [True, False], ids=["it comes", "it never comes"])
def test_connections_wait_for_the_http_helper_and_the_command_does_not(
    full: SandboxRunner, comes: bool
) -> None:
    """The start of the helper is delayed until the command runs and a connection is open."""
    place = full.tree.root / "held"
    place.mkdir()
    core_program = shutil.copy(full.installation.core, place)
    script = full.installation.core.with_name("paddock-python").read_text()
    first, _, rest = script.partition("\n")
    gate = place / "gate"
    os.mkfifo(gate)
    held = full.tree.put(place / "paddock-python", f"{first}\nopen({str(gate)!r}).close()\n{rest}")
    for one in (place, gate, held, Path(core_program)):
        one.chmod(0o755)
        full.tester.give(one)

    def opened() -> bool:
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # the process does not exist yet
            return False
        return True

    ask = (
        "echo started; curl -s -m 60 -o /dev/null -w '%{http_code}' "
        "http://api.paddock.internal/x; echo; echo over"
    )
    with upstream() as server, ExitStack() as stack:
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        shown = full.inside(["sh", "-c", ask], "--policy", file, "--dry-run", "--json", env=KEY)
        plan = json.loads(shown.stdout)["plan"]
        fd = stack.enter_context(core.sealed(core.canonical(plan)))
        words = [core_program, "run", "--plan-fd", str(fd), "--", "sh", "-c", ask]
        process = stack.enter_context(
            full.tester.starting(words, cwd=full.tree.project, env=KEY, pass_fds=[fd])
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        wait_for(lambda: relays_of(process.pid) != [], "a relay: a connection came")
        if comes:
            wait_for(opened, "the HTTP helper")
        else:
            os.kill(served_by(process.pid), signal.SIGKILL)
        status = process.stdout.readline().strip()
        assert process.stdout.readline() == "over\n", "the run goes on"
        assert process.wait(120) == 0
        assert process.stderr is not None
        output = process.stderr.read()
    assert [one.header("authorization") for one in server.asked] == (
        [f"Bearer {SECRET}"] if comes else []
    )
    if comes:
        assert status == "200"
    else:
        assert status in ("502", "000"), "closed while it waited, or an error answer"
        assert "cannot be reached any more: the HTTP helper: it was killed by SIGKILL" in output


def test_the_http_helper_cannot_be_read_and_the_run_outlives_it(full: SandboxRunner) -> None:
    """Its connections are lost, and later ones get an error answer. Other connections continue."""
    script = """
import socket, sys, urllib.error, urllib.request
def asked(path):
    try:
        with urllib.request.urlopen(f"http://api.paddock.internal{path}", timeout=120) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
print(asked("/one"), flush=True)
with socket.create_connection(("api.paddock.internal", 80), 30) as kept:
    kept.sendall(b"GET /kept HTTP/1.1\\r\\nHost: api.paddock.internal\\r\\n\\r\\n")
    kept.recv(9)
    print("kept", flush=True)
    sys.stdin.readline()
    try:
        while kept.recv(65536): pass
        print("end")
    except ConnectionResetError:
        print("end")
print(asked("/two"), flush=True)
sys.stdin.readline()
print("over")
"""

    async def endless(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.target == "/kept":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            await reader.read()
            writer.close()
        else:
            await echo(asked, reader, writer)

    reader, writer = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, writer)
        stack.callback(os.close, reader)
        server = stack.enter_context(upstream(endless))
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        process = stack.enter_context(
            full.starting(
                [need_program("python3"), "-uc", script], "--policy", file, env=KEY, stdin=reader
            )
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["200\n", "kept\n"]
        speaker = served_by(process.pid)
        look = full.outside(["cat", f"/proc/{speaker}/environ"])
        assert (look.exit_code, SECRET in look.stdout) == (1, False), (
            "not even by the same user, outside"
        )
        control = full.outside(["cat", "/proc/self/environ"], env=KEY)
        assert SECRET in control.stdout
        os.kill(speaker, signal.SIGKILL)
        wait_for(lambda: any(one["event"] == "network.lost" for one in full.events()), "an event")
        os.write(writer, b"go on\n")
        assert [process.stdout.readline(), process.stdout.readline()] == ["end\n", "502\n"]
        os.write(writer, b"go on\n")
        assert process.stdout.readline() == "over\n"
        assert process.wait(120) == 0
        output = process.stderr.read()
    assert (
        output.count(
            "routes and inspected hosts cannot be reached any more: the HTTP helper: "
            "it was "
            "killed by SIGKILL"
        )
        == 1
    )
    assert [one.target for one in server.asked] == ["/one", "/kept"]


@pytest.mark.parametrize(
    "end", [signal.SIGTERM, signal.SIGKILL], ids=["the run ends", "the supervisor is killed"]
)
def test_the_http_helper_ends_with_the_run(full: SandboxRunner, end: signal.Signals) -> None:
    with upstream() as server:
        file = policy(full, route("api", server))
        with full.starting(
            ["sh", "-c", "echo started; exec sleep 60"], "--policy", file
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            speaker = served_by(process.pid)
            process.send_signal(end)
            process.wait(120)
            wait_for(lambda: not alive(speaker), "its end")
