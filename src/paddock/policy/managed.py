"""The managed policy of a machine: ``/etc/paddock/managed.toml``, for every user and every run.

It can only restrict, so it needs no order among the other policies: denied paths, protected names,
denied hosts, blocked system calls, denied variables, limits and deny rules add to those of the
user. No policy of a user and no flag loosens it: a flag that would is an error that names the line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.policy.formats.toml import document, read_toml
from paddock.policy.glob import component_matches
from paddock.policy.merge import merge
from paddock.policy.model import Action, Policy, PolicyFile, Source, Sourced, Switch
from paddock.policy.trust.file_trust import PolicyText, read_policy
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import MANAGED, exists

# The keys that can only restrict.
KEYS: Mapping[str, tuple[str, ...]] = {
    "meta": ("version",),
    "filesystem": ("deny_globs", "protect_globs", "require_enforced"),
    "network": ("denied_hosts",),
    "syscalls": ("block",),
    "env": ("deny",),
    "limits": (),  # every limit
    "audit": ("enabled",),
    "tools": ("denied_paths", "denied_commands"),
    "rule": (),
}


def managed_by(origin: Origin) -> tuple[Policy, PolicyText] | None:
    """The managed policy and its file. None: this machine has none."""
    path = os.path.join(origin.system_dir, f"{MANAGED}.toml")
    if not exists(path):
        return None
    file = read_policy(path, origin, shown=path, within=origin.system_dir)
    _require_restrictions(file.text, path)
    policy = read_toml(file.text, path, origin).policy
    identity = PolicyFile(path=file.path, sha256=file.sha256, found=file.written, facts=file.facts)
    return replace(policy, files=(identity,)), file


def restrict(policy: Policy, managed: Policy) -> Policy:
    """``policy`` with the restrictions of ``managed``."""
    path = managed.files[0].path
    _refuse_loosening(policy, managed, path)
    whole = merge(policy, managed)
    lowest = {limit.name: limit for limit in policy.limits}
    for limit in managed.limits:
        if limit.name not in lowest or limit.value < lowest[limit.name].value:
            lowest[limit.name] = limit
    meta = policy.meta
    if managed.rules and meta.default_action is None and not policy.rules:
        # Without rules of the user every program may start, and that stays so for all others.
        source = managed.rules[0].source
        meta = replace(meta, default_action=Sourced(Action.ALLOW, source))
    # A restriction that this machine can not enforce stops the run.
    required = Sourced(True, Source(file=path, key="filesystem.require_enforced"))
    return replace(
        whole,
        meta=meta,
        filesystem=replace(whole.filesystem, require_enforced=required),
        limits=tuple(lowest.values()),
        notes=(*whole.notes, f"managed by {path}: no policy and no flag can loosen it"),
    )


def _require_restrictions(text: str, path: str) -> None:
    table = document(text, path)
    hint = f"write it in a policy of the user; {path} can have: {_listed()}"
    for section in table.values:
        if section not in KEYS:
            raise table.wrong(section, "a managed policy can only restrict", hint=hint)
        if not KEYS[section]:
            continue
        keys = table.table(section)
        if keys is None:
            continue
        for key, value in keys.values.items():
            if key not in KEYS[section]:
                raise keys.wrong(key, "a managed policy can only restrict", hint=hint)
            if key in ("require_enforced", "enabled") and value is not True:
                raise keys.wrong(key, "a managed policy can only restrict", hint="write true")
    rules = table.values.get("rule")
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, dict) and rule.get("action") != "deny":
            raise table.wrong(
                "rule", "a rule of a managed policy can only deny", hint='write action = "deny"'
            )


def _listed() -> str:
    names = []
    for section, keys in KEYS.items():
        names += [f"{section}.{key}" for key in keys] or [section]
    return ", ".join(names)


def _refuse_loosening(policy: Policy, managed: Policy, path: str) -> None:
    for switch in policy.off:
        if switch is Switch.AUDIT and managed.audit.enabled is None:
            continue
        raise PolicyError(
            f"{path} does not let a run turn a layer off",
            where=f"--off {switch.value}",
            hint=f"remove --off {switch.value}",
        )
    for kept in policy.env.keep:
        for deny in managed.env.deny:
            if component_matches(deny.value, kept.value):
                raise PolicyError(
                    f"{deny.source} denies this variable",
                    where=f"--env-pass {kept.value}",
                    hint=f"remove --env-pass {kept.value}",
                )
    if managed.filesystem.protects:
        for opened in policy.filesystem.open_protected:
            raise PolicyError(
                f"{managed.filesystem.protects[0].source} protects names, and no policy opens "
                "protected names on this machine",
                where=str(opened.source),
                hint="remove this line or flag",
            )
