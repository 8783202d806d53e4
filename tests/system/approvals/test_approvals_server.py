"""Only a client with the token may answer. Only runs of the same user may ask."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.system.approvals.conftest import Server

SEQPACKET = (
    "import os, socket, sys; line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    "print('started');"
)


def asked(
    server: Server, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> http.client.HTTPResponse:
    host, port = server.host.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    connection.request(method, path, body, {"Host": server.host, **headers})
    answer = connection.getresponse()
    answer.read_text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def status(
    server: Server, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> int:
    return asked(server, path, method, body, **headers).status


def test_the_page_needs_the_token(server: Server) -> None:
    assert status(server, f"/{server.token}/") == 200
    assert len(server.token) >= 43
    for path in (
        "/",
        "/index.html",
        f"/{server.token}",
        f"/{server.token[:-1]}/",
        f"/{server.token}x/",
        "/%00/",
        "//",
    ):
        assert status(server, path) == 403, path
    for path in ("page.js", "events", "answer"):
        assert status(server, f"/x/{path}") == 403
    assert status(server, f"/{server.token}/../{server.token}/") == 404
    assert status(server, f"/{server.token}/../../etc/passwd") == 404


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "[::1]", ""]
)
def test_another_host_name_for_the_address_is_not_served(server: Server, name: str) -> None:
    """DNS rebinding: a page of another name that resolves to this address is refused."""
    assert status(server, f"/{server.token}/", Host=name) == 421


def test_a_request_from_another_origin_is_refused(server: Server) -> None:
    body = json.dumps({"id": 1, "verdict": "once"})
    for origin in ("http://evil.example", "null", f"https://{server.host}", "http://127.0.0.1:1"):
        assert status(server, f"/{server.token}/answer", "POST", body, Origin=origin) == 403
    assert (
        status(server, f"/{server.token}/answer", "POST", body, Origin=f"http://{server.host}")
        == 410
    )


def test_an_invalid_answer_is_refused(server: Server) -> None:
    for body in (
        "",
        "x",
        "[]",
        "{}",
        "7",
        '{"id": {}}',
        '{"id": "1"}',
        '{"id": 1}',
        "[" * 10_000,
        "\xff",
    ):
        assert status(server, f"/{server.token}/answer", "POST", body) in (400, 410), body
    assert status(server, f"/{server.token}/answer", "POST", "x" * 100_000) == 413
    assert status(server, f"/{server.token}/answer") == 404
    assert status(server, f"/{server.token}/", "DELETE") == 404


def test_response_headers_keep_other_sites_out(server: Server) -> None:
    answer = asked(server, f"/{server.token}/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Set-Cookie"] is None
    assert server.token not in answer.read_text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "noise", [b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000]
)
def test_random_bytes_are_refused_and_disturb_no_client(server: Server, noise: bytes) -> None:
    host, port = server.host.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as line:
        try:
            line.sendall(noise)
            line.shutdown(socket.SHUT_WR)
            output = line.recv(1 << 16)
        except ConnectionError:
            output = b""
        assert output[9:12] in (b"", b"400")
    assert status(server, f"/{server.token}/") == 200


def test_a_silent_client_does_not_keep_others_out(server: Server) -> None:
    """More connections than the server keeps. A command could open each of them."""
    host, port = server.host.split(":")
    with contextlib.ExitStack() as held:
        for _ in range(600):
            silent = held.enter_context(socket.create_connection((host, int(port)), timeout=120))
            with contextlib.suppress(OSError):  # the server closed it meanwhile
                silent.sendall(b"GET / HTTP/1.1\r\n")
        assert status(server, f"/{server.token}/") == 200
        assert server.state()["pending"] == []
    assert status(server, f"/{server.token}/") == 200


def test_each_user_has_one_server(sandbox: SandboxRunner, server: Server) -> None:
    second = sandbox.tester.run([sandbox.installation.paddock, "approvals", "serve"])
    assert (second.exit_code, second.stdout) == (125, "")
    assert "your approvals server is already running" in second.stderr
    taken = sandbox.tester.run(
        [sandbox.installation.paddock, "approvals", "serve", "--port", server.host.split(":")[1]]
    )
    assert (taken.exit_code, "cannot listen on port" in taken.stderr) == (125, True)
    wrong = sandbox.tester.run(
        [sandbox.installation.paddock, "approvals", "serve", "--port", "70000"]
    )
    assert wrong.exit_code == 125


def meeting(sandbox: SandboxRunner) -> Path:
    return Path(f"/var/tmp/paddock-audit-{sandbox.tester.uid}/approvals")


def test_socket_belongs_to_the_user_only(sandbox: SandboxRunner, server: Server) -> None:
    place = meeting(sandbox)
    facts = {one.name: one.stat() for one in (place, *place.iterdir())}
    assert {name: oct(one.st_mode & 0o7777) for name, one in facts.items()} == {
        "approvals": "0o700", "socket": "0o600", "key": "0o600", "lock": "0o600",
    }  # fmt: skip
    assert {one.st_uid for one in facts.values()} == {sandbox.tester.uid}
    key = (place / "key").read_text()
    if os.getuid() != sandbox.tester.uid:  # another user (root), who may open every file
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.settimeout(60)
            line.connect(str(place / "socket"))
            with contextlib.suppress(ConnectionError):  # the server does not read the message
                line.send(json.dumps({"key": key}, separators=(",", ":")).encode())
                assert line.recv(100) == b""


KNOCK = SEQPACKET + (
    "line.connect('{place}/socket'); line.send({hello!r}); line.settimeout(60); print(line.recv(9))"
)


def test_a_client_without_the_key_asks_nothing(sandbox: SandboxRunner, server: Server) -> None:
    place = meeting(sandbox)
    key = (place / "key").read_text()
    wrong = [b'{"key":""}', b"{}", b"x" * 60_000, json.dumps({"key": key[:-1]}).encode()]
    for hello in wrong:
        script = KNOCK.format(place=place, hello=hello)
        knocked = sandbox.outside(["python3", "-c", script])
        assert knocked.stdout == "started\nb''\n", knocked
        assert not server.state()["pending"]
    # A client with the key is served. Nonsense closes the connection too, a question does not.
    hello = json.dumps({"key": key}, separators=(",", ":")).encode()
    known = (
        SEQPACKET
        + f"line.connect('{place}/socket'); line.send({hello!r}); line.settimeout(1); line.recv(9)"
    )
    assert "timed out" in sandbox.outside(["python3", "-c", known]).stderr


@pytest.mark.parametrize("tier", ["sandbox", "full"])
def test_no_command_reaches_the_approvals_server(
    tier: str, request: pytest.FixtureRequest, server: Server
) -> None:
    sandbox: SandboxRunner = request.getfixturevalue(tier)
    place = meeting(sandbox)
    read = (
        f"print('started', flush=True); import os; print(os.listdir('{place}'), "
        f"open('{place}/key').read())"
    )
    control = sandbox.outside(["python3", "-c", read])
    assert (control.started, control.exit_code) == (True, 0)
    grants: list[Word] = ["-a", "/var/tmp/**", "--socket", "unix"]
    inside = sandbox.inside(["python3", "-c", read], *grants)
    assert inside.started, inside
    assert inside.exit_code != 0
    assert (place / "key").read_text() not in inside.stdout
    # In the landlock tier a command with unix sockets can connect to the name. Without the key it
    # can do no more.
    knock = KNOCK.format(place=place, hello=b'{"key":"0"}')
    knocked = sandbox.inside(["python3", "-c", knock], *grants)
    assert knocked.started, knocked
    assert knocked.stdout in ("started\n", "started\nb''\n"), knocked
    if tier == "full":
        assert knocked.stdout == "started\n"
    without = sandbox.inside(
        ["python3", "-c", "print('started', flush=True);" + SEQPACKET], "-a", "/var/tmp/**"
    )
    assert tier == "full" or without.stdout == "started\n", without
