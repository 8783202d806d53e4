"""An agent's configuration in JSON → Config: who answers (``provider``), what its tools may do
(``safety``), and how far it may go (``max_steps``, ``timeout``).

Lowest to highest: what is built in, the person's own (``~/.config/paddock/config.json``, written by
``paddock init``), the one that is named (``--config``), ``[tools]`` of a policy, flags. What is not
said does not count. Lists of what is denied add up; everything else is what was said last. A file
of the working directory is never read by itself: the agent could have written it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from paddock.errors import PolicyError
from paddock.policy.formats.executor_modes import SandboxConfig
from paddock.policy.formats.safety import read_safety_config
from paddock.policy.formats.table import Table
from paddock.policy.load import require_agreement_to_what_a_command_could_rewrite
from paddock.policy.merge import merge
from paddock.policy.model import COMMAND_LINE, Policy, Source, Sourced, ToolSettings
from paddock.policy.trust.file_trust import read_policy
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import exists

FILE = "config.json"
DEFAULT_TIMEOUT_S = 120.0
_LONGEST_TIMEOUT_S = 24 * 3600
_OWN = ("provider", "max_steps", "timeout")
# Of these a request may ask for more, and of no other key for anything.
_STRICTER = ("read_only", "require_approval_for_writes", "require_approval_for_execute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Paddock speaks to none: whoever runs the agent does."""

    name: Sourced[str]
    model: Sourced[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """``sandbox``: where commands run; ``max_steps``: so many tool calls; ``timeout``: seconds for
    each.
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
    """One file. PolicyError says what is wrong with it, and where."""
    origin, shown = origin or Origin.of_process(), os.fspath(path)
    file = read_policy(os.path.join(origin.cwd, shown), origin, shown=shown)
    config = read_config(file.text, shown, origin)
    require_agreement_to_what_a_command_could_rewrite(Policy(profiles=()), [file], origin)
    return config


def place(origin: Origin) -> str:
    return os.path.join(origin.config_dir, FILE)


def configured(
    origin: Origin,
    named: str | os.PathLike[str] | None = None,
    *,
    policy: ToolSettings | None = None,
    flags: ToolSettings | None = None,
) -> Config:
    """The layers, merged. ``policy``: what a profile or policy file says."""
    layers = [Config(tools=flags or ToolSettings()), Config(tools=policy or ToolSettings())]
    if named is not None:
        layers.append(load_config(named, origin=origin))
    own = place(origin)
    if exists(own):
        file = read_policy(own, origin, shown=own, within=origin.config_dir)
        require_agreement_to_what_a_command_could_rewrite(Policy(profiles=()), [file], origin)
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
    """What is not even that is said by who reads ``safety``."""
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
        or not 0 < value <= _LONGEST_TIMEOUT_S
    ):
        raise table.wrong(key, f"expected seconds, more than 0 and at most {_LONGEST_TIMEOUT_S}")
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
    """What the command line says of tools. Paths that are listed count, whatever is said of the
    current directory.
    """

    def said(value: Any, key: str) -> Sourced[Any]:
        return Sourced(value, Source(file=COMMAND_LINE, key=key))

    approval = None if require_approval is None else said(require_approval, "--require-approval")
    allowed: tuple[Sourced[str], ...] | None = None
    if restrict_to_cwd is not None:
        allowed = (said("<cwd>/**" if restrict_to_cwd else "/**", "--restrict-to-cwd"),)
    if allowed_paths:
        allowed = tuple(said(_from_here(one), "--allowed-paths") for one in allowed_paths)
    return ToolSettings(
        read_only=said(True, "--read-only") if read_only else None,
        allowed_paths=allowed,
        denied_paths=tuple(said(_from_here(one), "--denied-paths") for one in denied_paths),
        denied_commands=tuple(said(one, "--denied-commands") for one in denied_commands),
        require_approval_for_writes=approval,
        require_approval_for_execute=approval,
    )


def _from_here(pattern: str) -> str:
    return pattern if pattern.startswith(("/", "~", "<", "**/")) else f"<cwd>/{pattern}"


def tightened(tools: ToolSettings, wanted: ToolSettings) -> ToolSettings:
    """What one request asks for, of a server with these tools: it may only ask for less.
    PolicyError names the key.
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
    """Each key with its value and where that comes from."""
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
    for key, said, default in limits:
        yield (
            key,
            default if said is None else said.value,
            "built in" if said is None else str(said.source),
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
