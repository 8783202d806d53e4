"""Turns the command line into the topmost Policy."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.errors import UsageError
from paddock.policy.command_line import DirectiveFlag, Request
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.policy_keys import CONTAINER_LISTS
from paddock.policy.formats.toml_sections import Sections
from paddock.policy.hosts import allowed_host, read_host
from paddock.policy.model import (
    COMMAND_LINE,
    Audit,
    Environment,
    Filesystem,
    Limit,
    Network,
    NetworkMode,
    Policy,
    Published,
    RouteEndpoint,
    Setting,
    Source,
    Sourced,
    Switch,
    Syscalls,
    Widen,
    Workspace,
)
from paddock.policy.trust.origin import Origin

_SESSION = frozenset("0123456789abcdef")


def flag(name: str) -> Source:
    return Source(file=COMMAND_LINE, key=name)


def from_command_line(request: Request, origin: Origin) -> Policy:
    values = Values(Expander(origin))
    prints_events = request.audit_stderr or _log_level(origin) == "debug"
    wants_journal = request.audit or prints_events or request.audit_dir is not None
    if wants_journal and Switch.AUDIT in request.off:
        asked = "--audit" if request.audit_stderr or not prints_events else "PADDOCK_LOG=debug"
        raise UsageError(f"{asked} and --off audit contradict each other")
    # With a file, --audit names the journal itself.
    is_file = request.audit_stderr and (request.audit_dir or "").endswith(".jsonl")
    journal = flag("--audit" if request.audit_dir is None or is_file else "--audit-log")
    workdir = request.workdir
    return Policy(
        profiles=(),
        filesystem=Filesystem(
            grants=tuple(
                values.grant(one.access, one.pattern, flag(one.flag)) for one in request.grants
            ),
            denies=tuple(values.deny(pattern, flag("--deny")) for pattern in request.denies),
            open_protected=tuple(
                values.opened(one, flag("--open-protected")) for one in request.open_protected
            ),
            workspace=_workspace(request),
            widen=Sourced(Widen.NEVER, flag("--strict-globs")) if request.strict_globs else None,
            require_enforced=_given(request.require_enforced, "require_enforced"),
        ),
        syscalls=Syscalls(
            block=tuple(values.syscall(name, flag("--block")) for name in request.blocks),
            sockets=tuple(values.socket(family, flag("--socket")) for family in request.sockets),
        ),
        network=_network(request),
        env=Environment(
            pass_=tuple(
                values.env_name(name, flag("--env-pass"))
                for name in request.env_pass
                if "*" in name
            ),
            keep=tuple(
                values.env_name(name, flag("--env-pass"))
                for name in request.env_pass
                if "*" not in name
            ),
            set=tuple(
                values.env_setting(name, value, flag("--env")) for name, value in request.env_set
            ),
        ),
        audit=Audit(
            enabled=Sourced(True, journal) if wants_journal else None,
            dir=None if request.audit_dir is None else values.journal(request.audit_dir, journal),
            stderr=prints_events,
        ),
        limits=tuple(
            Limit(name=name, value=value, source=flag(name)) for name, value in request.limits
        ),
        off=tuple(dict.fromkeys(request.off)),
        container=tuple(_container(request.container or (), values)),
        tier=request.tier,
        resume=request.resume,
        observe=request.observe,
        intercept=request.intercept_shells,
        published=tuple(dict.fromkeys(_published(one) for one in request.publish)),
        workdir=None
        if workdir is None
        else Sourced(values.path(workdir, flag("--workdir")), flag("--workdir")),
    )


def _log_level(origin: Origin) -> str:
    level = origin.environ.get("PADDOCK_LOG", "")
    if level not in ("", "info", "debug"):
        raise UsageError(
            f"PADDOCK_LOG={level}: not a level",
            hint="PADDOCK_LOG=debug prints each event as it happens; PADDOCK_LOG=info does not",
        )
    return level


def _given(value: bool | None, name: str) -> Sourced[bool] | None:
    return None if value is None else Sourced(value, flag(name))


def _network(request: Request) -> Network | None:
    """Allowed hosts are a complete list; denied hosts alone leave the rest unchanged."""
    asked = {
        "--allow-domain": request.allow_domains,
        "--deny-domain": request.deny_domains,
        "--allow-endpoint": request.allow_endpoints,
    }
    if request.block_net and any(asked.values()):
        other = next(name for name, values in asked.items() if values)
        raise UsageError(
            f"--block-net and {other} contradict each other",
            hint="remove --block-net, or remove the other flag",
        )
    if not (request.block_net or any(asked.values())):
        return None
    allowed = tuple(allowed_host(one, flag("--allow-domain")) for one in request.allow_domains)
    return Network(
        mode=Sourced(NetworkMode.NONE, flag("--block-net")) if request.block_net else None,
        allowed_hosts=allowed or None,
        denied_hosts=tuple(read_host(one, flag("--deny-domain")) for one in request.deny_domains),
        endpoints=tuple(_endpoint(one) for one in request.allow_endpoints),
    )


def _published(text: str) -> Published:
    """In the order of docker: the port of this machine first."""
    host, _, inside = text.partition(":") if ":" in text else (text, ":", text)
    if not all(
        port.isascii() and port.isdecimal() and 0 < int(port) <= 65535 for port in (host, inside)
    ):
        raise UsageError(
            f"--publish: not a port: {text}", hint="--publish 3000, or --publish HOST:INSIDE"
        )
    return Published(host=int(host), inside=int(inside))


def _endpoint(written: str) -> RouteEndpoint:
    from paddock.policy.routes import endpoint

    route, _, rest = written.partition(":")
    method, colon, path = rest.partition(":")
    if not route or not method or not colon:
        raise UsageError(
            f"--allow-endpoint {written}: write ROUTE:METHOD:PATH", hint="openai:GET:/v1/models/**"
        )
    source = flag("--allow-endpoint")
    return RouteEndpoint(
        route=route, rule=endpoint(Sourced(method, source), Sourced(path, source), source)
    )


def _container(flags: tuple[DirectiveFlag, ...], values: Values) -> Iterator[Setting]:
    """If a flag is given twice the last one counts, unless it is a list."""
    sections = Sections(values)
    lists: dict[str, tuple[object, ...]] = dict.fromkeys(CONTAINER_LISTS, ())
    settings: dict[str, Setting] = {}
    for one in flags:
        source = flag(one.flag)
        written = one.value
        value: object = (
            sections.container_word(one.key, written, source)
            if isinstance(written, str)
            else written
        )
        if one.key in lists:
            value = lists[one.key] = (*lists[one.key], value)
        settings[one.key] = Setting(key=one.key, value=value, source=source)
    yield from settings.values()


def _workspace(request: Request) -> Sourced[Workspace] | None:
    if request.resume is not None:
        if not request.resume or not _SESSION.issuperset(request.resume):
            raise UsageError(
                f"--resume {request.resume}: not a session",
                hint="type `paddock sessions` to list the sessions",
            )
        return Sourced(Workspace.COW, flag("--resume"))
    return Sourced(Workspace.COW, flag("--cow")) if request.cow else None
