"""Merges two policies. Pure and associative: (a + b) + c is a + (b + c).

- Lists add up; nothing is removed. An existing value keeps its first source. A system call that the
user blocks is stored beside the built-in block of the same name, because a stronger tier may drop
only the built-in one.

- Scalars, limits, variables to set and routes: the later one wins.

- Rules: those of the later policy come first, because the first match wins. (No two may have one
id: load.py.)

- Absent and empty differ (``allowed_hosts``, ``syscalls.allow``): absent is overridden, empty
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from paddock.policy.model import (
    Audit,
    Environment,
    Filesystem,
    Meta,
    Network,
    Policy,
    Setting,
    ShellSettings,
    Sourced,
    Syscalls,
    ToolSettings,
)

V = TypeVar("V")
H = TypeVar("H", bound=Hashable)


def merge(under: Policy, over: Policy) -> Policy:
    return Policy(
        profiles=_add(under.profiles, over.profiles, _itself),
        files=_add(under.files, over.files, _itself),
        meta=_meta(under.meta, over.meta),
        filesystem=_filesystem(under.filesystem, over.filesystem),
        network=_network(under.network, over.network),
        syscalls=_syscalls(under.syscalls, over.syscalls),
        env=_env(under.env, over.env),
        limits=_replace(under.limits, over.limits, lambda limit: limit.name),
        audit=_audit(under.audit, over.audit),
        rules=_add(over.rules, under.rules, _itself),
        tools=_tools(under.tools, over.tools),
        shell=_shell(under.shell, over.shell),
        intercept=under.intercept or over.intercept,
        container=_settings(under.container, over.container),
        off=_add(under.off, over.off, _itself),
        tier=under.tier if over.tier is None else over.tier,
        resume=under.resume if over.resume is None else over.resume,
        observe=under.observe or over.observe,
        workdir=_later(under.workdir, over.workdir),
        published=_add(under.published, over.published, _itself),
        notes=_add(under.notes, over.notes, _itself),
    )


def _meta(under: Meta, over: Meta) -> Meta:
    return Meta(
        default_action=_later(under.default_action, over.default_action),
        on_policy_error=_later(under.on_policy_error, over.on_policy_error),
        on_supervisor_timeout_ms=_later(
            under.on_supervisor_timeout_ms, over.on_supervisor_timeout_ms
        ),
        ask_timeout_s=_later(under.ask_timeout_s, over.ask_timeout_s),
    )


def _filesystem(under: Filesystem, over: Filesystem) -> Filesystem:
    return Filesystem(
        grants=_add(
            under.grants,
            over.grants,
            lambda g: (g.access, g.pattern, g.optional, g.workspace, g.execute, g.create),
        ),
        denies=_add(under.denies, over.denies, lambda deny: (deny.pattern, deny.optional)),
        protects=_add(under.protects, over.protects, _value),
        open_protected=_add(under.open_protected, over.open_protected, _value),
        workspace=_later(under.workspace, over.workspace),
        require_enforced=_later(under.require_enforced, over.require_enforced),
        no_bootstrap_reads=_later(under.no_bootstrap_reads, over.no_bootstrap_reads),
        widen=_later(under.widen, over.widen),
    )


def _network(under: Network | None, over: Network | None) -> Network | None:
    if under is None or over is None:
        return over or under
    return Network(
        mode=_later(under.mode, over.mode),
        default=_later(under.default, over.default),
        allowed_hosts=_add_or_absent(under.allowed_hosts, over.allowed_hosts),
        denied_hosts=_add(under.denied_hosts, over.denied_hosts, _value),
        allowed_local_ports=_add(under.allowed_local_ports, over.allowed_local_ports, _value),
        kernel_pin=_later(under.kernel_pin, over.kernel_pin),
        routes=_replace(under.routes, over.routes, lambda route: route.name),
        endpoints=_add(under.endpoints, over.endpoints, _itself),
        inspect=_add(under.inspect, over.inspect, _value),
    )


def _syscalls(under: Syscalls, over: Syscalls) -> Syscalls:
    return Syscalls(
        block=_add(under.block, over.block, lambda call: (call.value, call.source.builtin)),
        allow=_add_or_absent(under.allow, over.allow),
        sockets=_add(under.sockets, over.sockets, _value),
        namespaces=_later(under.namespaces, over.namespaces),
        trace=_later(under.trace, over.trace),
    )


def _env(under: Environment, over: Environment) -> Environment:
    return Environment(
        pass_=_add(under.pass_, over.pass_, _value),
        deny=_add(under.deny, over.deny, _value),
        keep=_add(under.keep, over.keep, _value),
        set=_replace(under.set, over.set, lambda pair: pair[0]),
    )


def _audit(under: Audit, over: Audit) -> Audit:
    return Audit(
        enabled=_later(under.enabled, over.enabled),
        dir=_later(under.dir, over.dir),
        stderr=under.stderr or over.stderr,
    )


def _tools(under: ToolSettings, over: ToolSettings) -> ToolSettings:
    return ToolSettings(
        read_only=_later(under.read_only, over.read_only),
        allowed_paths=_add_or_absent(under.allowed_paths, over.allowed_paths),
        denied_paths=_add(under.denied_paths, over.denied_paths, _value),
        path_rules=_add(over.path_rules, under.path_rules, _itself),
        command_rules=_add(over.command_rules, under.command_rules, _itself),
        denied_commands=_add(under.denied_commands, over.denied_commands, _value),
        require_approval_for_writes=_later(
            under.require_approval_for_writes, over.require_approval_for_writes
        ),
        require_approval_for_execute=_later(
            under.require_approval_for_execute, over.require_approval_for_execute
        ),
        unknown_tools=_later(under.unknown_tools, over.unknown_tools),
        log_all_commands=_later(under.log_all_commands, over.log_all_commands),
    )


def _shell(under: ShellSettings | None, over: ShellSettings | None) -> ShellSettings | None:
    """Grants of the two add up, as those of the sandbox do, and so do denies and blocks."""
    if under is None or over is None:
        return over or under
    return ShellSettings(
        network=_later(under.network, over.network),
        grants=_add(
            under.grants, over.grants, lambda grant: (grant.access, grant.pattern, grant.optional)
        ),
        denies=_add(under.denies, over.denies, lambda deny: (deny.pattern, deny.optional)),
        block=_add(under.block, over.block, _value),
        env_deny=_add(under.env_deny, over.env_deny, _value),
        on_failure=_later(under.on_failure, over.on_failure),
        source=over.source,
    )


def _settings(under: tuple[Setting, ...], over: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Settings that are lists add up; the others are scalars."""
    before = {setting.key: setting for setting in under}
    joined = []
    for setting in over:
        earlier = before.get(setting.key)
        if (
            earlier is not None
            and isinstance(earlier.value, tuple)
            and isinstance(setting.value, tuple)
        ):
            setting = Setting(
                key=setting.key,
                value=_add(earlier.value, setting.value, _itself),
                source=earlier.source,
            )
        joined.append(setting)
    return _replace(under, tuple(joined), lambda setting: setting.key)


def _itself(value: H) -> H:
    return value


def _value(sourced: Sourced[H]) -> H:
    return sourced.value


def _later(under: Sourced[V] | None, over: Sourced[V] | None) -> Sourced[V] | None:
    return under if over is None else over


def _add(under: tuple[V, ...], over: tuple[V, ...], key: Callable[[V], Hashable]) -> tuple[V, ...]:
    found: dict[Hashable, V] = {}
    for value in (*under, *over):
        found.setdefault(key(value), value)
    return tuple(found.values())


def _add_or_absent(
    under: tuple[Sourced[H], ...] | None, over: tuple[Sourced[H], ...] | None
) -> tuple[Sourced[H], ...] | None:
    if under is None or over is None:
        return under if over is None else over
    return _add(under, over, _value)


def _replace(
    under: tuple[V, ...], over: tuple[V, ...], key: Callable[[V], Hashable]
) -> tuple[V, ...]:
    found: dict[Hashable, V] = {}
    for value in (*under, *over):
        found[key(value)] = value
    return tuple(found.values())
