"""The destination of a connection, and the requests that are allowed there. Pure: no secret, no
socket.

There are two kinds of sites. ``http://NAME.paddock.internal/…`` is the name of a route inside. An
inspected host is reached by its real name: ``[network] inspect`` names hosts, and a route with
``inspect = true`` inspects its upstream.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import Enum

from paddock.errors import PolicyError
from paddock.http.endpoints import allowed_by
from paddock.plan.http_routes import DOMAIN
from paddock.plan.plan import Http
from paddock.policy.model import Credential, EndpointRule, Route, Source, Sourced, Upstream
from paddock.policy.routes import endpoint


class ConnectionKind(Enum):
    """How the relay hands a connection over."""

    ROUTE = "route"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """``host``: the name that every request must have. ``port``: the optional port after it."""

    host: str
    port: int
    upstream: Upstream
    route: str | None
    rules: tuple[EndpointRule, ...] | None
    source: str
    closed: str | None = None  # the reason why no request is allowed here
    body_methods: tuple[str, ...] = ()  # of BODILESS_METHODS: those that may have a body here

    def here(self, path: str) -> str:
        """The address of a path as it is written inside."""
        scheme = "http" if self.host.endswith(f".{DOMAIN}") else self.upstream.scheme
        return f"{scheme}://{self.host}{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDecision:
    allowed: bool
    rule: str | None = None  # file:line of the deciding rule
    reason: str | None = None
    hint: str | None = None


class NoSite(Exception):  # noqa: N818 (it is an answer, not a failure)
    """There is no site of that name and kind; ``str()`` is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    routes: tuple[Route, ...] = ()
    inspect: tuple[Sourced[str], ...] = ()

    @classmethod
    def of(cls, http: Http) -> Settings:
        """From a plan, in which a source is a text."""
        routes = (
            Route(
                name=route.name,
                upstream=route.upstream,
                credential=None
                if route.credential is None
                else Credential(
                    kind=route.credential.kind,
                    place=route.credential.place,
                    source=Source(file=route.credential.source),
                ),
                inject_mode=route.inject_mode,
                inject_name=route.inject_name,
                endpoint_rules=None
                if route.endpoints is None
                else tuple(
                    EndpointRule(
                        method=rule.method, path=rule.path, source=Source(file=rule.source)
                    )
                    for rule in route.endpoints
                ),
                inspect=route.inspect,
                body_methods=route.body_methods,
                upstream_addresses=route.upstream_addresses,
                shared_addresses=route.shared_addresses,
                source=Source(file=route.source),
            )
            for route in http.routes
        )
        inspected = (Sourced(one.host, Source(file=one.source)) for one in http.inspect)
        return cls(routes=tuple(routes), inspect=tuple(inspected))

    def site(self, kind: ConnectionKind, host: str, port: int, *, tls: bool) -> Site:
        """``tls``: the client uses TLS on this connection."""
        if kind is ConnectionKind.ROUTE:
            route = next((route for route in self.routes if f"{route.name}.{DOMAIN}" == host), None)
            if route is None:
                raise NoSite(f"no route has the name {host}")
            if tls:
                raise NoSite(f"{host} needs http://; the connection does not leave this machine")
            return _site(route, host, port)
        route = next(
            (route for route in self.routes if route.inspect and route.upstream.host == host), None
        )
        if route is not None:
            # The route names one service of that host; its secret is only for that service.
            if (route.upstream.scheme, route.upstream.port) != ("https" if tls else "http", port):
                raise NoSite(
                    f"the route {route.name} ({route.source}) allows only {route.upstream} on "
                    "this host"
                )
            return _site(route, host, port)
        named = next((name for name in self.inspect if name.value == host), None)
        if named is None:
            raise NoSite(f"the policy does not inspect {host}")
        upstream = Upstream(scheme="https" if tls else "http", host=host, port=port)
        return Site(
            host=host,
            port=port,
            upstream=upstream,
            route=None,
            rules=None,
            source=str(named.source),
        )

    def inspected_hosts(self) -> tuple[str, ...]:
        """The hosts that the relay hands over, on every port and for every protocol."""
        routed = (route.upstream.host for route in self.routes if route.inspect)
        return tuple(dict.fromkeys([*routed, *(name.value for name in self.inspect)]))


def _site(route: Route, host: str, port: int) -> Site:
    return Site(
        host=host,
        port=port,
        upstream=route.upstream,
        route=route.name,
        rules=route.endpoint_rules,
        source=str(route.source),
        body_methods=route.body_methods,
    )


def judge(site: Site, method: str, path: str) -> RequestDecision:
    """``path`` is normalised (endpoints.py)."""
    if site.closed is not None:
        return RequestDecision(allowed=False, reason=site.closed)
    if site.rules is None:
        return RequestDecision(allowed=True, rule=site.source)
    rule = allowed_by(site.rules, method, path)
    if rule is not None:
        return RequestDecision(allowed=True, rule=str(rule.source))
    return RequestDecision(
        allowed=False,
        rule=site.source,
        reason=f"no endpoint rule of the route {site.route} allows {method} {path}",
        hint=_flag(site.route, method, path),
    )


def _flag(route: str | None, method: str, path: str) -> str | None:
    """The flag that allows this request only. The command chose method and path, and a person
    pastes the flag into a shell. None: the path has a '*', which would be a pattern, or characters
    that can not be written.
    """
    here = Source(file="--allow-endpoint")
    try:
        endpoint(Sourced(method, here), Sourced(path, here), here)
    except PolicyError:
        return None
    return (
        None
        if "*" in method + path
        else f"--allow-endpoint {shlex.quote(f'{route}:{method}:{path}')}"
    )
