"""Approvals: a question of the gate in, an answer out. One file per approver; the inbox is their line to the core."""

from paddock.approve.callback import Callback
from paddock.approve.model import Approver, Parent, Question, Verdict

__all__ = ["Approver", "Callback", "Parent", "Question", "Verdict"]
