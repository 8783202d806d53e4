"""The command line → the topmost Policy."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.errors import UsageError
from paddock.policy.expand import Expander
from paddock.policy.model import (
    COMMAND_LINE,
    Audit,
    Environment,
    Filesystem,
    Policy,
    Setting,
    Source,
    Sourced,
    Switch,
    Syscalls,
    Widen,
    Workspace,
)
from paddock.policy.origin import Origin
from paddock.policy.request import DirectiveFlag, Request
from paddock.policy.schema import CONTAINER_LISTS
from paddock.policy.sections import Sections
from paddock.policy.values import Values

_SESSION = frozenset("0123456789abcdef")


def flag(name: str) -> Source:
    return Source(file=COMMAND_LINE, key=name)


def from_command_line(request: Request, origin: Origin) -> Policy:
    values = Values(Expander(origin))
    wants_journal = request.audit or request.audit_stderr or request.audit_dir is not None
    if wants_journal and Switch.AUDIT in request.off:
        raise UsageError("--audit and --off audit contradict each other")
    journal = flag("--audit" if request.audit_dir is None else "--audit-log")
    workdir = request.workdir
    return Policy(
        profiles=(),
        filesystem=Filesystem(
            grants=tuple(values.grant(one.access, one.pattern, flag(one.flag)) for one in request.grants),
            denies=tuple(values.deny(pattern, flag("--deny")) for pattern in request.denies),
            open_protected=tuple(values.opened(one, flag("--open-protected")) for one in request.open_protected),
            workspace=_workspace(request),
            widen=Sourced(Widen.NEVER, flag("--strict-globs")) if request.strict_globs else None,
        ),
        syscalls=Syscalls(
            block=tuple(values.syscall(name, flag("--block")) for name in request.blocks),
            sockets=tuple(values.socket(family, flag("--socket")) for family in request.sockets),
        ),
        env=Environment(
            pass_=tuple(values.env_name(name, flag("--env-pass")) for name in request.env_pass if "*" in name),
            keep=tuple(values.env_name(name, flag("--env-pass")) for name in request.env_pass if "*" not in name),
            set=tuple(values.env_setting(name, value, flag("--env")) for name, value in request.env_set),
        ),
        audit=Audit(
            enabled=Sourced(True, journal) if wants_journal else None,
            dir=None if request.audit_dir is None else values.journal(request.audit_dir, journal),
            stderr=request.audit_stderr,
        ),
        off=tuple(dict.fromkeys(request.off)),
        container=tuple(_container(request.container or (), values)),
        tier=request.tier,
        resume=request.resume,
        observe=request.observe,
        workdir=None if workdir is None else Sourced(values.path(workdir, flag("--workdir")), flag("--workdir")),
    )


def _container(flags: tuple[DirectiveFlag, ...], values: Values) -> Iterator[Setting]:
    """Of a flag that is given twice the last one counts, unless it is one of those that add up."""
    sections = Sections(values)
    lists: dict[str, tuple[object, ...]] = dict.fromkeys(CONTAINER_LISTS, ())
    settings: dict[str, Setting] = {}
    for one in flags:
        source = flag(one.flag)
        written = one.value
        value: object = sections.container_word(one.key, written, source) if isinstance(written, str) else written
        if one.key in lists:
            value = lists[one.key] = (*lists[one.key], value)
        settings[one.key] = Setting(key=one.key, value=value, source=source)
    yield from settings.values()


def _workspace(request: Request) -> Sourced[Workspace] | None:
    if request.resume is not None:
        if not request.resume or not _SESSION.issuperset(request.resume):
            raise UsageError(f"--resume {request.resume}: not a session", hint="its name is of hexadecimal digits")
        return Sourced(Workspace.COW, flag("--resume"))
    return Sourced(Workspace.COW, flag("--cow")) if request.cow else None
