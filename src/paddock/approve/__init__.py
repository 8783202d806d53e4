"""Approvals: a question in, an answer out. One file for each approver. An approver reads its
questions from an inbox.
"""

from paddock.approve.callback_approver import Callback, DenyAll
from paddock.approve.inbox import Approver
from paddock.approve.questions import (
    AnyQuestion,
    Caller,
    HostQuestion,
    Parent,
    Question,
    ToolQuestion,
    Verdict,
)

__all__ = [
    "AnyQuestion",
    "Approver",
    "Callback",
    "Caller",
    "DenyAll",
    "HostQuestion",
    "Parent",
    "Question",
    "ToolQuestion",
    "Verdict",
]
