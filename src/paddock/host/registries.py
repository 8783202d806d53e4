"""Finds the package registries of this machine: @pypi, @npm, @crates, @go, @debian.

No registry is named here. The sources are the settings of a client, in its own files and variables;
then the defaults that the client was installed with; and the lock files of the workspace. So a
mirror works without configuration.

A command can write some of these files, and could so choose the hosts of its next run. A host from
such a file (Registry.doubted) counts only after `paddock trust FILE`, host by host.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.policy.hosts import allowed_host
from paddock.policy.model import Destination, Source, Sourced
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.writable_history import WritableHistory, in_private_temp
from paddock.text.path_walk import follow

_MAX_LOCK_FILE_BYTES = 64 * 1024 * 1024
_URL = re.compile(r"https?://(?:[^/@\s\"']*@)?([^/\s\"'?#,|;)\]}]+)")
_MORE_LINES = r"(.*(?:\n[ \t]+\S.*)*)"


def _lines(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


# A command may write these files, up to 64 MB. So no expression may take more than linear time: no
# part before a required character runs over the beginning of the next possible match.
_INDEX = _lines(
    rf"^[ \t]*(?:--)?(?:index|extra-index|find-links)(?:[-_]url)?[ \t]*[ =:]{_MORE_LINES}"
)
_REPLACED = _lines(rf"^[ \t]*index[-_]url[ \t]*[=:]{_MORE_LINES}")
_TOML_URL = _lines(
    r"^[ \t]*(?:\[.*\][ \t]*)?(?:\w+-)?(?:url|index|registry|find-links)[ \t]*=(.*)$"
)
_NPMRC = _lines(r"^[ \t]*(?:@[^:\s]+:)?registry[ \t]*=(.*)$")
_NPMRC_DEFAULT = _lines(r"^[ \t]*registry[ \t]*=(.*)$")
_RESOLVED = _lines(r"^[ \t]*\"?(?:resolved|tarball)\"?[ \t]*:?[ \t]*(.*)$")
_SOURCE = _lines(r"\b(?:registry|source|url)[ \t]*=[ \t]*(\"[^\"\n]*\")")
_CARGO_INDEX = _lines(r"\"(?:dl|api)\"\s*:\s*(\"[^\"\n]*\")")
_GO = _lines(r"^GOPROXY=(.*)$")
_GO_SUMS = _lines(r"^GOSUMDB=(?:\S+[ \t]+)?(?:https?://)?([^\s+/]+)")
_APT_LINE = _lines(r"^[ \t]*deb(?:-src)?[ \t]+(?:\[[^\]\n]*\][ \t]+)?(\S+)")
_APT_STANZA = _lines(rf"^URIs:{_MORE_LINES}")
_PIP_OWN = _lines(r"^PyPI[ \t]*=[ \t]*PackageIndex\(([^()]*)\)")
_PIP_FILES = _lines(
    r"^PyPI[ \t]*=[ \t]*PackageIndex\([^()]*file_storage_domain[ \t]*=[ \t]*[\"']([^\"']+)"
)
_NPM_OWN = _lines(r"[\"']registry[\"'],\s*\{\s*default:\s*([\"'][^\"'\n]+)")

# The part of a file that is searched, by the end of its path. `paddock trust` accepts the same
# files.
_FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("pip.conf", _INDEX),
    (".pip/pip.conf", _INDEX),
    ("requirements.txt", _INDEX),
    ("uv.toml", _TOML_URL),
    ("uv.lock", _SOURCE),
    ("poetry.lock", _SOURCE),
    (".npmrc", _NPMRC),
    ("npmrc", _NPMRC),
    ("package-lock.json", _RESOLVED),
    ("npm-shrinkwrap.json", _RESOLVED),
    ("yarn.lock", _RESOLVED),
    ("pnpm-lock.yaml", _RESOLVED),
    (".cargo/config.toml", _TOML_URL),
    (".cargo/config", _TOML_URL),
    ("Cargo.lock", _SOURCE),
    ("config.json", _CARGO_INDEX),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    hosts: tuple[Sourced[Destination], ...]
    untrusted: tuple[
        Sourced[Destination], ...
    ] = ()  # a command could have written the file, and the user has not trusted it
    remedy: str = ""  # shown if there are no hosts


def discover(
    groups: Iterable[str],
    origin: Origin,
    writable_history: WritableHistory,
    snapshot: FileSnapshot,
    *,
    etc: str = "/etc",
) -> dict[str, Registry]:
    """``writable_history``: the paths that commands can write or ever could."""
    found: dict[str, Registry] = {}
    for group in sorted(set(groups)):
        read, remedy = _CLIENTS[group]
        reader = _RegistryReader(
            origin=origin, writable_history=writable_history, snapshot=snapshot, etc=etc
        )
        read(reader)
        found[group] = Registry(
            hosts=tuple(reader.hosts), untrusted=tuple(reader.untrusted), remedy=remedy
        )
    return found


def registry_snapshot() -> FileSnapshot:
    return FileSnapshot(
        "a package manager",
        size_limit=_MAX_LOCK_FILE_BYTES,
        hint="make it readable, or name the hosts one by one",
    )


def named_in(path: str) -> tuple[Sourced[Destination], ...] | None:
    """All hosts in a client's file; None: it is not such a file."""
    pattern = _format(path)
    text = registry_snapshot().text(path) if pattern else None
    return None if pattern is None or text is None else tuple(_each(text, pattern, path))


