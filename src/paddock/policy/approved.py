"""``~/.config/paddock/approved.toml``: what a person answered with "always".

Rules that allow, and nothing else. They are no policy: they only answer what the policy of a run asks, so they never
beat a rule that denies. The file is believed like any policy file (trust.py), and no run can write it: Paddock's own
configuration is closed to every command.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paddock.policy.expand import Expander
from paddock.policy.model import Action, PolicyFile, Rule
from paddock.policy.origin import Origin
from paddock.policy.rules import RuleReader
from paddock.policy.search import APPROVED, exists
from paddock.policy.toml import document
from paddock.policy.trust import FileText, read_policy
from paddock.policy.values import Values

FILE = f"{APPROVED}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """``file`` None: there is none."""

    rules: tuple[Rule, ...] = ()
    file: FileText | None = None

    @property
    def identity(self) -> tuple[PolicyFile, ...]:
        file = self.file
        if file is None:
            return ()
        return (PolicyFile(path=file.path, sha256=file.sha256, found=file.written, facts=file.facts),)


def place(origin: Origin) -> str:
    return os.path.join(origin.config_dir, FILE)


def load_approved(origin: Origin) -> Approved:
    path = place(origin)
    if not exists(path):
        return Approved()
    file = read_policy(path, origin, shown=path, within=origin.config_dir)
    return Approved(rules=read_approved(file.text, path, origin), file=file)


def read_approved(text: str, shown: str, origin: Origin) -> tuple[Rule, ...]:
    table = document(text, shown)
    table.allow_only(("rule",))
    reader = RuleReader(Values(Expander(origin)))
    rules = reader.rules(table)
    for rule, written in zip(rules, table.tables("rule"), strict=True):
        if rule.action is not Action.ALLOW:
            raise written.wrong(
                "action",
                f"the rule {rule.id!r} does not allow, and this file is for what was approved",
                hint="what is denied or asked about belongs to a policy",
            )
    reader.check_regexes()
    return rules
