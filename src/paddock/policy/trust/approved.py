"""``~/.config/paddock/approved.toml``: the answers "always" of the user.

It contains only allowed rules and hosts, and tool calls with their exact subject. These are not a
policy: they only answer questions of a run's policy, so they never override a rule that denies. The
file is trusted like any policy file (file_trust.py), and no run can write it, because Paddock's own
configuration is denied to every command.
"""

from __future__ import annotations

import os
from dataclasses import replace

from paddock.frozen import dataclass
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.toml import document
from paddock.policy.hosts import allowed_host
from paddock.policy.model import Action, Destination, PolicyFile, Rule, Sourced
from paddock.policy.rules import RuleReader
from paddock.policy.trust.file_trust import PolicyText, read_policy
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import APPROVED, exists

FILE = f"{APPROVED}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolApproval:
    """This tool with this parsed command, or these paths, in this directory."""

    tool: str
    cwd: str
    subject: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """``file`` None: it does not exist."""

    rules: tuple[Rule, ...] = ()
    hosts: tuple[Sourced[Destination], ...] = ()
    tools: tuple[ToolApproval, ...] = ()
    file: PolicyText | None = None

    @property
    def identity(self) -> tuple[PolicyFile, ...]:
        file = self.file
        if file is None:
            return ()
        return (
            PolicyFile(path=file.path, sha256=file.sha256, found=file.written, facts=file.facts),
        )


def approved_path(origin: Origin) -> str:
    return os.path.join(origin.config_dir, FILE)


def load_approved(origin: Origin) -> Approved:
    path = approved_path(origin)
    if not exists(path):
        return Approved()
    file = read_policy(path, origin, shown=path, within=origin.config_dir)
    return replace(read_approved(file.text, path, origin), file=file)


def read_approved(text: str, shown: str, origin: Origin) -> Approved:
    table = document(text, shown)
    table.allow_only(("rule", "host", "tool"))
    reader = RuleReader(Values(Expander(origin)))
    rules = reader.rules(table)
    for rule, written in zip(rules, table.tables("rule"), strict=True):
        if rule.action is not Action.ALLOW:
            raise written.wrong(
                "action",
                f"the rule {rule.id!r} is not an allow rule, and this file holds approvals only",
                hint="write deny and ask rules in a policy",
            )
    reader.check_regexes()
    hosts, tools = map(_host, table.tables("host")), map(_tool, table.tables("tool"))
    return Approved(rules=rules, hosts=tuple(hosts), tools=tuple(tools))


def _host(table: Table) -> Sourced[Destination]:
    table.allow_only(("name",))
    written = table.string("name")
    if written is None:
        raise table.wrong("name", "the host has no name")
    host = allowed_host(written.value, written.source)
    if host.value.port is None or host.value.host.startswith(("*", "@")):
        raise table.wrong(
            "name",
            f"{written.value!r} is not one host at one port; an approval covers no more",
        )
    return host


def _tool(table: Table) -> ToolApproval:
    table.allow_only(("tool", "cwd", "subject"))
    tool, cwd, subject = table.string("tool"), table.string("cwd"), table.strings("subject")
    if tool is None or cwd is None or not subject:
        raise table.wrong("tool", "an approval needs a tool, a directory (cwd) and a subject")
    return ToolApproval(tool=tool.value, cwd=cwd.value, subject=tuple(one.value for one in subject))
