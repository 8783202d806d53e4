"""Keys that validate but that no layer of this version enforces.

A promise that is not kept is worse than none: a policy that uses one of these does not run. A value that asks for
nothing (``mode = "host"``) is no promise.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddock.errors import PolicyError
from paddock.policy.model import Network, NetworkMode, Policy, Source


def refuse_container(policy: Policy) -> None:
    """A container's settings mean nothing to `paddock run`: they are refused, not ignored."""
    for setting in policy.container:
        raise PolicyError(
            f"{setting.key} is for containers, which `paddock run` does not make",
            where=str(setting.source),
            hint="paddock jail --profile FILE -- COMMAND",
        )


def refuse_pending(policy: Policy) -> None:
    asked = list(_pending(policy))
    if not asked:
        return
    key, source = asked[0]
    others = sorted({other for other, _ in asked[1:]} - {key})
    more = f" (nor {', '.join(others)})" if others else ""
    raise PolicyError(
        f"{key} is not enforced by this version of paddock{more}",
        where=str(source),
        hint=f"take {key} out to run without it; `paddock check` accepts it",
    )


def _pending(policy: Policy) -> Iterator[tuple[str, Source]]:
    if policy.network:
        yield from _network(policy.network)
    for setting in policy.tools:
        yield f"tools.{setting.key}", setting.source


def _network(network: Network) -> Iterator[tuple[str, Source]]:
    # Absent and empty lists are promises too: a [network] table asks for filtering unless it says "host".
    if network.mode is None or network.mode.value is not NetworkMode.HOST:
        yield "network", network.mode.source if network.mode else _first_source(network)
    for host in (*(network.allowed_hosts or ()), *network.denied_hosts):
        yield "network hosts", host.source
    for port in network.allowed_local_ports:
        yield "network.allowed_local_ports", port.source
    if network.kernel_pin:
        yield "network.kernel_pin", network.kernel_pin.source
    for route in network.routes:
        yield f"network.routes.{route.name}", route.source


def _first_source(network: Network) -> Source:
    sources = [
        *(host.source for host in (*(network.allowed_hosts or ()), *network.denied_hosts)),
        *(port.source for port in network.allowed_local_ports),
        *(route.source for route in network.routes),
    ]
    return sources[0] if sources else Source(file="[network]")
