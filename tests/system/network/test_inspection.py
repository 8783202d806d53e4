"""Inspected hosts with curl and real TLS servers: both versions of HTTP, matching names, and trust.

Upstreams have the name localhost, which every machine resolves to itself.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from paddock.http.inspection import Authority
from paddock.http.route_table import Settings
from paddock.policy.model import Source, Sourced
from tests.system.network.certificates import TestAuthority
from tests.system.network.relay import SECRET, Relay, a_route, curl, serving
from tests.system.network.upstreams import upstream

HOST = "localhost"
OURS = TestAuthority()


def fetched(
    relay: Relay,
    authority: Authority,
    tmp_path: Path,
    port: int,
    path: str,
    *more: str,
    data: bytes | None = None,
) -> tuple[int, bytes, str]:
    """Status, body and HTTP version that curl gets inside."""
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.certificate)
    listening = relay.listen("inspect", HOST, port)
    done = curl(
        "--path-as-is", "--cacert", str(bundle), "-w", "\n%{http_version} %{http_code}",
        "--connect-to", f"{HOST}:{port}:127.0.0.1:{listening}", *more,
        f"https://{HOST}:{port}{path}", data=data,
    )  # fmt: skip
    assert done.returncode == 0, done
    body, _, end = done.stdout.rpartition(b"\n")
    version, status = end.decode().split(" ")
    return int(status), body, version


@pytest.mark.parametrize(("flag", "version"), [("--http1.1", "1.1"), ("--http2", "2")])
def test_requests_of_an_inspected_host_are_judged_and_carry_the_secret(
    flag: str, version: str, tmp_path: Path
) -> None:
    with upstream(tls=OURS.server(HOST)) as server:
        rules = [("GET", "/v1/*"), ("POST", "/v1/chat")]
        route = a_route(
            "api", server.port, scheme="https", host=HOST, rules=rules, secret=True, inspect=True
        )
        settings, authority = Settings(routes=(route,)), Authority([HOST])
        assert settings.inspected_hosts() == (HOST,)
        with serving(route, settings=settings, authority=authority, tls=OURS.trust()) as relay:
            status, body, spoken = fetched(
                relay, authority, tmp_path, server.port, "/v1/models", flag
            )
            assert (status, spoken) == (200, version)
            assert json.loads(body)["target"] == "/v1/models"
            assert SECRET not in body
            sent = os.urandom(600_000).hex().encode()  # more than one flow window of HTTP/2
            status, body, _ = fetched(
                relay,
                authority,
                tmp_path,
                server.port,
                "/v1/chat",
                flag,
                "--data-binary",
                "@-",
                data=sent,
            )
            assert status == 200
            assert json.loads(body)["body"].encode() == sent
            status, body, _ = fetched(relay, authority, tmp_path, server.port, "/v1/a/b", flag)
            assert (
                status,
                body.startswith(
                    b"paddock: denied: no endpoint rule of the route api allows GET /v1/a/b"
                ),
            ) == (
                403,
                True,
            )
            status, _, _ = fetched(relay, authority, tmp_path, server.port, "/v1/%2e%2e/x", flag)
            assert status == 403
            status, body, _ = fetched(relay, authority, tmp_path, server.port, "/v1/x", flag, "-I")
            assert status == 403, "a rule for GET does not allow HEAD"
        assert [one.target for one in server.asked] == ["/v1/models", "/v1/chat"]
        assert server.asked[0].header("authorization") == f"Bearer {SECRET.decode()}"
        assert server.asked[0].header("host") == f"{HOST}:{server.port}"


@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
def test_many_requests_share_a_connection(flag: str, tmp_path: Path) -> None:
    with upstream(tls=OURS.server(HOST)) as server:
        settings = Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),))
        authority = Authority([HOST])
        with serving(settings=settings, authority=authority, tls=OURS.trust()) as relay:
            again = [f"https://{HOST}:{server.port}/{number}" for number in range(20)]
            parallel = ["-Z"] if flag == "--http2" else []
            status, _, _ = fetched(
                relay, authority, tmp_path, server.port, "/", flag, *parallel, *again
            )
            assert status == 200
            assert sorted(one["request"]["path"] for one in relay.wait_for(21)) == sorted(
                ["/", *(f"/{n}" for n in range(20))]
            )
            assert {one["rule"] for one in relay.events} == {"p.toml:4"}


@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
def test_a_request_for_another_host_on_that_connection_is_refused(
    flag: str, tmp_path: Path
) -> None:
    with upstream(tls=OURS.server(HOST)) as server:
        settings = Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),))
        authority = Authority([HOST])
        with serving(settings=settings, authority=authority, tls=OURS.trust()) as relay:
            status, body, _ = fetched(
                relay, authority, tmp_path, server.port, "/", flag, "-H", "Host: other.example"
            )
            assert (status, b"is for the host 'other.example'" in body) == (403, True)
            assert fetched(relay, authority, tmp_path, server.port, "/", flag)[0] == 200
            assert [one["action"] for one in relay.wait_for(2)] == ["deny", "allow"]
        assert len(server.asked) == 1


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/é", "/fine"])
def test_a_header_that_only_http2_can_carry_is_not_sent(path: str) -> None:
    with upstream(tls=OURS.server(HOST)) as server:
        settings, authority = (
            Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),)),
            Authority([HOST]),
        )
        with serving(settings=settings, authority=authority, tls=OURS.trust()) as relay:
            context = ssl.create_default_context(cadata=authority.certificate.decode())
            context.set_alpn_protocols(["h2"])
            end = socket.create_connection(
                ("127.0.0.1", relay.listen("inspect", HOST, server.port))
            )
            with context.wrap_socket(end, server_hostname=HOST) as client:
                client.settimeout(60)
                assert status_over_http2(client, path, f"{HOST}:{server.port}") == (
                    200 if path == "/fine" else 400
                )
        assert [one.target for one in server.asked] == (["/fine"] if path == "/fine" else [])


@pytest.mark.parametrize(
    "length", [[], [("content-length", "2")]], ids=["without a length", "with its length"]
)
def test_a_body_that_comes_together_with_its_head_over_http2_arrives(
    length: list[tuple[str, str]],
) -> None:
    with upstream(tls=OURS.server(HOST)) as server:
        settings, authority = (
            Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),)),
            Authority([HOST]),
        )
        with serving(settings=settings, authority=authority, tls=OURS.trust()) as relay:
            context = ssl.create_default_context(cadata=authority.certificate.decode())
            context.set_alpn_protocols(["h2"])
            end = socket.create_connection(
                ("127.0.0.1", relay.listen("inspect", HOST, server.port))
            )
            with context.wrap_socket(end, server_hostname=HOST) as client:
                client.settimeout(60)
                assert (
                    status_over_http2(client, "/form", f"{HOST}:{server.port}", length, b"{}")
                    == 200
                )
        assert [(one.target, one.body) for one in server.asked] == [("/form", b"{}")]


def status_over_http2(
    client: ssl.SSLSocket,
    path: str,
    authority: str,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
) -> int:
    """A client that does not validate its headers. 400 also if the other side closes."""
    http = h2.connection.H2Connection(
        h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    http.initiate_connection()
    method = "POST" if body else "GET"
    pseudo = [(":method", method), (":path", path), (":scheme", "https"), (":authority", authority)]
    http.send_headers(1, [*pseudo, *headers], end_stream=not body)
    if body:
        http.send_data(1, body, end_stream=True)
    client.sendall(http.data_to_send())
    while data := client.recv(65536):
        for happened in http.receive_data(data):
            match happened:
                case h2.events.ResponseReceived():
                    return int(dict(happened.headers or [])[b":status"])
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    return 400
    return 400


def handshake(relay: Relay, authority: Authority, name: str | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.check_hostname = False
    end = socket.create_connection(("127.0.0.1", relay.listen("inspect", HOST, 443)))
    return context.wrap_socket(end, server_hostname=name)


@pytest.mark.parametrize("name", ["other.example", None])
def test_tls_that_names_another_host_or_none_is_refused(name: str | None) -> None:
    settings = Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),))
    authority = Authority([HOST])
    with serving(settings=settings, authority=authority) as relay:
        with pytest.raises(ssl.SSLError):
            handshake(relay, authority, name)
        assert relay.wait_for(1)[0]["reason"] == "the TLS server name is not localhost"
        for good in (HOST, "LocalHost"):
            handshake(relay, authority, good).close()


def test_a_client_that_trusts_only_the_system_does_not_get_in() -> None:
    settings = Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),))
    with serving(settings=settings, authority=Authority([HOST])) as relay:
        end = socket.create_connection(("127.0.0.1", relay.listen("inspect", HOST, 443)))
        with end, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(end, server_hostname=HOST)
        assert relay.wait_for(1)[0]["action"] == "deny"


def test_the_route_is_about_one_service_of_the_host() -> None:
    """The secret goes to no other service, and plain HTTP does not bypass the rules."""
    with upstream() as server:
        route = a_route("api", 443, scheme="https", host=HOST, secret=True, inspect=True)
        with serving(route, authority=Authority([HOST])) as relay:
            done = curl(
                "-w", "%{http_code}", "--connect-to",
                f"{HOST}:80:127.0.0.1:{relay.listen('inspect', HOST, 80)}", f"http://{HOST}/",
            )  # fmt: skip
            assert done.stdout.endswith(b"403")
            assert b"allows only https://localhost" in done.stdout
        settings = Settings(inspect=(Sourced(HOST, Source(file="p.toml", line=4)),))
        with serving(settings=settings, authority=Authority([HOST])) as relay:
            listening = relay.listen("inspect", HOST, server.port)
            done = curl(
                "--connect-to",
                f"{HOST}:{server.port}:127.0.0.1:{listening}",
                f"http://{HOST}:{server.port}/",
            )
            assert b'"GET"' in done.stdout, "an only inspected host may be used without TLS"


@pytest.mark.parametrize(
    ("certified", "trusted", "status"),
    [(HOST, True, 200), ("other.example", True, 502), (HOST, False, 502)],
    ids=["good", "another name", "unknown authority"],
)
def test_an_upstream_has_to_prove_its_name(certified: str, trusted: bool, status: int) -> None:
    with upstream(tls=OURS.server(certified)) as server:
        route = a_route("api", server.port, scheme="https", host=HOST, secret=True)
        with serving(route, tls=OURS.trust() if trusted else ssl.create_default_context()) as relay:
            listening = relay.listen("route", "api.paddock.internal")
            done = curl(
                "-w", "%{http_code}", "--connect-to",
                f"api.paddock.internal:80:127.0.0.1:{listening}", "http://api.paddock.internal/",
            )  # fmt: skip
            assert done.stdout.endswith(str(status).encode()), done
            assert (b"certificate of" in done.stdout) is (status == 502)
        assert bool(server.asked) is (status == 200), "no secret goes to another server"


def test_the_bundle_has_what_the_system_trusts() -> None:
    authority = Authority([HOST])
    bundle = authority.bundle()
    assert bundle.endswith(authority.certificate)
    context = ssl.create_default_context(cadata=bundle.decode())
    assert context.cert_store_stats()["x509_ca"] > 1


def openssl(arguments: Sequence[str], data: bytes) -> str:
    return subprocess.run(
        ["openssl", *arguments], input=data, capture_output=True, check=True
    ).stdout.decode()


def test_the_authority_is_good_for_its_hosts_only() -> None:
    text = openssl(["x509", "-noout", "-text"], Authority(["a.example", "b.example"]).certificate)
    assert "CA:TRUE, pathlen:0" in text
    assert "DNS:a.example" in text.partition("Name Constraints: critical")[2]
    assert "prime256v1" in text
