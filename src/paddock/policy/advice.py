"""Valid but weak settings. `paddock check` prints them, and `check --strict` refuses them."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.policy.glob import component_matches
from paddock.policy.model import Access, Action, Policy
from paddock.policy.protected import protected_because
from paddock.policy.rule_advice import weak_rules


def weak_points(policy: Policy) -> Iterator[str]:
    yield from weak_rules(policy)
    yield from _open_ends(policy)
    for grant in policy.filesystem.grants:
        if grant.access is Access.WRITE:
            yield f"{grant.source}: {grant.pattern} can be written but not read; tools that read back will fail"
        if grant.pattern in ("/", "/**") and grant.access in (Access.WRITE, Access.ALLOW):
            yield f"{grant.source}: everything on this machine that you may write can be written"
        if grant.optional and grant.workspace:
            yield f"{grant.source}: the workspace is marked as optional"
    for opened in policy.filesystem.open_protected:
        why = protected_because(opened.value)
        yield f"{opened.source}: {opened.value} can be written inside, " + (
            f"and {why}" if why else "but matches no protected name by itself"
        )
    if policy.syscalls.namespaces and policy.syscalls.namespaces.value:
        yield f"{policy.syscalls.namespaces.source}: user namespaces inside reach more of the kernel"
    if policy.syscalls.trace and policy.syscalls.trace.value:
        yield (
            f"{policy.syscalls.trace.source}: programs may trace each other: "
            "one that was allowed can be made to do what no exec rule would allow"
        )
    for name in policy.env.pass_:
        held = next(
            (deny for deny in policy.env.deny if component_matches(deny.value, name.value)), None
        )
        if held is not None:
            yield (
                f"{name.source}: {name.value} does not pass: {held.value} ({held.source}) denies it; "
                f"hand it in by name: --env-pass {name.value}"
            )
    for route in policy.network.routes if policy.network is not None else ():
        if route.endpoint_rules is None:
            yield (
                f"{route.source}: route {route.name!r} has no endpoint_rules: every method and "
                "path is open"
            )


def _open_ends(policy: Policy) -> Iterator[str]:
    """Of command rules for tools: later options may write files or run programs."""
    for rule in policy.tools.command_rules:
        for expression in (rule.argv_regex, rule.command_regex):
            if rule.action is not Action.ALLOW or expression is None:
                continue
            if not expression.startswith("^"):
                yield f"{rule.source}: {expression!r} also allows what has it anywhere in its arguments; begin with ^"
            if not expression.endswith("$") or expression.endswith("\\$"):
                yield f"{rule.source}: {expression!r} also allows whatever follows (--output=FILE, say); end with $"
