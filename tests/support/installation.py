"""An installation of Paddock that the tester can run.

The interpreter of the tests often lies in a directory of root (a pyenv under /root). No other user
can start a script of that environment. So tests that root starts give the tester a virtual
environment in the tester's home, as a real user would have it. It is made from an interpreter that
the tester can run. It holds the package under test, its dependencies and the native program. The
tester owns all of it: then only the sandbox can keep a command from rewriting it.

If that interpreter has the version of the tests' interpreter, files are copied. Else pip installs
the wheel that ``PADDOCK_WHEEL`` names. ``PADDOCK_PREFIX`` names another virtual environment whose
Paddock is tested, to compare two checkouts. Tests that an ordinary user starts take
``PADDOCK_BIN``, or the ``paddock`` beside the running interpreter.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need
from tests.support.tester import Outcome, Tester

DISTRIBUTION_OF = "paddock"
REPOSITORY = Path(__file__).resolve().parents[2]
_OLDEST = (3, 11)
_PREFIX = Path(os.environ.get("PADDOCK_PREFIX", sys.prefix))


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    paddock: Path
    core: Path
    root: Path  # the virtual environment
    package: Path  # the Python package as the command imports it


class NotInstalledError(Exception):
    """The tests cannot find the Paddock that they test."""


@contextmanager
def for_tester(tester: Tester) -> Iterator[Installation]:
    """The installation exists as long as the block, so that two test runs do not remove it for each
    other.
    """
    if not tester.disposable:
        yield _checked(_beside_the_tests(), tester)
        return
    root = tester.home / f".paddock-under-test-{os.getpid()}"
    try:
        yield _checked(_install_into(root, tester), tester)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _checked(found: Installation, tester: Tester) -> Installation:
    shown = tester.run([found.paddock, "--version"])
    if shown.exit_code != 0:
        raise NotInstalledError(f"{tester.name} cannot run {found.paddock}:\n{shown}")
    return found


def _beside_the_tests() -> Installation:
    command = Path(os.environ.get("PADDOCK_BIN", _PREFIX / "bin" / "paddock"))
    core = core_binary()
    if not command.exists():
        raise NotInstalledError(f"{command} is missing; run `make setup`, or set PADDOCK_BIN")
    return Installation(
        paddock=command, core=core, root=command.parent.parent, package=_package_directory()
    )


def core_binary() -> Path:
    """The native program: from the environment, or beside the interpreter."""
    named = os.environ.get("PADDOCK_CORE")
    places = [
        *([Path(named)] if named else []),
        _PREFIX / "bin" / "paddock-core",
    ]
    for place in places:
        if place.is_file():
            return place
    raise NotInstalledError("paddock-core is in none of: " + ", ".join(map(str, places)))


def _package_directory() -> Path:
    if str(_PREFIX) != sys.prefix:
        ask = "import paddock; print(paddock.__path__[0])"
        return Path(
            subprocess.check_output([_PREFIX / "bin" / "python3", "-Ic", ask], text=True).strip()
        )
    spec = importlib.util.find_spec("paddock")
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalledError(f"{sys.executable} can not import paddock; run `make setup`")
    return Path(spec.submodule_search_locations[0])


@contextmanager
def for_one_user(tester: Tester) -> Iterator[Installation]:
    """An installation like that of ``pip install --user``: programs in ``~/.local/bin``, the
    package in the user's site directory.
    """
    interpreter, version = reachable_interpreter(tester)
    need(
        "python",
        version == sys.version_info[:2],
        "the interpreter the tester can run has another version",
    )
    scripts = tester.home / ".local" / "bin"
    site = tester.home / ".local" / "lib" / "python{}.{}".format(*version) / "site-packages"
    for directory in (scripts, site):
        assert not directory.exists(), f"{directory} is left over"
        directory.mkdir(parents=True)
    try:
        _copy_distributions(site)
        _copy_commands(scripts, Path(os.path.realpath(interpreter)))
        (tester.home / ".local").chmod(0o755)
        for directory in (scripts, tester.home / ".local" / "lib"):
            tester.give(directory)
        os.chown(tester.home / ".local", tester.uid, tester.gid)
        yield Installation(
            paddock=scripts / "paddock",
            core=scripts / "paddock-core",
            root=site.parent,
            package=site / "paddock",
        )
    finally:
        shutil.rmtree(scripts)
        shutil.rmtree(tester.home / ".local" / "lib")


@contextmanager
def on_an_interpreter_at_home(tester: Tester) -> Iterator[tuple[Installation, Path]]:
    """A virtual environment whose Python is in the home, as with pyenv and uv. Yields the directory
    of that Python too.
    """
    interpreter, version = reachable_interpreter(tester)
    need(
        "python",
        version == sys.version_info[:2],
        "the interpreter the tester can run has another version",
    )
    ask = (
        "import os, sys; print(os.path.realpath(sys.executable), sys.base_prefix, "
        "os.path.dirname(os.__file__))"
    )
    program, prefix, library = map(Path, tester.run([interpreter, "-c", ask]).stdout.split())
    base = tester.home / f".python-under-test-{os.getpid()}"
    root = tester.home / f".paddock-on-it-{os.getpid()}"
    try:
        (base / "bin").mkdir(parents=True)
        shutil.copy(program, base / "bin" / program.name)
        unneeded = shutil.ignore_patterns("__pycache__", "test", "site-packages", "dist-packages")
        shutil.copytree(library, base / "lib" / library.name, ignore=unneeded, symlinks=True)
        for shared in (prefix / "lib").glob("libpython*"):
            shutil.copy(shared, base / "lib")
        tester.give(base)
        yield _install_into(root, tester, (str(base / "bin" / program.name), version)), base
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(base)


def _install_into(
    root: Path, tester: Tester, chosen: tuple[str, tuple[int, int]] | None = None
) -> Installation:
    interpreter, version = chosen or reachable_interpreter(tester)
    _check(tester.run([interpreter, "-m", "venv", "--without-pip", root]))
    site = root / "lib" / "python{}.{}".format(*version) / "site-packages"
    if version == sys.version_info[:2]:
        _copy_distributions(site)
        _copy_commands(root / "bin", root / "bin" / "python3")
    else:
        _install_wheel(root)
    tester.give(root)
    return Installation(
        paddock=root / "bin" / "paddock",
        core=root / "bin" / "paddock-core",
        root=root,
        package=site / "paddock",
    )


@functools.cache
def reachable_interpreter(tester: Tester) -> tuple[str, tuple[int, int]]:
    """An interpreter that the tester can run. It has the minor version of the tests' interpreter if
    there is a choice, because compiled modules fit only that version.
    """
    own = "python{}.{}".format(*sys.version_info)
    names = [own, "python3", *(f"python3.{minor}" for minor in range(11, 20))]
    candidates = [
        sys.executable,
        *(f"{place}/{name}" for name in names for place in ("/usr/bin", "/usr/local/bin")),
    ]
    for candidate in candidates:
        try:
            asked = tester.run([candidate, "-c", "import sys; print(*sys.version_info[:2])"])
        except OSError:
            continue
        if asked.exit_code == 0:
            major, minor = map(int, asked.stdout.split())
            if (major, minor) >= _OLDEST:
                return candidate, (major, minor)
    raise NotInstalledError(f"{tester.name} can run none of: {', '.join(candidates)}")


def _copy_distributions(site: Path) -> None:
    wanted, done = [_distribution_name()], set[str]()
    while wanted:
        name = wanted.pop()
        if name.lower() in done:
            continue
        done.add(name.lower())
        distribution = importlib.metadata.distribution(name)
        wanted += [
            _plain_name(text) for text in distribution.requires or [] if "extra ==" not in text
        ]
        for file in distribution.files or []:
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file() and "__pycache__" not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, site / file)
    # An editable installation lists a pointer to the sources instead of the package.
    for pointer in site.glob("*.pth"):
        pointer.unlink()
    shutil.copytree(
        _package_directory(),
        site / "paddock",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def _distribution_name() -> str:
    names = importlib.metadata.packages_distributions().get(DISTRIBUTION_OF)
    return names[0] if names else DISTRIBUTION_OF


def _plain_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return match.group()


def _copy_commands(target: Path, interpreter: Path) -> None:
    """Copies the launcher, the core, and the script ``paddock-python``, which names its
    interpreter.
    """
    launcher = Path(os.environ.get("PADDOCK_BIN", _PREFIX / "bin" / "paddock"))
    for program in (launcher, core_binary(), launcher.with_name("paddock-python")):
        content = program.read_bytes()
        if content.startswith(b"#!"):
            content = b"#!" + os.fsencode(interpreter) + content[content.index(b"\n") :]
        (target / program.name).write_bytes(content)
        (target / program.name).chmod(0o755)


def _install_wheel(root: Path) -> None:
    wheel = os.environ.get("PADDOCK_WHEEL")
    if wheel is None:
        raise NotInstalledError(
            "the interpreter the tester can run has another version than the tests' one; "
            "name a wheel in PADDOCK_WHEEL"
        )
    python = str(root / "bin" / "python3")
    subprocess.run([python, "-m", "ensurepip"], check=True, capture_output=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)


def _check(outcome: Outcome) -> None:
    if outcome.exit_code != 0:
        raise NotInstalledError(str(outcome))
