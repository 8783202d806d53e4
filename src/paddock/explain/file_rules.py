"""What the fence answers for a path, and because of which grant: the reasoning behind ``paddock
why``.

Follows the kernel's own rules. Landlock: the rights on a file are the union of what the rules on it
and on the directories above it give, and a rule is on a file, not on a name. Mounts, in the full
tier: what no grant brings in is not there, what no grant lets be written is read-only, and masks
and locks lie on top. A test holds the answers against what the kernel really does, over random
trees.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from paddock.errors import PolicyError
from paddock.launch.covers import Cover, CoverKind
from paddock.plan.grants import TMP
from paddock.plan.model import Files, PathGrant, Plan
from paddock.plan.paths import with_parents, within
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE, WRITES
from paddock.policy.git_layout import directories_above, is_branch, is_part
from paddock.policy.glob import Glob, component_matches
from paddock.policy.model import Tier
from paddock.policy.protected import protected_because
from paddock.text.path_walk import Identity, ResolvedPath, follow

# Made anew for each run of the full tier: what the host has there is not in them.
PRIVATE = (TMP, "/var/tmp", "/dev", "/proc")


class Operation(Enum):
    READ = "read"
    WRITE = "write"  # of a name that is not there, or of a directory: to make a file
    EXEC = "exec"
    MAKE = "make"  # a file, directory or link of a new name
    REMOVE = "remove"  # also by renaming it
    CHANGE = "change"  # mode, owner, times, attributes

    @property
    def writes(self) -> bool:
        return self not in (Operation.READ, Operation.EXEC)

    @property
    def names(self) -> bool:
        """The act is on the name itself: a link of that name is not followed."""
        return self in (Operation.MAKE, Operation.REMOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    allowed: bool
    path: str  # where the name really leads
    grants: tuple[
        PathGrant, ...
    ]  # that allow it; or, if denied, that come near: above the path, or carved away from it
    reason: str
    closed: bool = False  # no grant would open it
    later: bool = False  # the call succeeds: the name is taken away, or closed, once it is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """``bearer``: the path that the rights are looked up on, a new name being made in its
    directory.
    """

    path: str
    operation: Operation
    links: tuple[str, ...]
    found: os.stat_result | None
    bearer: str
    needed: frozenset[str]


class Judge:
    """``covers``: what the core lays over names that are there now, which also knows what else such
    a name leads to; names that appear are judged by the plan's patterns. ``to_make``: directories
    that are not there and that the run will make.
    """

    def __init__(
        self, plan: Plan, *, covers: Iterable[Cover] = (), to_make: Container[str] = ()
    ) -> None:
        self._plan = plan
        self._to_make = to_make
        self._covers = {cover.path: cover.kind for cover in covers}
        if plan.files is None:
            return
        self._deny = _Patterns(plan.files.denied)
        self._protected = _Patterns(plan.files.protected)
        self._excepted = _Patterns(plan.files.excepted)
        # By where they really lie: a path is looked up by itself and by each directory above it.
        self._closed = {os.path.realpath(name): name for name in plan.files.closed}
        self._unwritable = {os.path.realpath(name): name for name in plan.files.unwritable}
        self._granted: dict[str, list[PathGrant]] = defaultdict(list)
        self._rules: dict[Identity, list[PathGrant]] = defaultdict(list)
        for grant in plan.files.grants:
            self._granted[os.path.realpath(grant.path)].append(grant)
            for identity in _ruled(plan, plan.files, grant):
                self._rules[identity].append(grant)
        self._leading = {
            above for place in self._granted for above in _upwards(os.path.dirname(place))
        }
        # A directory that only leads to grants can be listed where each of them can.
        self._lists = all(
            "read_dir" in _rights(plan, grant)
            for place, grants in self._granted.items()
            for grant in grants
            if os.path.isdir(place)
        )

    def __call__(self, path: str, operation: Operation) -> Judgement:
        asked = self._asked(path, operation)
        if self._plan.files is None:
            return _open(asked, "files are not restricted: every path is open")
        if operation is Operation.MAKE and asked.found:
            return _open(asked, "the path already exists")
        if operation is Operation.CHANGE and self._plan.tier is Tier.LANDLOCK:
            return _open(
                asked, "Landlock does not restrict changes of modes, owners, times and attributes"
            )
        giving, near, given = self._given(asked)
        shut = self._shut(asked)
        if shut and (self._plan.tier is Tier.FULL or not asked.needed <= given):
            return Judgement(
                allowed=False, path=asked.path, grants=tuple(near), reason=shut, closed=True
            )
        if not asked.needed <= given:
            return self._refused(asked, near, given)
        if self._plan.tier is Tier.FULL and (unseen := self._unmounted(asked)):
            return Judgement(allowed=False, path=asked.path, grants=tuple(near), reason=unseen)
        if self._plan.tier is Tier.FULL and (later := self._closed_later(asked)):
            return Judgement(
                allowed=False,
                path=asked.path,
                grants=tuple(near),
                reason=later,
                closed=True,
                later=True,
            )
        said = (
            f"granted by {giving[0].source}"
            if giving
            else "it leads to a granted path, and has nothing else"
        )
        if (
            self._plan.tier is Tier.FULL
            and giving
            and any(within(asked.path, place) for place in PRIVATE)
        ):
            said = f"{giving[0].path} is private to the run: the host's files there are not visible"
        return Judgement(allowed=True, path=asked.path, grants=tuple(giving), reason=said)

    def _asked(self, path: str, operation: Operation) -> _Asked:
        name = os.path.basename(path) if operation.names else ""
        lookup = os.path.dirname(path) if name else path
        try:
            way = follow(lookup)
            real, links = way.end.path, tuple(link.path for link in way.links)
        except PolicyError:  # a directory that is shut, a link that leads to itself
            real, links = os.path.realpath(lookup), ()
        real = os.path.join(real, name) if name else real
        try:
            found = os.lstat(real)
        except OSError:
            found = None
        bearer, needed = self._needed(real, operation, found)
        return _Asked(
            path=real, operation=operation, links=links, found=found, bearer=bearer, needed=needed
        )

    def _needed(
        self, real: str, operation: Operation, found: os.stat_result | None
    ) -> tuple[str, frozenset[str]]:
        directory = found is not None and stat.S_ISDIR(found.st_mode)
        match operation:
            case Operation.READ if directory:
                return real, frozenset({"read_dir"})
            case Operation.READ:
                return existing(real, self._to_make), frozenset({"read_file"})
            case Operation.WRITE if found is None or directory:
                return existing(real, self._to_make), frozenset({"make_reg"})
            case Operation.WRITE:
                return real, frozenset({"write_file"})
            case Operation.EXEC:
                return existing(real, self._to_make), frozenset(
                    {"execute"} if found else {"read_file"}
                )
            case Operation.MAKE:
                return existing(os.path.dirname(real), self._to_make), frozenset({"make_reg"})
            case Operation.REMOVE:
                parent = existing(os.path.dirname(real), self._to_make)
                return parent, frozenset({"remove_dir" if directory else "remove_file"})
            case Operation.CHANGE:
                return existing(real, self._to_make), frozenset()

    def _given(self, asked: _Asked) -> tuple[list[PathGrant], list[PathGrant], set[str]]:
        """The grants that give a right that is needed, those that come near, and all rights that
        are given.
        """
        assert self._plan.files is not None
        giving: list[PathGrant] = []
        near: list[PathGrant] = []
        given: set[str] = set()
        ruled = [
            grant
            for identity in identities_above(asked.bearer)
            for grant in self._rules.get(identity, ())
        ]
        for grant in (
            grant for place in _upwards(asked.bearer) for grant in self._granted.get(place, ())
        ):
            # What is not there yet, or is another thing inside, has only its name.
            if grant.path in self._to_make or (
                self._plan.tier is Tier.FULL and _is_made(grant.path)
            ):
                ruled.append(grant)
            elif grant not in ruled:
                near.append(grant)
        for grant in ruled:
            rights = _rights(self._plan, grant)
            (giving if asked.needed & rights or not asked.needed else near).append(grant)
            given |= rights
        if self._plan.tier is Tier.FULL and self._leads_to_grants(asked.bearer):
            given.add("read_dir")
        return giving, near, given

    def _shut(self, asked: _Asked) -> str | None:
        """The reason why no grant would open it, if there is one."""
        assert self._plan.files is not None
        for place in _upwards(asked.path if asked.operation.names else asked.bearer):
            name = self._closed.get(place) or (
                self._unwritable.get(place) if asked.operation.writes else None
            )
            if name:
                return f"{name} is denied, even inside a grant"
        if self._plan.tier is Tier.LANDLOCK:
            return None
        return self._covered(asked) or (self._named(asked) if asked.found else None)

    def _covered(self, asked: _Asked) -> str | None:
        for place in (up for link in asked.links for up in with_parents(link)):
            if self._covers.get(place) is CoverKind.MASK:
                return f"{place} is denied, even inside a grant"
        for place in with_parents(asked.path):
            match self._covers.get(place):
                case CoverKind.MASK:
                    return f"{place} is denied, even inside a grant"
                case CoverKind.LOCK if asked.operation.writes:
                    return self._said_protected(place)
                case CoverKind.PIN if asked.operation is Operation.REMOVE and place == asked.path:
                    return (
                        f"{place} cannot be moved or removed, because it contains a protected name"
                    )
                case _:
                    pass
        return None

    def _named(self, asked: _Asked) -> str | None:
        """By its name, or that of a directory above it."""
        places = with_parents(asked.path)
        if denied := next(filter(None, map(self._deny.matching, places)), None):
            return f"{denied} is denied, even inside a grant"
        if (
            not asked.operation.writes
            or self._is_copy(asked.path)
            or not self._mounted(asked.path, WRITES)
        ):
            return None
        protected = any(self._protects(place) for place in places) or self._is_git_s(asked.path)
        return self._said_protected(asked.path) if protected else None

    def _protects(self, place: str) -> bool:
        return bool(self._protected.matching(place)) and not (
            self._excepted.matching(place) or _is_git_directory(place) or is_branch(place)
        )

    def _is_git_s(self, path: str) -> bool:
        """In a directory that git takes for a repository by its parts."""
        assert self._plan.files is not None
        if not self._plan.files.protect or self._excepted.matching(path):
            return False
        return any(is_part(path[len(git) + 1 :]) for git in directories_above(path))

    def _closed_later(self, asked: _Asked) -> str | None:
        return None if asked.found else self._named(asked)

    def _said_protected(self, place: str) -> str:
        why = protected_because(place)
        return "protected: read-only inside writable directories" + (
            f", because {why}" if why else ""
        )

    def _unmounted(self, asked: _Asked) -> str | None:
        """What keeps the act from a file that the rules alone would leave open."""
        unseen = next((link for link in asked.links if not self._is_shown(link)), None)
        if unseen:
            return f"{unseen} is outside every grant, so the command cannot follow it"
        bearer = asked.bearer
        if not self._mounted(bearer):
            return (
                None
                if self._leads_to_grants(bearer) and not asked.operation.writes
                else "outside every grant"
            )
        if (
            asked.operation.writes
            and not _is_special(asked.found)
            and not self._mounted(bearer, WRITES)
        ):
            return self._only(bearer)
        if asked.operation is Operation.EXEC and not self._mounted(bearer, _EXECUTES):
            return self._only(bearer)
        if asked.operation is Operation.REMOVE and self._is_mount(asked.path):
            return f"{asked.path} is a grant itself, so it cannot be moved or removed"
        return None

    def _mounted(self, path: str, accesses: Container[str] = ACCESS) -> bool:
        """Some grant at the path or above it brings it in, with one of these kinds of access."""
        places = (place for place in _upwards(path) if within(place, TMP) or not within(path, TMP))
        return any(
            grant.access in accesses for place in places for grant in self._granted.get(place, ())
        )

    def _is_mount(self, path: str) -> bool:
        """A grant below another gets a mount of its own where it opens more
        (core/src/sandbox/root/mod.rs).
        """
        above = os.path.dirname(path)
        return path in self._granted and any(
            self._mounted(path, kinds) != self._mounted(above, kinds)
            for kinds in (ACCESS, WRITES, _EXECUTES)
        )

    def _is_shown(self, link: str) -> bool:
        """A link on the way to a grant is made as the host has it."""
        return self._mounted(link) or any(
            link == one.path
            for grants in self._granted.values()
            for grant in grants
            for one in _links_of(grant.path)
        )

    def _leads_to_grants(self, path: str) -> bool:
        """A directory that is there only because something granted lies in it. Where each of the
        grants can be listed, so can it.
        """
        return self._lists and path in self._leading and not self._mounted(path)

    def _is_copy(self, path: str) -> bool:
        return self._plan.workspace is not None and within(path, self._plan.workspace.path)

    def _only(self, path: str) -> str:
        kinds = sorted(
            {grant.access for place in _upwards(path) for grant in self._granted.get(place, ())}
        )
        return f"granted only for {', '.join(kinds)}"

    def _refused(self, asked: _Asked, near: list[PathGrant], given: set[str]) -> Judgement:
        assert self._plan.files is not None
        kept_out = None
        if self._plan.tier is Tier.LANDLOCK:
            reasons = (_kept_out(self._plan.files, grant, asked.bearer) for grant in near)
            kept_out = next(filter(None, reasons), None)
        if kept_out:
            said = kept_out
        elif given and near:
            said = f"granted only for {', '.join(sorted({grant.access for grant in near}))}"
        else:
            said = "outside every grant"
        return Judgement(allowed=False, path=asked.path, grants=tuple(near), reason=said)


_EXECUTES = frozenset(ACCESS) - frozenset(WITHOUT_EXECUTE.values())


def _open(asked: _Asked, reason: str) -> Judgement:
    return Judgement(allowed=True, path=asked.path, grants=(), reason=reason)


def identities_above(path: str) -> Iterator[Identity]:
    """Of what has the path, and of each directory above it. What is not there has none."""
    for place in _upwards(path):
        try:
            yield Identity.of(os.lstat(place))
        except OSError:
            continue


def _upwards(path: str) -> list[str]:
    """The path and every directory above it, the longest first."""
    return [*with_parents(path), "/"]


def _rights(plan: Plan, grant: PathGrant) -> set[str]:
    if plan.landlock is not None:
        return set(plan.landlock.access[grant.access])
    # By mounts alone: what can be written can be read, and what is not mounted noexec can be
    # executed.
    if grant.access in WITHOUT_EXECUTE.values():
        return set(ACCESS[grant.access])
    return set(ACCESS["allow"] if grant.access in WRITES else ACCESS["read"] | ACCESS[grant.access])


def _ruled(plan: Plan, files: Files, grant: PathGrant) -> Iterator[Identity]:
    """What a grant gives rules on: its place, or, around places that stay closed, what is beside
    them on the way there (core/src/sandbox/landlock/mod.rs).
    """
    try:
        own = follow(grant.path).end
    except PolicyError:
        return
    if own.object is None:
        return
    closed = {*grant.except_, *files.closed, *(files.unwritable if grant.access in WRITES else ())}
    places = [place for name in sorted(closed) for place in _places_of(name)]
    if any(place.object in (own.object, *own.above) for place in places if place.object):
        return
    inside = [place for place in places if own.object in place.above]
    if plan.tier is Tier.FULL or not inside:
        yield own.object
    else:
        yield from _around(own.path, inside)


def _around(directory: str, places: list[ResolvedPath]) -> Iterator[Identity]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        identity = Identity.of(entry.stat(follow_symlinks=False))
        if entry.is_symlink() or any(place.object == identity for place in places):
            continue
        if any(identity in place.above for place in places):
            yield from _around(entry.path, places)
        else:
            yield identity


def _places_of(name: str) -> tuple[ResolvedPath, ...]:
    try:
        return follow(name).places
    except PolicyError:
        return ()


def _links_of(path: str) -> tuple[ResolvedPath, ...]:
    try:
        return follow(path).links
    except PolicyError:
        return ()


def existing(path: str, to_make: Container[str] = ()) -> str:
    """The path, or the nearest directory above it that is there or will be."""
    while path not in to_make and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _is_made(path: str) -> bool:
    """core/src/sandbox/root/mod.rs makes it anew."""
    return path == TMP or within(path, "/dev") or within(path, "/proc")


def _is_special(found: os.stat_result | None) -> bool:
    """What a read-only mount does not keep from being written: devices, pipes."""
    return found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))


class _Patterns:
    """Hundreds of patterns, of which few can match one path: most are told by their last name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_name: dict[str, list[Glob]] = defaultdict(list)
        self._wild: list[Glob] = []
        for glob in map(Glob.parse, patterns):
            last = glob.parts[-1] if glob.parts else ""
            (self._wild if "*" in last or not last else self._by_name[last]).append(glob)

        # Most of what is asked is a directory above, again and again.
        self.matching = lru_cache(maxsize=4096)(self._matching)

    def _matching(self, path: str) -> str | None:
        """The first pattern that the path matches as a whole."""
        name = path.rpartition("/")[2]
        wild = (
            glob for glob in self._wild if not glob.parts or component_matches(glob.parts[-1], name)
        )
        return next(
            (glob.text for glob in (*self._by_name.get(name, ()), *wild) if glob.matches(path)),
            None,
        )


def _is_git_directory(path: str) -> bool:
    """A directory of that name is only pinned; what is protected in it has names of its own."""
    return (
        path.endswith(("/.git", "/.jj/repo")) and os.path.isdir(path) and not os.path.islink(path)
    )


def _kept_out(files: Files, grant: PathGrant, path: str) -> str | None:
    """Why this grant does not reach the path, if a closed place keeps it away."""
    closed = {*grant.except_, *files.closed, *(files.unwritable if grant.access in WRITES else ())}
    tree = os.path.realpath(grant.path)
    for name in sorted(closed):
        place = os.path.realpath(name)
        if within(path, place):
            return f"{name} is denied inside {grant.path} ({grant.source})"
        if within(place, path) and within(place, tree):
            return (
                f"{path} contains {name}, which is denied, so its entries are granted and the "
                f"directory itself is not ({grant.source})"
            )
    return None
