"""The whole of Policy + Host → Plan, in the order the core will carry it out."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from paddock.errors import HostError, PolicyError
from paddock.host.model import Host
from paddock.plan.files import lay_out, within
from paddock.plan.model import (
    EnvironmentRules,
    Journal,
    Landlock,
    Level,
    Notice,
    PathGrant,
    Plan,
    Seccomp,
    Temp,
    Tier,
    User,
)
from paddock.plan.pending import refuse_pending
from paddock.plan.rights import KERNEL_OF_ABI, holdable
from paddock.policy.model import NetworkMode, Policy, Switch


def compile_plan(policy: Policy, host: Host) -> Plan:
    refuse_pending(policy)
    _refuse_privileged(policy, host)
    notices: list[Notice] = [Notice(level=Level.INFO, text=note) for note in policy.notes]
    notices += [Notice(level=Level.WARNING, text=f"{switch.value} is off: {_LOST[switch]}") for switch in policy.off]
    if policy.network and policy.network.mode and policy.network.mode.value is NetworkMode.HOST:
        notices.append(Notice(level=Level.WARNING, text='network.mode = "host": the network is not fenced'))
    notices += [
        Notice(level=Level.WARNING, text=f"{family.source}: unix sockets are open: {_UNIX}")
        for family in policy.syscalls.sockets
        if family.value == "unix"
    ]
    strict = policy.filesystem.require_enforced is None or policy.filesystem.require_enforced.value
    lacking = list(_lacking(policy, host))
    if lacking and strict:
        raise HostError(
            f"this machine can not hold the policy: {lacking[0]}"
            + (f" (and {len(lacking) - 1} more: {'; '.join(lacking[1:])})" if lacking[1:] else ""),
            hint=_remedy(host),
        )
    notices += [Notice(level=Level.UNENFORCED, text=text) for text in lacking]
    journal = _journal(policy, host)
    landlock, temp = _landlock(policy, host, journal, notices)
    seccomp = _seccomp(policy, host)
    return Plan(
        profiles=policy.profiles,
        tier=Tier.LANDLOCK,
        user=User(uid=host.uid, name=host.user, home=host.home),
        journal=journal,
        no_new_privs=Switch.NO_NEW_PRIVS not in policy.off,
        # A core dump is written outside the fence. 1, not 0: with 0 the kernel still starts a handler that
        # core_pattern pipes to, with 1 it does neither (core(5)).
        rlimits={"core": 1},
        environment=_environment(policy, temp),
        temp=temp,
        landlock=landlock,
        seccomp=seccomp,
        cwd=host.cwd,
        workdir=_workdir(policy, host, landlock),
        require_enforced=strict,
        notices=(_start_line(policy, host, landlock, seccomp), *notices),
    )


_LOST = {
    Switch.LANDLOCK: "every file of yours is open to the command",
    Switch.SECCOMP: "every system call is open to the command",
    Switch.NO_NEW_PRIVS: "set-user-id programs can raise the command's rights",
    Switch.ENV_SANITIZE: "the command sees your whole environment",
    Switch.AUDIT: "nothing is written to the journal",
}


_UNIX = "every service of yours with a socket file (D-Bus, docker, tmux, ssh-agent) can be reached"


def _refuse_privileged(policy: Policy, host: Host) -> None:
    if Switch.NO_NEW_PRIVS not in policy.off or host.uid == 0:
        return
    for switch in (Switch.LANDLOCK, Switch.SECCOMP):
        if switch not in policy.off:
            raise PolicyError(
                f"no-new-privs can not be off while {switch.value} is on: "
                "the kernel takes a fence from an ordinary user only with it",
                where="--off no-new-privs",
                hint=f"add --off {switch.value}, or keep no-new-privs",
            )


def _lacking(policy: Policy, host: Host) -> Iterator[str]:
    """What the policy asks for and this kernel does not have, in a user's words."""
    if Switch.LANDLOCK not in policy.off:
        if host.landlock_abi == 0:
            why = f" ({host.landlock_errno})" if host.landlock_errno else ""
            yield f"no Landlock{why}: files can not be fenced; Linux {KERNEL_OF_ABI[1]} has it"
        else:
            for missing in holdable(host.landlock_abi).missing:
                yield (
                    f"Landlock ABI {host.landlock_abi} lacks {missing.right}: {missing.consequence}; "
                    f"Linux {missing.kernel} has it"
                )
    if Switch.SECCOMP not in policy.off and not host.seccomp:
        yield "no seccomp filters: system calls can not be fenced"


