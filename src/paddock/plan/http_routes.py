"""Compiles [network.routes] and inspected hosts to the plan of the HTTP helper (http/), and to the
variables of the command. It contains no secret, only the sources of secrets, which are hidden from
the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.plan.plan import Endpoint, Http, Inspected, RoutePlan, SecretPlace
from paddock.policy import model
from paddock.policy.model import ROUTE_TOKEN, CredentialKind, Deny, Policy, Switch, Tier

DOMAIN = "paddock.internal"
BUNDLE = "/dev/paddock-ca.pem"  # made by the core (core/src/sandbox/root/private_dirs.rs)
# Variables by which programs find the certificates to trust.
BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Go, Rust
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_http(settings: model.Network | None) -> bool:
    return settings is not None and bool(settings.routes or settings.inspect)


def http_of(policy: Policy, tier: Tier) -> Http | None:
    settings = policy.network
    if settings is None:
        return None
    named = {route.name for route in settings.routes}
    for endpoint in settings.endpoints:
        if endpoint.route not in named:
            raise PolicyError(
                f"no route has the name {endpoint.route!r}",
                where=str(endpoint.rule.source),
                hint=f"add [network.routes.{endpoint.route}] with its upstream to a policy",
            )
    if not is_http(settings):
        return None
    _refuse(policy, settings, tier)
    return Http(
        routes=tuple(_route(route) for route in settings.whole_routes()),
        inspect=tuple(
            Inspected(host=host.value, source=str(host.source)) for host in settings.inspect
        ),
    )


def _refuse(policy: Policy, settings: model.Network, tier: Tier) -> None:
    where = str(settings.routes[0].source if settings.routes else settings.inspect[0].source)
    if tier is not Tier.FULL:
        raise PolicyError("routes and inspected hosts need the full tier", where=where)
    if Switch.ENV_SANITIZE in policy.off:
        raise PolicyError(
            "with --off env-sanitize the command would see the secrets of routes in your "
            "environment",
            where=where,
            hint="without --off env-sanitize",
        )
    ports = {port.value: port for port in settings.allowed_local_ports}
    for route in settings.routes:
        port = ports.get(route.upstream.port)
        if (
            port is not None
            and route.endpoint_rules is not None
            and route.upstream.host in _LOOPBACK
        ):
            raise PolicyError(
                f"allowed_local_ports ({port.value}) avoids the endpoint rules of the route "
                f"{route.name}",
                where=str(port.source),
                hint="remove the port, or remove the endpoint rules",
            )


def _route(route: model.Route) -> RoutePlan:
    credential, rules = route.credential, route.endpoint_rules
    return RoutePlan(
        name=route.name,
        upstream=route.upstream,
        credential=None
        if credential is None
        else SecretPlace(
            kind=credential.kind, place=credential.place, source=str(credential.source)
        ),
        inject_mode=route.inject_mode,
        inject_name=route.inject_name,
        endpoints=None
        if rules is None
        else tuple(
            Endpoint(method=rule.method, path=rule.path, source=str(rule.source)) for rule in rules
        ),
        inspect=route.inspect,
        body_methods=route.body_methods,
        upstream_addresses=route.upstream_addresses,
        shared_addresses=route.shared_addresses,
        source=str(route.source),
    )


def inspects(http: Http | None) -> bool:
    return http is not None and bool(http.inspect or any(route.inspect for route in http.routes))


def variables(settings: model.Network | None, http: Http | None) -> dict[str, str]:
    """The variables of the command. The core replaces ``<placeholder>`` in each run."""
    values: dict[str, str] = dict.fromkeys(BUNDLE_VARIABLES, BUNDLE) if inspects(http) else {}
    for route in settings.routes if settings is not None and http is not None else ():
        for name, value in route.env:
            values[name] = value.replace(ROUTE_TOKEN, f"http://{route.name}.{DOMAIN}")
    return values


def secret_variables(http: Http | None) -> set[str]:
    """Variables that contain secrets and are not passed."""
    return {place.place for place in _places(http) if place.kind is CredentialKind.ENV}


def _places(http: Http | None) -> Iterator[SecretPlace]:
    return (
        route.credential for route in (http.routes if http else ()) if route.credential is not None
    )


def without_secrets(policy: Policy) -> Policy:
    """Files with secrets of routes are denied, despite any grant."""
    routes = policy.network.routes if policy.network else ()
    denies = [
        Deny(pattern=route.credential.place, source=route.credential.source)
        for route in routes
        if route.credential is not None and route.credential.kind is CredentialKind.FILE
    ]
    if not denies:
        return policy
    filesystem = policy.filesystem
    return replace(policy, filesystem=replace(filesystem, denies=(*filesystem.denies, *denies)))
