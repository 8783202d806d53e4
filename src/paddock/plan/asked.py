"""What a policy asks of the file layer, as the kernel will see it: paths, not patterns."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.plan.model import Level, Notice
from paddock.plan.paths import within
from paddock.plan.rights import WITHOUT_EXECUTE
from paddock.policy.glob import Glob
from paddock.policy.model import TMP_TOKEN, Access, Filesystem, Grant, Widen

LOADER = "loader"

# What every dynamic program needs before its first line: the loader, libraries, the usual devices. /proc rather
# than /proc/self: a rule on /proc/self binds to one process, and its children would lose it.
_LOADER_READS = ("/usr", "/bin", "/sbin?", "/lib?", "/lib64?", "/lib32?", "/etc/ld.so.cache?", "/proc")
_LOADER_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty?")


def asked_for(filesystem: Filesystem, notices: list[Notice]) -> list[Asked]:
    """Every grant but those of the private temporary directory, and what the loader needs."""
    asked = [Asked.of(grant, filesystem, notices) for grant in filesystem.grants if not is_temp(grant)]
    if not (filesystem.no_bootstrap_reads and filesystem.no_bootstrap_reads.value):
        asked += _loader()
    return asked


def is_temp(grant: Grant) -> bool:
    return grant.pattern.startswith(TMP_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One grant as the kernel will see it: a path, not a pattern."""

    path: str
    access: str
    optional: bool
    workspace: bool
    source: str

    @classmethod
    def of(cls, grant: Grant, filesystem: Filesystem, notices: list[Notice]) -> Asked:
        glob = Glob.parse(grant.pattern)
        if not glob.exact:
            _widen(grant, glob, filesystem, notices)
        # /dev/shm is a file system, not a device: things are created and removed there.
        device = grant.access is Access.ALLOW and within(glob.prefix, "/dev") and not within(glob.prefix, "/dev/shm")
        access = "device" if device else grant.access.value
        return cls(
            path=glob.prefix,
            access=access if grant.execute else WITHOUT_EXECUTE.get(access, access),
            optional=grant.optional or grant.create,  # the run makes it; whoever only looks need not have it
            workspace=grant.workspace,
            source=str(grant.source),
        )


def _widen(grant: Grant, glob: Glob, filesystem: Filesystem, notices: list[Notice]) -> None:
    widen = filesystem.widen.value if filesystem.widen else Widen.READ
    writes = grant.access in (Access.WRITE, Access.ALLOW)
    said = f"the grant {grant.pattern} can only be held as all of {glob.prefix}"
    if glob.prefix == "/" or widen is Widen.NEVER or (writes and widen is not Widen.ALLOW):
        raise PolicyError(
            said,
            where=str(grant.source),
            hint=f'write "{glob.prefix.rstrip("/")}/**" if you mean that'
            + ('; filesystem.widen = "allow" accepts widened writes' if writes else ""),
        )
    notices.append(Notice(level=Level.WARNING, text=f"{grant.source}: {said}"))


def _loader() -> list[Asked]:
    def asked(path: str, access: str) -> Asked:
        name = path.removesuffix("?")
        return Asked(path=name, access=access, optional=name != path, workspace=False, source=LOADER)

    return [asked(path, "read") for path in _LOADER_READS] + [asked(path, "device") for path in _LOADER_DEVICES]
