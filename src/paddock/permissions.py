"""The permission API, by the names that other agent frameworks use."""

from paddock.approve.questions import Verdict as ApprovalResult
from paddock.approve.tool_approvals import Approvals as PermissionManager

__all__ = ["ApprovalResult", "PermissionManager"]
