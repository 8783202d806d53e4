"""The permission API, by the names that other agent frameworks use."""

from paddock.approve.approvals import Approvals as PermissionManager
from paddock.approve.questions import Verdict as ApprovalResult

__all__ = ["ApprovalResult", "PermissionManager"]
