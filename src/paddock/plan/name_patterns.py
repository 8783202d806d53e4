"""Turns denies by name and protected names into patterns of whole paths. In the full tier the core
searches for them, and in the landlock tier it judges each write by them.

Names that the built-in profiles deny are searched in every grant of the user, and in the profiles'
own grants of the home, except toolchains and caches. Installed programs are searched three levels
deep, because the search takes time at each start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from paddock.frozen import dataclass
from paddock.host.facts import Host
from paddock.host.grant_targets import Terrain
from paddock.plan.denied_paths import DeniedPaths, is_openable, remedy_of
from paddock.plan.grants import RequestedGrant
from paddock.plan.path_containment import outermost, with_parents, within
from paddock.plan.plan import Level, Notice, ProtectedNames
from paddock.policy.glob import ANY_DEPTH, Glob
from paddock.policy.model import Deny, Policy, Sourced
from paddock.policy.protected import Group, bears, protected, protected_because

# System directories: they contain no project, and are too large for a search.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys",
           "/dev", "/var/lib",
           "/var/cache", "/nix", "/gnu", "/snap", "/run")  # fmt: skip

# Toolchains and caches in the home. Package managers write them, and they contain up to hundreds of
# thousands of names. SECURITY.md says that they are not searched.
_INSTALLED = (".cache", ".npm", ".pyenv", ".conda", "miniconda3", "anaconda3", "miniforge3", ".nvm",
              ".fnm",
              ".local/share/fnm", ".volta", ".local/share/pnpm", ".bun", ".asdf",
              ".local/share/mise",
              ".local/share/uv/python", ".cargo/registry", ".cargo/git", ".rustup", "go/pkg",
              ".sdkman", ".jdks",
              ".m2", ".gradle", ".rbenv", ".rvm", ".gem", ".dotnet", ".nuget", ".ghcup",
              ".nix-profile",
              ".local/state/nix")  # fmt: skip

# Programs that users install or unpack, some with settings beside them. Their bulk is on deeper
# levels.
_PROGRAMS = ("/opt", "~/.local/lib", "~/.local/pipx", "~/.local/share/pipx",
             "~/.local/share/uv/tools",
             "~/.npm-global")  # fmt: skip
_PROGRAM_LEVELS = ("", "/*", "/*/*")

# The directories in which programs of a user store their settings. No list names all of them.
_SETTINGS = (".config", ".local", ".local/share")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePatterns:
    deny: tuple[str, ...]
    deny_names: tuple[ProtectedNames, ...]
    protect: tuple[ProtectedNames, ...]
    opened: tuple[str, ...]
    flagged: tuple[str, ...]
    packages: tuple[str, ...]
    git_remotes: tuple[str, ...]
    notices: tuple[Notice, ...]


def names_of(
    policy: Policy,
    host: Host,
    terrain: Terrain,
    denied_paths: DeniedPaths,
    requested: Iterable[RequestedGrant],
) -> NamePatterns:
    name_trees = _NameTrees.of(requested, host, terrain)
    by_hand = policy.filesystem.open_protected
    exact = {trusted.path for trusted in terrain.trusted} | set(
        name_trees.holding(file.path for file in policy.files)
    )
    exact.update(path for opening in terrain.openings for path in opening.locked)
    exact.update(
        name_trees.holding(host.missing_entries)
    )  # for `apply`, which reads these patterns
    opened = {text for text in name_trees.opened() if not _matches_any(text, exact)}
    warnings = [
        *name_trees.exposed(denied_paths.to_everything),
        *(_opened_notice(one, policy.filesystem.denies) for one in by_hand),
    ]
    return NamePatterns(
        deny=tuple(sorted(set(name_trees.denied(denied_paths)))),
        deny_names=name_trees.denied_names(denied_paths),
        protect=name_trees.protected(
            exact,
            terrain.trusted_anywhere,
            tuple(pattern.value for pattern in policy.filesystem.protects),
        )
        if name_trees.writable
        else (),
        opened=tuple(sorted({*opened, *(one.value for one in by_hand)}))
        if name_trees.writable
        else (),
        flagged=tuple(
            sorted(
                {
                    *name_trees.flagged(),
                    *name_trees.programs_in(host.program_dirs),
                    *(path for path in terrain.called if "*" not in path),
                }
            )
        ),
        packages=protected().packages if name_trees.own else (),
        git_remotes=tuple(sorted(terrain.git_remotes)) if name_trees.writable else (),
        notices=tuple(Notice(level=Level.WARNING, text=text) for text in warnings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NameTrees:
    """The trees in which names are searched. A path behind a link counts by both names."""

    home: str
    granted: tuple[str, ...]  # every reachable path
    searched: tuple[str, ...]  # those that are searched for names of the built-in profiles
    programs: tuple[str, ...]  # those that are searched a few levels deep
    writable: tuple[str, ...]
    own: tuple[str, ...]  # both: of the user, and writable

    @classmethod
    def of(cls, requested: Iterable[RequestedGrant], host: Host, terrain: Terrain) -> _NameTrees:
        grants = list(requested)

        def paths_of(those: Iterable[RequestedGrant]) -> tuple[str, ...]:
            return tuple(
                sorted({name for one in those for name in (one.path, terrain.real(one.path))})
            )

        return cls(
            home=host.home,
            granted=paths_of(grants),
            searched=paths_of(one for one in grants if _is_searched(one, host.home)),
            programs=paths_of(
                one for one in grants if not one.persons and _is_programs(one.path, host.home)
            ),
            writable=paths_of(one for one in grants if one.writes),
            own=paths_of(one for one in grants if one.writes and one.persons),
        )

    def holding(self, paths: Iterable[str]) -> Iterator[str]:
        return (path for path in paths if any(within(path, tree) for tree in self.writable))

    def denied(self, denied_paths: DeniedPaths) -> Iterator[str]:
        for path in denied_paths.denied:  # masked as paths; as names they are watched for
            if any(within(path, tree) for tree in self.granted):
                yield path
        yield from (
            glob.text for deny, glob in denied_paths.names if not _is_built_in_name(deny, glob)
        )

    def denied_names(self, denied_paths: DeniedPaths) -> tuple[ProtectedNames, ...]:
        names = {
            "/".join(glob.parts[1:])
            for deny, glob in denied_paths.names
            if _is_built_in_name(deny, glob)
        }
        below = [_any_depth_of(tree) for tree in outermost(self.searched)]
        below += [f"{tree}{level}" for tree in self.programs for level in _PROGRAM_LEVELS]
        return (
            (ProtectedNames(below=tuple(below), but=(), names=tuple(sorted(names))),)
            if below and names
            else ()
        )

    def protected(
        self,
        exact: set[str],
        anywhere: frozenset[str] = frozenset(),
        patterns: tuple[str, ...] = (),
    ) -> tuple[ProtectedNames, ...]:
        """Grouped by their directories. ``exact``: paths that are protected independent of their
        names. ``anywhere``: relative paths that are protected in each directory. ``patterns``: of
        the user's policy (``protect_globs``).
        """
        held: dict[tuple[tuple[str, ...], tuple[str, ...]], set[str]] = defaultdict(set)
        for group in protected().groups:
            for name in group.any:
                but = tuple(
                    directory
                    for directory in self._packages(group)
                    if not _matches_any(f"{directory}/{name}", exact)
                )
                held[self._beginnings(group), but].add(name)
            held[self.own, ()].update(group.top)
            # Also if the home is not writable: a link there may lead to a writable path, which the
            # core detects.
            held[(self.home,), ()].update(
                name for name in group.home if self._holds(f"{self.home}/{name}")
            )
        held[tuple(map(_any_depth_of, outermost(self.own))), ()].update(anywhere)
        for pattern in patterns:
            beginning, _, rest = pattern.partition("/")
            held[(beginning or "/",), ()].add(rest)
        for path in exact:
            directory, _, name = path.rpartition("/")
            held[(directory or "/",), ()].add(name)
        return tuple(
            ProtectedNames(below=below, but=but, names=tuple(sorted(names)))
            for (below, but), names in sorted(held.items())
            if below and names
        )

    def opened(self) -> Iterator[str]:
        for group in protected().groups:
            for name in group.open:
                yield from (f"{directory}/{name}" for directory in self._beginnings(group))
            for path in (f"{self.home}/{name}" for name in group.home):
                yield from self._granted_in(path) if self._holds(path) else ()

    def flagged(self) -> Iterator[str]:
        for name in protected().flagged:
            yield from (f"{_any_depth_of(tree)}/{name}" for tree in outermost(self.own))
        for name in protected().flagged_top:
            yield from (f"{tree.rstrip('/')}/{name}" for tree in self.own)

    def programs_in(self, directories: Iterable[str]) -> Iterator[str]:
        """Programs that the user's shell finds and that the command may write."""
        for directory in directories:
            if "*" not in directory and any(within(directory, tree) for tree in self.own):
                yield f"{directory}/*"

    def exposed(self, closed: Collection[str]) -> Iterator[str]:
        """The user granted a protected path itself. The grant counts, and a notice repeats it.
        A grant inside a denied path does not count.
        """
        for tree in self.own:
            if any(within(tree, path) for path in closed):
                continue
            if tree in (f"{self.home}/{name}" for name in _SETTINGS):
                yield (
                    f"{tree} is writable: known names in it stay read-only, but programs may "
                    "run other names in it"
                )
            if any(
                self._inside_home(tree, name) for group in protected().groups for name in group.home
            ):
                continue  # its critical parts stay read-only
            for group in protected().groups:
                if any(self._exposes(path, group) for path in with_parents(tree)):
                    yield f"{tree} is writable, although it is a protected directory: {group.why}"
                    break

    def _inside_home(self, tree: str, name: str) -> bool:
        path = f"{self.home}/{name}"
        return path != tree and within(path, tree)

    def _exposes(self, path: str, group: Group) -> bool:
        if any(bears(path, name) for name in group.open):
            return False
        by_name = any(bears(path, name) for name in group.any if name != ".git")
        return by_name or any(
            Glob.parse(f"{self.home}/{name}").matches(path)
            if "*" in name
            else path == f"{self.home}/{name}"
            for name in group.home
        )

    def _beginnings(self, group: Group) -> tuple[str, ...]:
        """The beginnings of patterns for names at every depth."""
        return (ANY_DEPTH,) if group.everywhere else tuple(map(_any_depth_of, outermost(self.own)))

    def _packages(self, group: Group) -> Iterator[str]:
        for tree in outermost(self.own) if group.shipped else ():
            yield from (
                f"{_any_depth_of(tree)}/{package}/{ANY_DEPTH}" for package in protected().packages
            )

    def _holds(self, path: str) -> bool:
        """A protected path of the home with its own grant is writable. If only a part of it is
        granted, it must stay protected when a grant above it would make the rest writable.
        """
        if path in self.writable:
            return False
        return not self._granted_in(path) or any(within(path, tree) for tree in self.writable)

    def _granted_in(self, path: str) -> tuple[str, ...]:
        return tuple(tree for tree in self.writable if within(tree, path))


