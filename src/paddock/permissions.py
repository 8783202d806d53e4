"""Who may do what, by the names that other agents use for it."""

from paddock.approve.approvals import Desk as PermissionManager
from paddock.approve.model import Verdict as ApprovalResult

__all__ = ["ApprovalResult", "PermissionManager"]
