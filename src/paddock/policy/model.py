"""Policy: the written rules after reading, expanding and merging, before any machine is measured.

Values are frozen and valid once built. Every grant, deny, block and scalar has its source. Patterns
are absolute and expanded (``~``, ``${VAR}``, ``<cwd>``). Only the token ``<tmp>`` remains, because
the private temporary directory gets its name when the run starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from paddock.frozen import dataclass

T = TypeVar("T")

COMMAND_LINE = "command line"
TMP_TOKEN = "<tmp>"
# In the variables of a route: its address, and the placeholder of its secret.
ROUTE_TOKEN, PLACEHOLDER_TOKEN = "<route>", "<placeholder>"
_IDENTITY = ("exe", "exe_glob", "exe_sha256")
# Servers expect no body with these methods. Some do not read it, and parse it as the next request
# of the connection.
BODILESS_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "TRACE")

SOCKETS = (
    "inet",
    "inet6",
    "netlink",
    "netlink-all",
    "unix",
)  # other families reach kernel code and networks that nothing here watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a value: ``paddock.toml:12``, ``built-in ai-agent:7``, ``--allow``."""

    file: str
    line: int | None = None
    key: str = ""

    @property
    def builtin(self) -> bool:
        """Whether Paddock itself wrote it. A file of the user has a suffix."""
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
    """The mechanisms of the sandbox. The command line may name one; otherwise it is the strongest
    of this machine.
    """

    FULL = "full"  # namespaces and mounts, Landlock, seccomp
    LANDLOCK = "landlock"  # Landlock and seccomp, if namespaces are not available


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
    """Handling of a pattern that the kernel can only enforce as its parent directory."""

    READ = "read"  # reads widen with a warning, writes are an error
    ALLOW = "allow"  # both widen with a warning
    NEVER = "never"  # an error


class Reads(Enum):
    GRANTED = "granted"  # only grants
    ALL = "all"  # also every other directory of the machine; denied paths stay denied


class NetworkMode(Enum):
    NONE = "none"
    FILTERED = "filtered"
    HOST = "host"


class Switch(Enum):
    """A layer that a file can only turn on; only the command line can turn it off."""

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
    workspace: bool  # written as <cwd>: the one grant that must stay usable as a whole
    source: Source
    execute: bool = (
        True  # False: files in the grant can not be executed (a write grant never has this)
    )
    create: bool = False  # the run creates a missing directory

    @property
    def persons(self) -> bool:
        """The workspace, or a grant of the user, which may contain projects. The other grants of
        the built-in profiles are system paths and directories of tools.
        """
        return self.workspace or not self.source.builtin


@dataclass(frozen=True, slots=True, kw_only=True)
class Deny:
    pattern: str
    source: Source
    # written with a trailing "?": if this machine can not enforce it, the run prints a notice and
    # starts
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    grants: tuple[Grant, ...] = ()
    denies: tuple[Deny, ...] = ()
    # patterns of names that the command can read and never write, also before they exist
    protects: tuple[Sourced[str], ...] = ()
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
    """``method`` is ``*`` or a name. A segment of ``path`` is a text, ``*`` (any one) or ``**``
    (any number).
    """

    method: str
    path: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The destination of a route. ``base`` precedes every path: empty, or beginning with ``/`` and
    without a final ``/``.
    """

    scheme: str  # http or https
    host: str
    port: int
    base: str = ""

    @property
    def authority(self) -> str:
        """As in a Host header: without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"


class CredentialKind(Enum):
    ENV = "env"  # a variable of the caller
    FILE = "file"
    KEYRING = "keyring"  # SERVICE/USER
    COMMAND = "command"  # its output


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """The source of a secret, never the secret itself."""

    kind: CredentialKind
    place: str
    source: Source

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.place}"


