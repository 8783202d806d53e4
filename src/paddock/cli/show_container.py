"""Prints the plan of a container as the steps of the core, in order."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields

from paddock.cli.terminal_output import say
from paddock.errors import Bug
from paddock.launch.prepare import Preflight
from paddock.plan.plan import Container, IdRange, Level, Plan

_WIDTH_COLUMNS = 110
_MARGIN = " " * 4


def show_steps(plan: Plan, preflight: Preflight, command: Sequence[str]) -> None:
    for number, step in enumerate(steps(plan, preflight, command), start=1):
        lines = textwrap.wrap(step, _WIDTH_COLUMNS, break_long_words=False, break_on_hyphens=False)
        say(f"{number:>2}  {lines[0]}")
        for line in lines[1:]:
            say(_MARGIN + line)
    for notice in plan.notices[1:]:
        say(f"{'note' if notice.level is Level.INFO else 'warning'}: {notice.text}")


def steps(plan: Plan, preflight: Preflight, command: Sequence[str]) -> Iterator[str]:
    container, namespaces = plan.container, plan.namespaces
    if container is None or namespaces is None:
        raise Bug("the plan is not for a container")
    yield f"profile {' ← '.join(plan.profiles)}"
    yield f"user: uid {container.uid}, gid {container.gid} inside"
    yield f"journal {_journal(plan)}"
    network = "" if container.netns else ", network"
    joins = f"; joins the network namespace {container.netns}" if container.netns else ""
    yield f"new namespaces: user, mount, pid, ipc, uts, cgroup{network}{joins}"
    yield (
        f"users {_ranges(container.uid_map)}; groups {_ranges(container.gid_map)}; "
        f"{_cgroups(container)}"
    )
    yield f"root: {container.rootdir}, entered by pivot_root; the host's is unmounted"
    masks = ", ".join(mask.path for mask in container.masks)
    yield f"own /dev; own /proc, masked{f'; also masked: {masks}' if masks else ''}"
    yield (
        f"host name {namespaces.hostname}; loopback {'up' if container.loopback else 'down'}; "
        f"{_limits(plan)}"
    )
    capability_names = " ".join(container.capabilities) or "none"
    yield f"capabilities: {capability_names}, as the bounding set"
    ids = f"gid {container.gid}, uid {container.uid}"
    yield f"groups cleared, {ids}; capabilities kept: {capability_names}"
    yield f"environment: {_environment(plan)}"
    yield f"{_rules(plan)}; {_calls(plan, preflight)}"
    yield f"open descriptors closed; in {plan.workdir}: {shlex.join(command)}"


def _ranges(ranges: tuple[IdRange, ...]) -> str:
    return ", ".join(
        f"{one.inside} to {one.inside + one.count - 1} → {one.outside} to "
        f"{one.outside + one.count - 1}"
        if one.count > 1
        else f"{one.inside} → {one.outside}"
        for one in ranges
    )


def _journal(plan: Plan) -> str:
    return (
        f"{plan.journal.dir}/{plan.journal.file or 'YYYY-MM-DD.jsonl'}, opened outside"
        if plan.journal
        else "off"
    )


def _cgroups(container: Container) -> str:
    return (
        f"control groups {' '.join(container.cgroups)}" if container.cgroups else "no control group"
    )


def _limits(plan: Plan) -> str:
    held = {field.name: getattr(plan.limits, field.name) for field in fields(plan.limits)}
    parts = [f"{name} {value}" for name, value in held.items() if value is not None]
    return f"limits: {', '.join(parts)}" if parts else "no limits, except no core dumps"


def _environment(plan: Plan) -> str:
    rules = plan.environment
    if rules is None:
        return "NOT RESTRICTED: the caller's environment"
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(rules.set.items()))
    return f"set {given}; pass {' '.join(rules.pass_) or 'nothing'}"


def _rules(plan: Plan) -> str:
    if plan.files is None:
        return "no grants: file modes alone decide in the container"
    grants = ", ".join(f"{grant.access} {grant.path}" for grant in plan.files.grants)
    return f"Landlock allows only: {grants}"


def _calls(plan: Plan, preflight: Preflight) -> str:
    if plan.seccomp is None:
        return "system calls NOT RESTRICTED"
    if plan.seccomp.default == "allow":
        return f"seccomp denies {preflight.blocked} system calls"
    return f"seccomp allows only {len(plan.seccomp.syscalls)} system calls"
