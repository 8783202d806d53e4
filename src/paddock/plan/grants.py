"""Turns the grants of a policy into grants for the kernel: paths, not patterns. It is the same in
every tier.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.facts import Host
from paddock.plan.path_containment import within
from paddock.plan.plan import Level, Notice, PathGrant
from paddock.plan.rights import WITHOUT_EXECUTE, WRITES
from paddock.policy.glob import ANY_DEPTH, Glob
from paddock.policy.model import TMP_TOKEN, Access, Filesystem, Grant, Sourced, Widen

TMP = "/tmp"
LOADER = "loader"

# Files that every dynamic program needs before its first line: the loader, libraries, the usual
# devices. /proc and not /proc/self: a rule on /proc/self binds to one process, and its children
# would lose it.
_LOADER_READS = (
    "/usr",
    "/bin",
    "/sbin?",
    "/lib?",
    "/lib64?",
    "/lib32?",
    "/etc/ld.so.cache?",
    "/proc",
)
_LOADER_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty?",
)

_KERNEL_TREES = ("/dev", "/proc", "/sys")
_SYSTEM_TREES = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
_SOURCE_TREES = ("/usr/local/src", "/usr/src")  # projects of an administrator
_SYSTEM_DIRS = ("/var", "/var/lib", "/var/log")  # a project may be in a directory below


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGrant:
    path: str
    access: str
    optional: bool
    workspace: bool
    persons: bool  # a path of the user, not of the system or of a tool
    tree: bool  # written as a directory with its whole content
    source: str

    @property
    def writes(self) -> bool:
        return self.access in WRITES

    def grant(self, *, except_: tuple[str, ...] = ()) -> PathGrant:
        return PathGrant(
            path=self.path,
            access=self.access,
            except_=except_,
            optional=self.optional,
            source=self.source,
        )


def requested_grants(filesystem: Filesystem, notices: list[Notice]) -> list[RequestedGrant]:
    """All but the private temporary directory, whose path depends on the tier."""
    requested = [
        _asked(grant, filesystem, notices) for grant in filesystem.grants if not is_temp(grant)
    ]
    if not (filesystem.no_bootstrap_reads and filesystem.no_bootstrap_reads.value):
        requested += [_own(path, "read") for path in _LOADER_READS] + [
            _own(path, "device") for path in _LOADER_DEVICES
        ]
    return requested


def is_temp(grant: Grant) -> bool:
    return grant.pattern.startswith(TMP_TOKEN)


def temp_access(filesystem: Filesystem) -> str | None:
    """None: no grant asks for a private temporary directory."""
    grants = [grant for grant in filesystem.grants if is_temp(grant)]
    if not grants:
        return None
    kinds = {grant.access for grant in grants}
    access = next(iter(kinds)).value if len(kinds) == 1 else Access.ALLOW.value
    return access if all(grant.execute for grant in grants) else WITHOUT_EXECUTE.get(access, access)


def merged(grants: Iterable[PathGrant]) -> tuple[PathGrant, ...]:
    """Sorted. Of two equal grants one stays; it is optional only if both are."""
    found: dict[tuple[str, str], PathGrant] = {}
    for grant in grants:
        known = found.setdefault((grant.path, grant.access), grant)
        if known.optional and not grant.optional:
            found[grant.path, grant.access] = PathGrant(
                path=known.path,
                access=known.access,
                except_=known.except_,
                optional=False,
                source=known.source,
            )
    return tuple(found[key] for key in sorted(found))


def refuse_workspace(requested: RequestedGrant, host: Host) -> None:
    """Directories that are not a project: the whole home, shared temporary directories, trees of
    the kernel and of the system.
    """
    if not requested.workspace:
        return
    if within(host.home, requested.path):
        whole = (
            "your home directory"
            if requested.path == host.home
            else f"{requested.path}, which contains your home directory"
        )
        why = f"the workspace would be {whole}, with keys, mail and shell start-up files"
    elif within(TMP, requested.path):
        why = (
            f"the workspace would be {requested.path}, where other runs keep their temporary files"
        )
    elif any(within(requested.path, tree) for tree in _KERNEL_TREES):
        why = f"the workspace would be {requested.path}, which belongs to the kernel"
    elif _is_of_the_system(requested.path):
        why = f"the workspace would be {requested.path}, which belongs to the system"
    else:
        return
    raise PolicyError(why, where=requested.source, hint="start paddock in a project directory")


def _is_of_the_system(path: str) -> bool:
    if any(within(path, tree) for tree in _SOURCE_TREES):
        return False
    return path in _SYSTEM_DIRS or any(within(path, tree) for tree in _SYSTEM_TREES)


def refuse_exposed_journal(requested: RequestedGrant, journal_dir: Sourced[str]) -> None:
    """The whole directory of a journal is closed to the command."""
    directory, source = journal_dir.value, str(journal_dir.source)
    hint = "give the journal a directory of its own: --audit-log /var/tmp/NAME"
    if requested.writes and within(directory, requested.path):
        raise PolicyError(
            f"the journal in {directory} would be inside {requested.path}, which the command may "
            f"write ({requested.source})",
            where=source,
            hint=hint,
        )
    if requested.workspace and within(requested.path, directory):
        raise PolicyError(
            f"the directory of the journal is closed to the command, and {directory} contains the "
            f"workspace {requested.path}",
            where=source,
            hint=hint,
        )


def _asked(grant: Grant, filesystem: Filesystem, notices: list[Notice]) -> RequestedGrant:
    glob = Glob.parse(grant.pattern)
    if not glob.exact:
        _widen(grant, glob, filesystem, notices)
    # /dev/shm is a file system, not a device: files are created and removed there.
    device = (
        grant.access is Access.ALLOW
        and within(glob.prefix, "/dev")
        and not within(glob.prefix, "/dev/shm")
    )
    access = "device" if device else grant.access.value
    return RequestedGrant(
        path=glob.prefix,
        access=access if grant.execute else WITHOUT_EXECUTE.get(access, access),
        optional=grant.optional or grant.create,  # the run creates it; a dry run does not need it
        workspace=grant.workspace,
        persons=grant.persons,
        tree=not glob.exact or grant.pattern.endswith(f"/{ANY_DEPTH}"),
        source=str(grant.source),
    )


def _widen(grant: Grant, glob: Glob, filesystem: Filesystem, notices: list[Notice]) -> None:
    widen = filesystem.widen.value if filesystem.widen else Widen.READ
    writes = grant.access in (Access.WRITE, Access.ALLOW)
    message = f"the kernel can enforce the grant {grant.pattern} only as all of {glob.prefix}"
    if glob.prefix == "/" or widen is Widen.NEVER or (writes and widen is not Widen.ALLOW):
        raise PolicyError(
            message,
            where=str(grant.source),
            hint=f'write "{glob.prefix.rstrip("/")}/**" if you mean that'
            + ('; filesystem.widen = "allow" accepts widened writes' if writes else ""),
        )
    notices.append(Notice(level=Level.WARNING, text=f"{grant.source}: {message}"))


def _own(path: str, access: str) -> RequestedGrant:
    name = path.removesuffix("?")
    return RequestedGrant(
        path=name, access=access, optional=name != path, workspace=False, persons=False, tree=True,
        source=LOADER
    )  # fmt: skip
