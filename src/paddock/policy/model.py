"""Policy: what a person wrote, after reading, expanding and merging; before any machine is asked.

Values are frozen and valid once built. Every grant, deny, block and scalar remembers where it came
from. Patterns are absolute and expanded (``~``, ``${VAR}``, ``<cwd>``); only the token ``<tmp>``
survives, because the private temporary directory gets its name when the run starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")

COMMAND_LINE = "command line"
TMP_TOKEN = "<tmp>"
# In what a route sets: its own address; what stands for its secret.
ROUTE_TOKEN, PLACEHOLDER_TOKEN = "<route>", "<placeholder>"
_IDENTITY = ("exe", "exe_glob", "exe_sha256")
# Servers expect no body with these methods. Some do not read it, and take it for the next request
# of the connection.
BODILESS_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "TRACE")

SOCKETS = (
    "inet",
    "inet6",
    "netlink",
    "netlink-all",
    "unix",
)  # others reach kernel code and networks that nothing here watches


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
    """What holds the fence. A person may name one on the command line; else it is the strongest
    this machine has.
    """

    FULL = "full"  # namespaces and mounts, Landlock, seccomp
    LANDLOCK = "landlock"  # Landlock and seccomp, where namespaces can not be had


class Access(Enum):
    READ = "read"  # read, list, execute
    WRITE = "write"  # create, write, rename, remove; no read
    ALLOW = "allow"  # both
    EXEC = "exec"  # execute and read single files; no list, no write


class Action(StrEnum):
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
    execute: bool = (
        True  # False: what the grant opens can not be executed (a write grant never carries that)
    )
    create: bool = False  # a directory that is not there is made by the run

    @property
    def persons(self) -> bool:
        """The workspace, or what a person granted: projects lie there. What the built-in profiles
        name besides are the system and the directories of tools.
        """
        return self.workspace or not self.source.builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    pattern: str
    source: Source
    # written with a trailing "?": where this machine can not hold it, that is said and it runs
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    grants: tuple[Grant, ...] = ()
    denies: tuple[Deny, ...] = ()
    open_protected: tuple[
        Sourced[str], ...
    ] = ()  # patterns that stay writable although a protected name matches
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
    """``method`` is ``*`` or a name; a segment of ``path`` is a text, ``*`` (any one) or ``**``
    (any number).
    """

    method: str
    path: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where a route leads. ``base`` stands in front of every path: empty, or ``/`` and no ``/`` at
    its end.
    """

    scheme: str  # http or https
    host: str
    port: int
    base: str = ""

    @property
    def authority(self) -> str:
        """As a Host header has it: without the port that the scheme has anyway."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"


class CredentialKind(Enum):
    ENV = "env"  # a variable of the parent
    FILE = "file"
    KEYRING = "keyring"  # SERVICE/USER
    COMMAND = "command"  # what it prints


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Where a secret lies; never the secret."""

    kind: CredentialKind
    place: str
    source: Source

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.place}"


