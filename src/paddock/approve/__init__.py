"""Approvals: a question in, an answer out. One file per approver; an inbox is their line to whoever
asks.
"""

from paddock.approve.callback import Callback, DenyAll
from paddock.approve.inbox import Approver
from paddock.approve.model import (
    Asked,
    Caller,
    HostQuestion,
    Parent,
    Question,
    ToolQuestion,
    Verdict,
)

__all__ = [
    "Approver",
    "Asked",
    "Callback",
    "Caller",
    "DenyAll",
    "HostQuestion",
    "Parent",
    "Question",
    "ToolQuestion",
    "Verdict",
]
