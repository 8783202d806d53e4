"""A person is asked about a host without a rule when a command dials it. The test answers at the
companion's socket.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import core
from tests.support.network import MESSAGE, NetworkRunner, Server, network, relay_of, serving
from tests.support.waiting import wait_for
from tests.system.network.upstreams import UpstreamServer, upstream

REFUSED = ("ECONNRESET", "EPIPE", "ENOTCONN")
# Every host has this name in /etc/hosts. A program inside that resolves it gets an address. It
# connects once for each line of input, or once without input.
NAME = "localhost"
_CALL = """
import errno, socket, struct, sys
def address(server):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(60)
        asking.connect((server, 53))
        asking.send(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\\x09localhost\\0" + \
struct.pack("!2H", 1, 1))
        return socket.inet_ntoa(asking.recv(512)[-4:])
print("started", flush=True)
for line in sys.stdin:
    try:
        with socket.create_connection((address("9.9.9.9"), int(sys.argv[1])), 60) as client:
            client.send(b"from a client")
            client.shutdown(socket.SHUT_WR)
            client.recv(1)
        print("ok", flush=True)
    except OSError as error:
        print(errno.errorcode.get(error.errno, error), flush=True)
"""
# The same as an HTTP client.
_REQUEST = (
    _CALL.replace(
        'client.send(b"from a client")',
        'client.send(b"GET /a HTTP/1.1\\r\\nHost: '
        'localhost:%s\\r\\n\\r\\n" % sys.argv[1].encode())',
    )
    .replace("client.recv(1)", "answer = client.recv(12)")
    .replace('print("ok"', "print(answer[-3:].decode()")
)
# The name resolves to the host itself, so the address has to be listed.
LISTED = [{"source": "paddock.toml", "hosts": [["127.0.0.1", None, 2]]}]


def asking(**changes: Any) -> dict[str, Any]:
    usual = {"default": "ask", "default_source": "paddock.toml:1", "allowed": LISTED}
    return network("filtered", **{**usual, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    process: subprocess.Popen[str]
    calls: int  # a descriptor: one line for each connection
    line: socket.socket  # the companion's

    def call(self) -> None:
        os.write(self.calls, b"\n")

    def answered(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def asked(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.line.recv(65536))
        return message

    def answer(self, question: dict[str, Any], verdict: str) -> None:
        self.line.send(
            core.canonical({"answer": question["ask"], "verdict": verdict, "by": "test"})
        )

    def ended(self) -> str:
        """The stderr of the run."""
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.process.stderr.read()


@contextmanager
def running(
    full_network: NetworkRunner,
    server: Server | UpstreamServer,
    plan: dict[str, Any],
    *,
    companion: bool = True,
    script: str = _CALL,
) -> Iterator[Run]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    with ours, core.sealed(core.canonical(full_network.with_network(plan))) as fd:
        ours.settimeout(60)
        words = [str(full_network.sandbox.installation.core), "run", "--plan-fd", str(fd)]
        words += ["--companion", str(theirs.fileno())] if companion else []
        words += ["--", full_network.python, "-c", script, str(server.port)]
        fds = [fd, theirs.fileno()] if companion else [fd]
        try:
            with full_network.sandbox.tester.starting(
                words, cwd=full_network.sandbox.tree.project, pass_fds=fds, stdin=reader
            ) as process:
                theirs.close()
                run = Run(process=process, calls=writer, line=ours)
                assert run.answered() == "started"
                yield run
        finally:
            theirs.close()
            os.close(reader)
            os.close(writer)


def decided(full_network: NetworkRunner) -> list[dict[str, Any]]:
    return [event for event in full_network.events() if event["event"] == "network"]


def test_an_allowed_host_is_reached_and_the_journal_names_the_approver(
    full_network: NetworkRunner,
) -> None:
    with serving("127.0.0.1") as server:
        # The control: the host is refused without a question.
        with running(full_network, server, asking(default="deny")) as run:
            run.call()
            assert run.answered() != "ok"
        assert server.received() == []
        with running(full_network, server, asking()) as run:
            run.call()
            question = run.asked()
            assert (question["host"], question["port"]) == (NAME, server.port)
            assert (question["source"], question["timeout_s"]) == ("paddock.toml:1", 60)
            assert question["process"]["exe"] == os.path.realpath(full_network.python)
            assert (
                os.readlink(f"/proc/{question['process']['pid']}/exe") == question["process"]["exe"]
            )
            assert server.received() == []
            run.answer(question, "once")
            assert wait_for(lambda: server.received() or None, "the message") == [MESSAGE]
            assert run.answered() == "ok"
            # "once" is for this connection, "session" for all later ones.
            run.call()
            again = run.asked()
            assert again["ask"] != question["ask"]
            run.answer(again, "session")
            assert wait_for(lambda: server.received() or None, "the message") == [MESSAGE]
            assert run.answered() == "ok"
            run.call()
            assert wait_for(lambda: server.received() or None, "the message") == [MESSAGE]
            assert run.answered() == "ok"
            assert "denied" not in run.ended()
    events = [event for event in decided(full_network) if event["action"] == "allow"]
    assert [event["by"] for event in events] == ["test", "test", "session"]
    assert {event["exe"] for event in events} == {os.path.realpath(full_network.python)}
    assert {event["pid"] for event in events} == {question["process"]["pid"]}
    assert all(event["asked_ms"] >= 0 for event in events)


def test_an_inspected_host_is_asked_about_and_then_read(full_network: NetworkRunner) -> None:
    """The HTTP helper journals the requests. The journal also has the answer of the person."""
    plan = asking(http={"routes": [], "inspect": [{"host": NAME, "source": "paddock.toml:3"}]})
    with upstream() as server, running(full_network, server, plan, script=_REQUEST) as run:
        run.call()
        question = run.asked()
        assert ((question["host"], question["port"]), server.asked) == ((NAME, server.port), [])
        run.answer(question, "once")
        assert run.answered() == "200"
        assert [(one.method, one.target) for one in server.asked] == [("GET", "/a")]
        run.call()
        run.answer(run.asked(), "deny")
        assert run.answered() == "403"
        assert len(server.asked) == 1
        run.ended()
    events = [
        (event["layer"], event["action"], event["by"], event.get("path"))
        for event in decided(full_network)
    ]
    assert sorted(events, key=str) == [
        ("connect", "allow", "test", None),
        ("connect", "deny", "test", None),
        ("request", "allow", None, "/a"),
    ]


def test_a_denied_host_is_refused_and_not_asked_about_again_at_once(
    full_network: NetworkRunner,
) -> None:
    with serving("127.0.0.1") as server, running(full_network, server, asking()) as run:
        run.call()
        run.answer(run.asked(), "deny")
        assert run.answered() in REFUSED
        run.call()
        assert run.answered() in REFUSED
        assert server.received() == []
        output = run.ended()
        assert (
            output.count(f"paddock: denied: {NAME}:{server.port} (the approver denied it)") == 1
        ), output
    assert [(event["action"], event["by"]) for event in decided(full_network)] == [
        ("deny", "test"),
        ("deny", None),
    ]


@pytest.mark.parametrize("why", ["nobody", "gone", "late"])
def test_a_host_without_an_answer_is_denied(full_network: NetworkRunner, why: str) -> None:
    plan = asking(ask_timeout_s=1 if why == "late" else 60)
    with (
        serving("127.0.0.1") as server,
        running(full_network, server, plan, companion=why != "nobody") as run,
    ):
        run.call()
        if why != "nobody":
            question = run.asked()
        if why == "gone":
            run.line.close()
        if why == "late":
            assert run.asked() == {"withdrawn": question["ask"]}
        assert run.answered() in REFUSED
        assert server.received() == []
        reason = {
            "nobody": "no approver is available: no terminal is available for the question",
            "gone": "the approver has ended",
            "late": "no answer within 1 s",
        }[why]
        assert f"denied: {NAME}:{server.port} ({reason})" in run.ended()
    (event,) = decided(full_network)
    assert (event["action"], event["by"], event["reason"]) == ("deny", None, reason)


def test_a_command_approved_for_good_is_not_asked(full_network: NetworkRunner) -> None:
    with serving("127.0.0.1") as server:
        approved = [{"source": "approved.toml", "hosts": [[NAME, server.port, 3]]}]
        with running(full_network, server, asking(approved=approved)) as run:
            run.call()
            assert wait_for(lambda: server.received() or None, "the message") == [MESSAGE]
            assert run.answered() == "ok"
            run.ended()
    (event,) = decided(full_network)
    assert (event["action"], event["rule"], event["by"]) == ("allow", "approved.toml:3", None)


def test_a_question_leaves_with_the_relay_that_asked_and_the_run_goes_on(
    full_network: NetworkRunner,
) -> None:
    with serving("127.0.0.1") as server, running(full_network, server, asking()) as run:
        run.call()
        question = run.asked()
        os.kill(relay_of(run.process.pid), signal.SIGKILL)
        assert run.asked() == {"withdrawn": question["ask"]}
        assert run.answered() in REFUSED
        assert "the relay has ended" in run.ended()
    assert [event["event"] for event in full_network.events()] == [
        "session.start",
        "network.lost",
        "session.end",
    ]
