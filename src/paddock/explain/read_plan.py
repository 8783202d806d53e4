"""Reads a plan from its JSON, for code that judges by the plan of a running command. Paddock wrote
the JSON, and the core has validated it.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from paddock.errors import Bug
from paddock.plan.plan import Http, Plan, ungrouped, ungrouped_hosts
from paddock.text.path_walk import Tree


def plan_of(canonical: bytes) -> Plan:
    try:
        values = json.loads(canonical)
        if values["files"]:
            values["files"]["grants"] = ungrouped(values["files"]["grants"])
        if values["network"]:
            for kind in ("denied", "allowed", "approved"):
                values["network"][kind] = ungrouped_hosts(values["network"][kind])
        plan: Plan = _built(Plan, values)
    except (KeyError, TypeError, ValueError) as error:
        raise Bug(f"the plan is invalid: {error!r}", hint="reinstall paddock") from error
    return plan


def http_of(canonical: bytes) -> tuple[Http, tuple[Tree, ...]]:
    """The HTTP part, and the paths that commands may have written. The rest of the plan is not
    read, because the command waits.
    """
    try:
        values = json.loads(canonical)
        http: Http = _built(Http, values["network"]["http"])
        reached: tuple[Tree, ...] = _built(tuple[Tree, ...], values["files"]["reached"])
    except (KeyError, TypeError, ValueError) as error:
        raise Bug(f"the plan is invalid: {error!r}", hint="reinstall paddock") from error
    return http, reached


def _built(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return (
            None
            if value is None
            else _built(next(one for one in arguments if one is not types.NoneType), value)
        )
    if origin is tuple:
        return tuple(_built(arguments[0], one) for one in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _built(arguments[1], one) for key, one in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        # A trailing underscore only avoids a Python keyword.
        named = {field.name: value[field.name.rstrip("_")] for field in fields(kind)}
        return kind(**{name: _built(hints[name], one) for name, one in named.items()})
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named tuple
        return kind(*value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value
