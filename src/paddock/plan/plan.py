"""Plan: the complete and explicit list of what the core applies. It contains no policy terms.

Canonical JSON (sorted keys, ASCII, no spaces) is its only encoding outside this module. The SHA-256
of these bytes identifies the plan in the journal. ``schema/examples/`` has one of each tier; the
core's tests read the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any

from paddock.core.canonical import canonical
from paddock.frozen import dataclass
from paddock.policy.model import (
    Action,
    CredentialKind,
    InjectMode,
    OnFailure,
    Published,
    Tier,
    Upstream,
)
from paddock.text.path_walk import Tree

VERSION = 1


class Level(Enum):
    INFO = "info"
    WARNING = "warning"
    UNENFORCED = "unenforced"  # requested, not enforced on this machine: printed and journaled


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
class JournalPlan:
    dir: str
    file: str | None  # None: one file for each day
    stderr: bool

    @property
    def head(self) -> str:
        """The name of the file with the end of the chain."""
        return f"{self.file}.head" if self.file else "head"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the journal: the whole directory, or the named file and its head."""
        return (f"{self.dir}/{self.file}", f"{self.dir}/{self.head}") if self.file else (self.dir,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRules:
    pass_: tuple[str, ...]
    deny: tuple[str, ...]
    keep: tuple[str, ...]  # whole names that pass although they are denied
    set: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temp:
    parent: str
    access: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathGrant:
    """``except_``: paths inside ``path`` that are not granted; the core grants around them. Empty
    in the full tier, where mounts cover them.
    """

    path: str
    access: str
    except_: tuple[str, ...]
    optional: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedNames:
    """Names that are protected or denied in the same directories. Each directory is the beginning
    of a pattern, each name the rest. Written out, hundreds of patterns with equal beginnings would
    be half of a plan, and each start reads it.
    """

    below: tuple[str, ...]
    but: tuple[str, ...]  # subdirectories that are excluded
    names: tuple[str, ...]

    def patterns(self, trees: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{tree.rstrip('/')}/{name}" for tree in trees for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files that the command may reach, in either tier.

    ``closed`` and ``unwritable``: paths that no grant may open, or make writable, by any name. The
    excepts of the grants state the same for names as written; these lists also apply behind
    symlinks. ``reached``: paths that sandboxed commands could ever write; no grant follows a link
    inside them.

    The rest are patterns of whole paths (policy/glob.py). ``deny`` and ``deny_names``: denied in
    every grant; the landlock tier denies only writing. ``protect``: read-only in every writable
    grant; the command can not create one if writes are judged. ``opened``: a path that matches is
    not protected. ``denied``, ``protected`` and ``excepted`` are the same, written out.
    ``flagged``: reported when the command changes it, unless a directory on the path has a name of
    ``packages``. ``git_remotes``: remotes of the user's own git configuration, to which no
    repository may add a URL.
    """

    grants: tuple[PathGrant, ...]
    closed: tuple[str, ...]
    unwritable: tuple[str, ...]
    reached: tuple[Tree, ...]
    deny: tuple[str, ...]
    protect: tuple[ProtectedNames, ...]
    opened: tuple[str, ...]
    flagged: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    git_remotes: tuple[str, ...] = ()
    deny_names: tuple[ProtectedNames, ...] = ()

    @property
    def denied(self) -> tuple[str, ...]:
        return tuple(
            sorted(
                {
                    *self.deny,
                    *(whole for one in self.deny_names for whole in one.patterns(one.below)),
                }
            )
        )

    @property
    def protected(self) -> tuple[str, ...]:
        return tuple(sorted({whole for one in self.protect for whole in one.patterns(one.below)}))

    @property
    def excepted(self) -> tuple[str, ...]:
        return tuple(
            sorted(
                {*self.opened, *(whole for one in self.protect for whole in one.patterns(one.but))}
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Landlock:
    abi: int
    handled: tuple[str, ...]
    scoped: tuple[str, ...]
    access: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    nested: bool  # the command may create user namespaces
    hostname: str  # empty: that of the machine, because programs look it up
    tmp_mb: int | None  # the size of the private /tmp and /dev/shm together


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlan:
    """Copy-on-write: the command works on a copy over ``path``. ``resume``: the session whose copy
    is continued.
    """

    path: str
    resume: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """``count`` ids from ``inside`` are mapped to those from ``outside`` on the host."""

    inside: int
    outside: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mappers:
    """Programs that map subordinate ranges for an ordinary user: newuidmap, newgidmap."""

    uid: str
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    path: str
    optional: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A private root directory. Grants, masks and the working directory are paths inside."""

    rootdir: str
    uid: int  # ids of the command, inside
    gid: int
    uid_map: tuple[IdRange, ...]
    gid_map: tuple[IdRange, ...]
    mappers: Mappers | None
    netns: str | None  # an existing one that replaces a new one
    loopback: bool
    cgroups: tuple[str, ...]
    capabilities: tuple[str, ...]
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsPlan:
    """For all processes of the run together. ``None``: no limit."""

    memory_mb: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    open_files: int | None = None
    file_size_mb: int | None = None
    wall_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seccomp:
    """``default`` "allow": ``syscalls`` are denied. "deny": only ``syscalls`` pass."""

    default: str
    syscalls: tuple[str, ...]
    sockets: tuple[str, ...]  # address families for socket()
    namespaces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMatch:
    key: str
    not_: bool
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    id: str
    action: Action
    reason: str | None
    source: str
    match: tuple[GateMatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Which programs may be started. ``core/src/gate/rules.rs`` defines the meaning."""

    default: Action
    on_error: Action  # if a program can not be judged; never allow
    timeout_ms: int
    ask_timeout_s: int
    trace: bool  # programs inside may trace each other
    exec_only_granted: (
        # a program that a command could have written starts only by a rule with its path or content
        bool
    )
    rules: tuple[GateRule, ...]
    approved: tuple[GateRule, ...] = ()  # they only answer questions


class NetworkReach(Enum):
    NONE = "none"  # an empty network namespace
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """``host``: a name, ``*.`` and a name, ``*``, an address or a block of addresses. ``port``
    None: 80 and 443 if allowed, all if denied.
    """

    host: str
    port: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlace:
    """The source of a secret."""

    kind: CredentialKind
    place: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    method: str
    path: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    name: str
    upstream: Upstream
    credential: SecretPlace | None
    inject_mode: InjectMode | None
    inject_name: str | None
    endpoints: tuple[Endpoint, ...] | None  # None: every endpoint
    inspect: bool
    body_methods: tuple[str, ...]
    upstream_addresses: tuple[str, ...]
    shared_addresses: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    host: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The part of the network that the HTTP helper serves."""

    routes: tuple[RoutePlan, ...]
    inspect: tuple[Inspected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """Which hosts may be reached. ``core/src/network/rules/host_table.rs`` defines the meaning."""

    mode: NetworkReach
    default: Action
    default_source: str | None  # the position of the default in a policy
    ask_timeout_s: int
    denied: tuple[HostRule, ...]
    allowed: tuple[HostRule, ...]
    approved: tuple[HostRule, ...]  # they only answer questions
    local_ports: tuple[int, ...]
    published: tuple[Published, ...]
    http: Http | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellPlan:
    """The additional restrictions of shells. ``plan``: the canonical text of another plan, which a
    shell applies to itself (``core/src/commands/intercepted_shell.rs``).
    """

    on_failure: OnFailure
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    profiles: tuple[str, ...]
    tier: Tier
    user: User
    journal: JournalPlan | None
    no_new_privs: bool
    rlimits: Mapping[str, int]
    environment: EnvironmentRules | None
    temp: Temp | None  # for the landlock tier; in the full tier /tmp itself is private
    files: Files | None
    landlock: Landlock | None
    namespaces: Namespaces | None
    workspace: WorkspacePlan | None
    container: Container | None
    limits: LimitsPlan
    # where sessions store copies of workspaces
    sessions: str
    seccomp: Seccomp | None
    gate: Gate | None  # None: every program that the files permit
    network: NetworkPlan | None  # None: the network is not restricted
    shell: ShellPlan | None  # None: shells are ordinary programs
    observe: bool  # denials are reported
    judges_writes: bool  # init judges each write to a name, and does it
    cwd: str  # the directory of the compilation, in which the core must start
    workdir: str
    require_enforced: bool
    notices: tuple[Notice, ...]
    version: int = VERSION

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = _jsonable(self)
        if self.files:
            values["files"]["grants"] = _grouped(self.files.grants)
        if self.network:
            values["network"]["denied"] = _by_file(self.network.denied)
            values["network"]["allowed"] = _by_file(self.network.allowed)
            values["network"]["approved"] = _by_file(self.network.approved)
        return values

    def canonical(self) -> bytes:
        return canonical(self.as_json()).encode("ascii")

    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()


def _grouped(grants: tuple[PathGrant, ...]) -> list[dict[str, Any]]:
    """Groups grants that differ only in path and line. A profile has a hundred, and each start
    reads them.
    """
    groups: dict[tuple[str, bool, str, tuple[str, ...]], list[list[str | int | None]]] = {}
    for grant in grants:
        file, line = _file_and_line(grant.source)
        key = (grant.access, grant.optional, file, grant.except_)
        groups.setdefault(key, []).append([grant.path, line])
    return [
        {
            "access": access,
            "except": list(except_),
            "optional": optional,
            "paths": groups[key],
            "source": source,
        }
        for key in sorted(groups)
        for access, optional, source, except_ in [key]
    ]


def _by_file(rules: tuple[HostRule, ...]) -> list[dict[str, Any]]:
    groups: dict[str, list[list[str | int | None]]] = {}
    for rule in rules:
        file, line = _file_and_line(rule.source)
        groups.setdefault(file, []).append([rule.host, rule.port, line])
    return [{"source": file, "hosts": groups[file]} for file in sorted(groups)]


def _file_and_line(source: str) -> tuple[str, int | None]:
    """A file and a line, if the source is one."""
    file, _, line = source.rpartition(":")
    numbered = (
        bool(file)
        and line.isascii()
        and line.isdecimal()
        and str(int(line)) == line
        and int(line) < 2**32
    )
    return (file, int(line)) if numbered else (source, None)


def ungrouped(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each grant by itself, in the order of a plan."""
    grants = [
        {
            "path": path,
            "access": group["access"],
            "except": group["except"],
            "optional": group["optional"],
            "source": _source_text(group["source"], line),
        }
        for group in groups
        for path, line in group["paths"]
    ]
    return sorted(grants, key=lambda grant: (grant["path"], grant["access"]))


def ungrouped_hosts(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"host": host, "port": port, "source": _source_text(group["source"], line)}
        for group in groups
        for host, port, line in group["hosts"]
    ]


def _source_text(file: str, line: int | None) -> str:
    return file if line is None else f"{file}:{line}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, str | int | None):  # most values, so the first question
        return value
    if isinstance(value, tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _jsonable(inner) for key, inner in value.items()}
    return {key: _jsonable(getattr(value, name)) for key, name in _keys(value.__class__)}


@cache
def _keys(kind: type) -> tuple[tuple[str, str], ...]:
    """Each key of an object in JSON, with the field that has its value."""
    # A trailing underscore only avoids a Python keyword: pass_, except_.
    return tuple((field.name.rstrip("_"), field.name) for field in fields(kind))
