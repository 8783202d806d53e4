"""Policy: what a person wrote, after reading, expanding and merging; before any machine is asked.

Values are frozen and valid once built. Every grant, deny, block and scalar remembers where it came from.
Patterns are absolute and expanded (``~``, ``${VAR}``, ``<cwd>``); only the token ``<tmp>`` survives, because
the private temporary directory gets its name when the run starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")

COMMAND_LINE = "command line"
TMP_TOKEN = "<tmp>"
_IDENTITY = ("exe", "exe_glob", "exe_sha256")
SOCKETS = ("inet", "inet6", "netlink", "unix")  # others reach kernel code and networks that nothing here watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a value came from: ``paddock.toml:12``, ``built-in ai-agent:7``, ``--allow``."""

    file: str
    line: int | None = None
    key: str = ""

    @property
    def builtin(self) -> bool:
        """Paddock itself wrote it, not a person: a file of theirs has a suffix."""
        return self.file.startswith("built-in ") and not self.file.endswith((".toml", ".conf"))

    def __str__(self) -> str:
        if self.file == COMMAND_LINE:
            return self.key
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    value: T
    source: Source


class Tier(Enum):
    """What holds the fence. A person may name one on the command line; else it is the strongest this machine has."""

    FULL = "full"  # namespaces and mounts, Landlock, seccomp
    LANDLOCK = "landlock"  # Landlock and seccomp, where namespaces can not be had


class Access(Enum):
    READ = "read"  # read, list, execute
    WRITE = "write"  # create, write, rename, remove; no read
    ALLOW = "allow"  # both
    EXEC = "exec"  # execute and read single files; no list, no write


class Action(Enum):
    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Workspace(Enum):
    LIVE = "live"
    COW = "cow"


class Widen(Enum):
    """What to do with a pattern the kernel can only hold as its parent directory."""

    READ = "read"  # reads widen with a warning, writes are an error
    ALLOW = "allow"  # both widen with a warning
    NEVER = "never"  # an error


class Reads(Enum):
    GRANTED = "granted"  # what the grants say
    ALL = "all"  # every directory of the machine besides; what is closed stays closed


class NetworkMode(Enum):
    NONE = "none"
    FILTERED = "filtered"
    HOST = "host"


class Switch(Enum):
    """A layer that a file can only turn on; off is for the person at the command line."""

    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    NO_NEW_PRIVS = "no-new-privs"
    ENV_SANITIZE = "env-sanitize"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    access: Access
    pattern: str
    optional: bool  # written with a trailing "?": a missing path is no error
    workspace: bool  # written as <cwd>: the one grant that has to stay usable as a whole
    source: Source
    execute: bool = True  # False: what the grant opens can not be executed (a write grant never carries that)
    create: bool = False  # a directory that is not there is made by the run

    @property
    def persons(self) -> bool:
        """The workspace, or what a person granted: projects lie there. What the built-in profiles name besides are the
        system and the directories of tools."""
        return self.workspace or not self.source.builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    pattern: str
    source: Source
    optional: bool = False  # written with a trailing "?": where this machine can not hold it, that is said and it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    grants: tuple[Grant, ...] = ()
    denies: tuple[Deny, ...] = ()
    open_protected: tuple[Sourced[str], ...] = ()  # patterns that stay writable although a protected name matches
    workspace: Sourced[Workspace] | None = None
    require_enforced: Sourced[bool] | None = None
    no_bootstrap_reads: Sourced[bool] | None = None
    widen: Sourced[Widen] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    default_action: Sourced[Action] | None = None
    on_policy_error: Sourced[Action] | None = None
    on_supervisor_timeout_ms: Sourced[int] | None = None
    ask_timeout_s: Sourced[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRule:
    method: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    upstream: str
    credential_key: str | None
    inject_mode: str | None
    endpoint_rules: tuple[EndpointRule, ...] | None
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    mode: Sourced[NetworkMode] | None = None
    allowed_hosts: tuple[Sourced[str], ...] | None = None  # None: absent; (): no host at all
    denied_hosts: tuple[Sourced[str], ...] = ()
    allowed_local_ports: tuple[Sourced[int], ...] = ()
    kernel_pin: Sourced[bool] | None = None
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Syscalls:
    """``block``: all but these. ``allow`` not None: only these. ``sockets``: families that may be made, no other.
    ``namespaces``: user namespaces may be made inside, whatever the built-in profiles block. ``trace``: programs may be
    debugged although exec rules are on."""

    block: tuple[Sourced[str], ...] = ()
    allow: tuple[Sourced[str], ...] | None = None
    sockets: tuple[Sourced[str], ...] = ()
    namespaces: Sourced[bool] | None = None
    trace: Sourced[bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Names may carry ``*``. ``deny`` beats ``pass_``; ``keep`` beats both: whole names that a person typed on the
    command line, so that one secret can be handed in. ``set`` is what the program gets whatever the caller has."""

    pass_: tuple[Sourced[str], ...] = ()
    deny: tuple[Sourced[str], ...] = ()
    keep: tuple[Sourced[str], ...] = ()
    set: tuple[tuple[str, Sourced[str]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    value: int
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    enabled: Sourced[bool] | None = None
    dir: Sourced[str] | None = None  # a directory, or one file ending in .jsonl
    stderr: bool = False  # the person asked to see the events as they happen


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One key of a rule: ``argv_regex_not = ["a", "b"]`` is Match("argv_regex", ("a", "b"), negate=True)."""

    key: str
    values: tuple[str, ...]
    negate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    action: Action
    matches: tuple[Match, ...]
    reason: str | None
    source: Source

    @property
    def identifies(self) -> bool:
        """It says where the program lies or what is in it, not only what it is called."""
        return any(match.key in _IDENTITY and not match.negate for match in self.matches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key whose meaning belongs to another layer: kept as written, typed by the schema."""

    key: str
    value: object
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A file the policy was read from.

    ``path`` is where it really lies, ``found`` how it was reached: two names when a symbolic link led to it.
    ``facts`` are those of the descriptor it was read from.
    """

    path: str
    sha256: str
    found: str = ""
    facts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    profiles: tuple[str, ...]  # outermost first: ("strict", "ai-agent", ...)
    files: tuple[PolicyFile, ...] = ()
    meta: Meta = Meta()
    filesystem: Filesystem = Filesystem()
    network: Network | None = None
    syscalls: Syscalls = Syscalls()
    env: Environment = Environment()
    limits: tuple[Limit, ...] = ()
    audit: Audit = Audit()
    rules: tuple[Rule, ...] = ()
    approved: tuple[Rule, ...] = ()  # answers of earlier runs (policy/approved.py); only to questions
    tools: tuple[Setting, ...] = ()
    container: tuple[Setting, ...] = ()  # by the names of the line format: rootdir, uid, cap-allow …
    off: tuple[Switch, ...] = ()
    tier: Tier | None = None  # what the command line names; no file can
    resume: str | None = None  # the copy-on-write session to go on with
    observe: bool = False  # what the fence refuses is told
    workdir: Sourced[str] | None = None
    notes: tuple[str, ...] = ()  # what a person should know: "ai-agent comes from ~/.config/paddock/ai-agent.conf"
