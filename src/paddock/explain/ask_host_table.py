"""The decision of the network for one host. The core has the only host table
(``core/src/network/rules/``).
"""

from __future__ import annotations

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.frozen import dataclass
from paddock.plan import Plan
from paddock.plan.plan import NetworkReach
from paddock.policy.model import Action

# Names of this machine itself.
LOOPBACK = ("127.0.0.1", "[::1]", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedHostRule:
    host: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDecision:
    """``rule``: the rule that decided, if any. ``reason``: why the host is not reached, or why no
    question is asked.
    """

    action: Action
    rule: MatchedHostRule | None
    reason: str | None

    @property
    def allowed(self) -> bool:
        return self.action is Action.ALLOW


def judge_host(plan: Plan, host: str, port: int) -> HostDecision:
    """``host``: as a program would write it; an IPv6 address is in brackets."""
    network = plan.as_json()["network"]
    if plan.network is None:
        return HostDecision(action=Action.ALLOW, rule=None, reason="the network is not restricted")
    if plan.network.mode is NetworkReach.NONE:
        return HostDecision(action=Action.DENY, rule=None, reason="the command has no network")
    if port in plan.network.local_ports and host.lower().removesuffix(".") in LOOPBACK:
        return HostDecision(action=Action.ALLOW, rule=None, reason="allowed_local_ports lists it")
    answer = core.ask(
        "judge-host", question=canonical({"network": network, "host": host, "port": port})
    )
    try:
        rule, reason = answer["rule"], answer["reason"]
        return HostDecision(
            action=Action(answer["action"]),
            rule=None
            if rule is None
            else MatchedHostRule(host=str(rule["host"]), source=str(rule["source"])),
            reason=None if reason is None else str(reason),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error
