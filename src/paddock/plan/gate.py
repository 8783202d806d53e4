"""Compiles exec rules to the gate: which programs may be started. Only the core judges them
(core/src/gate/rules.rs).
"""

from __future__ import annotations

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.plan.path_containment import within
from paddock.plan.plan import Files, Gate, GateMatch, GateRule, PathGrant
from paddock.plan.rights import WRITES
from paddock.policy.model import Action, Policy, Rule, Source, Switch

TIMEOUT_MS = 250
ASK_TIMEOUT_S = 300


def asks_for_gate(policy: Policy) -> Source | None:
    """The line that requires a gate, if any: a rule, or a default that is not allow."""
    default = policy.meta.default_action
    if default and default.value is not Action.ALLOW:
        return default.source
    return policy.rules[0].source if policy.rules else None


def default_action(policy: Policy) -> Action:
    """With rules and without a default, a program that no rule matches is denied."""
    return policy.meta.default_action.value if policy.meta.default_action else Action.DENY


def gate_of(policy: Policy, host: Host, files: Files | None) -> Gate | None:
    """With file rules it is known which programs a command can have written itself."""
    source = asks_for_gate(policy)
    if source is None:
        return None
    if Switch.SECCOMP in policy.off:
        raise PolicyError(
            f"the exec rules ({source}) need seccomp, and --off seccomp is given",
            where="--off seccomp",
            hint="remove --off seccomp, or remove the rules",
        )
    namespaces = policy.syscalls.namespaces
    if namespaces and namespaces.value:
        raise PolicyError(
            f"the exec rules ({source}) cannot be enforced with namespaces = true: a command "
            "could mount other files over programs",
            where=str(namespaces.source),
            hint="remove the rules, or remove namespaces = true",
        )
    if not host.user_notification:
        raise HostError(
            f"{source}: exec rules need seccomp user notification, and this machine does not have "
            "it"
        )
    meta, trace = policy.meta, policy.syscalls.trace is not None and policy.syscalls.trace.value
    rewriting = None if trace else _rewriting(files)
    if rewriting:
        raise PolicyError(
            f"the exec rules ({source}) cannot be enforced with a writable /proc: a command could "
            "change a program after the check",
            where=rewriting.source,
            hint="grant /proc for reading only, or write trace = true, which lets programs "
            "change each other",
        )
    return Gate(
        default=default_action(policy),
        on_error=meta.on_policy_error.value if meta.on_policy_error else Action.DENY,
        timeout_ms=meta.on_supervisor_timeout_ms.value
        if meta.on_supervisor_timeout_ms
        else TIMEOUT_MS,
        ask_timeout_s=meta.ask_timeout_s.value if meta.ask_timeout_s else ASK_TIMEOUT_S,
        trace=trace,
        exec_only_granted=files is not None,
        rules=tuple(map(_rule, policy.rules)),
        approved=tuple(map(_rule, policy.approved)),
    )


def _rewriting(files: Files | None) -> PathGrant | None:
    """A grant that opens /proc/PID/mem for writing."""
    grants = (grant for grant in files.grants if grant.access in WRITES) if files else ()
    return next(
        (grant for grant in grants if within(grant.path, "/proc") or within("/proc", grant.path)),
        None,
    )


def _rule(rule: Rule) -> GateRule:
    return GateRule(
        id=rule.id,
        action=rule.action,
        reason=rule.reason,
        source=str(rule.source),
        match=tuple(
            GateMatch(key=one.key, not_=one.negate, values=one.values) for one in rule.matches
        ),
    )