def agreement(host: Destination) -> str:
    """The stored text by which a user trusts one host in one file (policy/trust/file_trust.py)."""
    return hashlib.sha256(str(host).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class _RegistryReader:
    origin: Origin
    writable_history: WritableHistory
    snapshot: FileSnapshot
    etc: str
    hosts: list[Sourced[Destination]] = field(default_factory=list)
    untrusted: list[Sourced[Destination]] = field(default_factory=list)

    def at(self, *parts: str) -> str:
        return os.path.join(self.origin.cwd, *parts)

    def home(self, *parts: str) -> str:
        return os.path.join(self.origin.home, *parts)

    def variables(self, *names: str) -> bool:
        named = [
            one
            for name in names
            for one in _hosts_in(self.origin.environ.get(name, ""), Source(file=f"${name}"))
        ]
        self.hosts += named
        return bool(named)

    def files(self, *paths: str, pattern: re.Pattern[str] | None = None) -> bool:
        """True: one of them names a trusted host."""
        return sum(self._file(path, pattern or _format(path)) for path in paths) > 0

    def first(self, paths: Iterable[str], pattern: re.Pattern[str]) -> bool:
        """Uses the first file with a setting, even an empty one, and ignores the others."""
        for path in paths:
            text = self.snapshot.text(path)
            if text is not None and pattern.search(text):
                named = list(_each(text, pattern, path))
                if self.take(named, path) or not named:
                    return True
        return False

    def _file(self, path: str, pattern: re.Pattern[str] | None) -> bool:
        text = self.snapshot.text(path)
        return (
            text is not None and pattern is not None and self.take(_each(text, pattern, path), path)
        )

    def take(self, named: Iterable[Sourced[Destination]], path: str) -> bool:
        named = list(named)
        if not named:
            return False
        walk = follow(path)
        writable = self.writable_history.holds(walk) or in_private_temp(walk, self.origin.uid)
        trusted = self.origin.trusted
        agreed_to = {
            host: not writable or trusted.agrees_to(agreement(host), walk.written)
            for host in {one.value for one in named}
        }
        agreed = [one for one in named if agreed_to[one.value]]
        known = {one.value for one in self.untrusted}
        self.untrusted += {
            one.value: one for one in named if not agreed_to[one.value] and one.value not in known
        }.values()
        self.hosts += agreed
        return bool(agreed)

    def program(self, name: str) -> str | None:
        """The resolved path of a command of the user."""
        for entry in self.origin.environ.get("PATH", "").split(":"):
            if entry.startswith("/") and os.access(path := os.path.join(entry, name), os.X_OK):
                return os.path.realpath(path)
        return None


def _pypi(read: _RegistryReader) -> None:
    environ = read.origin.environ
    conf = [f"{read.etc}/pip.conf", read.home(".pip/pip.conf"), read.home(".config/pip/pip.conf")]
    conf += [f"{environ['VIRTUAL_ENV']}/pip.conf"] if environ.get("VIRTUAL_ENV") else []
    conf += (
        [environ["PIP_CONFIG_FILE"]] if environ.get("PIP_CONFIG_FILE", "").startswith("/") else []
    )
    replaced = read.variables("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    replaced |= read.files(*conf, pattern=_REPLACED)
    read.variables(
        "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"
    )
    read.files(*conf, pattern=_INDEX)
    read.files(read.home(".config/uv/uv.toml"), f"{read.etc}/uv/uv.toml", read.at("uv.toml"))
    if not replaced:
        own = next((path for path in _pips(read) if read.files(path, pattern=_PIP_OWN)), None)
        if own is None or not read.files(own, pattern=_PIP_FILES):
            _wheel(read)
    read.files(read.at("uv.lock"), read.at("poetry.lock"), read.at("requirements.txt"))


def _pips(read: _RegistryReader) -> Iterator[str]:
    """The module of each pip that contains the default index."""
    programs = (read.program(name) for name in ("pip3", "pip", "python3"))
    prefixes = [os.path.dirname(os.path.dirname(path)) for path in programs if path]
    for prefix in dict.fromkeys((*prefixes, sys.prefix, sys.base_prefix, "/usr", "/usr/local")):
        for packages in ("site-packages", "dist-packages"):
            yield from sorted(
                glob.glob(
                    f"{glob.escape(prefix)}/lib/python3*/{packages}/pip/_internal/models/index.py"
                )
            )


def _wheel(read: _RegistryReader) -> None:
    """The pip for new environments: a wheel beside Python."""
    import zipfile

    stdlib = sysconfig.get_path("stdlib")
    for path in (
        *glob.glob(f"{stdlib}/ensurepip/_bundled/pip-*.whl"),
        *glob.glob("/usr/share/python-wheels/pip-*.whl"),
    ):
        try:
            with zipfile.ZipFile(path) as wheel:
                text = wheel.read("pip/_internal/models/index.py").decode()
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            continue
        read.snapshot.at(path)
        if read.take([*_each(text, _PIP_OWN, path), *_each(text, _PIP_FILES, path)], path):
            return


def _npm(read: _RegistryReader) -> None:
    npm = read.program("npm")
    root = os.path.dirname(os.path.dirname(npm)) if npm else None
    settings = [read.home(".npmrc"), f"{read.etc}/npmrc"]
    settings += [f"{root}/npmrc", os.path.normpath(f"{root}/../../../etc/npmrc")] if root else []
    replaced = read.variables(
        "npm_config_registry", "NPM_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER"
    )
    replaced |= read.files(*settings, pattern=_NPMRC_DEFAULT)
    read.files(*settings, pattern=_NPMRC)
    if root and not replaced:
        files = (
            f"{root}/node_modules/@npmcli/config/lib/definitions/definitions.js",
            f"{root}/lib/utils/config/definitions.js",  # before npm 9
            os.path.normpath(
                f"{root}/../@npmcli/config/lib/definitions/definitions.js"
            ),  # in Debian
        )
        read.first(files, _NPM_OWN)
    locks = ("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml")
    read.files(read.at(".npmrc"), *(read.at(name) for name in locks))


def _crates(read: _RegistryReader) -> None:
    """Cargo's own registry is compiled into it. The cached downloads show its address and that of
    the packages.
    """
    cargo = read.origin.environ.get("CARGO_HOME") or read.home(".cargo")
    read.files(f"{cargo}/config.toml", f"{cargo}/config", pattern=_TOML_URL)
    for index in read.snapshot.names(f"{cargo}/registry/index"):
        host = os.path.basename(index).rpartition("-")[0]
        read.take(_hosts_in(f"https://{host}", Source(file=index)), index)
        read.files(f"{index}/config.json")
    read.files(read.at(".cargo/config.toml"), read.at(".cargo/config"), read.at("Cargo.lock"))


def _go(read: _RegistryReader) -> None:
    go = read.program("go")
    files = [read.home(".config/go/env")]
    files += [os.path.normpath(f"{os.path.dirname(go)}/../go.env")] if go else []
    read.variables("GOPROXY") or read.first(files, _GO)
    sums = read.origin.environ.get("GOSUMDB")
    if sums is None:
        read.first(files, _GO_SUMS)
    elif host := _GO_SUMS.match(f"GOSUMDB={sums}"):
        read.hosts += _hosts_in(host[1], Source(file="$GOSUMDB"), bare=True)


def _debian(read: _RegistryReader) -> None:
    parts = read.snapshot.names(f"{read.etc}/apt/sources.list.d")
    lines = [path for path in parts if path.endswith(".list")]
    read.files(f"{read.etc}/apt/sources.list", *lines, pattern=_APT_LINE)
    read.files(*(path for path in parts if path.endswith(".sources")), pattern=_APT_STANZA)


_CLIENTS: Mapping[str, tuple[Callable[[_RegistryReader], None], str]] = {
    "pypi": (_pypi, "install pip, or set index-url in ~/.config/pip/pip.conf"),
    "npm": (_npm, "install npm, or set registry in ~/.npmrc"),
    "crates": (_crates, "type `cargo fetch` once outside the sandbox to see which hosts it needs"),
    "go": (_go, "install go, or set GOPROXY in ~/.config/go/env"),
    "debian": (_debian, "/etc/apt has no sources"),
}


def _format(path: str) -> re.Pattern[str] | None:
    return next((pattern for end, pattern in _FORMATS if f"/{path}".endswith(f"/{end}")), None)


def _each(text: str, pattern: re.Pattern[str], path: str) -> Iterator[Sourced[Destination]]:
    """The hosts in the matches of a pattern, with their lines."""
    bare = pattern in (_PIP_FILES, _GO_SUMS)
    line, behind = 1, 0
    for match in pattern.finditer(text):
        line, behind = line + text.count("\n", behind, match.start(1)), match.start(1)
        for number, part in enumerate(match[1].split("\n"), start=line):
            if not part.lstrip().startswith("#"):
                yield from _hosts_in(part, Source(file=path, line=number), bare=bare)


def _hosts_in(text: str, source: Source, *, bare: bool = False) -> list[Sourced[Destination]]:
    """An invalid or unreachable host is left out. Then the client fails and names it."""
    found: list[Sourced[Destination]] = []
    for host in [text.strip()] if bare and text != "off" else _URL.findall(text):
        if "*" in host or host.startswith("@"):  # only a policy may write these
            continue
        try:
            found.append(allowed_host(host, source))
        except PolicyError:
            continue
    return found
