"""Prints a plan as it applies to this machine: grants with their source, refusals, gaps."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields

from paddock.cli.terminal_output import say
from paddock.explain.read_plan import plan_of
from paddock.explain.unlistable_dirs import lost_in_plan
from paddock.explain.write_answer import are_judged
from paddock.launch.prepare import Preflight, Prepared
from paddock.plan.http_routes import DOMAIN
from paddock.plan.plan import (
    Files,
    Gate,
    GateRule,
    HostRule,
    Level,
    NetworkPlan,
    NetworkReach,
    PathGrant,
    Plan,
    RoutePlan,
    Seccomp,
    ShellPlan,
)
from paddock.policy.formats.policy_keys import NOT
from paddock.policy.model import Action, OnFailure, Tier, ToolSettings

_LABEL_COLUMNS = 13
_WIDTH_COLUMNS = 110
_DENIED_MARK = "(closed)"

_LEFT_BEHIND = "processes left behind when the command is killed together with paddock by SIGKILL"
ALWAYS_REFUSED = (
    "other architectures and x32 (killed), io_uring, TIOCSTI, TIOCLINUX, limits of other processes"
)


def not_covered(plan: Plan) -> tuple[str, ...]:
    """Gaps of the plan's tier that no policy closes. SECURITY.md explains each."""
    if plan.tier is Tier.FULL:
        denied = (
            "a denied name that the host creates during a run, for the milliseconds until paddock "
            "covers it",
        )
        if plan.judges_writes or plan.workspace:
            return denied
        return (
            *denied,
            "protected names that the command creates (.git/hooks, .envrc and others that "
            "programs outside run later), because writes are not judged",
        )
    if are_judged(plan):
        return (
            "reading of names that are denied inside a grant (.env and others)",
            "a protected file by another name that it had before the run (a hard link, the target "
            "of a link)",
            "names, sizes and modes of files outside the grants can be seen (stat)",
            _LEFT_BEHIND,
        )
    return (
        "names inside a grant (.env, .git/hooks, .envrc and others that programs outside run "
        "later)",
        "names, sizes and modes of files outside the grants (stat, chmod, utime)",
        _LEFT_BEHIND,
    )


def show_plan(prepared: Prepared, preflight: Preflight, command: Sequence[str] | None) -> None:
    plan, host = prepared.plan, prepared.host
    if command is not None:
        _item("command", [shlex.join(command)])
    _item("profile", [" ← ".join(plan.profiles)])
    _item(
        "kernel",
        [
            f"Linux {host.kernel} {host.arch}, Landlock ABI {host.landlock_abi or 'none'}, tier "
            f"{plan.tier.value}"
        ],
    )
    _item("plan", [f"sha256 {plan.sha256()}"])
    _item("files", _files(plan.files, preflight, prepared.to_make()))
    _item("denied", _denied(plan))
    _item("protected", _protected(plan))
    _item("workspace", _workspace(plan))
    _item("temp", [_temp(plan)])
    _item("limits", _limits(plan))
    _item("system calls", _syscalls(plan.seccomp, preflight))
    _item("programs", _programs(plan.gate))
    _item("network", _network(plan.network, plan.tier))
    _item("shells", _shells(plan.shell))
    _item("environment", _environment(plan))
    _item(
        "privileges",
        ["no new privileges (set-user-id has no effect)" if plan.no_new_privs else "may grow"],
    )
    _item("tools", _tools(prepared.policy.tools))
    _item("journal", [_journal(plan)])
    _item("work dir", [plan.workdir])
    open_network = ("network",) if plan.network is None else ()
    _item("not covered", ["; ".join((*open_network, *not_covered(plan)))])
    _item(
        "warnings",
        [n.text for n in plan.notices if n.level is not Level.INFO] + list(preflight.warnings),
    )
    _item(
        "notes",
        [n.text for n in plan.notices[1:] if n.level is Level.INFO] + _lost(plan.files, preflight),
    )


def _tools(tools: ToolSettings) -> list[str]:
    given = [f"{key} ({source})" for key, source in tools.given()]
    if not given:
        return []
    return [
        "[tools] applies to calls that a program makes through Paddock (docs/tools.md), not to "
        "this command: " + ", ".join(given)
    ]


def _lost(files: Files | None, preflight: Preflight) -> list[str]:
    absent = {*preflight.skipped, *preflight.removed}
    return list(lost_in_plan(files, absent=absent)) if files else []