def _remedy(host: Host) -> str:
    # EOPNOTSUPP is Landlock's own word for "not switched on at boot"; no engine's filter answers that.
    hidden = host.landlock_errno in ("EPERM", "ENOSYS") or not host.seccomp
    if host.filtered and hidden:  # core/src/refusal.rs says the same
        return (
            "a system call filter is already on this process, as in a container, and may be what refuses: update the "
            "engine, start the container with a profile that allows the landlock_* calls, seccomp and prctl "
            "(--security-opt seccomp=FILE), or without one (--security-opt seccomp=unconfined)"
        )
    return "`paddock doctor` shows what holds here; filesystem.require_enforced = false runs without it"


def _default_journal(host: Host) -> str:
    return f"/var/tmp/paddock-audit-{host.uid}"


def _journal(policy: Policy, host: Host) -> Journal | None:
    if Switch.AUDIT in policy.off:
        return None
    place = policy.audit.dir.value if policy.audit.dir else _default_journal(host)
    single = place.endswith(".jsonl")
    return Journal(
        dir=os.path.dirname(place) if single else place,
        file=os.path.basename(place) if single else None,
        stderr=policy.audit.stderr,
    )


def _landlock(
    policy: Policy, host: Host, journal: Journal | None, notices: list[Notice]
) -> tuple[Landlock | None, Temp | None]:
    files = lay_out(
        policy.filesystem,
        host,
        journals=tuple(sorted({_default_journal(host), *((journal.dir,) if journal else ())})),
        chosen_journal=journal.dir if journal and policy.audit.dir else None,
    )
    if Switch.LANDLOCK in policy.off or host.landlock_abi == 0:
        return None, files.temp
    notices += files.notices
    abi = min(host.landlock_abi, max(KERNEL_OF_ABI))
    can = holdable(abi)
    used = {grant.access for grant in files.grants} | ({files.temp.access} if files.temp else set())
    landlock = Landlock(
        abi=abi,
        handled=can.handled,
        scoped=can.scoped,
        access={name: rights for name, rights in can.access.items() if name in used},
        grants=files.grants,
        closed=files.closed,
        unwritable=files.unwritable,
        reached=tuple(sorted(host.reached, key=lambda tree: (tree.path, tree.identity or ()))),
    )
    return landlock, files.temp


def _seccomp(policy: Policy, host: Host) -> Seccomp | None:
    if Switch.SECCOMP in policy.off or not host.seccomp:
        return None
    blocked = {name.value for name in policy.syscalls.block}
    passed = None if policy.syscalls.allow is None else {name.value for name in policy.syscalls.allow} - blocked
    return Seccomp(
        default="allow" if passed is None else "deny",
        syscalls=tuple(sorted(blocked if passed is None else passed)),
        sockets=tuple(sorted({family.value for family in policy.syscalls.sockets})),
        namespaces="unshare" not in blocked if passed is None else "unshare" in passed,
    )


def _environment(policy: Policy, temp: Temp | None) -> EnvironmentRules | None:
    if Switch.ENV_SANITIZE in policy.off:
        return None
    values = {name: value.value for name, value in policy.env.set}
    for name, value in policy.env.set:
        if "<tmp>" in value.value and temp is None:
            raise PolicyError(
                f"env.set.{name} needs a private temporary directory, and nothing grants <tmp>",
                where=str(value.source),
                hint='add "<tmp>/**" to filesystem.allow_globs',
            )
    return EnvironmentRules(
        pass_=tuple(sorted({name.value for name in policy.env.pass_})),
        deny=tuple(sorted({name.value for name in policy.env.deny})),
        keep=tuple(sorted({name.value for name in policy.env.keep})),
        set=values,
    )


def _workdir(policy: Policy, host: Host, landlock: Landlock | None) -> str:
    if policy.workdir is None:
        return host.cwd
    chosen = policy.workdir.value
    if landlock and not any(_covers(grant, chosen) for grant in landlock.grants):
        raise PolicyError(
            f"the working directory {chosen} is outside every grant",
            where=str(policy.workdir.source),
            hint=f"grant it: --allow '{chosen}/**'",
        )
    return chosen


def _covers(grant: PathGrant, path: str) -> bool:
    return within(path, grant.path) and not any(within(path, kept_out) for kept_out in grant.except_)


def _start_line(policy: Policy, host: Host, landlock: Landlock | None, seccomp: Seccomp | None) -> Notice:
    """What is enforced, in one line; and where, because a shell may have been led somewhere else by a link."""
    files = f"files fenced (Landlock ABI {landlock.abi})" if landlock else "files open"
    if seccomp is None:
        calls = "system calls open"
    elif seccomp.default == "allow":
        calls = f"{len(seccomp.syscalls)} system calls blocked"
    else:
        calls = f"{len(seccomp.syscalls)} system calls allowed"
    return Notice(level=Level.INFO, text=f"{policy.profiles[0]} in {host.cwd}: {files}, {calls}, network open")
