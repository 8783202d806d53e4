"""Parses ``[network.routes.NAME]`` to a Route: its upstream, its endpoints, and the source of its
secret.
"""

from __future__ import annotations

import ipaddress
import shlex

from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.policy_keys import ENDPOINT_KEYS, ROUTE_KEYS
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.model import (
    BODILESS_METHODS,
    PLACEHOLDER_TOKEN,
    Credential,
    CredentialKind,
    EndpointRule,
    InjectMode,
    Route,
    Source,
    Sourced,
    Upstream,
)

KEYRING_SERVICE = "paddock"

_LOWER = "abcdefghijklmnopqrstuvwxyz0123456789"
_LABEL = frozenset(f"{_LOWER}-")
_NAME = frozenset(f"{_LOWER}-_.")
_METHOD_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")
# RFC 9110, 5.6.2: the characters of a header name.
_TOKEN = frozenset(f"{_LOWER}ABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'*+-.^_`|~")
# The unencoded characters of a path segment (RFC 3986, 3.3), without ";", which servers treat
# differently.
_SEGMENT = frozenset(f"{_LOWER}ABCDEFGHIJKLMNOPQRSTUVWXYZ-._~!$&'()*+,=:@")


def route(routes: Table, name: str, values: Values) -> Route:
    table = routes.table(name)
    if table is None or not table.values:
        raise routes.wrong(name, "the route is empty")
    if not _is_label(name):
        raise routes.wrong(
            name, f"not a valid host name: {name!r}", hint="use lower case letters, digits and '-'"
        )
    table.allow_only(ROUTE_KEYS)
    upstream = _upstream(routes, table, name)
    mode = table.choice("inject_mode", InjectMode)
    credential = _credential(table, values)
    inspect = table.boolean("inspect")
    if inspect is not None and inspect.value and upstream.base:
        raise wrong(
            inspect.source,
            f"inspect opens all of {upstream.host}, and the route allows only {upstream.base}",
        )
    return Route(
        name=name,
        upstream=upstream,
        credential=credential,
        inject_mode=None if mode is None else mode.value,
        inject_name=_inject_name(table, InjectMode.BEARER if mode is None else mode.value),
        endpoint_rules=_endpoints(table) if "endpoint_rules" in table else None,
        env=_env(table, values, credential),
        inspect=inspect is not None and inspect.value,
        body_methods=_body_methods(table),
        upstream_addresses=_addresses(table, upstream),
        shared_addresses=_shared(table),
        source=routes.source(name),
    )


def inspected(host: Sourced[str]) -> Sourced[str]:
    """One whole name, because a certificate is made for it."""
    name = host.value.lower().removesuffix(".")
    if not _is_name(name) or _is_address(name):
        raise wrong(
            host.source,
            f"not the name of one host: {host.value!r}",
            hint="write each host separately",
        )
    return Sourced(name, host.source)


def _upstream(routes: Table, table: Table, name: str) -> Upstream:
    written = table.string("upstream")
    if written is None:
        raise routes.wrong(name, "the route has no upstream", hint='upstream = "https://…"')
    scheme, _, rest = written.value.partition("://")
    authority, slash, path = rest.partition("/")
    host, port = _split(authority.lower())
    if scheme not in ("http", "https") or host is None or port == 0:
        raise wrong(
            written.source,
            f"not an http or https address: {written.value!r}",
            hint="write https://HOST, optionally with :PORT or a path; no user, no query",
        )
    base = slash + path.rstrip("/")
    segments = base.split("/")[1:] if path else []
    if any(
        not segment or segment in (".", "..") or not _SEGMENT.issuperset(segment)
        for segment in segments
    ):
        raise wrong(written.source, f"not a plain path: {base!r}")
    return Upstream(
        scheme=scheme,
        host=host,
        port=port or (80 if scheme == "http" else 443),
        base=base if segments else "",
    )


