"""Prepares one run, from the request to the core. Only this file knows policy, host, plan and core
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from paddock.core import process as core
from paddock.errors import CoreError, HostError, JournalError
from paddock.frozen import dataclass
from paddock.host import Host, Terrain, measure, scan_grant_targets
from paddock.host.git import worktree_links
from paddock.launch.create_missing import make_missing, require_places_of_shells, to_make
from paddock.launch.journal_check import require_usable
from paddock.launch.own_dirs import make_lockable
from paddock.launch.redundant_grants import without_covered
from paddock.plan import Plan, compile_plan
from paddock.plan.compile import journals_of
from paddock.plan.tier import choose_tier
from paddock.policy import Origin, Policy, Request, load
from paddock.policy.load import writable_trees
from paddock.policy.model import Switch, Tier
from paddock.policy.trust.journal_history import JournalHistory
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import PathWalk, follow

MAX_ROUNDS = 20  # each round means that another run started at the same moment

_last: tuple[Policy, Host, Terrain, Plan] | None = None  # of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    policy: Policy
    host: Host
    writable_history: WritableHistory
    terrain: Terrain
    journals: JournalHistory
    plan: Plan

    def run(self, command: Sequence[str], *, quiet: bool = False) -> NoReturn:
        """Becomes the command in the sandbox. The core prints and journals every later failure."""
        core.become(self.plan, command, quiet=quiet)

    def to_make(self) -> tuple[str, ...]:
        """Granted directories that are missing and that a run would create."""
        return tuple(to_make(self.policy, self.plan))

    def preflight(self) -> Preflight:
        return Preflight.of(core.ask("preflight", plan=self.plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The result of the core's set-up without running: the plan on the real machine."""

    rules: int
    skipped: tuple[str, ...]  # optional grants whose path does not exist
    removed: tuple[str, ...]  # grants that lead into a denied path
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
    """Load, measure, compile, record. ``to_run``: the command will be able to write the granted
    paths, so they are recorded for later runs.
    """
    policy = load(request, origin)
    host, terrain = _measured(policy, origin)
    writable = _writable(policy, terrain)
    writable_history = origin.writable_history.including(writable)
    host = replace(host, previously_writable=writable_history.trees)
    plan = _compiled(policy, host, terrain)
    made = Prepared(
        policy=policy,
        host=host,
        writable_history=writable_history,
        terrain=terrain,
        journals=origin.journals,
        plan=plan,
    )
    if to_run:
        # After compiling, because a refused run writes nothing and must not be recorded.
        made = _recorded(made, origin, writable)
    return replace(made, plan=without_covered(made.plan))


def _compiled(policy: Policy, host: Host, terrain: Terrain) -> Plan:
    """A session compiles at each start of its core, and mostly from the same values."""
    global _last
    last = _last
    if last is None or last[:3] != (policy, host, terrain):
        _last = last = (policy, host, terrain, compile_plan(policy, host, terrain))
    return last[3]


def _recorded(made: Prepared, origin: Origin, writable: Sequence[PathWalk]) -> Prepared:
    """Adds this run to the lists that later runs read, and compiles until the plan matches the
    current lists.
    """
    for opening in made.terrain.openings:
        worktree_links.remember(origin.state_dir, origin.uid, opening.top, opening.git_dir)
    policy, terrain = made.policy, made.terrain
    host, plan, journals = made.host, made.plan, made.journals
    for _ in range(MAX_ROUNDS):
        writable_history = WritableHistory.record(origin.state_dir, writable)
        if plan.tier is Tier.FULL:
            make_lockable(origin, [walk.end.path for walk in writable])
        if writable_history.trees == host.previously_writable:
            journals = remember_journal(policy, plan, origin)
        known = host
        host = replace(host, previously_writable=writable_history.trees, journals=journals.paths)
        if (host.previously_writable, journals_of(host, plan.journal)) != (
            known.previously_writable,
            journals_of(known, plan.journal),
        ):
            # Another run was recorded meanwhile, or a journal was removed.
            plan = _compiled(policy, host, terrain)
        elif make_missing(policy, plan):
            # A created directory has an inode now, by which later runs know it.
            writable = _writable(policy, terrain)
        else:
            return replace(
                made, host=host, writable_history=writable_history, journals=journals, plan=plan
            )
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
        previously_writable=(),
        journals=origin.journals.paths,
        search_path=origin.environ.get("PATH", ""),
    )
    require_places_of_shells(policy)
    if choose_tier(policy, host) is Tier.FULL:
        return host, scan_grant_targets(policy, origin)
    is_judged = host.listener and Switch.SECCOMP not in policy.off
    return host, scan_grant_targets(policy, origin, opens=False) if is_judged else Terrain()


def _writable(policy: Policy, terrain: Terrain) -> list[PathWalk]:
    return [*writable_trees(policy), *map(follow, terrain.writable)]


def remember_journal(policy: Policy, plan: Plan, origin: Origin) -> JournalHistory:
    """After compiling: a refused path is not a journal, and must not stay denied."""
    journal_paths: tuple[str, ...] = ()
    if plan.journal and policy.audit.dir:
        try:
            require_usable(plan.journal, origin.uid)
            journal_paths = plan.journal.paths
        except JournalError:
            # The core will refuse it with its own message, and write nothing there.
            journal_paths = ()
    return JournalHistory.record(origin.state_dir, journal_paths)


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
