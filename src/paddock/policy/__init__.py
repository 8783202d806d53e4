"""Turns text into a Policy: the two file formats, the built-in profiles, inheritance, trust, and
the command line.
"""

from __future__ import annotations

import sys
from typing import Any

from paddock.policy.advice import weak_points
from paddock.policy.command_line import GrantFlag, Request
from paddock.policy.load import load
from paddock.policy.model import Policy
from paddock.policy.trust.origin import Origin

__all__ = ["GrantFlag", "Origin", "Policy", "Request", "load", "weak_points"]


def __getattr__(name: str) -> Any:
    """Names that other agent frameworks use. Imported on first use, because no run needs them."""
    if name == "SafetyPolicy":
        # paddock/__init__.py re-exports it. Nothing here imports a package above this one.
        return getattr(sys.modules["paddock"], name)
    if name == "PolicyConfig":
        from paddock.policy.model import ToolSettings

        return ToolSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