def _split(authority: str) -> tuple[str | None, int | None]:
    """Host and port; None if the host is invalid."""
    if authority.startswith("["):
        host, closed, after = authority[1:].partition("]")
        named = bool(closed) and ":" in host and _is_address(host)
    else:
        host, colon, digits = authority.partition(":")
        after = colon + digits
        named = _is_name(host.removesuffix("."))
        host = host.removesuffix(".")
    if not named:
        return None, None
    if not after:
        return host, None
    digits = after.removeprefix(":")
    valid = after.startswith(":") and digits.isascii() and digits.isdecimal() and len(digits) <= 5
    return (host, int(digits)) if valid and int(digits) <= 65535 else (None, None)


def _is_name(host: str) -> bool:
    labels = host.split(".")
    if (
        len(host) > 253
        or not _NAME.issuperset(host)
        or any(not 0 < len(label) <= 63 for label in labels)
    ):
        return False
    # Other spellings of addresses (2130706433, 0x7f.1) are not names.
    return not (labels[-1].isdecimal() or labels[-1].startswith("0x")) or _is_address(host)


def _is_label(name: str) -> bool:
    return 0 < len(name) <= 63 and _LABEL.issuperset(name) and name.strip("-") == name


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _credential(table: Table, values: Values) -> Credential | None:
    written, key = table.string("credential"), table.string("credential_key")
    if written is None and key is None:
        for only in ("inject_mode", "inject_name"):
            if only in table:
                raise table.wrong(
                    only, "the route has no credential", hint='write credential = "env:NAME"'
                )
        return None
    if key is not None:
        if written is not None:
            raise wrong(key.source, "the route has two credentials", hint=f"keep {written.value!r}")
        if not key.value or "/" in key.value:
            raise wrong(key.source, f"not the name of a secret: {key.value!r}")
        return Credential(
            kind=CredentialKind.KEYRING, place=f"{KEYRING_SERVICE}/{key.value}", source=key.source
        )
    assert written is not None
    word, colon, place = written.value.partition(":")
    kinds = [kind.value for kind in CredentialKind]
    if word not in kinds or not colon:
        raise wrong(
            written.source,
            "write where the secret is, not the secret: env:NAME, file:PATH, "
            "keyring:SERVICE/USER or command:…",
            hint=did_you_mean(word, kinds)
            if colon
            else None,  # otherwise it may be a secret, and is not repeated
        )
    kind = CredentialKind(word)
    return Credential(
        kind=kind, place=_place(kind, place, written.source, values), source=written.source
    )


def _place(kind: CredentialKind, place: str, source: Source, values: Values) -> str:
    match kind:
        case CredentialKind.ENV:
            if "*" in place:
                raise wrong(source, f"a credential needs the full name of a variable: {place!r}")
            return values.env_name(place, source).value
        case CredentialKind.FILE:
            return values.path(place, source)
        case CredentialKind.KEYRING:
            service, _, user = place.partition("/")
            if not service or not user:
                raise wrong(
                    source,
                    f"not a keyring entry of the form SERVICE/USER: {place!r}",
                    hint="keyring:SERVICE/USER",
                )
            return place
        case CredentialKind.COMMAND:
            command = values.expander.text(place, source)
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise wrong(source, f"the command cannot be parsed: {error}") from None
            if not words or "\0" in command:
                raise wrong(
                    source,
                    "the command is empty" if not words else "an argument contains a NUL byte",
                )
            return command


def _inject_name(table: Table, mode: InjectMode) -> str | None:
    written = table.string("inject_name")
    if written is None:
        return None
    name, source = written.value, written.source
    match mode:
        case InjectMode.BEARER:
            raise wrong(
                source,
                "a bearer token must be in the header Authorization",
                hint='inject_mode = "header"',
            )
        case InjectMode.HEADER:
            if not name or not _TOKEN.issuperset(name):
                raise wrong(source, f"not the name of a header: {name!r}")
            if name.lower() in (
                "host",
                "connection",
                "content-length",
                "transfer-encoding",
                "upgrade",
                "te",
                "trailer",
            ):
                raise wrong(source, f"the header {name} cannot carry a secret")
            return name.lower()
        case InjectMode.BASIC:
            if not name or not name.isprintable() or ":" in name:
                raise wrong(source, f"not the name of a user: {name!r}")
        case InjectMode.QUERY:
            if not name or not _SEGMENT.difference("&=+").issuperset(name):
                raise wrong(source, f"not the name of a parameter: {name!r}")
    return name


