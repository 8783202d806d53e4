"""The decision of the sandbox for a path, and the grant that causes it: the reasoning behind
``paddock why``.

It follows the rules of the kernel. Landlock: the rights on a file are the union of the rules on the
file and on the directories above it, and a rule is on an inode, not on a name. Init, in the
landlock tier: it judges names that are written (``write_answer.py``). Mounts, in the full tier: a
path without a grant does not exist, a path without a write grant is read-only, and masks and locks
are on top. A test compares the decisions with the kernel, over random trees.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from functools import cache

from paddock.errors import PolicyError
from paddock.explain.name_rules import NameRules, protected_reason
from paddock.explain.write_answer import JudgedWrites, NameDecision, NameFreedom, are_judged
from paddock.frozen import dataclass
from paddock.launch.found_covers import Cover, CoverKind
from paddock.plan.grants import TMP
from paddock.plan.path_containment import with_parents, within
from paddock.plan.plan import Files, PathGrant, Plan
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE, WRITES
from paddock.policy.model import Tier
from paddock.text.path_walk import Identity, ResolvedPath, follow

# Created anew for each run of the full tier, without the host's content.
PRIVATE = (TMP, "/var/tmp", "/dev", "/proc")


class Operation(Enum):
    READ = "read"
    WRITE = "write"  # of a missing name or of a directory: create a file
    EXEC = "exec"
    MAKE = "make"  # create a file, directory or link with a new name
    REMOVE = "remove"  # remove, or rename away
    CHANGE = "change"  # mode, owner, times, attributes

    @property
    def writes(self) -> bool:
        return self not in (Operation.READ, Operation.EXEC)

    @property
    def names(self) -> bool:
        """The operation is on the name itself: a link of that name is not followed."""
        return self in (Operation.MAKE, Operation.REMOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    allowed: bool
    path: str  # the resolved path
    grants: tuple[
        PathGrant, ...
    ]  # that allow it; or, if denied, that come close: above the path, or with a gap around it
    reason: str
    closed: bool = False  # no grant would open it
    later: bool = False  # the call succeeds; the guard masks the name when it sees it
    by_init: bool = False  # init refuses the call, and reports that itself


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileQuestion:
    """``bearer``: the path that has the rights. For a new name this is its directory."""

    written: str  # the path as it was asked for
    path: str
    operation: Operation
    links: tuple[str, ...]
    found: os.stat_result | None
    bearer: str
    needed: frozenset[str]


class Judge:
    """``covers``: the covers of the core over existing names, with the other names of each object.
    The patterns of the plan judge names that appear later. ``to_make``: missing directories that
    the run will create.
    """

    def __init__(
        self, plan: Plan, *, covers: Iterable[Cover] = (), to_make: Container[str] = ()
    ) -> None:
        self._plan = plan
        self._to_make = to_make
        self._covers = {cover.path: cover.kind for cover in covers}
        if plan.files is None:
            return
        self._names = NameRules(plan.files)
        self._writes = JudgedWrites(plan, self._names) if are_judged(plan) else None
        # By resolved path: a path is looked up by itself and by each directory above it.
        self._closed = {os.path.realpath(name): name for name in plan.files.closed}
        self._unwritable = {os.path.realpath(name): name for name in plan.files.unwritable}
        self._granted: dict[str, list[PathGrant]] = defaultdict(list)
        self._rules: dict[Identity, list[PathGrant]] = defaultdict(list)
        resolved_paths = cache(_resolved_paths)  # most grants exclude the same
        for grant in plan.files.grants:
            self._granted[os.path.realpath(grant.path)].append(grant)
            for identity in _ruled(plan, plan.files, grant, resolved_paths):
                self._rules[identity].append(grant)
        self._leading = {
            above for granted in self._granted for above in _upwards(os.path.dirname(granted))
        }
        # A directory that only leads to grants can be listed if each of these grants can.
        self._lists = all(
            "read_dir" in _rights(plan, grant)
            for granted, grants in self._granted.items()
            for grant in grants
            if os.path.isdir(granted)
        )

    def __call__(self, path: str, operation: Operation) -> Judgement:
        question = self._question(path, operation)
        if self._plan.files is None:
            return _open(question, "files are not restricted: every path is open")
        if operation is Operation.MAKE and question.found:
            return _open(question, "the path already exists")
        if (
            operation is Operation.CHANGE
            and self._plan.tier is Tier.LANDLOCK
            and self._writes is None
        ):
            return _open(
                question,
                "Landlock does not restrict changes of modes, owners, times and attributes",
            )
        giving, near, rights = self._rights_given(question)
        shut = self._shut(question)
        if shut and (self._plan.tier is Tier.FULL or not question.needed <= rights):
            return Judgement(
                allowed=False, path=question.path, grants=tuple(near), reason=shut, closed=True
            )
        if not question.needed <= rights:
            return self._refused(question, near, rights)
        if self._plan.tier is Tier.FULL and (unseen := self._unmounted(question)):
            return Judgement(allowed=False, path=question.path, grants=tuple(near), reason=unseen)
        is_judged = self._writes is not None and operation.writes
        condition = ""
        if self._plan.tier is Tier.FULL and not is_judged and not question.found:
            if denied := self._denied_by_name(question):
                return Judgement(
                    allowed=False,
                    path=question.path,
                    grants=tuple(near),
                    reason=denied,
                    closed=True,
                    later=True,
                )
            if self._protected_by_name(question):
                condition = f"; {_NEW_NAME}"
        if self._writes and operation.writes:
            decision = self._decided(question, self._writes)
            if refused := self._refused_by_init(question, near, decision):
                return refused
            if decision.freedom is NameFreedom.BY_CONTENT:
                condition = f"; {_BY_CONTENT}"
        reason_text = (
            f"granted by {giving[0].source}{condition}"
            if giving
            else "it leads to a granted path, and has nothing else"
        )
        if (
            self._plan.tier is Tier.FULL
            and giving
            and not condition
            and any(within(question.path, private) for private in PRIVATE)
        ):
            reason_text = (
                f"{giving[0].path} is private to the run: the host's files there are not visible"
            )
        return Judgement(allowed=True, path=question.path, grants=tuple(giving), reason=reason_text)

    def _question(self, path: str, operation: Operation) -> _FileQuestion:
        name = os.path.basename(path) if operation.names else ""
        lookup = os.path.dirname(path) if name else path
        try:
            walk = follow(lookup)
            real, links = walk.end.path, tuple(link.path for link in walk.links)
        except PolicyError:  # an inaccessible directory, or a link to itself
            real, links = os.path.realpath(lookup), ()
        real = os.path.join(real, name) if name else real
        try:
            found = os.lstat(real)
        except OSError:
            found = None
        bearer, needed = self._needed(real, operation, found)
        return _FileQuestion(
            written=path,
            path=real,
            operation=operation,
            links=links,
            found=found,
            bearer=bearer,
            needed=needed,
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

    def _rights_given(
        self, question: _FileQuestion
    ) -> tuple[list[PathGrant], list[PathGrant], set[str]]:
        """The grants that give a needed right, those that come close, and all rights that are
        given.
        """
        assert self._plan.files is not None
        giving: list[PathGrant] = []
        near: list[PathGrant] = []
        all_rights: set[str] = set()
        ruled = [
            grant
            for identity in identities_above(question.bearer)
            for grant in self._rules.get(identity, ())
        ]
        for grant in (
            grant
            for ancestor in _upwards(question.bearer)
            for grant in self._granted.get(ancestor, ())
        ):
            # An object that does not exist yet, or is another object inside, is known only by its
            # name.
            if grant.path in self._to_make or (
                self._plan.tier is Tier.FULL and _is_made(grant.path)
            ):
                ruled.append(grant)
            elif grant not in ruled:
                near.append(grant)
        for grant in ruled:
            rights = _rights(self._plan, grant)
            (giving if question.needed & rights or not question.needed else near).append(grant)
            all_rights |= rights
        if self._plan.tier is Tier.FULL and self._leads_to_grants(question.bearer):
            all_rights.add("read_dir")
        return giving, near, all_rights

    def _shut(self, question: _FileQuestion) -> str | None:
        """The reason why no grant would open it, if there is one."""
        assert self._plan.files is not None
        for ancestor in _upwards(question.path if question.operation.names else question.bearer):
            name = self._closed.get(ancestor) or (
                self._unwritable.get(ancestor) if question.operation.writes else None
            )
            if name:
                return f"{name} is denied, even inside a grant"
        if self._plan.tier is Tier.LANDLOCK:
            return None
        return self._covered(question) or (self._named(question) if question.found else None)

    def _covered(self, question: _FileQuestion) -> str | None:
        for ancestor in (up for link in question.links for up in with_parents(link)):
            if self._covers.get(ancestor) is CoverKind.MASK:
                return f"{ancestor} is denied, even inside a grant"
        for ancestor in with_parents(question.path):
            match self._covers.get(ancestor):
                case CoverKind.MASK:
                    return f"{ancestor} is denied, even inside a grant"
                case CoverKind.LOCK if question.operation.writes and not (
                    ancestor == question.path and self._is_left_to_init(question)
                ):
                    return protected_reason(ancestor)
                case CoverKind.PIN if (
                    question.operation is Operation.REMOVE and ancestor == question.path
                ):
                    return (
                        f"{ancestor} cannot be moved or removed, because it contains a protected "
                        "name"
                    )
                case _:
                    pass
        return None

    def _named(self, question: _FileQuestion) -> str | None:
        """By its name, or by the name of a directory above it."""
        if denied := self._denied_by_name(question):
            return denied
        if not self._protected_by_name(question) or self._is_left_to_init(question):
            return None
        return protected_reason(question.path)

    def _denied_by_name(self, question: _FileQuestion) -> str | None:
        denied = map(self._names.denied_by, with_parents(question.path))
        pattern = next(filter(None, denied), None)
        return f"{pattern} is denied, even inside a grant" if pattern else None

    def _protected_by_name(self, question: _FileQuestion) -> bool:
        if (
            not question.operation.writes
            or self._is_copy(question.path)
            or not self._mounted(question.path, WRITES)
        ):
            return False
        return any(
            self._names.protects(ancestor) for ancestor in with_parents(question.path)
        ) or self._names.is_in_git_directory(question.path)

    def _unmounted(self, question: _FileQuestion) -> str | None:
        """The reason why mounts prevent an operation that the Landlock rules would allow."""
        unseen = next((link for link in question.links if not self._is_shown(link)), None)
        if unseen:
            return f"{unseen} is outside every grant, so the command cannot follow it"
        bearer = question.bearer
        if not self._mounted(bearer):
            return (
                None
                if self._leads_to_grants(bearer) and not question.operation.writes
                else "outside every grant"
            )
        if (
            question.operation.writes
            and not _is_special(question.found)
            and not self._mounted(bearer, WRITES)
        ):
            return self._only(bearer)
        if question.operation is Operation.EXEC and not self._mounted(bearer, _EXECUTES):
            return self._only(bearer)
        if question.operation is Operation.REMOVE and self._is_mount(question.path):
            return f"{question.path} is a grant itself, so it cannot be moved or removed"
        return None

    def _mounted(self, path: str, accesses: Container[str] = ACCESS) -> bool:
        """Whether a grant at the path or above it mounts it, with one of these kinds of access."""
        ancestors = (
            ancestor
            for ancestor in _upwards(path)
            if within(ancestor, TMP) or not within(path, TMP)
        )
        return any(
            grant.access in accesses
            for ancestor in ancestors
            for grant in self._granted.get(ancestor, ())
        )

    def _is_mount(self, path: str) -> bool:
        """A grant below another grant has its own mount if it opens more
        (core/src/sandbox/root/mod.rs).
        """
        above = os.path.dirname(path)
        return path in self._granted and any(
            self._mounted(path, kinds) != self._mounted(above, kinds)
            for kinds in (ACCESS, WRITES, _EXECUTES)
        )

    def _is_shown(self, link: str) -> bool:
        """A link on the path to a grant is created as on the host."""
        return self._mounted(link) or any(
            link == one.path
            for grants in self._granted.values()
            for grant in grants
            for one in _links_of(grant.path)
        )

    def _leads_to_grants(self, path: str) -> bool:
        """A directory that exists only because a granted path is below it. It can be listed if each
        of these grants can.
        """
        return self._lists and path in self._leading and not self._mounted(path)

    def _is_copy(self, path: str) -> bool:
        return self._plan.workspace is not None and within(path, self._plan.workspace.path)

    def _only(self, path: str) -> str:
        kinds = sorted(
            {
                grant.access
                for ancestor in _upwards(path)
                for grant in self._granted.get(ancestor, ())
            }
        )
        return f"granted only for {', '.join(kinds)}"

    def _decided(self, question: _FileQuestion, writes: JudgedWrites) -> NameDecision:
        match question.operation:
            case Operation.WRITE:
                return writes.written(question.written)
            case Operation.MAKE:
                return writes.made(question.path)
            case Operation.REMOVE:
                return writes.removed(question.path)
            case _:
                return writes.changed(question.path)

    def _is_left_to_init(self, question: _FileQuestion) -> bool:
        return (
            self._writes is not None
            and self._decided(question, self._writes).freedom.is_left_to_init
        )

    def _refused_by_init(
        self,
        question: _FileQuestion,
        near: list[PathGrant],
        decision: NameDecision,
    ) -> Judgement | None:
        if decision.freedom.is_refused:
            return Judgement(
                allowed=False,
                path=question.path,
                grants=tuple(near),
                reason=decision.reason,
                closed=True,
                by_init=True,
            )
        if decision.freedom is NameFreedom.BY_CONTENT and question.found:
            lacking = self._lacking_to_init(question)
            if lacking:
                return Judgement(
                    allowed=False, path=question.path, grants=tuple(near), reason=lacking
                )
        if question.operation is Operation.CHANGE and not decision.metadata:
            shut = self._shut(question)
            reason_text = shut or "read-only: outside every writable grant"
            return Judgement(
                allowed=False,
                path=question.path,
                grants=tuple(near),
                reason=reason_text,
                closed=shut is not None,
            )
        return None

    def _lacking_to_init(self, question: _FileQuestion) -> str | None:
        """Init has the rights of the command. It reads the file, and replaces it with a copy."""
        _, _, rights = self._rights_given(replace(question, bearer=question.path))
        if "read_file" not in rights or not os.access(question.path, os.R_OK):
            return "git obeys this file, so paddock reads it first, and reading is not granted"
        directory = os.path.dirname(question.path)
        _, _, rights = self._rights_given(replace(question, bearer=directory))
        if question.operation is Operation.WRITE and not {"make_reg", "remove_file"} <= rights:
            return f"git obeys this file, so paddock replaces it, and {directory} is not writable"
        return None

    def _refused(
        self, question: _FileQuestion, near: list[PathGrant], rights: set[str]
    ) -> Judgement:
        assert self._plan.files is not None
        exclusion = None
        if self._plan.tier is Tier.LANDLOCK:
            reasons = (
                _exclusion_reason(self._plan.files, grant, question.bearer) for grant in near
            )
            exclusion = next(filter(None, reasons), None)
        if exclusion:
            reason_text = exclusion
        elif rights and near:
            reason_text = f"granted only for {', '.join(sorted({grant.access for grant in near}))}"
        else:
            reason_text = "outside every grant"
        return Judgement(allowed=False, path=question.path, grants=tuple(near), reason=reason_text)


_NEW_NAME = "the name is protected, but writes are not judged, so a new one is not refused"
_BY_CONTENT = "git obeys this file, so it may have harmless content only"
_EXECUTES = frozenset(ACCESS) - frozenset(WITHOUT_EXECUTE.values())


def _open(question: _FileQuestion, reason: str) -> Judgement:
    return Judgement(allowed=True, path=question.path, grants=(), reason=reason)


def identities_above(path: str) -> Iterator[Identity]:
    """The identities of the object at the path and of each directory above it. A missing object has
    none.
    """
    for ancestor in _upwards(path):
        try:
            yield Identity.of(os.lstat(ancestor))
        except OSError:
            continue


def _upwards(path: str) -> list[str]:
    """The path and every directory above it, longest first."""
    return [*with_parents(path), "/"]


def _rights(plan: Plan, grant: PathGrant) -> set[str]:
    if plan.landlock is not None:
        return set(plan.landlock.access[grant.access])
    # From mounts alone: a writable object is readable, and an object on a mount without noexec is
    # executable.
    if grant.access in WITHOUT_EXECUTE.values():
        return set(ACCESS[grant.access])
    return set(ACCESS["allow"] if grant.access in WRITES else ACCESS["read"] | ACCESS[grant.access])


def _ruled(
    plan: Plan,
    files: Files,
    grant: PathGrant,
    resolved_paths_of: Callable[[str], tuple[ResolvedPath, ...]],
) -> Iterator[Identity]:
    """The objects that get the rules of a grant: its path, or, around denied paths, their siblings
    on each level (core/src/sandbox/landlock/mod.rs).
    """
    try:
        own = follow(grant.path).end
    except PolicyError:
        return
    if own.object is None:
        return
    closed = {*grant.except_, *files.closed, *(files.unwritable if grant.access in WRITES else ())}
    resolved_paths = [resolved for name in sorted(closed) for resolved in resolved_paths_of(name)]
    if any(
        resolved.object in (own.object, *own.above)
        for resolved in resolved_paths
        if resolved.object
    ):
        return
    inside = [resolved for resolved in resolved_paths if own.object in resolved.above]
    if plan.tier is Tier.FULL or not inside:
        yield own.object
    else:
        yield from _around(own.path, inside)


def _around(directory: str, resolved_paths: list[ResolvedPath]) -> Iterator[Identity]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        identity = Identity.of(entry.stat(follow_symlinks=False))
        if entry.is_symlink() or any(resolved.object == identity for resolved in resolved_paths):
            continue
        if any(identity in resolved.above for resolved in resolved_paths):
            yield from _around(entry.path, resolved_paths)
        else:
            yield identity


def _resolved_paths(name: str) -> tuple[ResolvedPath, ...]:
    try:
        return follow(name).resolved_paths
    except PolicyError:
        return ()


def _links_of(path: str) -> tuple[ResolvedPath, ...]:
    try:
        return follow(path).links
    except PolicyError:
        return ()


def existing(path: str, to_make: Container[str] = ()) -> str:
    """The path, or the nearest directory above it that exists or will exist."""
    while path not in to_make and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _is_made(path: str) -> bool:
    """core/src/sandbox/root/mod.rs creates it anew."""
    return path == TMP or within(path, "/dev") or within(path, "/proc")


def _is_special(found: os.stat_result | None) -> bool:
    """Objects that a read-only mount does not protect from writes: devices and pipes."""
    return found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))


def _exclusion_reason(files: Files, grant: PathGrant, path: str) -> str | None:
    """The reason why this grant does not cover the path, if a denied path excludes it."""
    closed = {*grant.except_, *files.closed, *(files.unwritable if grant.access in WRITES else ())}
    tree = os.path.realpath(grant.path)
    for name in sorted(closed):
        real = os.path.realpath(name)
        if within(path, real):
            return f"{name} is denied inside {grant.path} ({grant.source})"
        if within(real, path) and within(real, tree):
            return (
                f"{path} contains {name}, which is denied, so its entries are granted and the "
                f"directory itself is not ({grant.source})"
            )
    return None
