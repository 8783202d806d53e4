"""Chooses the tier, and describes what it lacks."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.plan.rights import KERNEL_OF_ABI, holdable
from paddock.policy.model import Access, Policy, Switch, Tier

# Before this ABI, every Landlock layer denies each move between two directories. If mounts restrict
# the files, that would be a loss.
USEFUL_ABI = 2


def choose_tier(policy: Policy, host: Host) -> Tier:
    """The strongest available one, unless the command line names one."""
    if Switch.LANDLOCK in policy.off:  # the whole file layer, including mounts
        if policy.tier is Tier.FULL:
            raise PolicyError(
                "the full tier restricts files, and --off landlock leaves them open",
                where="--tier full",
            )
        return Tier.LANDLOCK
    if policy.tier is Tier.FULL and not host.namespaces.usable:
        raise HostError(
            "--tier full needs namespaces, and this machine denies them "
            f"({host.namespaces.refusal})",
            hint="without --tier, Paddock uses the landlock tier"
            + (f"; for the full tier {opened}" if (opened := opening(host)) else ""),
        )
    return policy.tier or (Tier.FULL if host.namespaces.usable else Tier.LANDLOCK)


def lacking(policy: Policy, host: Host, tier: Tier) -> Iterator[str]:
    """The features that the policy needs and this machine lacks."""
    if Switch.LANDLOCK not in policy.off:
        yield from _landlock(host) if tier is Tier.LANDLOCK else _mounts(policy, host)
    if Switch.SECCOMP not in policy.off and not host.seccomp:
        yield "no seccomp filters: system calls cannot be restricted"
    if tier is Tier.LANDLOCK:
        for limit in policy.limits:
            if limit.name == "tmp_mb":
                yield (
                    f"limits.tmp_mb ({limit.source}) needs the full tier: in the landlock tier, "
                    "temporary files are on the disk"
                )


def opening(host: Host) -> str | None:
    """What to type to get user namespaces. None: they work, or no known setting closes them."""
    return host.namespaces.closed_by.opened_by if host.namespaces.closed_by else None


def remedy(host: Host) -> str:
    # EOPNOTSUPP is the answer of Landlock when it is off at boot; no filter of an engine gives it.
    hidden = host.landlock_errno in ("EPERM", "ENOSYS") or not host.seccomp
    if host.filtered and hidden:  # core/src/commands/error.rs prints the same
        return (
            "this process already has a system call filter, as in a container, which may deny "
            "the call: update the container engine, start the container with a profile that "
            "allows the landlock_* calls, seccomp and prctl (--security-opt seccomp=FILE), or "
            "without one (--security-opt seccomp=unconfined)"
        )
    # A run of the landlock tier gives the same answer.
    inside = (
        "inside a run in the landlock tier no second run can restrict files: start it outside; "
        if host.filtered and host.landlock_errno == "EOPNOTSUPP"
        else ""
    )
    opened = opening(host)
    full = f"{opened}: the full tier needs no newer kernel; " if opened and not inside else ""
    return (
        f"{inside}{full}type `paddock doctor` to see what this machine can enforce; to run without "
        "it, write filesystem.require_enforced = false"
    )


def _landlock(host: Host) -> Iterator[str]:
    if host.landlock_abi == 0:
        why = f" ({host.landlock_errno})" if host.landlock_errno else ""
        yield f"no Landlock{why}: files cannot be restricted; Linux {KERNEL_OF_ABI[1]} has it"
        return
    for missing in holdable(host.landlock_abi).missing:
        yield (
            f"Landlock ABI {host.landlock_abi} lacks {missing.right}: {missing.consequence}; "
            f"Linux {missing.kernel} has it"
        )


def _mounts(policy: Policy, host: Host) -> Iterator[str]:
    """Mounts and the pid namespace close gaps of an older Landlock. They can not distinguish kinds
    of access.
    """
    if host.landlock_abi >= USEFUL_ABI:
        return
    for grant in policy.filesystem.grants:
        if grant.access is Access.WRITE:
            yield (
                f"the grant {grant.pattern} ({grant.source}) can be read too: write without "
                "read needs Landlock"
            )
        if grant.access is Access.EXEC:
            yield (
                f"the grant {grant.pattern} ({grant.source}) can be listed too: execute without "
                "list needs Landlock"
            )
