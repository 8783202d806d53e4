"""Parses the JSON ``safety.sandbox`` object: the mode in which commands run, and the settings of
each mode.

Only the section of the chosen mode counts; the others must be valid too.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from paddock.errors import PolicyError, UsageError
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.expand import Expander
from paddock.policy.trust.file_trust import read_policy
from paddock.policy.trust.origin import Origin

BUILTIN_DISTROS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "distros"
)
PACKAGES = "{packages}"
_ALPINE_URL = "https://dl-cdn.alpinelinux.org/alpine/v3.20/releases/x86_64/alpine-minirootfs-3.20.3-x86_64.tar.gz"
_ALPINE_SHA256 = "d4e6fd67dcf75e40c451560ac7265166c2b72a0f38ddc9aae756a7de3d1efa0c"
_MEMORY_MB_MAX = 2**24
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._:=~-]*")
_DIGEST = re.compile("[0-9a-f]{64}")

C = TypeVar("C")


class Mode(StrEnum):
    """Where commands run."""

    AUTO = "auto"
    LOCAL = "local"
    LINUX = "linux"
    WINDOWS = "windows"
    WSL = "wsl"
    CONTAINER = "container"
    SSH = "ssh"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSandboxConfig:
    """No isolation and no settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxSandboxConfig:
    """``workspace`` None: the current directory at its first use; the same for the other modes.
    ``policy``: a file on top of the profile, for all other settings of the sandbox.
    """

    workspace: str | None = None
    max_memory_mb: int = 512
    profile: str = "ai-agent"
    policy: str | None = None

    def __post_init__(self) -> None:
        _within("max_memory_mb", self.max_memory_mb, _MEMORY_MB_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsSandboxConfig:
    workspace: str | None = None
    max_memory_mb: int = 512
    max_processes: int = 10
    use_low_integrity: bool = True

    def __post_init__(self) -> None:
        _within("max_memory_mb", self.max_memory_mb, _MEMORY_MB_MAX)
        _within("max_processes", self.max_processes, 2**16)


@dataclass(frozen=True, slots=True, kw_only=True)
class WslSandboxConfig:
    """``profile``: a JSON file with these keys, or the name of a built-in one. ``automount`` false:
    only the workspace of Windows is mounted, and no program of Windows can be started. ``user``:
    the user for commands; default root. Both are fixed when the distribution is set up.
    """

    profile: str | None = None
    distro: str = "paddock-sandbox"
    shell: str = "sh"
    workspace: str | None = None
    install_path: str | None = None
    rootfs_url: str = _ALPINE_URL
    rootfs_sha256: str = ""  # that of the default archive; any other archive needs its own
    pre_install_commands: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("python3", "py3-pip")
    package_install_command: str = f"apk add --no-cache {PACKAGES}"
    system_prompt_hint: str = ""
    automount: bool = True
    user: str | None = None

    def __post_init__(self) -> None:
        if not self.rootfs_url.startswith("https://"):
            raise UsageError(
                f"rootfs_url: Paddock fetches only https addresses: {self.rootfs_url!r}"
            )
        if not self.rootfs_sha256:
            if self.rootfs_url != _ALPINE_URL:
                raise UsageError("rootfs_url: a custom address needs its own rootfs_sha256")
            object.__setattr__(self, "rootfs_sha256", _ALPINE_SHA256)
        if not _DIGEST.fullmatch(self.rootfs_sha256):
            raise UsageError(
                f"rootfs_sha256: not the 64 hex digits of a SHA-256: {self.rootfs_sha256!r}"
            )
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise UsageError(f"packages: not the name of a package: {package!r}")
        if self.packages and PACKAGES not in self.package_install_command:
            raise UsageError(f"package_install_command: {PACKAGES} is missing from it")
        if self.user is not None and not re.fullmatch("[a-z_][a-z0-9_-]{0,31}", self.user):
            raise UsageError(f"user: not a valid user name: {self.user!r}")

    @property
    def installed_in(self) -> str:
        """``%LOCALAPPDATA%\\paddock\\wsl-distros\\DISTRO``, unless another path is configured."""
        if self.install_path is not None:
            return self.install_path
        base = os.environ.get("LOCALAPPDATA")
        if base is None:
            raise UsageError(
                "LOCALAPPDATA is not set",
                hint="set install_path to the directory for the distribution",
            )
        return "\\".join((base.rstrip("\\"), "paddock", "wsl-distros", self.distro))

    @property
    def install_line(self) -> str:
        return self.package_install_command.replace(PACKAGES, " ".join(self.packages))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSandboxConfig:
    """``image`` is required when a command runs."""

    image: str | None = None
    workspace: str | None = None
    engine: str | None = None
    network: str = "none"
    max_memory_mb: int = 4096
    max_processes: int = 1024

    def __post_init__(self) -> None:
        _within("max_memory_mb", self.max_memory_mb, _MEMORY_MB_MAX)
        _within("max_processes", self.max_processes, 2**22)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSandboxConfig:
    """``destination`` and ``workspace``, a remote directory, are required when a command runs."""

    destination: str | None = None
    workspace: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """``require_enforced`` false: also accept a mode that restricts nothing, or less than
    requested; then every command needs an approval.
    """

    mode: Mode = Mode.AUTO
    require_enforced: bool = True
    local: LocalSandboxConfig = field(default_factory=LocalSandboxConfig)
    linux: LinuxSandboxConfig = field(default_factory=LinuxSandboxConfig)
    windows: WindowsSandboxConfig = field(default_factory=WindowsSandboxConfig)
    wsl: WslSandboxConfig = field(default_factory=WslSandboxConfig)
    container: ContainerSandboxConfig = field(default_factory=ContainerSandboxConfig)
    ssh: SshSandboxConfig = field(default_factory=SshSandboxConfig)

    def __post_init__(self) -> None:
        if self.mode not in list(Mode):
            raise UsageError(f"mode: {self.mode!r} is not one of {', '.join(Mode)}")
        object.__setattr__(self, "mode", Mode(self.mode))  # a string is accepted too

    @property
    def system_prompt_hint(self) -> str:
        """Text for the system prompt about the environment of commands."""
        return self.wsl.system_prompt_hint if self.mode is Mode.WSL else ""


_PARTS: Mapping[Mode, type[Any]] = {
    Mode.LOCAL: LocalSandboxConfig,
    Mode.LINUX: LinuxSandboxConfig,
    Mode.WINDOWS: WindowsSandboxConfig,
    Mode.WSL: WslSandboxConfig,
    Mode.CONTAINER: ContainerSandboxConfig,
    Mode.SSH: SshSandboxConfig,
}


def read_sandbox(table: Table, origin: Origin) -> SandboxConfig:
    table.allow_only(one.name for one in fields(SandboxConfig))
    given: dict[str, Any] = {}
    mode, required = table.choice("mode", Mode), table.boolean("require_enforced")
    given |= {} if mode is None else {"mode": mode.value}
    given |= {} if required is None else {"require_enforced": required.value}
    for one, kind in _PARTS.items():
        part = table.table(one.value)
        if part is not None:
            given[one.value] = (
                _wsl(part, origin) if one is Mode.WSL else _built(kind, _values(part, kind), part)
            )
    return SandboxConfig(**given)


def _wsl(table: Table, origin: Origin) -> WslSandboxConfig:
    """The values of the profile, overridden by those of the section, key by key."""
    here = _values(table, WslSandboxConfig)
    named = here.get("profile")
    under = {} if named is None else _profile(named, table, origin)
    if "rootfs_url" in here and "rootfs_sha256" not in here:
        under.pop("rootfs_sha256", None)  # it belongs to another archive
    return _built(WslSandboxConfig, {**under, **here}, table)


def _profile(name: str, table: Table, origin: Origin) -> dict[str, Any]:
    if f"{name}.json" in os.listdir(BUILTIN_DISTROS):
        shown, text = f"built-in {name}.json", _text(os.path.join(BUILTIN_DISTROS, f"{name}.json"))
    else:
        path = Expander(origin).path(name, table.source("profile"))
        if not os.path.isabs(path):
            raise table.wrong(
                "profile",
                f"neither a path nor one of {', '.join(builtin_distros())}: {name!r}",
                hint="write ~/x.json",
            )
        shown = path
        text = (
            _text(path) if sys.platform == "win32" else read_policy(path, origin, shown=path).text
        )
    inner = json_table(text, shown)
    inner.allow_only(one.name for one in fields(WslSandboxConfig) if one.name != "profile")
    found = _values(inner, WslSandboxConfig)
    _built(WslSandboxConfig, found, inner)
    return found


def wsl_profile(name: str, origin: Origin) -> WslSandboxConfig:
    """A profile alone: the name of a built-in one, or a file."""
    return _wsl(Table("--profile", {"profile": name}, {}), origin)


def builtin_distros() -> list[str]:
    return sorted(name.removesuffix(".json") for name in os.listdir(BUILTIN_DISTROS))


def json_table(text: str, shown: str) -> Table:
    """Parses one JSON object."""
    try:
        values = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except ValueError as error:
        raise PolicyError(f"not valid JSON: {error}", where=shown) from None
    except RecursionError:
        raise PolicyError("the file is nested too deeply", where=shown) from None
    if not isinstance(values, dict):
        raise PolicyError("expected an object", where=shown)
    return Table(shown, values, {})


def _values(table: Table, kind: type[Any]) -> dict[str, Any]:
    """The values, by the types of the fields."""
    table.allow_only(one.name for one in fields(kind))
    read: dict[str, Callable[[str], Any]] = {
        "str": table.string,
        "str | None": table.string,
        "bool": table.boolean,
        "int": lambda key: table.integer(key, low=1),
        "tuple[str, ...]": table.strings,
    }
    found: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in table and not (table.values[one.name] is None and "None" in str(one.type)):
            value = read[str(one.type)](one.name)
            found[one.name] = (
                tuple(v.value for v in value) if isinstance(value, tuple) else value.value
            )
    return found


def _built(kind: type[C], values: dict[str, Any], table: Table) -> C:
    try:
        return kind(**values)
    except UsageError as error:
        key, _, message = error.message.partition(": ")
        raise table.wrong(key, message, hint=error.hint) from None


def _within(name: str, value: int, high: int) -> None:
    if not 1 <= value <= high:
        raise UsageError(f"{name}: {value} is not between 1 and {high}")


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")
