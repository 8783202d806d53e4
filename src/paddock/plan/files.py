"""Grants and denies → what Landlock can hold.

Landlock grants hierarchies and knows no deny. A place inside a grant that must stay closed becomes an ``except`` of
the grant, which the core carves out; a deny that no carving can express (``**/.env``) stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.host.model import Host
from paddock.plan.asked import Asked, asked_for, is_temp
from paddock.plan.execution import hold_off
from paddock.plan.model import Level, Notice, PathGrant, Temp
from paddock.plan.paths import carved_directories, outermost, touch, within
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE, WRITES
from paddock.policy.glob import Glob
from paddock.policy.model import Access, Deny, Filesystem, Grant

TMP_PARENT = "/tmp"

# As an ordinary user the kernel's file modes hold these; root reads through modes, so the fence has to.
_ROOT_SECRETS = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
                 "/etc/ssh", "/proc/kcore", "/sys/firmware")  # fmt: skip

_KERNEL_TREES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    grants: tuple[PathGrant, ...]
    closed: tuple[str, ...]
    unwritable: tuple[str, ...]
    temp: Temp | None
    notices: tuple[Notice, ...]


def lay_out(filesystem: Filesystem, host: Host, *, journals: tuple[str, ...], chosen_journal: str | None) -> Files:
    """``journals``: the default one, those that earlier runs kept elsewhere, and this run's. ``chosen_journal``: a
    person named its place, so a bad place is their error and not ours to carve."""
    notices: list[Notice] = []
    closed = _Closed(filesystem, host, journals)
    grants: dict[tuple[str, str], PathGrant] = {}
    for one in hold_off(asked_for(filesystem, notices), strict=_strict(filesystem), notices=notices):
        _refuse_workspace(one, host)
        _refuse_exposed_journal(one, chosen_journal)
        held = closed.carve(one, notices)
        if held and (known := grants.get((held.path, held.access))):
            # Two files asked for the same thing: it stays optional only if nobody needs it.
            held = PathGrant(
                path=known.path, access=known.access, except_=known.except_,
                optional=known.optional and held.optional, source=known.source,
            )  # fmt: skip
        if held:
            grants[held.path, held.access] = held
    temp = [grant for grant in filesystem.grants if is_temp(grant)]
    return Files(
        grants=tuple(grants[key] for key in sorted(grants)),
        closed=closed.to_everything,
        unwritable=closed.to_writing,
        temp=Temp(parent=TMP_PARENT, access=_widest(temp)) if temp else None,
        notices=tuple(notices),
    )


def _strict(filesystem: Filesystem) -> bool:
    return filesystem.require_enforced is None or filesystem.require_enforced.value


def _widest(grants: list[Grant]) -> str:
    kinds = {grant.access for grant in grants}
    access = next(iter(kinds)).value if len(kinds) == 1 else Access.ALLOW.value
    return access if all(grant.execute for grant in grants) else WITHOUT_EXECUTE.get(access, access)


def _refuse_workspace(asked: Asked, host: Host) -> None:
    """Places that are no project: the whole home, where temporary files of all lie, the kernel's own trees."""
    if not asked.workspace:
        return
    if within(host.home, asked.path):
        whole = "your home directory" if asked.path == host.home else f"{asked.path}, which holds your home directory"
        why = f"the workspace would be {whole}: keys, mail and shell start-up files with it"
    elif within(TMP_PARENT, asked.path):
        why = f"the workspace would be {asked.path}, where other runs keep their temporary files"
    elif any(within(asked.path, tree) for tree in _KERNEL_TREES):
        why = f"the workspace would be {asked.path}, which belongs to the kernel"
    else:
        return
    raise PolicyError(why, where=asked.source, hint="start paddock in a project directory")


def _refuse_exposed_journal(asked: Asked, journal_dir: str | None) -> None:
    if journal_dir and asked.access in WRITES and within(journal_dir, asked.path):
        raise PolicyError(
            f"the journal {journal_dir} lies inside {asked.path}, which the command may write",
            where=asked.source,
            hint="put the journal outside every grant, e.g. --audit-log /var/tmp/NAME",
        )


class _Closed:
    """Everything that stays closed whatever is granted, and why."""

    def __init__(self, filesystem: Filesystem, host: Host, journals: tuple[str, ...]) -> None:
        self._strict = _strict(filesystem)
        globs = [(deny, Glob.parse(deny.pattern)) for deny in filesystem.denies]
        self._denied_paths = [glob.prefix for _, glob in globs if glob.exact]
        self._denied_names = [(deny, glob) for deny, glob in globs if not glob.exact]
        self._own = tuple(host.own_paths)
        self._journals = journals
        self._unreadable = (*journals, *(_ROOT_SECRETS if host.uid == 0 else ()))

    @property
    def to_everything(self) -> tuple[str, ...]:
        return tuple(sorted({*self._denied_paths, *self._unreadable}))

    @property
    def to_writing(self) -> tuple[str, ...]:
        return tuple(sorted(self._own))

    def carve(self, asked: Asked, notices: list[Notice]) -> PathGrant | None:
        """The grant with its excepts, or None when nothing of it may stand."""
        kept_out = set(self._denied(asked, notices))
        kept_out.update(path for path in self._unreadable if touch(path, asked.path))
        if asked.access in WRITES:
            own = [path for path in self._own if touch(path, asked.path)]
            if own and asked.workspace:
                raise PolicyError(
                    f"the workspace {asked.path} holds {own[0]}, which paddock itself relies on",
                    where=asked.source,
                    hint="start paddock in a project directory; install paddock outside of it",
                )
            kept_out.update(own)
        above = next((path for path in sorted(kept_out) if within(asked.path, path)), None)
        if above:
            if asked.workspace and above in self._journals:
                raise PolicyError(
                    f"the workspace {asked.path} lies in {above}, where a journal is kept",
                    where=asked.source,
                    hint="work elsewhere, or remove that journal if nobody needs it",
                )
            if asked.workspace:
                raise PolicyError(f"the workspace {asked.path} is denied by {above}", where=asked.source)
            notices.append(
                Notice(level=Level.WARNING, text=f"{asked.source}: {asked.path} is not granted: {above} stays closed")
            )
            return None
        excepts = outermost(kept_out)
        if excepts and asked.access in WRITES:
            closed = ", ".join(carved_directories(asked.path, excepts))
            notices.append(
                Notice(
                    level=Level.WARNING,
                    text=f"{asked.source}: {', '.join(excepts)} stays closed inside {asked.path}; "
                    f"so nothing new can be created directly in {closed}"
                    + (", nor can it be listed" if "read_dir" in ACCESS[asked.access] else ""),
                )
            )
        return PathGrant(
            path=asked.path, access=asked.access, except_=excepts, optional=asked.optional, source=asked.source
        )

    def _denied(self, asked: Asked, notices: list[Notice]) -> Iterator[str]:
        for path in self._denied_paths:
            if touch(path, asked.path):
                yield path
        for deny, glob in self._denied_names:
            if glob.may_contain(asked.path):
                self._unholdable(deny, asked, notices)

    def _unholdable(self, deny: Deny, asked: Asked, notices: list[Notice]) -> None:
        text = f"deny {deny.pattern} can not be held inside the grant {asked.path}: Landlock knows no deny by name"
        if self._strict:
            raise PolicyError(
                text,
                where=str(deny.source),
                hint=f"deny whole files or directories, or narrow the grant ({asked.source}); "
                "filesystem.require_enforced = false runs without it",
            )
        notices.append(Notice(level=Level.UNENFORCED, text=f"{deny.source}: {text}"))