class InjectMode(Enum):
    HEADER = "header"  # as it is, into the header that is named; Authorization: Bearer if none is
    BEARER = "bearer"
    BASIC = "basic"
    QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEndpoint:
    route: str
    rule: EndpointRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    upstream: Upstream
    credential: Credential | None = None
    inject_mode: InjectMode | None = None
    inject_name: str | None = None  # of the header, of the query parameter; for basic, of the user
    endpoint_rules: tuple[EndpointRule, ...] | None = None  # None: every endpoint; (): none
    env: tuple[
        tuple[str, str], ...
    ] = ()  # what the command gets; <route> and <placeholder> are filled in at the start
    inspect: bool = False  # the upstream's own address is opened inside too, and held to the same
    body_methods: tuple[
        str, ...
    ] = ()  # of BODILESS_METHODS: those that may carry a body all the same
    upstream_addresses: tuple[str, ...] = ()  # addresses and blocks; (): every public one
    shared_addresses: bool = (
        False  # other allowed names may lead to the same addresses, although there are rules
    )
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A name, ``*.`` and a name, ``*``, an address, a block of addresses, or ``@group``. ``port``
    None: 80 and 443 where it is allowed, all where it is denied.
    """

    host: str
    port: int | None = None

    def __str__(self) -> str:
        """As a policy writes it."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    mode: Sourced[NetworkMode] | None = None
    default: Sourced[Action] | None = None  # for hosts that no rule is about
    allowed_hosts: tuple[Sourced[Destination], ...] | None = (
        None  # None: absent; (): no host at all
    )
    denied_hosts: tuple[Sourced[Destination], ...] = ()
    allowed_local_ports: tuple[Sourced[int], ...] = ()
    kernel_pin: Sourced[bool] | None = None
    routes: tuple[Route, ...] = ()
    endpoints: tuple[RouteEndpoint, ...] = ()  # more of them for routes that there are
    inspect: tuple[
        Sourced[str], ...
    ] = ()  # hosts whose TLS is opened, so that each request is judged and told

    def whole_routes(self) -> tuple[Route, ...]:
        """With the endpoints that were added; where every endpoint is open, one more changes
        nothing.
        """
        return tuple(
            replace(
                route,
                endpoint_rules=(
                    *route.endpoint_rules,
                    *(one.rule for one in self.endpoints if one.route == route.name),
                ),
            )
            if route.endpoint_rules is not None
            else route
            for route in self.routes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Syscalls:
    """``block``: all but these. ``allow`` not None: only these. ``sockets``: families that may be
    made, no other. ``namespaces``: user namespaces may be made inside, whatever the built-in
    profiles block. ``trace``: programs may be debugged although exec rules are on.
    """

    block: tuple[Sourced[str], ...] = ()
    allow: tuple[Sourced[str], ...] | None = None
    sockets: tuple[Sourced[str], ...] = ()
    namespaces: Sourced[bool] | None = None
    trace: Sourced[bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Names may carry ``*``. ``deny`` beats ``pass_``; ``keep`` beats both: whole names that a
    person typed on the command line, so that one secret can be handed in. ``set`` is what the
    program gets whatever the caller has.
    """

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
    """One key of a rule: ``argv_regex_not = ["a", "b"]`` is Match("argv_regex", ("a", "b"),
    negate=True).
    """

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


class OnFailure(Enum):
    """Of a shell that can not be put behind what the policy has for shells."""

    CLOSED = "closed"  # it is not started
    OPEN = "open"  # a login shell is


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """What shells get besides the fence that they are in: only narrower. Without a grant to read
    (or to write) all that the fence opens to it stays open.
    """

    network: Sourced[NetworkMode] | None = None  # NONE, or not said
    grants: tuple[Grant, ...] = ()
    denies: tuple[Deny, ...] = ()
    block: tuple[Sourced[str], ...] = ()
    env_deny: tuple[Sourced[str], ...] = ()
    on_failure: Sourced[OnFailure] | None = None
    source: Source  # of the section


class Effect(StrEnum):
    """What a tool does. One that executes may do anything."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """``path``: a pattern, which stands for all that is below it, too. ``op`` None: whatever is
    done.
    """

    action: Action
    path: str
    op: Effect | None = None
    reason: str | None = None
    id: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRule:
    """Each condition that is given has to hold. ``exe``: the program's name, or its path if there
    is a "/" in it; ``argv_regex``: somewhere in program and arguments; ``command_regex``: the same,
    or somewhere in the whole line.
    """

    action: Action
    exe: str | None = None
    argv_regex: str | None = None
    command_regex: str | None = None
    reason: str | None = None
    id: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Tool calls made through Paddock; tools/policy/policy.py gives it its meaning.
    ``allowed_paths`` None: absent, which is the current directory.
    """

    read_only: Sourced[bool] | None = None
    allowed_paths: tuple[Sourced[str], ...] | None = None
    denied_paths: tuple[Sourced[str], ...] = ()
    path_rules: tuple[PathRule, ...] = ()
    command_rules: tuple[CommandRule, ...] = ()
    denied_commands: tuple[Sourced[str], ...] = ()
    require_approval_for_writes: Sourced[bool] | None = None
    require_approval_for_execute: Sourced[bool] | None = None
    unknown_tools: Sourced[Action] | None = None
    log_all_commands: Sourced[bool] | None = None

    def given(self) -> Iterator[tuple[str, Source]]:
        """The keys that somebody wrote, each with the first place."""
        for field in fields(self):
            value = getattr(self, field.name)
            first = value[0] if isinstance(value, tuple) and value else value
            source = getattr(first, "source", None)
            if isinstance(source, Source):
                yield field.name, source
            elif (
                field.name == "allowed_paths" and value is not None
            ):  # an empty one: nothing is allowed
                yield field.name, Source(file="[tools]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key whose meaning belongs to another layer: kept as written, typed by the schema."""

    key: str
    value: object
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A file the policy was read from.

    ``path`` is where it really lies, ``found`` how it was reached: two names when a symbolic link
    led to it. ``facts`` are those of the descriptor it was read from.
    """

    path: str
    sha256: str
    found: str = ""
    facts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A port inside that this machine's loopback shows."""

    inside: int
    host: int


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
    approved: tuple[
        Rule, ...
    ] = ()  # answers of earlier runs (policy/trust/approved.py); only to questions
    approved_hosts: tuple[Sourced[Destination], ...] = ()
    tools: ToolSettings = ToolSettings()
    shell: ShellSettings | None = None  # None: shells are as any other program
    intercept: bool = False  # they are intercepted also where no file says with what
    container: tuple[
        Setting, ...
    ] = ()  # by the names of the line format: rootdir, uid, cap-allow …
    off: tuple[Switch, ...] = ()
    tier: Tier | None = None  # what the command line names; no file can
    resume: str | None = None  # the copy-on-write session to go on with
    observe: bool = False  # what the fence refuses is told
    workdir: Sourced[str] | None = None
    published: tuple[Published, ...] = ()  # by the command line; no file can
    notes: tuple[
        str, ...
    ] = ()  # what a person should know: "ai-agent comes from ~/.config/paddock/ai-agent.conf"
