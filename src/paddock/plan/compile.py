"""Compiles Policy, Host and Terrain to a Plan, in the order in which the core applies it."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Iterator, Sequence

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.host.grant_targets import Terrain
from paddock.plan.files import UNPROTECTED_NAMES, FileLayout, lay_out
from paddock.plan.gate import asks_for_gate, gate_of
from paddock.plan.grants import TMP
from paddock.plan.http_routes import secret_variables, variables, without_secrets
from paddock.plan.network import PROXY_VARIABLES, network_notices, network_of, summary
from paddock.plan.path_containment import within
from paddock.plan.plan import (
    EnvironmentRules,
    Files,
    Gate,
    JournalPlan,
    Landlock,
    Level,
    LimitsPlan,
    Namespaces,
    NetworkPlan,
    Notice,
    PathGrant,
    Plan,
    Seccomp,
    ShellPlan,
    User,
)
from paddock.plan.rights import KERNEL_OF_ABI, holdable
from paddock.plan.seccomp import nests, reaches_services, seccomp_of
from paddock.plan.shell import shell_of, summary_of_shells
from paddock.plan.tier import USEFUL_ABI, choose_tier, lacking, remedy
from paddock.plan.workspace import workspace_of
from paddock.policy.glob import Glob
from paddock.policy.model import TMP_TOKEN, NetworkMode, Policy, Sourced, Switch, Tier
from paddock.policy.trust.origin import state_dir_of

EMPTY_TERRAIN = Terrain()

# The start line must fit on a screen. The profile denies some 70 names.
SHOWN_NAMES = 4


def compile_plan(policy: Policy, host: Host, terrain: Terrain = EMPTY_TERRAIN) -> Plan:
    _refuse_container(policy)
    policy = without_secrets(policy)
    refuse_privileged(policy, host)
    tier = choose_tier(policy, host)
    strict = is_strict(policy)
    missing = missing_mechanisms(policy, host, tier)
    journal = journal_of(policy, host)
    layout = lay_out(
        policy,
        host,
        terrain,
        tier,
        strict=strict,
        intercepts=host.listener and Switch.SECCOMP not in policy.off,
        journals=journals_of(host, journal),
        chosen_journal=Sourced(journal.dir, policy.audit.dir.source)
        if journal and policy.audit.dir
        else None,
    )
    landlock = _landlock(policy, host, tier, layout)
    files = layout.files if landlock or tier is Tier.FULL else None
    seccomp = _seccomp(policy, host, tier, landlock)
    gate = gate_of(policy, host, files)
    network = network_of(policy, host, tier, terrain.registries)
    shell = shell_of(policy, host, tier, landlock, seccomp)
    workspace = workspace_of(policy, host, tier, files)
    judges_writes = (
        host.listener
        and seccomp is not None
        and files is not None
        and bool(files.protect or files.deny or files.deny_names)
    )
    # Names in a copy are judged when the user applies it.
    is_shared = any(not (workspace and within(path, workspace.path)) for path in layout.written)
    unprotected = UNPROTECTED_NAMES[tier] if files and is_shared and not judges_writes else None
    unheld = list(_unprotected_patterns(policy, strict=strict)) if unprotected else []
    remarks = [
        _start_line(
            policy,
            host,
            tier,
            layout if files else None,
            landlock,
            seccomp,
            gate,
            network,
            shell,
            unprotected,
        ),
        *(Notice(level=Level.INFO, text=note) for note in policy.notes),
        *(Notice(level=Level.WARNING, text=warning) for warning in policy.warnings),
        *_warnings(policy, tier, landlock),
        *(Notice(level=Level.UNENFORCED, text=text) for text in missing),
        *_unjudged(unprotected),
        *unheld,
        *(layout.notices if files else ()),
        *network_notices(policy, network, terrain.registries),
    ]
    return Plan(
        profiles=policy.profiles,
        tier=tier,
        user=User(uid=host.uid, name=host.user, home=host.home),
        journal=journal,
        no_new_privs=Switch.NO_NEW_PRIVS not in policy.off,
        # A core dump is written outside the sandbox. 1, not 0: with 0 the kernel still starts a
        # handler that core_pattern pipes to, with 1 it does neither (core(5)).
        rlimits={"core": 1},
        environment=_environment(policy, tier, layout, network),
        temp=layout.temp,
        files=files,
        landlock=landlock,
        namespaces=_namespaces(policy) if tier is Tier.FULL else None,
        workspace=workspace,
        container=None,
        limits=LimitsPlan(
            **{limit.name: limit.value for limit in policy.limits if limit.name != "tmp_mb"}
        ),
        sessions=f"{state_dir_of(host.home)}/sessions",
        seccomp=seccomp,
        gate=gate,
        network=network,
        shell=shell,
        observe=_observes(policy, host, has_file_rules=files is not None),
        judges_writes=judges_writes,
        cwd=host.cwd,
        workdir=_workdir(policy, host, files),
        require_enforced=strict,
        notices=tuple(remarks),
    )


def _refuse_container(policy: Policy) -> None:
    """Settings of a container have no meaning for `paddock run`: refused, not ignored."""
    for setting in policy.container:
        raise PolicyError(
            f"{setting.key} applies to containers, and `paddock run` does not create one",
            where=str(setting.source),
            hint="type `paddock jail --profile FILE -- COMMAND`",
        )


def _observes(policy: Policy, host: Host, *, has_file_rules: bool) -> bool:
    if not policy.observe:
        return False
    if not has_file_rules:
        raise PolicyError(
            "--observe cannot show denied files, because files are not restricted",
            where="--observe",
        )
    if not host.user_notification:
        raise HostError(
            "--observe needs seccomp user notification, and this machine does not have it"
        )
    return True


def is_strict(policy: Policy) -> bool:
    return policy.filesystem.require_enforced is None or policy.filesystem.require_enforced.value


def missing_mechanisms(policy: Policy, host: Host, tier: Tier) -> list[str]:
    """The mechanisms that the policy accepts to run without; an error if it does not."""
    missing = list(lacking(policy, host, tier))
    if missing and is_strict(policy):
        raise HostError(
            f"this machine cannot enforce the policy: {missing[0]}"
            + (f" (and {len(missing) - 1} more: {'; '.join(missing[1:])})" if missing[1:] else ""),
            hint=remedy(host),
        )
    return missing


LOST = {
    Switch.LANDLOCK: "the command can access every file of yours",
    Switch.SECCOMP: "the command can make every system call",
    Switch.NO_NEW_PRIVS: "the command can gain privileges from set-user-id programs",
    Switch.ENV_SANITIZE: "the command sees your whole environment",
    Switch.AUDIT: "nothing is written to the journal",
}


_UNIX = "the command can reach every service with a socket file (D-Bus, docker, tmux, ssh-agent)"
_TRACED = (
    "programs may trace each other: a program can change an allowed program, so exec rules "
    "do not hold"
)
_NESTED = (
    "the command may create user namespaces: it reaches more kernel code, and covers for names "
    "that the host creates or replaces do not reach into these namespaces"
)


def _warnings(policy: Policy, tier: Tier, landlock: Landlock | None) -> Iterator[Notice]:
    remarks = [f"{switch.value} is off: {LOST[switch]}" for switch in policy.off]
    if policy.network and policy.network.mode and policy.network.mode.value is NetworkMode.HOST:
        remarks.append('network.mode = "host": the network is not restricted')
    if reaches_services(tier, landlock):
        remarks += [
            f"{one.source}: unix sockets are allowed: {_UNIX}"
            for one in policy.syscalls.sockets
            if one.value == "unix"
        ]
    if policy.syscalls.trace and policy.syscalls.trace.value and asks_for_gate(policy):
        remarks.append(f"{policy.syscalls.trace.source}: {_TRACED}")
    if policy.syscalls.namespaces and nests(policy.syscalls):
        remarks.append(f"{policy.syscalls.namespaces.source}: {_NESTED}")
    return (Notice(level=Level.WARNING, text=text) for text in remarks)


def refuse_privileged(policy: Policy, host: Host) -> None:
    if Switch.NO_NEW_PRIVS not in policy.off or host.uid == 0:
        return
    for switch in (Switch.LANDLOCK, Switch.SECCOMP):
        if switch not in policy.off:
            raise PolicyError(
                f"no-new-privs cannot be off while {switch.value} is on: the kernel requires it "
                "from an ordinary user",
                where="--off no-new-privs",
                hint=f"add --off {switch.value}, or remove --off no-new-privs",
            )


def _default_journal(host: Host) -> str:
    return f"/var/tmp/paddock-audit-{host.uid}"


def journals_of(host: Host, journal: JournalPlan | None) -> tuple[str, ...]:
    """The default journal, which other runs write, the journals of earlier runs elsewhere, and that
    of this run.
    """
    return tuple(
        sorted({_default_journal(host), *host.journals, *((journal.dir,) if journal else ())})
    )


def journal_of(policy: Policy, host: Host) -> JournalPlan | None:
    if Switch.AUDIT in policy.off:
        return None
    location = policy.audit.dir.value if policy.audit.dir else _default_journal(host)
    single = location.endswith(".jsonl")
    return JournalPlan(
        dir=os.path.dirname(location) if single else location,
        file=os.path.basename(location) if single else None,
        stderr=policy.audit.stderr,
    )


def _landlock(policy: Policy, host: Host, tier: Tier, layout: FileLayout) -> Landlock | None:
    least = USEFUL_ABI if tier is Tier.FULL else 1
    if Switch.LANDLOCK in policy.off or host.landlock_abi < least:
        return None
    abi = min(host.landlock_abi, max(KERNEL_OF_ABI))
    can = holdable(abi)
    used = {grant.access for grant in layout.files.grants} | (
        {layout.temp.access} if layout.temp else set()
    )
    access = {name: rights for name, rights in can.access.items() if name in used}
    return Landlock(abi=abi, handled=can.handled, scoped=can.scoped, access=access)


def _namespaces(policy: Policy) -> Namespaces:
    sizes = [limit.value for limit in policy.limits if limit.name == "tmp_mb"]
    return Namespaces(
        nested=nests(policy.syscalls), hostname="", tmp_mb=sizes[0] if sizes else None
    )


def _seccomp(policy: Policy, host: Host, tier: Tier, landlock: Landlock | None) -> Seccomp | None:
    if Switch.SECCOMP in policy.off or not host.seccomp:
        return None
    return seccomp_of(policy.syscalls, tier, landlock)


def _environment(
    policy: Policy, tier: Tier, layout: FileLayout, network: NetworkPlan | None
) -> EnvironmentRules | None:
    if Switch.ENV_SANITIZE in policy.off:
        return None
    http = network.http if network else None
    values = variables(policy.network, http) | {name: value.value for name, value in policy.env.set}
    for name, value in policy.env.set:
        if TMP_TOKEN in value.value and not layout.has_temp:
            raise PolicyError(
                f"env.set.{name} needs a private temporary directory, and no grant covers <tmp>",
                where=str(value.source),
                hint='add "<tmp>/**" to filesystem.allow_globs',
            )
    if tier is Tier.FULL:
        values = {name: value.replace(TMP_TOKEN, TMP) for name, value in values.items()}
    proxies = (
        {spelt for name in PROXY_VARIABLES for spelt in (name, name.upper())} if network else set()
    )
    excluded = proxies | secret_variables(http)
    return EnvironmentRules(
        pass_=tuple(sorted({name.value for name in policy.env.pass_} - excluded)),
        deny=tuple(sorted({name.value for name in policy.env.deny} | excluded)),
        keep=tuple(sorted({name.value for name in policy.env.keep} - excluded)),
        set=values,
    )


def _workdir(policy: Policy, host: Host, files: Files | None) -> str:
    if policy.workdir is None:
        return host.cwd
    chosen = policy.workdir.value
    where = str(policy.workdir.source)
    made = (Glob.parse(one.pattern).prefix for one in policy.filesystem.grants if one.create)
    if not os.path.isdir(chosen) and not any(within(chosen, path) for path in made):
        raise PolicyError(
            f"the working directory {chosen} does not exist",
            where=where,
            hint=f"give a directory that exists, or type `mkdir -p {shlex.quote(chosen)}`",
        )
    if files and not any(_covers(grant, chosen) for grant in files.grants):
        raise PolicyError(
            f"no grant covers the working directory {chosen}",
            where=where,
            hint=f"add --allow {shlex.quote(f'{chosen}/**')}",
        )
    return chosen


def _covers(grant: PathGrant, path: str) -> bool:
    return within(path, grant.path) and not any(
        within(path, excluded) for excluded in grant.except_
    )


def _start_line(
    policy: Policy,
    host: Host,
    tier: Tier,
    layout: FileLayout | None,
    landlock: Landlock | None,
    seccomp: Seccomp | None,
    gate: Gate | None,
    network: NetworkPlan | None,
    shell: ShellPlan | None,
    unprotected: str | None,
) -> Notice:
    """The enforced mechanisms and the directory, in one line. A link may have led a shell to
    another directory than expected.
    """
    parts = [f"{tier.value} tier" if layout else "files open"]
    if layout:
        by = ["mounts"] if tier is Tier.FULL else []
        by += [f"Landlock ABI {landlock.abi}"] if landlock else []
        parts.append(f"files restricted ({', '.join(by)})")
    if seccomp is None:
        parts.append("system calls not restricted")
    elif seccomp.default == "allow":
        parts.append(f"{len(seccomp.syscalls)} system calls blocked")
    else:
        parts.append(f"{len(seccomp.syscalls)} system calls allowed")
    if gate is not None:
        count = len(gate.rules)
        parts.append(
            f"programs by {count} rule{'' if count == 1 else 's'}, else {gate.default.value}"
        )
    parts.append(summary(network, tier))
    if shell is not None:
        parts.append(f"shells intercepted ({summary_of_shells(policy)})")
    text = f"{policy.profiles[0]} in {host.cwd}: {', '.join(parts)}"
    unheld = [*([unprotected] if unprotected else []), *(layout.unheld if layout else ())]
    if unheld:
        against = "" if unprotected else "against reading "
        text += f"; not enforced {against}in this tier: {_listed(unheld)}"
    return Notice(level=Level.INFO, text=text)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _unprotected_patterns(policy: Policy, *, strict: bool) -> Iterator[Notice]:
    """A run without judged writes can not stop the command from making a name."""
    for pattern in policy.filesystem.protects:
        text = f"protect {pattern.value} cannot be enforced: this run does not judge writes"
        if strict:
            raise PolicyError(
                text,
                where=str(pattern.source),
                hint="judging writes needs seccomp, and no outer sandbox that uses seccomp user "
                "notification; to run without it, write filesystem.require_enforced = false",
            )
        yield Notice(level=Level.UNENFORCED, text=f"{pattern.source}: {text}")


def _unjudged(unprotected: str | None) -> Iterator[Notice]:
    """Also printed without a terminal, and in the journal."""
    if unprotected:
        text = (
            f"writes are not judged: {unprotected} are not protected, and changed files that "
            "programs outside run are not listed"
        )
        yield Notice(level=Level.UNENFORCED, text=text)
