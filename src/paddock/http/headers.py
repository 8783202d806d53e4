"""Changes to messages in transit. No sockets; message.py has the grammar.

A message is never passed on unchanged: it is read, judged and written anew. So the next server sees
the same message boundaries (RFC 9112, 11.2), and a hop-by-hop header ends here.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_plus

from paddock.http.credentials import Injection
from paddock.http.endpoints import AmbiguousPath, Target, normalise
from paddock.http.message import (
    CHUNKED,
    Answer,
    Headers,
    Malformed,
    RequestHead,
    UnwritableMessage,
    request_bytes,
    request_extent,
    tokens_of,
)
from paddock.http.route_table import Site
from paddock.policy.model import BODILESS_METHODS

# RFC 9110, 7.6.1, and equivalents of older proxies.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate",
    b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
)  # fmt: skip
# If the request has a secret, its answer must be searchable: not compressed, and not a range that
# the client chooses.
_HIDING = frozenset(
    {b"accept-charset", b"accept-encoding", b"range", b"if-range", b"sec-websocket-extensions"}
)
_HOP_ONWARD = _HOP | {b"host", b"expect"}  # written anew
_HOP_BACKWARD = _HOP | {b"alt-svc"}  # would lead a client to connections without a check
_WEBSOCKET = frozenset({b"websocket"})
# Some servers take another method or path from these than from the request line.
_OVERRIDING = frozenset(
    {b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url",
    b"x-rewrite-url",
     b"x-original-method", b"x-original-uri"}
)  # fmt: skip


class Denied(Exception):  # noqa: N818 (it is an answer, not a failure)
    """The request is not passed on. ``str()`` is the reason."""

    def __init__(
        self, reason: str, *, status: int = 403, hint: str | None = None, rule: str | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.hint = hint
        self.rule = rule


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """``headers`` have names in lower case, without Host, which is ``authority``."""

    method: str
    target: str
    authority: str
    headers: Headers
    websocket: bool = False
    endless: bool = False  # it has a body of unknown length


def request_of(head: RequestHead) -> tuple[HttpRequest, int]:
    """The request of an HTTP/1 client, and the extent of its body."""
    extent = request_extent(head)
    target = head.target
    hosts = [value for name, value in head.headers if name == b"host"]
    if len(hosts) > 1 or (head.modern and not hosts):
        raise Malformed("the request must have exactly one Host header")
    authority = hosts[0].decode("latin-1") if hosts else ""
    if not target.startswith("/") and "://" in target:
        rest = target.partition("://")[2]
        where = min((at for at in map(rest.find, "/?") if at >= 0), default=len(rest))
        if rest[:where].lower() != authority.lower():
            raise Denied(
                f"the request is for {rest[:where]!r}, and its Host is {authority!r}", status=400
            )
        target = rest[where:] if rest[where:].startswith("/") else f"/{rest[where:]}"
    upgrades = (
        head.method == "GET"
        and extent == 0
        and b"upgrade" in tokens_of(head.headers, b"connection")
    )
    request = HttpRequest(
        method=head.method,
        target=target,
        authority=authority,
        headers=head.headers,
        websocket=upgrades and tokens_of(head.headers, b"upgrade") == _WEBSOCKET,
        endless=extent == CHUNKED,
    )
    return request, extent


def target_of(site: Site, request: HttpRequest) -> Target:
    """The target at the site, normalised if rules depend on the path."""
    host, colon, port = request.authority.lower().partition(":")
    if host.removesuffix(".") != site.host or (colon and port != str(site.port)):
        raise Denied(
            f"the request is for the host {request.authority!r}, and the connection is to "
            f"{site.host}"
        )
    if request.method == "CONNECT":
        raise Denied("this proxy does not support CONNECT", status=405)
    if site.rules is None and not site.upstream.base:
        path, question, query = request.target.partition("?")
        if not path.startswith("/") and request.target != "*":
            raise Denied("not a path", status=400)
        return Target(path, query if question else None)
    for name, _ in request.headers if site.rules is not None else ():
        if name.replace(b"_", b"-") in _OVERRIDING:
            raise Denied(
                f"the header {name.decode('latin-1')} makes the server read another request than "
                "the one that Paddock checks",
                hint="remove it",
                rule=site.source,
            )
    try:
        return normalise(request.target)
    except AmbiguousPath as why:
        raise Denied(
            f"servers read this path in different ways: it has {why}",
            hint="write the path without it",
            rule=site.source,
        ) from None


def announces_body(request: HttpRequest) -> bool:
    return request.endless or any(
        name == b"content-length" and value.strip(b"0") for name, value in request.headers
    )


def is_bodiless(request: HttpRequest) -> bool:
    """Servers expect no body with this method. A server that does not read it would parse it as the
    next request.
    """
    return request.method.upper() in BODILESS_METHODS


def unexpected_body(site: Site, request: HttpRequest) -> Denied:
    method = request.method.upper()
    key = f'body_methods = ["{method}"]'
    return Denied(
        f"a {method} request may not have a body: a server that ignores the body reads it as the "
        "next request",
        hint=f"if the upstream reads such bodies, write {key} in [network.routes.{site.route}]"
        if site.route is not None
        else f"if the host reads such bodies, write a route to {site.host} with inspect = true "
        f"and {key}",
        rule=site.source,
    )


def onward(
    site: Site,
    request: HttpRequest,
    target: Target,
    injection: Injection | None,
    *,
    last: bool = False,
) -> tuple[bytes, int]:
    """The head of the request for the upstream, and the extent of its body. ``last``: the upstream
    closes the connection after its answer.
    """
    dropped = _HOP_ONWARD | _of_this_connection(request.headers)
    if injection is not None:
        dropped = dropped | _HIDING | {injection.header or b""}
        target = _with_parameter(target, injection)
    headers: Headers = [(b"host", site.upstream.authority.encode("ascii"))]
    # CGI and WSGI treat `_` as `-`.
    dropped = frozenset(name.lower().replace(b"_", b"-") for name in dropped)
    for name, value in request.headers:
        plain = name.replace(b"_", b"-")
        if plain not in dropped and (plain == name or plain != b"content-length"):
            headers.append((name, value))
    if injection is not None:
        headers.append((b"accept-encoding", b"identity"))
        if injection.header is not None:
            headers.append((injection.header, injection.value))
    if request.endless:
        headers.append((b"transfer-encoding", b"chunked"))
    if request.websocket:
        headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    elif last:
        headers.append((b"connection", b"close"))
    try:
        return request_bytes(request.method, f"{site.upstream.base}{target}", headers)
    except UnwritableMessage:  # HTTP/2 permits more characters
        raise Denied(
            "the request contains bytes that HTTP/1.1 does not allow", status=400
        ) from None


def _with_parameter(target: Target, injection: Injection) -> Target:
    if injection.parameter is None:
        return target
    given = [pair for pair in (target.query or "").split("&") if pair]
    other_pairs = [
        pair for pair in given if unquote_plus(pair.partition("=")[0]) != injection.parameter
    ]
    return Target(
        target.path,
        "&".join([*other_pairs, f"{injection.parameter}={injection.value.decode('ascii')}"]),
    )


def backward(site: Site, answer: Answer, injection: Injection | None) -> Answer:
    """The head of an answer for the client."""
    dropped = _HOP_BACKWARD | _of_this_connection(answer.headers)
    if any(name == b"transfer-encoding" for name, _ in answer.headers):
        dropped = dropped | {b"content-length"}  # RFC 9112, 6.3: it is ignored
    headers: Headers = [(name, value) for name, value in answer.headers if name not in dropped]
    reason = answer.reason
    if injection is not None:
        scrub = injection.scrubber().whole
        # Checked on all headers, because `Connection: content-encoding` removes that one.
        if any(
            (name == b"content-encoding" and value.lower() != b"identity")
            or name == b"sec-websocket-extensions"
            for name, value in answer.headers
        ):
            raise BadAnswer(
                f"{site.upstream} compresses its answer, so Paddock cannot search it for secrets"
            )
        all_of_it = b"\0".join([reason, *(part for field in headers for part in field)])
        if scrub(all_of_it) != all_of_it:  # nearly never
            headers, reason = (
                [(scrub(name), scrub(value)) for name, value in headers],
                scrub(reason),
            )
    if site.route is not None:
        headers = [
            (name, _at_home(site, value) if name == b"location" else value)
            for name, value in headers
        ]
    if answer.status == 101:
        headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return Answer(answer.status, reason, headers)


class BadAnswer(Exception):  # noqa: N818 (an error of the upstream)
    """The answer of an upstream can not be passed on."""


def _at_home(site: Site, location: bytes) -> bytes:
    """A redirect within the upstream stays on the route."""
    upstream = str(site.upstream).encode("ascii")
    rest = location[len(upstream) :]
    if location.startswith(upstream) and rest[:1] in (b"/", b"?", b""):
        return site.here("").encode("ascii") + rest
    return location


def _of_this_connection(headers: Headers) -> frozenset[bytes]:
    """The headers that a Connection header names. The length is never removed, because that would
    move the end of the message.
    """
    return tokens_of(headers, b"connection") - {b"content-length"}


def own_answer(
    status: int, message: str, *, rule: str | None = None, hint: str | None = None
) -> tuple[Answer, bytes]:
    """An answer of Paddock: a head and its whole body."""
    lines = [f"paddock: {'denied' if status == 403 else 'failed'}: {message}"]
    if rule:
        lines.append(f"rule: {rule}")
    if hint:
        lines.append(f"to allow it: {hint}" if status == 403 else f"hint: {hint}")
    body = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    return Answer(
        status, b"", [*headers, (b"x-paddock", b"denied" if status == 403 else b"failed")]
    ), body
