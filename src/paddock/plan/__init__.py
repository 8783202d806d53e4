"""compile(Policy, Host, Terrain) → Plan. Pure: opens no file and asks nothing of the machine."""

from paddock.plan.compile import compile_plan
from paddock.plan.model import Plan

__all__ = ["Plan", "compile_plan"]