def _env(
    table: Table, values: Values, credential: Credential | None
) -> tuple[tuple[str, str], ...]:
    env = table.table("env")
    pairs: list[tuple[str, str]] = []
    for name in env.values if env is not None else ():
        assert env is not None
        written = env.string(name)
        assert written is not None
        if PLACEHOLDER_TOKEN in written.value and credential is None:
            raise wrong(
                written.source,
                f"{PLACEHOLDER_TOKEN} needs a credential, and the route has none",
            )
        _, value = values.env_setting(name, written.value, written.source)
        pairs.append((name, value.value))
    return tuple(pairs)


def _body_methods(table: Table) -> tuple[str, ...]:
    for method in table.strings("body_methods"):
        if method.value.upper() not in BODILESS_METHODS:
            raise wrong(
                method.source,
                f"not a method whose body Paddock denies: {method.value!r}",
                hint=f"these are: {', '.join(BODILESS_METHODS)}",
            )
    return tuple(sorted({method.value.upper() for method in table.strings("body_methods")}))


def _addresses(table: Table, upstream: Upstream) -> tuple[str, ...]:
    written = table.strings("upstream_addresses")
    if written and _is_address(upstream.host):
        raise wrong(written[0].source, f"the upstream is already an address: {upstream.host}")
    blocks: list[str] = []
    for one in written:
        try:
            block = ipaddress.ip_network(one.value)
        except ValueError:
            raise wrong(
                one.source,
                f"not an address or a block of addresses: {one.value!r}",
                hint="10.1.2.3 or 10.1.0.0/16",
            ) from None
        blocks.append(
            str(block.network_address) if block.prefixlen == block.max_prefixlen else str(block)
        )
    return tuple(dict.fromkeys(blocks))


def _shared(table: Table) -> bool:
    shared = table.boolean("shared_addresses")
    if shared is not None and shared.value and "endpoint_rules" not in table:
        raise wrong(
            shared.source, "the route has no endpoint_rules, so its addresses are not reserved"
        )
    return shared is not None and shared.value


def _endpoints(table: Table) -> tuple[EndpointRule, ...]:
    rules: list[EndpointRule] = []
    for index, rule in enumerate(table.tables("endpoint_rules")):
        rule.allow_only(ENDPOINT_KEYS)
        method, path = rule.string("method"), rule.string("path")
        source = table.source("endpoint_rules", index)
        if method is None or path is None:
            raise wrong(source, "an endpoint rule needs a method and a path")
        rules.append(endpoint(method, path, source))
    return tuple(rules)


def endpoint(method: Sourced[str], path: Sourced[str], source: Source) -> EndpointRule:
    if method.value != "*" and (
        not method.value or not _METHOD_LETTERS.issuperset(method.value.upper())
    ):
        raise wrong(method.source, f"not an HTTP method: {method.value!r}")
    _check_path(path)
    return EndpointRule(method=method.value.upper(), path=path.value, source=source)


def _check_path(path: Sourced[str]) -> None:
    if not path.value.startswith("/"):
        raise wrong(path.source, f"an endpoint path must start with '/': {path.value!r}")
    for segment in path.value[1:].split("/"):
        if "*" in segment and segment not in ("*", "**"):
            raise wrong(
                path.source,
                f"'*' must be a whole segment, and '**' any number of segments: {segment!r}",
            )
        if segment in (".", "..") or not _SEGMENT.issuperset(segment):
            raise wrong(
                path.source,
                f"the segment cannot be compared: {segment!r}",
                hint="write no query, no encoding and no ';'; '*' matches any segment",
            )
    if "//" in path.value:
        raise wrong(
            path.source, f"the path has an empty segment, which no request has: {path.value!r}"
        )