class InjectMode(Enum):
    HEADER = "header"  # unchanged, in the named header; default Authorization: Bearer
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
    inject_name: str | None = None  # of the header or query parameter; for basic, of the user
    endpoint_rules: tuple[EndpointRule, ...] | None = None  # None: every endpoint; (): none
    env: tuple[
        tuple[str, str], ...
    ] = ()  # variables of the command; <route> and <placeholder> are replaced at the start
    inspect: bool = False  # the upstream's own address is also opened inside, with the same rules
    body_methods: tuple[str, ...] = ()  # of BODILESS_METHODS: those that may have a body
    upstream_addresses: tuple[str, ...] = ()  # addresses and blocks; (): every public one
    shared_addresses: bool = (
        False  # other allowed names may lead to the same addresses, although there are rules
    )
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A name, ``*.`` and a name, ``*``, an address, a block of addresses, or ``@group``. ``port``
    None: 80 and 443 if allowed, all if denied.
    """

    host: str
    port: int | None = None

    def __str__(self) -> str:
        """As a policy file writes it."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    mode: Sourced[NetworkMode] | None = None
    default: Sourced[Action] | None = None  # for hosts that no rule matches
    allowed_hosts: tuple[Sourced[Destination], ...] | None = (
        None  # None: absent; (): no host at all
    )
    denied_hosts: tuple[Sourced[Destination], ...] = ()
    allowed_local_ports: tuple[Sourced[int], ...] = ()
    kernel_pin: Sourced[bool] | None = None
    routes: tuple[Route, ...] = ()
    endpoints: tuple[RouteEndpoint, ...] = ()  # additional ones for existing routes
    inspect: tuple[
        Sourced[str], ...
    ] = ()  # hosts whose TLS is opened, so that each request is judged and journaled

    def whole_routes(self) -> tuple[Route, ...]:
        """With the added endpoints. If every endpoint is open, an added one changes nothing."""
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
    """``block``: these are denied. ``allow`` not None: only these pass. ``sockets``: the allowed
    families. ``namespaces``: user namespaces may be created inside, despite the built-in blocks.
    ``trace``: programs may be debugged although there are exec rules.
    """

    block: tuple[Sourced[str], ...] = ()
    allow: tuple[Sourced[str], ...] | None = None
    sockets: tuple[Sourced[str], ...] = ()
    namespaces: Sourced[bool] | None = None
    trace: Sourced[bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Names may contain ``*``. ``deny`` overrides ``pass_``. ``keep`` overrides both: whole names
    from the command line, so that one secret can be passed. ``set``: values that replace those of
    the caller.
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
    stderr: bool = False  # print events as they happen


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
        """Whether it names the path or content of the program, not only its name."""
        return any(match.key in _IDENTITY and not match.negate for match in self.matches)


class OnFailure(Enum):
    """What happens to a shell that can not apply its restrictions."""

    CLOSED = "closed"  # it does not start
    OPEN = "open"  # a login shell starts


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """The additional restrictions of shells; they can only be narrower than the sandbox. Without a
    read (or write) grant everything that the sandbox opens for it stays open.
    """

    network: Sourced[NetworkMode] | None = None  # NONE, or absent
    grants: tuple[Grant, ...] = ()
    denies: tuple[Deny, ...] = ()
    block: tuple[Sourced[str], ...] = ()
    env_deny: tuple[Sourced[str], ...] = ()
    on_failure: Sourced[OnFailure] | None = None
    source: Source  # of the section


class Effect(StrEnum):
    """The effect of a tool. A tool that executes may do anything."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"


# Public: the standard decorator gives it a signature that editors and help() show.
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """``path``: a pattern, which also matches everything below. ``op`` None: every operation."""

    action: Action
    path: str
    op: Effect | None = None
    reason: str | None = None
    id: str | None = None
    source: Source | None = None


# Public: the standard decorator gives it a signature that editors and help() show.
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandRule:
    """Every given condition must hold. ``exe``: the name of the program, or its path if it contains
    "/". ``argv_regex``: somewhere in program and arguments. ``command_regex``: the same, or
    somewhere in the whole line.
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
    """Settings for tool calls through Paddock; tools/policy/tool_policy.py defines their meaning.
    ``allowed_paths`` None: absent, which means the current directory.
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
        """The written keys, each with its first source."""
        for field in fields(self):
            value = getattr(self, field.name)
            first = value[0] if isinstance(value, tuple) and value else value
            source = getattr(first, "source", None)
            if isinstance(source, Source):
                yield field.name, source
            elif field.name == "allowed_paths" and value is not None:  # empty: nothing is allowed
                yield field.name, Source(file="[tools]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key whose meaning belongs to another layer: stored as written, typed by the schema."""

    key: str
    value: object
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFile:
    """A file from which the policy was read.

    ``path`` is its resolved path, ``found`` the path as found; they differ behind a symbolic link.
    ``facts`` are those of the descriptor.
    """

    path: str
    sha256: str
    found: str = ""
    facts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A port inside that is published on the loopback of this machine."""

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
    ] = ()  # answers of earlier runs (policy/trust/approved.py); they only answer questions
    approved_hosts: tuple[Sourced[Destination], ...] = ()
    tools: ToolSettings = ToolSettings()
    shell: ShellSettings | None = None  # None: shells are ordinary programs
    intercept: bool = False  # shells are intercepted even without a [shell] section
    container: tuple[
        Setting, ...
    ] = ()  # by the names of the line format: rootdir, uid, cap-allow …
    off: tuple[Switch, ...] = ()
    tier: Tier | None = None  # from the command line only
    resume: str | None = None  # the copy-on-write session to continue
    observe: bool = False  # denials are reported
    workdir: Sourced[str] | None = None
    published: tuple[Published, ...] = ()  # from the command line only
    notes: tuple[
        str, ...
    ] = ()  # notes for the user: "ai-agent comes from ~/.config/paddock/ai-agent.conf"
    warnings: tuple[str, ...] = ()  # "--env-pass X: this variable is not set"
