"""Parses the JSON ``safety`` object to a SafetyConfig: the keys of ``[tools]`` and where commands
run, as other programs write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.executor_modes import SandboxConfig, json_table, read_sandbox
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.policy_keys import KEYS
from paddock.policy.model import ToolSettings
from paddock.policy.rules import RuleReader
from paddock.policy.trust.origin import Origin

# Settings of the agent itself, which are in the same file and are not used here.
_BESIDES = ("provider", "max_steps", "timeout")
_SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyConfig:
    tools: ToolSettings = field(default_factory=ToolSettings)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)


def read_safety_config(text: str, shown: str, origin: Origin) -> SafetyConfig:
    """A whole configuration with a ``safety`` object in it, or that object alone."""
    document = json_table(text, shown)
    if "safety" in document:
        document.allow_only(("safety", *_BESIDES))
        found = document.table("safety")
    else:
        found = document
    if found is None or (
        found.path == () and not set(found.values) & {*KEYS["tools"], _SANDBOX} and found.values
    ):
        document.allow_only(("safety", *KEYS["tools"], _SANDBOX))
    table = found or document
    sandbox = table.table(_SANDBOX)
    rest = {key: value for key, value in table.values.items() if key != _SANDBOX}
    reader = RuleReader(Values(Expander(origin)))
    tools = reader.tools(Table(table.file, rest, table.lines, table.path))
    reader.check_regexes()
    return SafetyConfig(
        tools=tools, sandbox=SandboxConfig() if sandbox is None else read_sandbox(sandbox, origin)
    )
