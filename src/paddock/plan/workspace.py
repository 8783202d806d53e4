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
            hint="`paddock doctor` shows why there is none here; a live workspace needs none",
        )
    if not host.overlay.usable:
        raise PolicyError(
            f"a copy-on-write workspace needs overlayfs, which can not be used here ({host.overlay.refusal})",
            where=where,
        )
    if not any(grant.path == host.cwd and grant.access in WRITES for grant in files.grants):
        raise PolicyError(
            f"there is no writable workspace to copy: the policy does not let {host.cwd} be written",
            where=where,
            hint='allow_globs = ["<cwd>/**"], or --allow .',
        )
    return PlannedWorkspace(path=host.cwd, resume=policy.resume)
