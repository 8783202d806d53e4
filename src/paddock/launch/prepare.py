"""One run, from what was asked to the core: the only place that knows policy, host, plan and core
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from paddock.core import process as core
from paddock.errors import CoreError, HostError, JournalError
from paddock.host import Host, Terrain, measure, survey
from paddock.host.git import worktree_links
from paddock.launch.create_missing import make_missing, require_places_of_shells, to_make
from paddock.launch.journal_check import require_usable
from paddock.launch.own_dirs import make_lockable
from paddock.launch.redundant_grants import without_covered
from paddock.plan import Plan, compile_plan
from paddock.plan.tier import choose_tier
from paddock.policy import Origin, Policy, Request, load
from paddock.policy.load import writable_trees
from paddock.policy.model import Tier
from paddock.policy.trust.journal_history import Journals
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import PathWalk, follow

MAX_ROUNDS = 20  # each one more than the other runs that start at the same moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    policy: Policy
    host: Host
    reach: WritableHistory
    terrain: Terrain
    journals: Journals
    plan: Plan

    def run(self, command: Sequence[str], *, quiet: bool = False) -> NoReturn:
        """Become the command, fenced. Whatever fails from here on is said and journaled by the
        core.
        """
        core.become(self.plan, command, quiet=quiet)

    def to_make(self) -> tuple[str, ...]:
        """Directories that a run would make: granted, and not there."""
        return tuple(to_make(self.policy, self.plan))

    def preflight(self) -> Preflight:
        return Preflight.of(core.ask("preflight", plan=self.plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the core found when it set everything up short of running: the plan, met by the real
    machine.
    """

    rules: int
    skipped: tuple[str, ...]  # optional grants whose path is not here
    removed: tuple[str, ...]  # grants that lead into a closed place
    blocked: int
    absent_syscalls: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, answer: dict[str, object]) -> Preflight:
        try:
            return cls(
                rules=_number(answer["rules"]),
                skipped=_paths(answer["skipped"]),
                removed=_paths(answer["removed"]),
                blocked=_number(answer["blocked"]),
                absent_syscalls=_strings(answer["absent_syscalls"]),
                warnings=_strings(answer["warnings"]),
            )
        except (KeyError, TypeError) as error:
            raise CoreError(
                f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
            ) from error


def prepare(request: Request, origin: Origin, *, to_run: bool = False) -> Prepared:
    """Load, measure, compile, record. ``to_run``: the command will get to write what the policy
    grants, and later runs have to know.
    """
    policy = load(request, origin)
    host, terrain = _measured(policy, origin)
    writable = _writable(policy, terrain)
    reach = origin.reach.including(writable)
    host = replace(host, reached=reach.trees)
    plan = compile_plan(policy, host, terrain)
    made = Prepared(
        policy=policy, host=host, reach=reach, terrain=terrain, journals=origin.journals, plan=plan
    )
    if to_run:
        # Only now: what is refused gets to write nowhere, and is not remembered as if it had.
        made = _recorded(made, origin, writable)
    return replace(made, plan=without_covered(made.plan))


def _recorded(made: Prepared, origin: Origin, writable: Sequence[PathWalk]) -> Prepared:
    """Add this run to the lists that later runs read, and compile until the plan is made from the
    lists as they are.
    """
    for opening in made.terrain.openings:
        worktree_links.remember(origin.state_dir, origin.uid, opening.top, opening.git_dir)
    policy, terrain = made.policy, made.terrain
    host, plan, journals = made.host, made.plan, made.journals
    for _ in range(MAX_ROUNDS):
        reach = WritableHistory.record(origin.state_dir, writable)
        if plan.tier is Tier.FULL:
            make_lockable(origin, [way.end.path for way in writable])
        if reach.trees == host.reached:
            journals = remember_journal(policy, plan, origin)
        if (reach.trees, journals.places) != (host.reached, host.journals):
            # Another run was recorded meanwhile, or a journal is gone.
            host = replace(host, reached=reach.trees, journals=journals.places)
            plan = compile_plan(policy, host, terrain)
        elif make_missing(policy, plan):
            # What was made has an inode now, by which later runs know it.
            writable = _writable(policy, terrain)
        else:
            return replace(made, host=host, reach=reach, journals=journals, plan=plan)
    raise HostError(
        "other runs change the list of writable directories at this moment",
        hint="start the command again in a moment",
    )


def _measured(policy: Policy, origin: Origin) -> tuple[Host, Terrain]:
    host = measure(
        uid=origin.uid,
        user=origin.user,
        home=origin.home,
        cwd=origin.cwd,
        reached=(),
        journals=origin.journals.places,
        search_path=origin.environ.get("PATH", ""),
    )
    require_places_of_shells(policy)
    full = choose_tier(policy, host) is Tier.FULL
    return host, survey(policy, origin) if full else Terrain()


def _writable(policy: Policy, terrain: Terrain) -> list[PathWalk]:
    return [*writable_trees(policy), *map(follow, terrain.writable)]


def remember_journal(policy: Policy, plan: Plan, origin: Origin) -> Journals:
    """After compiling: a place that was refused is nobody's journal, and must not stay closed."""
    places: tuple[str, ...] = ()
    if plan.journal and policy.audit.dir:
        try:
            require_usable(plan.journal, origin.uid)
            places = plan.journal.places
        except JournalError:
            # The core will refuse it in its own words, and write nothing there.
            places = ()
    return Journals.record(origin.state_dir, places)


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(str(one) for one in value)


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(str(one["path"]) for one in value)
