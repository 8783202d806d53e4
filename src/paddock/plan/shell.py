"""[shell] → what a shell does to itself, in the fence that it is in: a plan of the landlock tier by
itself.

Landlock and seccomp add up: what either layer refuses is refused, so a layer can only be narrower
than the one it is in. What Landlock and seccomp can not hold, no shell could hold by itself, and it
is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paddock.errors import HostError, PolicyError
from paddock.host.model import Host
from paddock.plan import model
from paddock.plan.grants import TMP, RequestedGrant, asked_of, merged
from paddock.plan.model import (
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
    User,
)
from paddock.plan.paths import outermost, touch, within
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

# What a shell needs to go inside, and to be known there.
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
# By these it is known from inside, and its own shells are started.
_OWN = frozenset({"prctl", "execve", "exit_group"})

_FLAG = Source(file=COMMAND_LINE, key="--intercept-shells")
_ASKED_FOR = ShellSettings(network=Sourced(NetworkMode.NONE, _FLAG), source=_FLAG)


def shell_of(
    policy: Policy, host: Host, tier: Tier, landlock: Landlock | None, seccomp: Seccomp | None
) -> model.ShellPlan | None:
    """None: shells are as any other program."""
    asked = _asked_for(policy)
    if asked is None:
        return None
    if tier is not Tier.FULL:
        raise PolicyError(
            "the landlock tier cannot intercept shells: it has no mounts to put over them",
            where=str(asked.source),
            hint="type `paddock doctor` to see what the full tier needs; `paddock shims install` "
            "intercepts shells that PATH finds",
        )
    if landlock is None or seccomp is None:
        missing = "Landlock" if landlock is None else "seccomp"
        raise HostError(f"{asked.source}: shells cannot be restricted without {missing}")
    listed = NEEDED & set(seccomp.syscalls)
    refused = listed if seccomp.default == "allow" else NEEDED - listed
    if refused:
        raise PolicyError(
            f"the policy blocks {', '.join(sorted(refused))}, which a shell needs to restrict "
            "itself",
            where=str(asked.source),
            hint="allow these calls in [syscalls]",
        )
    return model.ShellPlan(
        on_failure=on_failure(asked), plan=inside(policy, host).canonical().decode("ascii")
    )


def inside(policy: Policy, host: Host) -> Plan:
    """For shells in a fence: [shell] alone."""
    return layer(_asked_for(policy) or _ASKED_FOR, host, sockets=SOCKETS, namespaces=True)


def _asked_for(policy: Policy) -> ShellSettings | None:
    return policy.shell or (_ASKED_FOR if policy.intercept else None)


def on_failure(shell: ShellSettings | None) -> OnFailure:
    return shell.on_failure.value if shell and shell.on_failure else OnFailure.CLOSED


def summary_of_shells(policy: Policy) -> str:
    """For the start line."""
    shell = _asked_for(policy)
    if shell is None:
        return ""
    said = ["no network"] if shell.network else []
    said += ["fewer files"] if shell.grants or shell.denies else []
    said += ["fewer calls"] if shell.block else []
    return ", ".join(said) or "apart from what started them"


def outside(policy: Policy, host: Host, *, own: tuple[str, ...], journals: tuple[str, ...]) -> Plan:
    """For shells that are found by PATH, in no fence: with what the policy closes to everybody. Its
    grants depend on where a run is started; a shell is started anywhere. ``own``: what says how
    shells are closed in.
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
        closed=journals,
        own=(*host.own_paths, *own),
    )


def layer(
    shell: ShellSettings,
    host: Host,
    *,
    sockets: tuple[str, ...],
    namespaces: bool,
    closed: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Plan:
    """``closed``: to everything; ``own``: to writing. Inside a fence that has them closed there is
    nothing to add.
    """
    if host.landlock_abi == 0:
        raise HostError(f"{shell.source}: shells cannot be restricted without Landlock")
    for call in shell.block:
        if call.value in _OWN:
            raise PolicyError(
                f"{call.value} cannot be blocked: Paddock identifies shells by this call",
                where=str(call.source),
            )
    denied = tuple(sorted({*closed, *(path for deny in shell.denies for path in _exact(deny))}))
    grants = merged(held for asked in _grants(shell) if (held := _around(asked, denied, own)))
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
            reached=_reached(shell, host),
            deny=(),
            protect=(),
            opened=(),
        ),
        landlock=Landlock(
            abi=abi,
            handled=can.handled,
            # Signals reach whom the fence lets them reach: what one shell started another may have
            # to end.
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


def _reached(shell: ShellSettings, host: Host) -> tuple[Tree, ...]:
    """Who writes only where it is said needs to know which links a command may have made; each
    shell reads it.
    """
    writes = any(grant.access in (Access.WRITE, Access.ALLOW) for grant in shell.grants)
    return (
        tuple(sorted(host.reached, key=lambda tree: (tree.path, tree.identity or ())))
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
    """What nobody speaks of stays as the fence has it."""
    own = tuple(_placed(grant) for grant in shell.grants)
    reads = any(grant.access in (Access.READ, Access.EXEC) for grant in own)
    writes = any(grant.access in (Access.WRITE, Access.ALLOW) for grant in own)
    notices: list[Notice] = []
    bootstrap = Sourced(not reads, shell.source)
    yield from asked_of(Filesystem(grants=own, no_bootstrap_reads=bootstrap), notices)
    if notices:
        raise PolicyError(
            notices[0].text.partition(": ")[2], where=notices[0].text.partition(": ")[0]
        )
    # Apart, because a grant to write is carved around more than one to read.
    if not reads:
        yield _open("/", "read")
    if not writes:
        yield _open("/", "write")
    yield _open("/dev", "device")
    yield _open("/dev/shm", "allow")


def _placed(grant: Grant) -> Grant:
    """A private temporary directory is /tmp wherever shells are intercepted."""
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
    asked: RequestedGrant, denied: tuple[str, ...], own: tuple[str, ...]
) -> PathGrant | None:
    kept_out = (*denied, *own) if asked.writes else denied
    if any(within(asked.path, path) for path in kept_out):
        return None
    return asked.grant(except_=outermost(path for path in kept_out if touch(path, asked.path)))
