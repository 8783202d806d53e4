"""compile(Policy, Host, Terrain) → Plan. Pure: opens no file and asks nothing of the machine."""

from paddock.plan.compile import compile_plan
from paddock.plan.plan import Plan

__all__ = ["Plan", "compile_plan"]
