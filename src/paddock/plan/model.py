"""Plan: the complete, explicit list of what the core will carry out. No policy words are left in
it.

Canonical JSON (sorted keys, ASCII, no spaces) is its only spelling outside this module; the SHA-256
of those bytes names the plan in the journal. ``schema/examples/`` holds one of each tier; the
core's tests read the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from paddock.core.canonical import canonical
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
class JournalPlan:
    dir: str
    file: str | None  # None: one file a day
    stderr: bool

    @property
    def head(self) -> str:
        """The name of the file that says where the chain stands."""
        return f"{self.file}.head" if self.file else "head"

    @property
    def places(self) -> tuple[str, ...]:
        """What belongs to the journal: the whole directory, or the named file and its head."""
        return (f"{self.dir}/{self.file}", f"{self.dir}/{self.head}") if self.file else (self.dir,)


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
    """``except_``: places inside ``path`` that stay outside the grant; the core carves the grant
    around them. Empty in the full tier, where mounts cover them.
    """

    path: str
    access: str
    except_: tuple[str, ...]
    optional: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedNames:
    """Names that are protected, or denied, in the same places. Each place is the beginning of a
    pattern, each name the rest of one: hundreds of patterns that begin alike would be half of a
    plan, and each start reads it.
    """

    below: tuple[str, ...]
    but: tuple[str, ...]  # where they are not, although it lies below
    names: tuple[str, ...]

    def patterns(self, places: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{place.rstrip('/')}/{name}" for place in places for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the command may reach, whatever holds it.

    ``closed`` and ``unwritable``: places that no grant may open, or make writable, by whatever name
    it gets there. The excepts of the grants say the same of the names as they are written; these
    count where a symlink is on the way. ``reached``: where fenced commands could ever write; no
    grant follows a link that stands there.

    The rest is for the full tier alone, as patterns of whole paths (policy/glob.py): ``deny`` and
    ``deny_names``: closed wherever a grant shows them. ``protect``: read-only in every writable
    grant; a name that was absent and appears is taken away. ``opened``: a path that matches one of
    these is not protected. ``denied``, ``protected`` and ``excepted`` are the same, written out.
    ``flagged``: told of when it was changed, unless a directory on its way bears a name of
    ``packages``.
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
    nested: bool  # the command may make user namespaces of its own
    hostname: str  # empty: the machine's own; programs look it up
    tmp_mb: int | None  # the size of the private /tmp and /dev/shm together


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspacePlan:
    """Copy-on-write: the command works on a copy that lies over ``path``. ``resume``: the session
    whose copy goes on.
    """

    path: str
    resume: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """``count`` numbers from ``inside`` up are the ones from ``outside`` up on the host."""

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
    """A root directory of its own. Paths of grants, masks and the working directory are those
    inside.
    """

    rootdir: str
    uid: int  # who the command is, by the numbers inside
    gid: int
    uid_map: tuple[IdRange, ...]
    gid_map: tuple[IdRange, ...]
    mappers: Mappers | None
    netns: str | None  # one that exists, in place of a new one
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
    """``default`` "allow": ``syscalls`` are refused. "deny": only ``syscalls`` pass."""

    default: str
    syscalls: tuple[str, ...]
    sockets: tuple[str, ...]  # families that socket() may make
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
    """Which programs may be started. ``core/src/gate/rules.rs`` is what it means."""

    default: Action
    on_error: Action  # for what can not be judged; never allow
    timeout_ms: int
    ask_timeout_s: int
    trace: bool  # programs inside may trace each other
    exec_only_granted: (
        bool  # what a command could have made starts only by a rule that names its place or content
    )
    rules: tuple[GateRule, ...]
    approved: tuple[GateRule, ...] = ()  # they answer questions, and nothing else


class NetworkReach(Enum):
    NONE = "none"  # a network of its own in which nobody else is
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """``host``: a name, ``*.`` and a name, ``*``, an address or a block of addresses. ``port``
    None: 80 and 443 where it is allowed, all where it is denied.
    """

    host: str
    port: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlace:
    """Where a secret lies."""

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
    endpoints: tuple[Endpoint, ...] | None  # None: every one
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
    """What is read as HTTP, by the part that is in ``network/``."""

    routes: tuple[RoutePlan, ...]
    inspect: tuple[Inspected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """Which hosts may be reached. ``core/src/network/rules/host_table.rs`` is what it means."""

    mode: NetworkReach
    default: Action
    default_source: str | None  # where that is said
    ask_timeout_s: int
    denied: tuple[HostRule, ...]
    allowed: tuple[HostRule, ...]
    approved: tuple[HostRule, ...]  # they answer questions, and nothing else
    local_ports: tuple[int, ...]
    published: tuple[Published, ...]
    http: Http | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellPlan:
    """What shells are put behind besides. ``plan``: the canonical text of another plan, which a
    shell carries out on itself (``core/src/commands/intercepted_shell.rs``).
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
    temp: Temp | None  # the landlock tier's; in the full tier /tmp itself is private
    files: Files | None
    landlock: Landlock | None
    namespaces: Namespaces | None
    workspace: WorkspacePlan | None
    container: Container | None
    limits: LimitsPlan
    sessions: str  # where sessions keep what outlives them: names taken away, copies of workspaces
    seccomp: Seccomp | None
    gate: Gate | None  # None: whatever the files let be executed
    network: NetworkPlan | None  # None: it is not fenced
    shell: ShellPlan | None  # None: shells are as any other program
    observe: bool  # what the fence refuses is to be told
    cwd: str  # where the plan was compiled, and where the core has to stand
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
    """Those that differ in nothing but their path and line together: a profile has a hundred, and
    each start reads them.
    """
    groups: dict[tuple[str, bool, str, tuple[str, ...]], list[list[str | int | None]]] = {}
    for grant in grants:
        file, line = _placed(grant.source)
        place = (grant.access, grant.optional, file, grant.except_)
        groups.setdefault(place, []).append([grant.path, line])
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
        file, line = _placed(rule.source)
        groups.setdefault(file, []).append([rule.host, rule.port, line])
    return [{"source": file, "hosts": groups[file]} for file in sorted(groups)]


def _placed(source: str) -> tuple[str, int | None]:
    """A file and a line of it, where it is that."""
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
    """Each grant by itself again, in the order that a plan has them."""
    grants = [
        {
            "path": path,
            "access": group["access"],
            "except": group["except"],
            "optional": group["optional"],
            "source": _place(group["source"], line),
        }
        for group in groups
        for path, line in group["paths"]
    ]
    return sorted(grants, key=lambda grant: (grant["path"], grant["access"]))


def ungrouped_hosts(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"host": host, "port": port, "source": _place(group["source"], line)}
        for group in groups
        for host, port, line in group["hosts"]
    ]


def _place(file: str, line: int | None) -> str:
    return file if line is None else f"{file}:{line}"


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # A trailing underscore only dodges a Python keyword: pass_, except_.
        return {
            field.name.rstrip("_"): _jsonable(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_jsonable(inner) for inner in value]
    return value
