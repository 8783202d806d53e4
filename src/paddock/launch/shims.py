"""Links with the names of shells, in front of PATH. Each is the core, which enters its sandbox and
becomes the real shell.

A caller that uses the path of a shell bypasses them, so they are no protection by themselves.
`core/src/commands/intercepted_shell.rs` implements them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import HostError, UsageError
from paddock.frozen import dataclass
from paddock.host import measure
from paddock.plan.compile import journals_of
from paddock.plan.shell import inside, on_failure, outside
from paddock.policy import Origin, Request, load

NAMES = ("bash", "dash", "sh", "zsh")
COMPILED = "plan.json"
# The core's own default, and the directory of shells on every machine.
_SET_APART, _USUAL = "/bin/shells", "/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledShims:
    dir: str
    shells: str  # the directory of the real ones
    names: tuple[str, ...]  # the intercepted ones


def default_dir(origin: Origin) -> str:
    """No run lets its command write there."""
    return f"{origin.state_dir}/shims"


def install(
    directory: str, shells: str | None, request: Request, origin: Origin, *, in_run: bool
) -> InstalledShims:
    """``in_run``: the callers are in a sandbox, which applies the denies of the policy."""
    real = shells or (_SET_APART if os.path.isdir(_SET_APART) else _USUAL)
    present = tuple(name for name in NAMES if os.access(os.path.join(real, name), os.X_OK))
    if not present:
        raise UsageError(
            f"{real} has none of the shells {', '.join(NAMES)}",
            hint="give another directory with --shells DIR",
        )
    policy = load(request, origin)
    host = measure(
        uid=origin.uid,
        user=origin.user,
        home=origin.home,
        cwd=origin.cwd,
        previously_writable=origin.writable_history.trees,
        journals=origin.journals.paths,
        search_path=origin.environ.get("PATH", ""),
    )
    plan = (
        inside(policy, host)
        if in_run
        else outside(policy, host, own=(directory,), journals=journals_of(host, None))
    )
    text = canonical(
        {
            "on_failure": on_failure(policy.shell).value,
            "plan": plan.canonical().decode("ascii"),
            "shells": real,
            "token": secrets.token_hex(32),
        }
    )
    with _explained(directory):
        os.makedirs(directory, mode=0o755, exist_ok=True)
        if os.path.samefile(directory, real):
            raise UsageError(
                f"{directory} contains the real shells", hint="give another directory for the links"
            )
        foreign = [name for name in (*NAMES, COMPILED) if not _is_ours(directory, name)]
        if foreign:
            raise UsageError(
                f"{directory}/{foreign[0]} exists, and Paddock did not create it",
                hint="give another directory",
            )
        _write(directory, text)
        for name in NAMES:
            _unlink(os.path.join(directory, name))
        for name in present:
            os.symlink(core.program(), os.path.join(directory, name))
    return InstalledShims(dir=directory, shells=real, names=present)


def installed(directory: str) -> InstalledShims | None:
    names = tuple(
        name
        for name in NAMES
        if os.path.islink(os.path.join(directory, name)) and _is_ours(directory, name)
    )
    try:
        with open(os.path.join(directory, COMPILED), encoding="ascii") as file:
            shells = json.load(file)["shells"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return InstalledShims(dir=directory, shells=str(shells), names=names)


def remove(directory: str) -> bool:
    """Returns whether there was anything to remove. Foreign files stay."""
    if installed(directory) is None:
        return False
    with _explained(directory):
        for name in (*NAMES, COMPILED):
            if _is_ours(directory, name):
                _unlink(os.path.join(directory, name))
        with contextlib.suppress(OSError):  # it contains foreign files
            os.rmdir(directory)
    return True


def _is_ours(directory: str, name: str) -> bool:
    """Whether the entry is a shim of Paddock, or missing."""
    path = os.path.join(directory, name)
    if name == COMPILED:
        return not os.path.lexists(path) or installed(directory) is not None
    return not os.path.lexists(path) or (
        os.path.islink(path) and os.path.basename(os.readlink(path)).startswith(core.NAME)
    )


def _write(directory: str, text: str) -> None:
    """Completely or not at all: a shell that starts meanwhile reads the old or the new file."""
    fd, path = tempfile.mkstemp(dir=directory, prefix=".plan-")
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
    os.chmod(path, 0o644)
    os.replace(path, os.path.join(directory, COMPILED))


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def _explained(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(f"{error.filename or directory}: {error.strerror}") from error
