"""Request: the content of the command line, before any file is read."""

from __future__ import annotations

from paddock.frozen import dataclass
from paddock.policy.model import Access, Switch, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantFlag:
    """``--read /srv/**`` is GrantFlag(access=READ, pattern="/srv/**", flag="--read")."""

    access: Access
    pattern: str
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectiveFlag:
    """``-u 33`` is DirectiveFlag(key="uid", value=33, flag="-u"): a directive as in a profile."""

    key: str
    value: str | int | bool
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Profiles are merged first, then policies, then the flags: more specific values override."""

    profiles: tuple[str, ...] = ()  # names, or paths if they contain a "/" or end in .toml or .conf
    policies: tuple[str, ...] = ()  # always paths, relative to the current directory
    only: bool = False  # the flags alone grant: no default profile, no file of the project
    grants: tuple[GrantFlag, ...] = ()
    denies: tuple[str, ...] = ()
    open_protected: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    allow_domains: tuple[str, ...] = ()
    deny_domains: tuple[str, ...] = ()
    allow_endpoints: tuple[str, ...] = ()  # ROUTE:METHOD:PATH
    block_net: bool = False
    publish: tuple[str, ...] = ()  # PORT, or HOST:INSIDE
    env_pass: tuple[str, ...] = ()  # a whole name passes even if a profile denies it
    env_set: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()  # set by programs; there is no flag
    require_enforced: bool | None = None  # likewise
    off: tuple[Switch, ...] = ()
    tier: Tier | None = None
    cow: bool = False
    resume: str | None = None  # the copy-on-write session to continue
    observe: bool = False  # report denials
    intercept_shells: bool = False
    audit: bool = False
    audit_stderr: bool = False
    audit_dir: str | None = None
    strict_globs: bool = False
    workdir: str | None = None
    command: str | None = None  # argv[0] of the command
    container: tuple[DirectiveFlag, ...] | None = None  # None: no container
    trust_required: bool = True  # False: only read and check, as `paddock check` does; never to run

    @property
    def names_a_policy(self) -> bool:
        return bool(self.profiles or self.policies)
