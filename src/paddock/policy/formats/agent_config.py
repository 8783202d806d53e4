"""Parses an agent's configuration in JSON to a Config: the ``provider``, the permissions of its
tools (``safety``), and its limits (``max_steps``, ``timeout``).

Lowest to highest: the built-in values, the user's own file (``~/.config/paddock/config.json``,
written by ``paddock init --tools``), the named file (``--config``), ``[tools]`` of a policy, flags.
Absent keys do not count. Lists of denied items add up; of all other keys the last value counts. A
file of the working directory is never read by itself, because the agent could have written it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paddock.errors import PolicyError
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.executor_modes import SandboxConfig
from paddock.policy.formats.safety_config import read_safety_config
from paddock.policy.load import require_trusted_files
from paddock.policy.merge import merge
from paddock.policy.model import COMMAND_LINE, Policy, Source, Sourced, ToolSettings
from paddock.policy.trust.file_trust import read_policy
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import exists

FILE = "config.json"
DEFAULT_TIMEOUT_S = 120.0
_MAX_TIMEOUT_S = 24 * 3600
_OWN = ("provider", "max_steps", "timeout")
# A request may only tighten these keys, and may not contain any other.
_STRICTER = ("read_only", "require_approval_for_writes", "require_approval_for_execute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Paddock does not use it; the program that runs the agent does."""

    name: Sourced[str]
    model: Sourced[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """``sandbox``: where commands run; ``max_steps``: the number of tool calls; ``timeout``:
    seconds for each.
    """

    provider: Provider | None = None
    tools: ToolSettings = field(default_factory=ToolSettings)
    sandbox: SandboxConfig | None = None
    max_steps: Sourced[int] | None = None
    timeout: Sourced[float] | None = None

    def over(self, under: Config) -> Config:
        tools = merge(
            Policy(profiles=(), tools=under.tools), Policy(profiles=(), tools=self.tools)
        ).tools
        allowed = (
            under.tools.allowed_paths
            if self.tools.allowed_paths is None
            else self.tools.allowed_paths
        )
        return Config(
            provider=self.provider or under.provider,
            tools=replace(tools, allowed_paths=allowed),
            sandbox=self.sandbox or under.sandbox,
            max_steps=self.max_steps or under.max_steps,
            timeout=self.timeout or under.timeout,
        )


def load_config(path: str | os.PathLike[str], *, origin: Origin | None = None) -> Config:
    """Reads one file. Raises PolicyError with the error and its position."""
    origin, shown = origin or Origin.of_process(), os.fspath(path)
    file = read_policy(os.path.join(origin.cwd, shown), origin, shown=shown)
    config = read_config(file.text, shown, origin)
    require_trusted_files(Policy(profiles=()), [file], origin)
    return config


def config_path(origin: Origin) -> str:
    return os.path.join(origin.config_dir, FILE)


def configured(
    origin: Origin,
    named: str | os.PathLike[str] | None = None,
    *,
    policy: ToolSettings | None = None,
    flags: ToolSettings | None = None,
) -> Config:
    """Merges the layers. ``policy``: the settings of a profile or policy file."""
    layers = [Config(tools=flags or ToolSettings()), Config(tools=policy or ToolSettings())]
    if named is not None:
        layers.append(load_config(named, origin=origin))
    own = config_path(origin)
    if exists(own):
        file = read_policy(own, origin, shown=own, within=origin.config_dir)
        require_trusted_files(Policy(profiles=()), [file], origin)
        layers.append(read_config(file.text, own, origin))
    whole = Config()
    for layer in reversed(layers):
        whole = layer.over(whole)
    return whole


def read_config(text: str, shown: str, origin: Origin) -> Config:
    values = _values(text)
    if set(values) <= set(_OWN):  # nothing about tools
        values["safety"] = {}
        text = json.dumps(values)
    safety = read_safety_config(text, shown, origin)
    document = Table(shown, values, {})
    about = values.get("safety", values)
    provider = document.table("provider")
    return Config(
        provider=None if provider is None else _provider(provider),
        tools=safety.tools,
        sandbox=safety.sandbox if "sandbox" in about else None,
        max_steps=document.integer("max_steps", low=1),
        timeout=_seconds(document, "timeout"),
    )


def _values(text: str) -> dict[str, Any]:
    """Other errors are raised by the reader of ``safety``."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {"safety": None}
    return values if isinstance(values, dict) else {"safety": None}


def _provider(table: Table) -> Provider:
    table.allow_only(("name", "model"))
    name = table.string("name")
    if name is None:
        raise table.wrong("name", "a provider has no name")
    return Provider(name=name, model=table.string("model"))


def _seconds(table: Table, key: str) -> Sourced[float] | None:
    if key not in table:
        return None
    value = table.values[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= _MAX_TIMEOUT_S
    ):
        raise table.wrong(key, f"expected seconds, more than 0 and at most {_MAX_TIMEOUT_S}")
    return Sourced(float(value), table.source(key))


def tool_flags(
    *,
    read_only: bool = False,
    require_approval: bool | None = None,
    restrict_to_cwd: bool | None = None,
    allowed_paths: Sequence[str] = (),
    denied_paths: Sequence[str] = (),
    denied_commands: Sequence[str] = (),
) -> ToolSettings:
    """The tool settings of the command line. Listed paths count, with or without
    ``--restrict-to-cwd``.
    """

    def sourced(value: Any, key: str) -> Sourced[Any]:
        return Sourced(value, Source(file=COMMAND_LINE, key=key))

    approval = None if require_approval is None else sourced(require_approval, "--require-approval")
    allowed: tuple[Sourced[str], ...] | None = None
    if restrict_to_cwd is not None:
        allowed = (sourced("<cwd>/**" if restrict_to_cwd else "/**", "--restrict-to-cwd"),)
    if allowed_paths:
        allowed = tuple(sourced(_from_here(one), "--allowed-paths") for one in allowed_paths)
    return ToolSettings(
        read_only=sourced(True, "--read-only") if read_only else None,
        allowed_paths=allowed,
        denied_paths=tuple(sourced(_from_here(one), "--denied-paths") for one in denied_paths),
        denied_commands=tuple(sourced(one, "--denied-commands") for one in denied_commands),
        require_approval_for_writes=approval,
        require_approval_for_execute=approval,
    )


def _from_here(pattern: str) -> str:
    return pattern if pattern.startswith(("/", "~", "<", "**/")) else f"<cwd>/{pattern}"


def tightened(tools: ToolSettings, wanted: ToolSettings) -> ToolSettings:
    """The settings of one request to a server with these tools. A request may only tighten them.
    Raises PolicyError with the key.
    """
    for key, source in wanted.given():
        value = getattr(wanted, key)
        if key in _STRICTER and value.value is True:
            continue
        if key not in ("denied_paths", "denied_commands"):
            raise PolicyError(
                f"a request cannot make {key} weaker, only stricter", where=str(source)
            )
    return merge(Policy(profiles=(), tools=tools), Policy(profiles=(), tools=wanted)).tools


def shown(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Each key with its value and its source."""
    defaults: dict[str, Any] = {
        "read_only": False,
        "allowed_paths": ["<cwd>/**"],
        "require_approval_for_writes": True,
        "require_approval_for_execute": True,
        "unknown_tools": "ask",
        "log_all_commands": False,
    }
    for one in fields(ToolSettings):
        value = getattr(config.tools, one.name)
        if value is None or value == ():
            yield one.name, defaults.get(one.name, []), "built in"
        elif isinstance(value, tuple):
            written = [
                getattr(each, "value", None) or getattr(each, "id", None) or str(each)
                for each in value
            ]
            yield one.name, written, ", ".join(dict.fromkeys(str(each.source) for each in value))
        else:
            yield one.name, getattr(value.value, "value", value.value), str(value.source)
    limits = (("max_steps", config.max_steps, None), ("timeout", config.timeout, DEFAULT_TIMEOUT_S))
    for key, sourced, default in limits:
        yield (
            key,
            default if sourced is None else sourced.value,
            "built in" if sourced is None else str(sourced.source),
        )
    if config.provider is not None:
        for key, text in (
            ("provider.name", config.provider.name),
            ("provider.model", config.provider.model),
        ):
            if text is not None:
                yield key, text.value, str(text.source)


INITIAL = {
    "safety": {
        "require_approval_for_writes": True,
        "require_approval_for_execute": True,
        "allowed_paths": ["<cwd>/**"],
    }
}