def _item(label: str, lines: Iterable[str]) -> None:
    margin = " " * _LABEL_COLUMNS
    for number, line in enumerate(lines):
        head = f"{label:{_LABEL_COLUMNS}}" if number == 0 else margin
        wrapped = textwrap.wrap(
            line,
            _WIDTH_COLUMNS,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        say(head + (wrapped[0] if wrapped else ""))
        for rest in wrapped[1:]:
            say(margin + rest)


def _files(files: Files | None, preflight: Preflight, to_make: tuple[str, ...]) -> list[str]:
    if files is None:
        return ["NOT FENCED"]
    lines = [f"{preflight.rules} rules for {len(files.grants)} grants; every other path is denied"]
    here = [grant for grant in files.grants if grant.path not in preflight.skipped]
    kind = max((len(grant.access) for grant in here), default=0)
    width = min(max((len(grant.path) for grant in here), default=0), 48)
    lines += [_grant(grant, preflight, max(kind, len(_DENIED_MARK)), width) for grant in here]
    if to_make:
        lines.append(f"created by the run, then granted: {' '.join(to_make)}")
    if skipped := [path for path in preflight.skipped if path not in to_make]:
        lines.append(f"not granted, because it does not exist: {' '.join(skipped)}")
    return lines


def _grant(grant: PathGrant, preflight: Preflight, kind: int, width: int) -> str:
    access = _DENIED_MARK if grant.path in preflight.removed else grant.access
    line = f"{access:{kind}} {grant.path:{width}}  {grant.source}"
    return f"{line}; not {', '.join(grant.except_)}" if grant.except_ else line


def _denied(plan: Plan) -> list[str]:
    """Denied names. Denied paths stand beside the grants that contain them, or are listed as denied
    completely.
    """
    if plan.files is None or not plan.files.denied:
        return []
    how = (
        "cannot be created, written or removed, but this tier cannot deny reading"
        if plan.tier is Tier.LANDLOCK
        else "denied, also if created during the run"
    )
    return [f"{how}: {_names(plan.files.denied, plan.cwd)}"]


def _protected(plan: Plan) -> list[str]:
    if plan.files is None or not plan.files.protect:
        return []
    created = "cannot be created" if plan.judges_writes else "but new ones can be created"
    return [
        f"read-only inside writable directories, {created}: "
        f"{_names(plan.files.protected, plan.cwd)}"
    ]


def _names(patterns: Iterable[str], cwd: str) -> str:
    """Shortens ``/home/ada/project/**/.vscode`` to its name. A pattern for a single path keeps the
    whole path.
    """
    names = (
        pattern.partition("**/")[2] or pattern.replace(f"{cwd}/", "<cwd>/", 1)
        for pattern in patterns
    )
    return " ".join(dict.fromkeys(names))


def _workspace(plan: Plan) -> list[str]:
    if plan.workspace is None:
        return []
    return [
        f"copy-on-write: {plan.workspace.path} does not change; `paddock diff` shows the copy, "
        "`paddock apply` applies it"
    ]


def _temp(plan: Plan) -> str:
    if plan.tier is Tier.FULL:
        size = plan.namespaces.tmp_mb if plan.namespaces else None
        return (
            "/tmp, /var/tmp and /dev/shm are private to the run, in "
            f"memory{f', at most {size} MiB' if size else ''}"
        )
    return "private, new for this run, removed at its end" if plan.temp else "none"


def _limits(plan: Plan) -> list[str]:
    limits = [(field.name, getattr(plan.limits, field.name)) for field in fields(plan.limits)]
    held = [f"{name}={value}" for name, value in limits if value is not None]
    return [" ".join(held)] if held else []


def _syscalls(seccomp: Seccomp | None, preflight: Preflight) -> list[str]:
    if seccomp is None:
        return ["NOT FENCED"]
    if seccomp.default == "allow":
        lines = [f"{preflight.blocked} blocked: {' '.join(seccomp.syscalls)}"]
    else:
        lines = [f"only {len(seccomp.syscalls)} allowed: {' '.join(seccomp.syscalls)}"]
    lines.append(f"sockets: only {' '.join(seccomp.sockets) or 'none'}")
    lines.append(
        f"always refused: {ALWAYS_REFUSED}" + ("" if seccomp.namespaces else "; new namespaces")
    )
    if preflight.absent_syscalls:
        lines.append(f"not on this architecture: {' '.join(preflight.absent_syscalls)}")
    return lines


def _programs(gate: Gate | None) -> list[str]:
    if gate is None:
        return []
    lines = [
        f"{rule.action.value:5} {rule.id}: {_matches(rule)}  {rule.source}" for rule in gate.rules
    ]
    lines.append(
        f"{gate.default.value:5} every other program; {gate.on_error.value} if a rule "
        "cannot be checked"
    )
    lines += [
        f"approved earlier, so no question: {_matches(rule)}  {rule.source}"
        for rule in gate.approved
    ]
    if gate.exec_only_granted:
        lines.append(
            "programs that a command could have created: also judged by their content, as the "
            "program that they are a copy of"
            if gate.default is Action.ALLOW
            else "programs that a command could have created: only by a rule with its path or "
            "content, or exec_globs"
        )
    return lines


def _shells(shell: ShellPlan | None) -> list[str]:
    """The additional restrictions of shells. Everything else comes from the sandbox."""
    if shell is None:
        return []
    layer = plan_of(shell.plan.encode("ascii"))
    lines = ["no network"] if layer.network else []
    for grant in layer.files.grants if layer.files else ():
        if grant.path != "/" and grant.source != "shell":
            lines.append(f"{grant.access:8} {grant.path}  {grant.source}")
    lines += [f"denied   {path}" for path in layer.files.closed] if layer.files else []
    lines += (
        [f"blocked: {' '.join(layer.seccomp.syscalls)}"]
        if layer.seccomp and layer.seccomp.syscalls
        else []
    )
    lines += (
        [f"without the variables {' '.join(layer.environment.deny)}"] if layer.environment else []
    )
    refused = "Paddock does not start a shell that it cannot restrict"
    lines.append(
        refused + ("" if shell.on_failure is OnFailure.CLOSED else ", unless it is a login shell")
    )
    return lines


def _matches(rule: GateRule) -> str:
    """As a policy file writes it."""
    return ", ".join(
        f"{one.key}{NOT if one.not_ else ''} = {' | '.join(one.values)}" for one in rule.match
    )


def _network(network: NetworkPlan | None, tier: Tier) -> list[str]:
    if network is None:
        return [
            "NOT RESTRICTED: the command can reach every host, and every service of this machine"
        ]
    if network.mode is NetworkReach.NONE:
        how = (
            "an empty network namespace"
            if tier is Tier.FULL
            else "the command cannot create network sockets"
        )
        return [f"none: {how}", *_published(network)]
    # In the order of evaluation.
    lines = [f"deny  {_host(rule, 'every port')}" for rule in network.denied]
    lines += [f"allow {_host(rule, 'ports 80 and 443')}" for rule in network.allowed]
    if network.default is Action.ALLOW:
        lines.append("allow every other name, every port; addresses only if listed")
    else:
        lines.append(f"{network.default.value:5} every other host")
    lines += [
        f"approved earlier, so no question: {_host(rule, 'every port')}"
        for rule in network.approved
    ]
    if network.local_ports:
        lines.append(
            f"ports of this machine's 127.0.0.1: {' '.join(map(str, network.local_ports))}"
        )
    if network.http:
        lines += [line for route in network.http.routes for line in _route(route)]
        lines += [
            f"inspected (decrypted and journaled): {one.host}  {one.source}"
            for one in network.http.inspect
        ]
    if tier is Tier.LANDLOCK:
        lines.append(
            "only through the proxy in HTTP_PROXY and ALL_PROXY: a program that ignores it "
            "reaches no host; no UDP"
        )
    return [*lines, *_published(network), "never: cloud metadata, link-local addresses"]


def _published(network: NetworkPlan) -> list[str]:
    shown = "port {} of this machine's loopback leads to port {} in the sandbox"
    return [shown.format(one.host, one.inside) for one in network.published]


def _route(route: RoutePlan) -> list[str]:
    secret = (
        f", with the secret of {route.credential.kind.value}:{route.credential.place}"
        if route.credential
        else ""
    )
    opened = f", and as https://{route.upstream.host}" if route.inspect else ""
    head = f"route http://{route.name}.{DOMAIN} → {route.upstream}{secret}{opened}  {route.source}"
    if route.endpoints is None:
        return [head, "  every endpoint"]
    return [
        head,
        *(f"  {one.method} {one.path}  {one.source}" for one in route.endpoints or ()),
    ] + ([] if route.endpoints else ["  no endpoint"])


def _host(rule: HostRule, ports: str) -> str:
    return f"{rule.host}, {ports if rule.port is None else f'port {rule.port}'}  {rule.source}"


def _environment(plan: Plan) -> list[str]:
    rules = plan.environment
    if rules is None:
        return ["NOT RESTRICTED: the caller's environment"]
    lines = [
        f"pass   {' '.join(rules.pass_) or 'nothing'}",
        f"never  {' '.join(rules.deny) or '-'}",
    ]
    if rules.keep:
        lines.append(f"keep   {' '.join(rules.keep)}")
    if rules.set:
        lines.append(
            "set    "
            + " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(rules.set.items()))
        )
    return lines


def _journal(plan: Plan) -> str:
    if plan.journal is None:
        return "off"
    return f"{plan.journal.dir}/{plan.journal.file or 'YYYY-MM-DD.jsonl'}"
