"""compile(Policy, Host, Terrain) → Plan. Pure: no file is opened, nothing is asked of the
machine.
"""

from paddock.plan.compile import compile_plan
from paddock.plan.model import Plan

__all__ = ["Plan", "compile_plan"]
