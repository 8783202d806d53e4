"""Compiles Policy, Host and Accounts to the Plan of a container.

A container has its own files, so the grants of a policy are an additional layer: Landlock rules on
paths inside, made after the root was changed. Without grants the modes of the files decide, as on
any machine. The denied and protected names of the built-in profiles concern a user's home, which is
not inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paddock.errors import HostError, PolicyError
from paddock.frozen import dataclass
from paddock.host.accounts import Accounts
from paddock.host.facts import Host
from paddock.plan.compile import (
    LOST,
    is_strict,
    journal_of,
    journals_of,
    missing_mechanisms,
    refuse_privileged,
)
from paddock.plan.grants import LOADER, TMP, merged, requested_grants, temp_access
from paddock.plan.id_maps import IdMaps, identity_of
from paddock.plan.noexec_grants import hold_off
from paddock.plan.path_containment import touch
from paddock.plan.plan import (
    Container,
    EnvironmentRules,
    Files,
    Landlock,
    Level,
    LimitsPlan,
    Mask,
    Namespaces,
    Notice,
    PathGrant,
    Plan,
    Seccomp,
    User,
)
from paddock.plan.rights import KERNEL_OF_ABI, holdable
from paddock.plan.seccomp import nests, seccomp_of
from paddock.policy.glob import Glob
from paddock.policy.model import TMP_TOKEN, Action, Policy, Setting, Source, Switch, Tier, Workspace
from paddock.policy.trust.origin import state_dir_of

HOSTNAME = "paddock"
NETNS_DIR = "/run/netns"
SHELL = "/bin/sh"
# The host's PATH contains directories of the caller.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_LIMITS_OF_GROUPS = ("memory_mb", "processes", "cpu_s")

# The private /dev contains only harmless nodes, terminals and shared memory.
_DEVICES = (("/dev", "device"), ("/dev/shm", "allow"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSection:
    """The container section of a policy. Each value has its source and the type that its reader
    gave it.
    """

    settings: tuple[Setting, ...]

    def text(self, key: str) -> str | None:
        value = self._value(key)
        return None if value is None else str(value)

    def number(self, key: str, otherwise: int) -> int:
        value = self._value(key)
        return value if isinstance(value, int) else otherwise

    def is_on(self, key: str) -> bool:
        return self._value(key) is True

    def each(self, key: str) -> tuple[str, ...]:
        value = self._value(key)
        return tuple(str(one) for one in value) if isinstance(value, tuple) else ()

    def where(self, key: str) -> str:
        return next((str(one.source) for one in self.settings if one.key == key), key)

    def required(self, key: str, flag: str) -> str:
        value = self.text(key)
        if value is None:
            raise PolicyError(
                f"a container needs a {key}", hint=f"{flag}, or a line `{key} …` in the profile"
            )
        return value

    def _value(self, key: str) -> object:
        return next((one.value for one in self.settings if one.key == key), None)


def compile_container(policy: Policy, host: Host, accounts: Accounts) -> Plan:
    section = ContainerSection(settings=policy.container)
    rootdir = section.required("rootdir", "--rootdir DIR")
    _refuse_unheld(policy)
    refuse_privileged(policy, host)
    _refuse_rootless(section, host)
    _refuse_two_groups(policy, section)
    if not host.namespaces.usable:
        raise HostError(
            "a container needs namespaces, and this machine denies them "
            f"({host.namespaces.refusal})",
            hint="type `paddock doctor` to see what this machine can enforce",
        )
    has_file_rules = bool(policy.filesystem.grants) and Switch.LANDLOCK not in policy.off
    missing = missing_mechanisms(policy, host, Tier.LANDLOCK if has_file_rules else Tier.FULL)
    journal = journal_of(policy, host)
    _refuse_own(rootdir, host, journals_of(host, journal), section)
    notices: list[Notice] = []
    files = _files(policy, notices) if has_file_rules and host.landlock_abi else None
    landlock = _landlock(host, files) if files else None
    uid, gid = (
        section.number("uid", accounts.service.uid),
        section.number("gid", accounts.service.gid),
    )
    identity = identity_of(
        accounts,
        caller=host.uid,
        uid=uid,
        gid=gid,
        same=section.text("id-map") == "identity",
        where=section.where(
            next(
                key for key in ("id-map", "uid", "gid", "username") if section.text(key) is not None
            )
        ),
    )
    container = Container(
        rootdir=rootdir,
        uid=uid,
        gid=gid,
        uid_map=identity.uid_map,
        gid_map=identity.gid_map,
        mappers=identity.mappers,
        netns=_netns(section),
        loopback=section.is_on("loopback"),
        cgroups=section.each("cgroup"),
        capabilities=tuple(sorted(section.each("cap-allow"))),
        masks=tuple(_masks(policy, section)),
    )
    seccomp = _seccomp(policy, host, landlock, container)
    remarks = [
        _start_line(policy, container, identity, landlock, seccomp),
        *(Notice(level=Level.INFO, text=note) for note in policy.notes),
        *_warnings(policy, section, accounts, container, host),
        *(Notice(level=Level.UNENFORCED, text=text) for text in missing),
        *notices,
    ]
    return Plan(
        profiles=policy.profiles,
        tier=Tier.FULL,
        user=User(uid=host.uid, name=host.user, home=host.home),
        journal=journal,
        no_new_privs=Switch.NO_NEW_PRIVS not in policy.off,
        rlimits={"core": 1},
        environment=_environment(policy, accounts),
        temp=None,
        files=files,
        landlock=landlock,
        namespaces=Namespaces(
            nested=nests(policy.syscalls),
            hostname=section.text("hostname") or HOSTNAME,
            tmp_mb=None,
        ),
        workspace=None,
        container=container,
        limits=LimitsPlan(**{limit.name: limit.value for limit in policy.limits}),
        sessions=f"{state_dir_of(host.home)}/sessions",
        seccomp=seccomp,
        gate=None,
        network=None,
        shell=None,
        observe=False,
        judges_writes=False,
        cwd=host.cwd,
        workdir=policy.workdir.value if policy.workdir else "/",
        require_enforced=is_strict(policy),
        notices=tuple(remarks),
    )


def _refuse_unheld(policy: Policy) -> None:
    """Settings that `paddock run` enforces and a container does not. They are refused, because an
    unkept promise is worse than none.
    """
    for key, source in _unheld(policy):
        raise PolicyError(
            f"a container does not enforce {key}",
            where=str(source),
            hint=f"to run without it, remove {key}",
        )


def _unheld(policy: Policy) -> Iterator[tuple[str, Source]]:
    meta, filesystem = policy.meta, policy.filesystem
    if meta.default_action and meta.default_action.value is not Action.ALLOW:
        yield "meta.default_action", meta.default_action.source
    for rule in policy.rules:
        yield "rule", rule.source
    yield from ((f"tools.{key}", source) for key, source in policy.tools.given())
    if policy.network:
        mode = policy.network.mode
        yield (
            "network (a container has its own network namespace, or joins one with netns)",
            (mode.source if mode else Source(file="[network]")),
        )
    if policy.shell:
        yield "shell", policy.shell.source
    if filesystem.workspace and filesystem.workspace.value is not Workspace.LIVE:
        yield "filesystem.workspace", filesystem.workspace.source
    for grant in filesystem.grants:
        if grant.create:
            yield f"create of {grant.pattern} (a container has its own files)", grant.source
    for limit in policy.limits:
        if limit.name == "tmp_mb":
            yield "limits.tmp_mb (the /tmp of a container is in its root directory)", limit.source
    for deny in filesystem.denies:
        if not deny.source.builtin and not Glob.parse(deny.pattern).exact:
            yield f"deny {deny.pattern} (a pattern of names)", deny.source


def _refuse_rootless(section: ContainerSection, host: Host) -> None:
    """The kernel would refuse it too, later and with another message."""
    if host.uid != 0 and section.text("netns"):
        raise PolicyError(
            "netns needs root: only root can join a network namespace that exists",
            where=section.where("netns"),
            hint="remove netns to get a new network namespace, or run `paddock jail` as root",
        )


def _refuse_two_groups(policy: Policy, section: ContainerSection) -> None:
    """A process is in one control group of a tree: that of the limit, or the named one."""
    for limit in policy.limits:
        if limit.name in _LIMITS_OF_GROUPS and section.each("cgroup"):
            raise PolicyError(
                f"limits.{limit.name} would move the command out of the control group that "
                "`cgroup` names",
                where=str(limit.source),
                hint=f"set the limit in {section.each('cgroup')[0]} and remove limits, or remove "
                "cgroup",
            )


def _refuse_own(
    rootdir: str, host: Host, journals: tuple[str, ...], section: ContainerSection
) -> None:
    for path in (*host.own_paths, *host.missing_entries, *journals):
        if touch(path, rootdir):
            raise PolicyError(
                f"the root directory {rootdir} overlaps {path}, which Paddock itself needs",
                where=section.where("rootdir"),
                hint="give the container its own directory",
            )


def _netns(section: ContainerSection) -> str | None:
    name = section.text("netns")
    if name is None:
        return None
    if section.is_on("loopback"):
        raise PolicyError(
            "loopback needs a new network namespace, and netns names an existing one",
            where=section.where("loopback"),
            hint=f"remove loopback, and type `ip -n {name} link set lo up`",
        )
    return name if name.startswith("/") else f"{NETNS_DIR}/{name}"


def _masks(policy: Policy, section: ContainerSection) -> Iterator[Mask]:
    where = section.where("mount-mask")
    written = [Mask(path=path, optional=False, source=where) for path in section.each("mount-mask")]
    written += [
        Mask(path=Glob.parse(deny.pattern).prefix, optional=deny.optional, source=str(deny.source))
        for deny in policy.filesystem.denies
        if not deny.source.builtin
    ]
    yield from {mask.path: mask for mask in reversed(written)}.values()


def _files(policy: Policy, notices: list[Notice]) -> Files:
    """Paths that the built-in profiles and the loader name may be missing in a container."""
    section = hold_off(
        requested_grants(policy.filesystem, notices), strict=is_strict(policy), notices=notices
    )
    optional = [replace(one, optional=True) if _is_general(one.source) else one for one in section]
    grants = [
        one.grant()
        for one in optional
        if not one.path.startswith("/dev/") or not _is_general(one.source)
    ]
    grants += [
        PathGrant(path=path, access=kind, except_=(), optional=False, source=LOADER)
        for path, kind in _DEVICES
    ]
    if access := temp_access(policy.filesystem):
        grants.append(
            PathGrant(path=TMP, access=access, except_=(), optional=True, source=TMP_TOKEN)
        )
    return Files(
        grants=merged(grants), closed=(), unwritable=(), reached=(), deny=(), protect=(), opened=()
    )


def _is_general(source: str) -> bool:
    return source == LOADER or source.startswith("built-in ")


def _landlock(host: Host, files: Files) -> Landlock:
    abi = min(host.landlock_abi, max(KERNEL_OF_ABI))
    can = holdable(abi)
    used = {grant.access for grant in files.grants}
    access = {name: rights for name, rights in can.access.items() if name in used}
    return Landlock(abi=abi, handled=can.handled, scoped=can.scoped, access=access)


def _seccomp(
    policy: Policy, host: Host, landlock: Landlock | None, container: Container
) -> Seccomp | None:
    if Switch.SECCOMP in policy.off or not host.seccomp:
        return None
    seccomp = seccomp_of(policy.syscalls, Tier.FULL, landlock)
    if container.netns is None:
        # Socket files belong to the container, and so do abstract names, which belong to the
        # network namespace.
        seccomp = replace(seccomp, sockets=tuple(sorted({*seccomp.sockets, "unix"})))
    return seccomp


def _environment(policy: Policy, accounts: Accounts) -> EnvironmentRules | None:
    if Switch.ENV_SANITIZE in policy.off:
        return None
    service = accounts.service
    own = {
        "HOME": service.home,
        "USER": service.name,
        "LOGNAME": service.name,
        "PATH": PATH,
        "SHELL": SHELL,
    }
    values = {name: value.value.replace(TMP_TOKEN, TMP) for name, value in policy.env.set}
    return EnvironmentRules(
        pass_=tuple(sorted({name.value for name in policy.env.pass_})),
        deny=tuple(sorted({name.value for name in policy.env.deny})),
        keep=tuple(sorted({name.value for name in policy.env.keep})),
        set={**own, **values},
    )


def _warnings(
    policy: Policy, section: ContainerSection, accounts: Accounts, container: Container, host: Host
) -> Iterator[Notice]:
    remarks = [f"{switch.value} is off: {LOST[switch]}" for switch in policy.off]
    if host.uid == 0 and section.text("id-map") == "identity":
        remarks.append(
            f"{section.where('id-map')}: users in the container have the same ids outside: "
            "its root "
            "user is root on the host"
        )
    if host.uid != 0 and not container.mappers and accounts.caller_groups:
        groups = ", ".join(map(str, accounts.caller_groups))
        remarks.append(
            f"the command keeps your groups ({groups}): dropping them needs newgidmap and "
            "/etc/subgid"
        )
    return (Notice(level=Level.WARNING, text=text) for text in remarks)


def _start_line(
    policy: Policy,
    container: Container,
    identity: IdMaps,
    landlock: Landlock | None,
    seccomp: Seccomp | None,
) -> Notice:
    parts = [f"uid {container.uid} is {identity.outside(container.uid)} outside"]
    parts.append(
        f"grants enforced by Landlock ABI {landlock.abi}"
        if landlock
        else "all its files accessible"
    )
    if seccomp is None:
        parts.append("system calls not restricted")
    else:
        verb = "blocked" if seccomp.default == "allow" else "allowed"
        parts.append(f"{len(seccomp.syscalls)} system calls {verb}")
    parts.append(f"network of {container.netns}" if container.netns else "no network")
    return Notice(
        level=Level.INFO,
        text=f"{policy.profiles[0]} in {container.rootdir}: container, {', '.join(parts)}",
    )
