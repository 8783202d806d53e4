"""Tool calls, the effects of tools, and their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paddock.policy.model import Effect
from paddock.shell.dialect import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """``cwd``: the base of relative paths and the working directory of a command; None: that of the
    policy.
    """

    name: str
    arguments: Mapping[str, Any]
    cwd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """The description of a tool. ``effects`` empty: unknown, so it may do anything. ``paths`` and
    ``command`` name the judged arguments; ``optional`` lists more permitted ones, ``required`` the
    mandatory ones.
    """

    name: str
    effects: frozenset[Effect] = frozenset()
    paths: tuple[str, ...] = ()
    command: str | None = None
    required: Mapping[str, type] = field(default_factory=dict)
    optional: Mapping[str, type] | None = None  # None: anything
    description: str = ""  # for a model

    @property
    def does(self) -> frozenset[Effect]:
        return self.effects or frozenset({Effect.EXECUTE})


DESCRIPTIONS = {
    Dialect.BASH: "Run a bash command line: arrays, [[ ]], pipefail, <( ), source and |& work.",
    Dialect.SH: "Run a POSIX sh command line. Bash is not available: arrays, [[ ]], pipefail, <( "
    "), source and |& do not work.",
}

_READ, _WRITE = frozenset({Effect.READ}), frozenset({Effect.WRITE})
BUILTIN_TOOLS = (
    ToolSpec(
        name="read_file",
        effects=_READ,
        paths=("path",),
        required={"path": str},
        optional={"offset": int, "limit": int, "encoding": str},
    ),
    ToolSpec(
        name="write_file",
        effects=_WRITE,
        paths=("path",),
        required={"path": str, "content": str},
        optional={"encoding": str},
    ),
    ToolSpec(
        name="edit_file",
        effects=_READ | _WRITE,
        paths=("path",),
        required={"path": str, "old_text": str, "new_text": str},
        optional={"replace_all": bool, "expected_count": int, "encoding": str},
    ),
    ToolSpec(
        name="list_directory",
        effects=_READ,
        paths=("path",),
        required={"path": str},
        optional={"depth": int},
    ),
    ToolSpec(
        name="bash",
        description=DESCRIPTIONS[Dialect.BASH],
        effects=frozenset({Effect.EXECUTE}),
        command="command",
        required={"command": str},
        optional={"timeout_s": float, "description": str},
    ),
)


def wrong_arguments(spec: ToolSpec, call: ToolCall, cwd: str, platform: str) -> str | None:
    if not isinstance(call.arguments, Mapping):
        return "the arguments are not a mapping"
    for name, kind in spec.required.items():
        if name not in call.arguments:
            return f"{spec.name} needs {name!r}"
        if not _is(call.arguments[name], kind):
            return f"{name!r} of {spec.name} is not {_KINDS.get(kind, kind.__name__)}"
    for name, value in call.arguments.items():
        if spec.optional is None or name in spec.required:
            continue
        if name not in spec.optional:
            return f"{spec.name} has no argument {name!r}"
        if not _is(value, spec.optional[name]):
            return (
                f"{name!r} of {spec.name} is not "
                f"{_KINDS.get(spec.optional[name], spec.optional[name].__name__)}"
            )
    for name in spec.paths:
        if name in call.arguments and not isinstance(call.arguments[name], str):
            return f"{name!r} of {spec.name} is not text"
    if spec.command is not None:
        command = call.arguments.get(spec.command)
        if not isinstance(command, str) or not command.strip():
            return f"the command of {spec.name} is empty"
        if "\0" in command:
            return "the command contains a NUL byte"
    if not isinstance(cwd, str) or "\0" in cwd or (platform != "win32" and not cwd.startswith("/")):
        return "the working directory is not an absolute path"
    return None


_MAX_NUMBER_BITS = 64  # no file, time or count is larger
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int) and value.bit_length() > _MAX_NUMBER_BITS:
        return False
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
