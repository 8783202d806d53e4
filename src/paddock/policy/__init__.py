"""Text → Policy: the two file formats, the built-in profiles, inheritance, trust, and the command line on top."""

from __future__ import annotations

from paddock.policy.advice import weak_points
from paddock.policy.load import load
from paddock.policy.model import Policy
from paddock.policy.origin import Origin
from paddock.policy.request import GrantFlag, Request

__all__ = ["GrantFlag", "Origin", "Policy", "Request", "load", "weak_points"]
