"""Compiles [shell] to the restrictions that a shell applies to itself inside its sandbox: a plan of
the landlock tier.

Landlock and seccomp add up: a call that either layer denies is denied, so a layer can only be
narrower. A setting that Landlock and seccomp can not enforce is an error, because no shell could
enforce it on itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.plan.grants import TMP, RequestedGrant, merged, requested_grants
from paddock.plan.path_containment import outermost, touch, within
from paddock.plan.plan import (
    EnvironmentRules,
    Files,
    Landlock,
    LimitsPlan,
    NetworkPlan,
    NetworkReach,
    Notice,
    PathGrant,
    Plan,
    Seccomp,
    ShellPlan,
    User,
)
from paddock.plan.rights import KERNEL_OF_ABI, holdable
from paddock.policy.glob import Glob
from paddock.policy.model import (
    COMMAND_LINE,
    SOCKETS,
    TMP_TOKEN,
    Access,
    Action,
    Deny,
    Filesystem,
    Grant,
    NetworkMode,
    OnFailure,
    Policy,
    ShellSettings,
    Source,
    Sourced,
    Tier,
)
from paddock.policy.trust.origin import state_dir_of
from paddock.text.path_walk import Tree

# The mechanisms that a shell needs inside.
NEEDED = frozenset(
    {
        "prctl",
        "seccomp",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
        "close_range",
    }
)
# The paths by which intercepted shells are recognised and started.
_OWN = frozenset({"prctl", "execve", "exit_group"})

_FLAG = Source(file=COMMAND_LINE, key="--intercept-shells")
_INTERCEPTED = ShellSettings(network=Sourced(NetworkMode.NONE, _FLAG), source=_FLAG)


def shell_of(
    policy: Policy, host: Host, tier: Tier, landlock: Landlock | None, seccomp: Seccomp | None
) -> ShellPlan | None:
    """None: shells are ordinary programs."""
    requested = _shell_settings(policy)
    if requested is None:
        return None
    if tier is not Tier.FULL:
        raise PolicyError(
            "the landlock tier cannot intercept shells: it has no mounts to put over them",
            where=str(requested.source),
            hint="type `paddock doctor` to see what the full tier needs; `paddock shims install` "
            "intercepts shells that PATH finds",
        )
    if landlock is None or seccomp is None:
        missing = "Landlock" if landlock is None else "seccomp"
        raise HostError(f"{requested.source}: shells cannot be restricted without {missing}")
    listed = NEEDED & set(seccomp.syscalls)
    refused = listed if seccomp.default == "allow" else NEEDED - listed
    if refused:
        raise PolicyError(
            f"the policy blocks {', '.join(sorted(refused))}, which a shell needs to restrict "
            "itself",
            where=str(requested.source),
            hint="allow these calls in [syscalls]",
        )
    return ShellPlan(
        on_failure=on_failure(requested), plan=inside(policy, host).canonical().decode("ascii")
    )


def inside(policy: Policy, host: Host) -> Plan:
    """For shells inside a sandbox: [shell] alone."""
    return layer(_shell_settings(policy) or _INTERCEPTED, host, sockets=SOCKETS, namespaces=True)


def _shell_settings(policy: Policy) -> ShellSettings | None:
    return policy.shell or (_INTERCEPTED if policy.intercept else None)


def on_failure(shell: ShellSettings | None) -> OnFailure:
    return shell.on_failure.value if shell and shell.on_failure else OnFailure.CLOSED


def summary_of_shells(policy: Policy) -> str:
    """For the start line."""
    shell = _shell_settings(policy)
    if shell is None:
        return ""
    parts = ["no network"] if shell.network else []
    parts += ["fewer files"] if shell.grants or shell.denies else []
    parts += ["fewer calls"] if shell.block else []
    return ", ".join(parts) or "apart from what started them"


def outside(policy: Policy, host: Host, *, own: tuple[str, ...], journals: tuple[str, ...]) -> Plan:
    """For shells that are found by PATH, outside of any sandbox: with the denies of the policy. The
    grants of the policy depend on the directory of a run, but a shell starts anywhere. ``own``: the
    files that configure the interception.
    """
    shell = policy.shell or ShellSettings(source=Source(file=COMMAND_LINE, key="shims install"))
    blocked = {call.value for call in policy.syscalls.block}
    whole = replace(
        shell,
        denies=(*policy.filesystem.denies, *shell.denies),
        block=(*(call for call in policy.syscalls.block if call.value not in _OWN), *shell.block),
        env_deny=(*policy.env.deny, *shell.env_deny),
    )
    sockets = tuple(sorted({family.value for family in policy.syscalls.sockets}))
    return layer(
        whole,
        host,
        sockets=sockets,
        namespaces="unshare" not in blocked,
        denied_completely=journals,
        own=(*host.own_paths, *own),
    )


def layer(
    shell: ShellSettings,
    host: Host,
    *,
    sockets: tuple[str, ...],
    namespaces: bool,
    denied_completely: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Plan:
    """``denied_completely``: denied completely; ``own``: read-only. Inside a sandbox that denies
    them nothing is added.
    """
    if host.landlock_abi == 0:
        raise HostError(f"{shell.source}: shells cannot be restricted without Landlock")
    for call in shell.block:
        if call.value in _OWN:
            raise PolicyError(
                f"{call.value} cannot be blocked: Paddock identifies shells by this call",
                where=str(call.source),
            )
    denied = tuple(
        sorted({*denied_completely, *(path for deny in shell.denies for path in _exact(deny))})
    )
    grants = merged(
        held for requested in _grants(shell) if (held := _around(requested, denied, own))
    )
    abi = min(host.landlock_abi, max(KERNEL_OF_ABI))
    can = holdable(abi)
    used = {grant.access for grant in grants}
    denied_names = tuple(sorted({name.value for name in shell.env_deny}))
    return Plan(
        profiles=("shell",),
        tier=Tier.LANDLOCK,
        user=User(uid=host.uid, name=host.user, home=host.home),
        journal=None,
        no_new_privs=True,
        rlimits={},
        environment=EnvironmentRules(pass_=("*",), deny=denied_names, keep=(), set={})
        if denied_names
        else None,
        temp=None,
        files=Files(
            grants=grants,
            closed=denied,
            unwritable=tuple(sorted({*own})),
            reached=_previously_writable(shell, host),
            deny=(),
            protect=(),
            opened=(),
        ),
        landlock=Landlock(
            abi=abi,
            handled=can.handled,
            # Signals are limited by the sandbox only, because one shell may have to end a process
            # of another.
            scoped=tuple(
                scope for scope in can.scoped if scope == "abstract_unix_socket" and shell.network
            ),
            access={name: rights for name, rights in can.access.items() if name in used},
        ),
        namespaces=None,
        workspace=None,
        container=None,
        limits=LimitsPlan(),
        sessions=f"{state_dir_of(host.home)}/sessions",
        seccomp=Seccomp(
            default="allow",
            syscalls=tuple(sorted({call.value for call in shell.block})),
            sockets=sockets,
            namespaces=namespaces,
        ),
        gate=None,
        network=_NO_NETWORK if shell.network else None,
        shell=None,
        observe=False,
        judges_writes=False,
        cwd="/",
        workdir="/",
        require_enforced=True,
        notices=(),
    )


_NO_NETWORK = NetworkPlan(
    mode=NetworkReach.NONE,
    default=Action.DENY,
    default_source=None,
    ask_timeout_s=1,
    denied=(),
    allowed=(),
    approved=(),
    local_ports=(),
    published=(),
)


def _previously_writable(shell: ShellSettings, host: Host) -> tuple[Tree, ...]:
    """A shell with write grants needs the previously writable paths, to recognise links that a
    command may have made. Each shell reads the list.
    """
    writes = any(grant.access in (Access.WRITE, Access.ALLOW) for grant in shell.grants)
    return (
        tuple(sorted(host.previously_writable, key=lambda tree: (tree.path, tree.identity or ())))
        if writes
        else ()
    )


def _exact(deny: Deny) -> Iterator[str]:
    glob = Glob.parse(deny.pattern)
    if glob.exact:
        yield glob.prefix
    elif not deny.optional:
        raise PolicyError(
            f"deny {deny.pattern} cannot be enforced for shells only: Landlock has no deny by name",
            where=str(deny.source),
            hint="deny whole files or directories, or deny it in [filesystem]",
        )


def _grants(shell: ShellSettings) -> Iterator[RequestedGrant]:
    """Paths without a grant stay as the sandbox has them."""
    own = tuple(_with_tmp(grant) for grant in shell.grants)
    reads = any(grant.access in (Access.READ, Access.EXEC) for grant in own)
    writes = any(grant.access in (Access.WRITE, Access.ALLOW) for grant in own)
    notices: list[Notice] = []
    bootstrap = Sourced(not reads, shell.source)
    yield from requested_grants(Filesystem(grants=own, no_bootstrap_reads=bootstrap), notices)
    if notices:
        raise PolicyError(
            notices[0].text.partition(": ")[2], where=notices[0].text.partition(": ")[0]
        )
    # Separate, because a write grant has more excepts than a read grant.
    if not reads:
        yield _open("/", "read")
    if not writes:
        yield _open("/", "write")
    yield _open("/dev", "device")
    yield _open("/dev/shm", "allow")


def _with_tmp(grant: Grant) -> Grant:
    """If shells are intercepted, the private temporary directory is /tmp."""
    return replace(grant, pattern=grant.pattern.replace(TMP_TOKEN, TMP))


def _open(path: str, access: str) -> RequestedGrant:
    return RequestedGrant(
        path=path,
        access=access,
        optional=True,
        workspace=False,
        persons=False,
        tree=True,
        source="shell",
    )


def _around(
    requested: RequestedGrant, denied: tuple[str, ...], own: tuple[str, ...]
) -> PathGrant | None:
    excluded = (*denied, *own) if requested.writes else denied
    if any(within(requested.path, path) for path in excluded):
        return None
    return requested.grant(
        except_=outermost(path for path in excluded if touch(path, requested.path))
    )
