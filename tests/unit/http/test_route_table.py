"""The route of a connection, and the request that the upstream gets."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from paddock.http.credentials import injection
from paddock.http.headers import BadAnswer, Denied, backward, onward, request_of, target_of
from paddock.http.message import Answer, Reader, RequestHead
from paddock.http.route_table import ConnectionKind, NoSite, Settings, judge
from paddock.policy.model import (
    Credential,
    CredentialKind,
    EndpointRule,
    InjectMode,
    Route,
    Source,
    Sourced,
    Upstream,
)

LINE = Source(file="p.toml", line=5)
OPENAI = Route(
    name="openai",
    upstream=Upstream(scheme="https", host="api.openai.com", port=443),
    credential=Credential(kind=CredentialKind.ENV, place="KEY", source=LINE),
    endpoint_rules=(
        EndpointRule(method="POST", path="/v1/*", source=Source(file="p.toml", line=9)),
    ),
    env=(("OPENAI_BASE_URL", "<route>/v1"), ("OPENAI_API_KEY", "<placeholder>")),
    inspect=True,
    source=LINE,
)
PLAIN = Route(
    name="plain",
    upstream=Upstream(scheme="http", host="10.0.0.1", port=8080, base="/b"),
    source=LINE,
)
SETTINGS = Settings(
    routes=(OPENAI, PLAIN), inspect=(Sourced("looked.at", Source(file="p.toml", line=3)),)
)


def test_a_route_has_a_name_inside_and_may_be_its_upstream_too() -> None:
    own = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    real = SETTINGS.site(ConnectionKind.INSPECT, "api.openai.com", 443, tls=True)
    assert (own.upstream, own.rules, own.route) == (real.upstream, real.rules, real.route)
    assert (own.here("/x"), real.here("/x")) == (
        "http://openai.paddock.internal/x",
        "https://api.openai.com/x",
    )
    looked_at = SETTINGS.site(ConnectionKind.INSPECT, "looked.at", 8443, tls=True)
    assert (str(looked_at.upstream), looked_at.rules, looked_at.source) == (
        "https://looked.at:8443",
        None,
        "p.toml:3",
    )
    assert SETTINGS.inspected_hosts() == ("api.openai.com", "looked.at")


@pytest.mark.parametrize(
    ("kind", "host", "port", "tls"),
    [
        (ConnectionKind.ROUTE, "none.paddock.internal", 80, False),
        (ConnectionKind.ROUTE, "openai", 80, False),
        (ConnectionKind.ROUTE, "api.openai.com", 80, False),
        (ConnectionKind.ROUTE, "openai.paddock.internal", 443, True),
        (ConnectionKind.INSPECT, "api.openai.com", 80, False),
        (ConnectionKind.INSPECT, "api.openai.com", 8443, True),
        (ConnectionKind.INSPECT, "10.0.0.1", 8080, False),
        (ConnectionKind.INSPECT, "else.where", 443, True),
    ],
)
def test_an_unknown_host_has_no_route(
    kind: ConnectionKind, host: str, port: int, tls: bool
) -> None:
    with pytest.raises(NoSite):
        SETTINGS.site(kind, host, port, tls=tls)


def test_a_decision_names_its_policy_line() -> None:
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    assert judge(site, "POST", "/v1/x").rule == "p.toml:9"
    denied = judge(site, "GET", "/v1/x")
    assert (denied.allowed, denied.rule) == (False, "p.toml:5")


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("GET", "/v1/x", "--allow-endpoint openai:GET:/v1/x"),
        (
            "GET",
            "/a$(touch$IFS'PWNED')",
            """--allow-endpoint 'openai:GET:/a$(touch$IFS'"'"'PWNED'"'"')'""",
        ),
        ("GET", "/a&b", "--allow-endpoint 'openai:GET:/a&b'"),
        ("GET", "/**", None),
        ("GET", "/v2/*", None),
        ("*", "/x", None),
        ("G`id`", "/x", None),
        ("GET", "/a%20b", None),
    ],
)
def test_a_hint_is_quoted_for_the_shell_and_allows_only_the_request(
    method: str, path: str, hint: str | None
) -> None:
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    denied = judge(site, method, path)
    assert (denied.allowed, denied.hint) == (False, hint)
    if hint is not None:
        assert shlex.split(hint) == ["--allow-endpoint", f"openai:{method}:{path}"]


def head_of(method: str, target: str, headers: list[tuple[str, str]]) -> RequestHead:
    return RequestHead(
        method, target, [(name.lower().encode(), value.encode()) for name, value in headers]
    )


def read(sent: tuple[bytes, int]) -> RequestHead:
    reader = Reader()
    reader.feed(sent[0])
    head = reader.request()
    assert head is not None
    return head


def sent_on(
    headers: list[tuple[str, str]], method: str = "POST", target: str = "/v1/x"
) -> RequestHead:
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    request, _ = request_of(
        head_of(method, target, [("Host", "openai.paddock.internal"), *headers])
    )
    return read(
        onward(site, request, target_of(site, request), injection(OPENAI, b"sk-0123456789"))
    )


def test_a_header_with_an_underscore_does_not_double_one_of_the_route() -> None:
    """To CGI and WSGI both are one header."""
    sent = sent_on([("Transfer_Encoding", "chunked"), ("Content_Length", "5"), ("X_Own", "1")])
    names = [name for name, _ in sent.headers]
    assert b"x_own" in names, "the control"
    assert not {b"transfer_encoding", b"content_length"} & set(names)
    keyed = replace(OPENAI, inject_mode=InjectMode.HEADER, inject_name="X-Api-Key")
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    given = [("Host", "openai.paddock.internal"), ("X_Api_Key", "mine"), ("X-Api_Key", "mine")]
    request, _ = request_of(head_of("POST", "/v1/x", given))
    head = read(onward(site, request, target_of(site, request), injection(keyed, b"sk-0123456789")))
    assert [value for name, value in head.headers if name.replace(b"_", b"-") == b"x-api-key"] == [
        b"sk-0123456789"
    ]


def test_hop_by_hop_headers_are_removed_and_the_secret_is_set() -> None:
    request = sent_on(
        [("Authorization", "Bearer placeholder"), ("Connection", "X-A, close"), ("X-A", "1"),
         ("X-B", "2"),
         ("Keep-Alive", "5"), ("TE", "trailers"), ("Proxy-Authorization", "x"), ("Upgrade", "h2c"),
         ("Range", "bytes=0-1"), ("Accept-Encoding", "br"), ("Expect", "100-continue"),
          ("Content-Length", "2")]
    )  # fmt: skip
    assert request.headers == [
        (b"host", b"api.openai.com"),
        (b"x-b", b"2"),
        (b"content-length", b"2"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer sk-0123456789"),
    ]


def test_a_websocket_upgrade_is_sent_on() -> None:
    request = sent_on([("Connection", "Upgrade"), ("Upgrade", "WebSocket")], method="GET")
    assert dict(request.headers)[b"upgrade"] == b"websocket"
    assert b"upgrade" not in dict(sent_on([("Upgrade", "websocket")], method="GET").headers), (
        "the upstream switches the protocol, and the client did not request it"
    )


@pytest.mark.parametrize(
    "host", ["", "api.openai.com", "openai.paddock.internal.", "OpenAI.Paddock.Internal:80"]
)
def test_the_host_has_to_be_the_one_that_was_handed_over(host: str) -> None:
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    request, _ = request_of(head_of("GET", "/", [("Host", host)]))
    if host.lower().startswith("openai.paddock.internal"):
        assert target_of(site, request).path == "/"
    else:
        with pytest.raises(Denied, match="is for the host"):
            target_of(site, request)


def test_an_answer_loses_its_alternative_services_and_secrets() -> None:
    site = SETTINGS.site(ConnectionKind.ROUTE, "openai.paddock.internal", 80, tls=False)
    put = injection(OPENAI, b"sk-0123456789")
    upstream_answer = Answer(
        302,
        b"see sk-0123456789",
        [
            (b"alt-svc", b'h3=":443"'),
            (b"location", b"https://api.openai.com/v1?k=sk-0123456789"),
            (b"connection", b"close"),
        ],
    )
    answer = backward(site, upstream_answer, put)
    assert answer.headers == [(b"location", b"http://openai.paddock.internal/v1?k=*************")]
    assert answer.reason == b"see *************"
    elsewhere = Answer(302, b"", [(b"location", b"https://api.openai.com.evil/")])
    assert backward(site, elsewhere, put).headers == elsewhere.headers
    with pytest.raises(BadAnswer):
        backward(site, Answer(200, b"", [(b"content-encoding", b"gzip")]), put)


def test_query_parameters_of_that_name_are_replaced() -> None:
    route = Route(
        name="q",
        upstream=Upstream(scheme="https", host="h", port=443),
        credential=OPENAI.credential,
        inject_mode=InjectMode.QUERY,
        inject_name="api.key",
        source=LINE,
    )
    site = Settings(routes=(route,)).site(ConnectionKind.ROUTE, "q.paddock.internal", 80, tls=False)
    for target, expected in (
        ("/", "/?api.key=abc%2Fdefgh"),
        ("/?a=1&api%2ekey=x&api.key", "/?a=1&api.key=abc%2Fdefgh"),
    ):
        request, _ = request_of(head_of("GET", target, [("Host", "q.paddock.internal")]))
        sent = onward(site, request, target_of(site, request), injection(route, b"abc/defgh"))
        assert read(sent).target == expected
