"""Compiles [network] to the hosts that may be reached. Only the core judges them
(core/src/network/rules/host_table.rs).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.plan.gate import ASK_TIMEOUT_S
from paddock.plan.http_routes import http_of
from paddock.plan.plan import HostRule, Level, NetworkPlan, NetworkReach, Notice
from paddock.policy import model
from paddock.policy.hosts import groups, read_host
from paddock.policy.model import (
    COMMAND_LINE,
    Action,
    Destination,
    NetworkMode,
    Policy,
    Published,
    Source,
    Sourced,
    Switch,
    Tier,
)

if TYPE_CHECKING:
    from paddock.host.registries import Registry

# Not passed, because a filtered network has its own proxy. Each also in upper case.
PROXY_VARIABLES = (
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "socks_proxy",
    "rsync_proxy",
    "all_proxy",
    "no_proxy",
)


def network_of(
    policy: Policy, host: Host, tier: Tier, registries: Mapping[str, Registry]
) -> NetworkPlan | None:
    """None: the network is not restricted. ``registries``: the discovered members of groups that
    are not in a table.
    """
    settings = policy.network
    mode = settings.mode.value if settings and settings.mode else NetworkMode.FILTERED
    if settings is None or mode is NetworkMode.HOST:
        if settings:
            _refuse_unfenced(settings)
        _refuse_shared(policy.published)
        return None
    if tier is Tier.LANDLOCK:
        _refuse_without_supervised_connect(policy, settings, mode, host)
    published = _published(policy.published)
    timeout = policy.meta.ask_timeout_s.value if policy.meta.ask_timeout_s else ASK_TIMEOUT_S
    if mode is NetworkMode.NONE:
        _refuse_contradiction(settings)
        return NetworkPlan(
            mode=NetworkReach.NONE,
            default=Action.DENY,
            default_source=None,
            ask_timeout_s=timeout,
            denied=(),
            allowed=(),
            approved=(),
            local_ports=(),
            published=published,
        )
    default = default_of(settings)
    if default is Action.ASK:
        _refuse_unheld_terminal(policy, settings, host)
    if tier is Tier.FULL:
        _refuse_relay_ports(settings)
    return NetworkPlan(
        mode=NetworkReach.FILTERED,
        default=default,
        default_source=str(settings.default.source) if settings.default else None,
        ask_timeout_s=timeout,
        denied=_rules(settings.denied_hosts, registries),
        allowed=_rules(settings.allowed_hosts or (), registries),
        approved=_rules(policy.approved_hosts if default is Action.ASK else (), registries),
        local_ports=tuple(sorted({port.value for port in settings.allowed_local_ports})),
        published=published,
        http=http_of(policy, tier),
    )


def _refuse_relay_ports(settings: model.Network) -> None:
    """These ports are used by core/src/network/namespace.rs."""
    for port in settings.allowed_local_ports:
        if port.value == 1:
            raise PolicyError(
                "the command cannot reach port 1 of this machine: the relay listens on port 1 in "
                "the sandbox",
                where=str(port.source),
                hint="let the service listen on another port, or run with --tier landlock",
            )


def default_of(settings: model.Network) -> Action:
    """With a list of hosts all others are denied; without one all are allowed except the denied
    ones. With routes alone no other host is allowed.
    """
    if settings.default:
        return settings.default.value
    return Action.ALLOW if settings.allowed_hosts is None and not settings.routes else Action.DENY


def summary(network: NetworkPlan | None, tier: Tier) -> str:
    """For the start line."""
    by_proxy = (
        tier is Tier.LANDLOCK and network is not None and network.mode is NetworkReach.FILTERED
    )
    return _summary(network) + (", through the proxy only" if by_proxy else "")


def _summary(network: NetworkPlan | None) -> str:
    if network is None:
        return "network open"
    shown = f", {_count(len(network.published), 'port')} published" if network.published else ""
    if network.mode is NetworkReach.NONE:
        return f"no network{shown}"
    ports = f", {_count(len(network.local_ports), 'local port')}" if network.local_ports else ""
    if network.http and network.http.routes:
        ports += f", {_count(len(network.http.routes), 'route')}"
    ports += shown
    allowed = {rule.host for rule in network.allowed}
    if network.default is Action.ALLOW:
        denied = len({rule.host for rule in network.denied})
        return f"network: {'all but ' + _count(denied, 'host') if denied else 'every host'}{ports}"
    asks = ", else ask" if network.default is Action.ASK else ""
    return f"network: {_count(len(allowed), 'host') if allowed else 'no hosts'}{ports}{asks}"


def _refuse_without_supervised_connect(
    policy: Policy, settings: model.Network, mode: NetworkMode, host: Host
) -> None:
    """Without a namespace: the filter denies sockets, the supervisor connects allowed ones."""
    for switch in (Switch.LANDLOCK, Switch.SECCOMP):
        if switch in policy.off:
            raise PolicyError(
                "without namespaces, Landlock and seccomp restrict the network, and --off "
                f"{switch.value} is given",
                where=_source(settings),
                hint='to leave the network open, write network.mode = "host"',
            )
    if (
        not host.seccomp
        # require_enforced = false does not change this: there would be no restriction at all
    ):
        raise HostError(
            f"{_source(settings)}: this machine cannot restrict the network: it has no namespaces "
            "and no seccomp filters"
        )
    full = (
        "run with --tier full"
        if host.namespaces.usable
        else "this needs the full tier: type `paddock doctor` to see why it is not available"
    )
    if policy.published:
        raise PolicyError("the landlock tier cannot publish ports", where="--publish", hint=full)
    if mode is NetworkMode.NONE:
        return
    if not host.user_notification:
        raise HostError(
            f"{_source(settings)}: this machine cannot filter hosts: it has no namespaces "
            f"({host.namespaces.refusal}) and no seccomp user notification",
            hint='run with --block-net, or leave the network open: network.mode = "host"',
        )
    if settings.kernel_pin and not settings.kernel_pin.value:
        raise PolicyError(
            "without kernel_pin, a program that ignores the proxy would reach every host",
            where=str(settings.kernel_pin.source),
            hint='remove kernel_pin = false, or write mode = "host"',
        )
    if settings.default and settings.default.value is Action.ASK:
        raise PolicyError(
            "the landlock tier cannot ask about hosts",
            where=str(settings.default.source),
            hint=full,
        )


def network_notices(
    policy: Policy, network: NetworkPlan | None, registries: Mapping[str, Registry]
) -> Iterator[Notice]:
    """Notices about hosts that were written or found and do not count."""
    for variable in (*policy.env.pass_, *policy.env.keep) if network else ():
        if variable.value.lower() in PROXY_VARIABLES:
            text = (
                f"{variable.source}: {variable.value} is not passed: its proxy cannot be reached "
                "from the sandbox"
            )
            yield Notice(level=Level.INFO, text=text)
    for group, registry in registries.items():
        for one in registry.untrusted:
            yield Notice(
                level=Level.INFO,
                text=f"@{group}: {one.value} ({one.source}) is not allowed: a command could have "
                "written this file; read it, then type `paddock trust "
                f"{shlex.quote(one.source.file)}`",
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _rules(
    hosts: Iterable[Sourced[Destination]], registries: Mapping[str, Registry]
) -> tuple[HostRule, ...]:
    """Each rule once, with the first line that contains it."""
    found: dict[Destination, Source] = {}
    for host in hosts:
        for one in _members(host, registries) if host.value.host.startswith("@") else (host,):
            found.setdefault(one.value, one.source)
    return tuple(
        HostRule(host=one.host, port=one.port, source=str(source)) for one, source in found.items()
    )


def _members(
    group: Sourced[Destination], registries: Mapping[str, Registry]
) -> Iterable[Sourced[Destination]]:
    name = group.value.host.removeprefix("@")
    if name in groups():
        return [read_host(member, group.source) for member in groups()[name]]
    registry = registries.get(name)
    if registry is None or not registry.hosts:
        doubted = registry.untrusted if registry else ()
        raise PolicyError(
            f"@{name}: no file on this machine lists these hosts"
            + (
                f", except {doubted[0].source}, which a command could have written"
                if doubted
                else ""
            ),
            where=str(group.source),
            hint=f"read it, then type `paddock trust {shlex.quote(doubted[0].source.file)}`"
            if doubted
            else registry.remedy
            if registry
            else "name the hosts one by one",
        )
    return registry.hosts


def _refuse_unheld_terminal(policy: Policy, settings: model.Network, host: Host) -> None:
    """While a person is asked on the command's terminal, no process of the command may change the
    terminal (core/src/approve/open_questions.rs).
    """
    where = str(settings.default.source) if settings.default else "[network]"
    if Switch.SECCOMP in policy.off:
        raise PolicyError(
            f"asking about hosts ({where}) needs seccomp, and --off seccomp is given",
            where="--off seccomp",
            hint='remove --off seccomp, or write default = "deny"',
        )
    if not host.user_notification:
        raise HostError(
            f"{where}: asking about hosts needs seccomp user notification, and this machine does "
            "not have it",
            hint='write default = "deny"',
        )


def _published(settings: tuple[Published, ...]) -> tuple[Published, ...]:
    hosts = [one.host for one in settings]
    for port in hosts:
        if hosts.count(port) > 1:
            raise PolicyError(
                f"port {port} of this machine is published twice",
                where="--publish",
                hint="choose another host port for the second: --publish HOST:INSIDE",
            )
    return tuple(sorted(settings, key=lambda one: one.host))


def _refuse_shared(settings: tuple[Published, ...]) -> None:
    if settings:
        raise PolicyError(
            "the command uses this machine's network, so its ports need no --publish",
            where="--publish",
            hint="remove --publish, or restrict the network: [network], --allow-domain, "
            "--block-net",
        )


def _refuse_unfenced(settings: model.Network) -> None:
    sources = [
        *(host.source for host in _hosts(settings)),
        *(port.source for port in settings.allowed_local_ports),
        *_http_sources(settings),
    ]
    if sources:
        raise PolicyError(
            'network.mode = "host" does not filter hosts',
            where=str(sources[0]),
            hint='write mode = "filtered", or remove the host rules',
        )


def _refuse_contradiction(settings: model.Network) -> None:
    """A mode on the command line overrides the hosts of a file, but contradicts hosts that were
    given as flags.
    """
    for host in _hosts(settings):
        if host.source.file == COMMAND_LINE:
            raise PolicyError(
                f'the command cannot reach {host.value}: the policy has mode = "none"',
                where=str(host.source),
                hint='write mode = "filtered" in the policy',
            )
    for endpoint in settings.endpoints:
        raise PolicyError(
            f'the command cannot reach the route {endpoint.route}: the policy has mode = "none"',
            where=str(endpoint.rule.source),
            hint='write mode = "filtered" in the policy',
        )


def _http_sources(settings: model.Network) -> Iterator[Source]:
    yield from (route.source for route in settings.routes)
    yield from (host.source for host in settings.inspect)


def _hosts(settings: model.Network) -> Iterator[Sourced[Destination]]:
    yield from settings.allowed_hosts or ()
    yield from settings.denied_hosts


def _source(settings: model.Network) -> str:
    sources = [
        *(one.source for one in (settings.mode, settings.default) if one),
        *(host.source for host in _hosts(settings)),
        *(port.source for port in settings.allowed_local_ports),
        *_http_sources(settings),
    ]
    return str(sources[0]) if sources else "[network]"
