"""Valid but weak settings. `paddock check` prints them, and `check --strict` refuses them."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.policy.glob import component_matches
from paddock.policy.model import Access, Action, Network, Policy
from paddock.policy.protected import protected_because
from paddock.policy.rule_advice import weak_rules


def weak_points(policy: Policy) -> Iterator[str]:
    yield from weak_rules(policy)
    yield from _open_ends(policy)
    for grant in policy.filesystem.grants:
        if grant.access is Access.WRITE:
            yield (
                f"{grant.source}: {grant.pattern} is writable but not readable; tools that read "
                "their output fail"
            )
        if grant.pattern in ("/", "/**") and grant.access in (Access.WRITE, Access.ALLOW):
            yield (
                f"{grant.source}: the command can write every file on this machine that you can "
                "write"
            )
        if grant.optional and grant.workspace:
            yield f"{grant.source}: the workspace is marked as optional"
    for opened in policy.filesystem.open_protected:
        why = protected_because(opened.value)
        yield f"{opened.source}: the command can write {opened.value}, " + (
            f"and {why}" if why else "but the pattern itself is not a protected name"
        )
    if policy.syscalls.namespaces and policy.syscalls.namespaces.value:
        yield (
            f"{policy.syscalls.namespaces.source}: user namespaces in the sandbox reach more "
            "kernel code"
        )
    if policy.syscalls.trace and policy.syscalls.trace.value:
        yield (
            f"{policy.syscalls.trace.source}: programs may trace each other: a program can change "
            "an allowed program, so exec rules do not hold"
        )
    for name in policy.env.pass_:
        held = next(
            (deny for deny in policy.env.deny if component_matches(deny.value, name.value)), None
        )
        if held is not None:
            yield (
                f"{name.source}: {name.value} is not passed: {held.value} ({held.source}) denies "
                f"it; to pass it, add --env-pass {name.value}"
            )
    if policy.network is not None:
        yield from _open_network(policy.network)
    for route in policy.network.routes if policy.network is not None else ():
        if route.endpoint_rules is None:
            yield (
                f"{route.source}: route {route.name!r} has no endpoint_rules: every method and "
                "path is open"
            )


def _open_network(network: Network) -> Iterator[str]:
    """A list of denied hosts alone looks like a closed network."""
    is_closed = network.default or network.allowed_hosts is not None or network.routes
    if network.denied_hosts and not network.mode and not is_closed:
        yield (
            f"{network.denied_hosts[0].source}: denied_hosts alone leaves every other host open; "
            "to open only some hosts, list them in allowed_hosts"
        )


def _open_ends(policy: Policy) -> Iterator[str]:
    """Of command rules for tools: later options may write files or run programs."""
    for rule in policy.tools.command_rules:
        for expression in (rule.argv_regex, rule.command_regex):
            if rule.action is not Action.ALLOW or expression is None:
                continue
            if not expression.startswith("^"):
                yield (
                    f"{rule.source}: {expression!r} matches anywhere in the arguments; begin it "
                    "with ^"
                )
            if not expression.endswith("$") or expression.endswith("\\$"):
                yield (
                    f"{rule.source}: {expression!r} also allows any further arguments (such as "
                    "--output=FILE); end it with $"
                )