def _is_built_in_name(deny: Deny, glob: Glob) -> bool:
    return deny.optional and deny.source.builtin and glob.floating


def _is_searched(requested: RequestedGrant, home: str) -> bool:
    if not requested.tree:
        return False
    if requested.persons:
        return not any(within(requested.path, tree) for tree in _SYSTEM)
    installed = any(within(requested.path, f"{home}/{name}") for name in _INSTALLED)
    return within(requested.path, home) and not installed and not _is_programs(requested.path, home)


def _is_programs(path: str, home: str) -> bool:
    return any(path == name.replace("~", home, 1) for name in _PROGRAMS)


def _any_depth_of(tree: str) -> str:
    return ANY_DEPTH if tree == "/" else f"{tree}/{ANY_DEPTH}"


def _matches_any(pattern: str, paths: set[str]) -> bool:
    if not paths:  # the usual case, and there are hundreds of patterns
        return False
    glob = Glob.parse(pattern)
    return any(glob.matches(path) for path in paths)


def _opened_notice(one: Sourced[str], denies: Iterable[Deny]) -> str:
    """The notice for a name that a policy opens. A deny is opened by its own pattern alone."""
    wanted = Glob.parse(one.value)
    for deny in denies:
        if is_openable(deny) and deny.pattern == one.value:
            return f"{one.source}: {one.value} is no longer denied, although it may contain secrets"
        if wanted.literal and Glob.parse(deny.pattern).matches(one.value):
            return f"{one.source}: {one.value} stays closed: {remedy_of(deny)}"
    why = protected_because(one.value) or (
        "the command can write every protected name that matches it"
    )
    return f"{one.source}: {one.value} is writable: {why}"


def short_names(denies: Iterable[Deny]) -> tuple[str, ...]:
    """Short forms for people: ``.env``, ``id_rsa``."""
    return tuple(dict.fromkeys(deny.pattern.rpartition("/")[2] for deny in denies))
