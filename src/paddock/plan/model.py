"""Plan: the complete, explicit list of what the core will carry out. No policy words are left in it.

Canonical JSON (sorted keys, ASCII, no spaces) is its only spelling outside this module; the SHA-256 of those
bytes names the plan in the journal. ``schema/examples/plan.json`` shows one; the core's tests read the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from paddock.way import Tree

VERSION = 1


class Tier(Enum):
    LANDLOCK = "landlock"


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    UNENFORCED = "unenforced"  # asked for, not held on this machine: printed and journaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    uid: int
    name: str
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    dir: str
    file: str | None  # None: one file a day
    stderr: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRules:
    pass_: tuple[str, ...]
    deny: tuple[str, ...]
    keep: tuple[str, ...]  # whole names that pass whatever is denied
    set: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temp:
    parent: str
    access: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGrant:
    """``except_``: places inside ``path`` that stay outside the grant; the core carves the grant around them."""

    path: str
    access: str
    except_: tuple[str, ...]
    optional: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Landlock:
    abi: int
    handled: tuple[str, ...]
    scoped: tuple[str, ...]
    access: Mapping[str, tuple[str, ...]]
    grants: tuple[PathGrant, ...]
    # Places that no grant may open, or make writable, by whatever name it gets there: the excepts of the grants say the
    # same of the names as they are written, these count where a symlink is on the way.
    closed: tuple[str, ...]
    unwritable: tuple[str, ...]
    reached: tuple[Tree, ...]  # where fenced commands could ever write: no grant follows a link that stands there


@dataclass(frozen=True, slots=True, kw_only=True)
class Seccomp:
    """``default`` "allow": ``syscalls`` are refused. "deny": only ``syscalls`` pass."""

    default: str
    syscalls: tuple[str, ...]
    sockets: tuple[str, ...]  # families that socket() may make
    namespaces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profiles: tuple[str, ...]
    tier: Tier
    user: User
    journal: Journal | None
    no_new_privs: bool
    rlimits: Mapping[str, int]
    environment: EnvironmentRules | None
    temp: Temp | None
    landlock: Landlock | None
    seccomp: Seccomp | None
    cwd: str  # where the plan was compiled, and where the core has to stand
    workdir: str
    require_enforced: bool
    notices: tuple[Notice, ...]
    version: int = VERSION

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = _jsonable(self)
        return values

    def canonical(self) -> bytes:
        # ensure_ascii keeps the lone surrogates of paths that are not UTF-8; the core turns them back into bytes.
        return json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # A trailing underscore only dodges a Python keyword: pass_, except_.
        return {field.name.rstrip("_"): _jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_jsonable(inner) for inner in value]
    return value
