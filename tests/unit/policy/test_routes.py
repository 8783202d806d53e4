"""Routes in a policy: valid ones are read, invalid ones are refused with their line."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy.model import Credential, CredentialKind, InjectMode, Network, Route
from paddock.policy.render import to_toml
from tests.unit.policy.user_dirs import UserDirs


def network(dirs: UserDirs, text: str) -> Network:
    found = dirs.load_text(text).network
    assert found is not None
    return found


def route(dirs: UserDirs, keys: str) -> Route:
    (one,) = network(dirs, f"[network.routes.x]\n{keys}\n").routes
    return one


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("https://API.example.com", ("https", "api.example.com", 443, "")),
        ("http://localhost:11434/", ("http", "localhost", 11434, "")),
        ("https://h.example./a/b/", ("https", "h.example", 443, "/a/b")),
        ("https://[2001:db8::1]:8443", ("https", "2001:db8::1", 8443, "")),
        ("http://127.0.0.1:8080/v1", ("http", "127.0.0.1", 8080, "/v1")),
    ],
)
def test_an_upstream_is_scheme_host_port_and_base(
    dirs: UserDirs, written: str, read: tuple[str, str, int, str]
) -> None:
    upstream = route(dirs, f"upstream = '{written}'").upstream
    assert (upstream.scheme, upstream.host, upstream.port, upstream.base) == read


@pytest.mark.parametrize(
    "written",
    [
        "ftp://x", "https://", "https://u:p@h", "https://h:0", "https://h:65536", "https://h:٣",
        "https://h?x=1", "https://h#f", "https://h/a?b", "https://h/a/../b", "https://h/a;b",
        "https://h/%2e", "https://0x7f.1", "https://2130706433", "https://[::1",
        "https://[fe80::1%25eth0]", "https://a b", "https://a..b", "https://é", "https:/h", "//h",
        "https://h:", "https://[1.2.3.4]",
    ],
)  # fmt: skip
def test_an_invalid_upstream_is_refused(dirs: UserDirs, written: str) -> None:
    with pytest.raises(
        PolicyError, match=r"p\.toml:2: .*(not an http or https address|not a plain path)"
    ):
        route(dirs, f"upstream = '{written}'")


@pytest.mark.parametrize(
    ("written", "kind", "place"),
    [
        ("credential = 'env:OPENAI_API_KEY'", CredentialKind.ENV, "OPENAI_API_KEY"),
        ("credential = 'file:/etc/secret'", CredentialKind.FILE, "/etc/secret"),
        ("credential = 'keyring:svc/ada/x'", CredentialKind.KEYRING, "svc/ada/x"),
        (
            "credential = 'command:op read \"op://a b/c\"'",
            CredentialKind.COMMAND,
            'op read "op://a b/c"',
        ),
        ("credential_key = 'openai'", CredentialKind.KEYRING, "paddock/openai"),
    ],
)
def test_a_credential_says_where_the_secret_lies(
    dirs: UserDirs, written: str, kind: CredentialKind, place: str
) -> None:
    found = route(dirs, f"upstream = 'https://h'\n{written}").credential
    assert isinstance(found, Credential)
    assert (found.kind, found.place) == (kind, place)


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        ("credential = 'sk-live-123456'", 3, "where the secret is, not the secret"),
        ("credential = 'envv:X'", 3, "where the secret is"),
        ("credential = 'env:A B'", 3, "not the name of an environment variable"),
        ("credential = 'env:*'", 3, "full name"),
        ("credential = 'file:secret'", 3, "relative|absolute"),
        ("credential = 'keyring:x'", 3, "not a keyring entry"),
        ("credential = 'command:'", 3, "the command is empty"),
        ("credential = \"command:x 'y\"", 3, "cannot be parsed"),
        ("credential = 'env:A'\ncredential_key = 'b'", 4, "two credentials"),
        ("credential_key = ''", 3, "not the name of a secret"),
        ("inject_mode = 'bearer'", 3, "has no credential"),
        ("credential = 'env:A'\ninject_mode = 'beerer'", 4,
         "is not one of header, bearer, basic, query"),
        ("credential = 'env:A'\ninject_name = 'x'", 4, "must be in the header Authorization"),
        ("credential = 'env:A'\ninject_mode = 'header'\ninject_name = 'a b'", 5,
         "not the name of a header"),
        ("credential = 'env:A'\ninject_mode = 'header'\ninject_name = 'Host'", 5,
         "cannot carry a secret"),
        ("credential = 'env:A'\ninject_mode = 'query'\ninject_name = 'a&b'", 5,
         "not the name of a parameter"),
        ("credential = 'env:A'\ninject_mode = 'basic'\ninject_name = 'a:b'", 5,
         "not the name of a user"),
        ("env = { A = '<placeholder>' }", 3, "<placeholder> needs a credential"),
        ("env = { A = 1 }", 3, "expected a text"),
        ("env = { 'A B' = 'x' }", 3, "not the name of an environment variable"),
        ("inspect = 'yes'", 3, "expected true or false"),
        ("endpoint_rules = [{ method = 'GET', path = '/v*' }]", 3, "must be a whole segment"),
        ("endpoint_rules = [{ method='GET', path = '/a/../b' }]", 3, "segment cannot be compared"),
        ("endpoint_rules = [{ method = 'GET', path = '/a?b' }]", 3, "segment cannot be compared"),
        ("endpoint_rules = [{ method = 'GET', path = '/a%20b' }]", 3, "segment cannot be compared"),
        ("endpoint_rules = [{ method = 'GET', path = '/a//b' }]", 3, "empty segment"),
        ("header = 'x'", 3, "unknown key"),
    ],
)  # fmt: skip
def test_an_error_names_its_line(dirs: UserDirs, keys: str, line: int, message: str) -> None:
    with pytest.raises(PolicyError, match=message) as refused:
        route(dirs, f"upstream = 'https://h'\n{keys}")
    assert f"p.toml:{line}:" in refused.value.message
    assert "sk-live" not in refused.value.message  # a possible secret is not repeated


def test_a_route_is_named_like_a_host(dirs: UserDirs) -> None:
    with pytest.raises(PolicyError, match=r"p\.toml:1: .*not a valid host name"):
        network(dirs, "[network.routes.'a.b']\nupstream = 'https://h'\n")


def test_a_host_is_opened_as_a_whole_or_not(dirs: UserDirs) -> None:
    with pytest.raises(PolicyError, match=r"p\.toml:3: .*opens all of"):
        route(dirs, "upstream = 'https://h/base'\ninspect = true")
    with pytest.raises(PolicyError, match=r"p\.toml:2: .*not the name of one host"):
        network(dirs, "[network]\ninspect = ['*.example.com']\n")
    assert [
        host.value for host in network(dirs, "[network]\ninspect = ['Example.com.']\n").inspect
    ] == ["example.com"]


def test_a_rendered_route_is_the_same_route(dirs: UserDirs) -> None:
    text = (
        "[network]\ninspect = ['b.example', 'a.example']\n[network.routes.x]\n"
        "upstream = 'http://h:81/v1'\n"
        "credential = 'command:say $$x'\ninject_mode = 'header'\ninject_name = 'X-Key'\n"
        "env = { B = '<route>', A = '$$<placeholder>' }\nendpoint_rules = [{ method = '*', "
        "path = '/**' }]\n"
    )
    once = to_toml(dirs.load_text(text))
    assert to_toml(dirs.load_text(once)) == once
    (found,) = network(dirs, text).routes
    assert (found.inject_mode, found.inject_name) == (InjectMode.HEADER, "x-key")
    assert dict(found.env) == {"B": "<route>", "A": "$<placeholder>"}
