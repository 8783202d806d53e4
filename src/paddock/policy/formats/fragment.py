"""Fragment: the content of one file, before its parents are known."""

from __future__ import annotations

from paddock.frozen import dataclass
from paddock.policy.model import Policy, Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    policy: Policy
    inherit: tuple[Sourced[str], ...] = ()
    speaks_of_files: bool = False  # has a [filesystem] section, or a line ro, rw or exec
