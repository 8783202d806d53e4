"""A copy-on-write workspace: the overlay is mounted over the workspace's own grant."""

from __future__ import annotations

from paddock.errors import PolicyError
from paddock.host.facts import Host
from paddock.plan.plan import Files
from paddock.plan.plan import WorkspacePlan as PlannedWorkspace
from paddock.plan.rights import WRITES
from paddock.policy.model import Policy, Tier, Workspace


def workspace_of(
    policy: Policy, host: Host, tier: Tier, files: Files | None
) -> PlannedWorkspace | None:
    asked = policy.filesystem.workspace
    if asked is None or asked.value is Workspace.LIVE:
        return None
    where = str(asked.source)
    if tier is not Tier.FULL or files is None:
        raise PolicyError(
            "a copy-on-write workspace needs the full tier",
            where=where,
            hint="type `paddock doctor` to see why this machine has no full tier, or run without "
            "--cow",
        )
    if not host.overlay.usable:
        raise PolicyError(
            "a copy-on-write workspace needs overlayfs, and this machine denies it "
            f"({host.overlay.refusal})",
            where=where,
        )
    if not any(grant.path == host.cwd and grant.access in WRITES for grant in files.grants):
        raise PolicyError(
            "--cow needs a writable workspace, and the policy does not allow writing to "
            f"{host.cwd}",
            where=where,
            hint='allow_globs = ["<cwd>/**"], or --allow .',
        )
    return PlannedWorkspace(path=host.cwd, resume=policy.resume)
