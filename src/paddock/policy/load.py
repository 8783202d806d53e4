"""Load: what was asked for → Policy. The whole way from text, in one place:

select → find → read (trust) → parents first → merge → command line on top → checks on the whole
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from paddock.errors import PolicyError
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.flags import flag, from_command_line
from paddock.policy.formats.schema import RULE_PATHS
from paddock.policy.glob import Glob, component_matches
from paddock.policy.inherit import DEFAULT, FLOOR, Layers
from paddock.policy.merge import merge
from paddock.policy.model import Access, Action, Deny, Environment, Filesystem, Match, Policy, Rule
from paddock.policy.request import Request
from paddock.policy.syscalls import table
from paddock.policy.trust.approved import Approved, load_approved
from paddock.policy.trust.file_trust import PolicyText, require_agreement
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import Found, ProfileSearch, exists
from paddock.policy.trust.writable_history import WritableHistory, in_private_temp
from paddock.text.path_walk import PathWalk, follow

PROJECT_FILE = "paddock.toml"


def load(request: Request, origin: Origin) -> Policy:
    # A container has its own files: what a profile grants of the host's means nothing there.
    layers = Layers(origin, default=DEFAULT if request.container is None else FLOOR)
    unasked = _project_file(request, origin)
    if unasked is not None:
        layers.add(unasked, agreed=request.trust_required)
    for found in select(request, origin) if unasked is None else ():
        layers.add(found, agreed=False)
    whole = reduce(
        merge,
        [*layers.stack, from_command_line(request, origin)],
        Policy(profiles=tuple(layers.names)),
    )
    whole = replace(
        whole,
        filesystem=_denies_where_links_lead(whole.filesystem),
        env=_kept_only_if_denied(whole.env),
        rules=_rules_where_links_lead(whole.rules),
    )
    default = whole.network.default if whole.network else None
    asks = whole.rules or whole.meta.default_action or (default and default.value is Action.ASK)
    approved = load_approved(origin) if asks else Approved()
    policy = replace(
        whole,
        approved=approved.rules,
        approved_hosts=approved.hosts,
        files=(*whole.files, *approved.identity),
        notes=(*whole.notes, *_syscall_notes(whole, origin)),
    )
    if request.trust_required:
        files = [*layers.files, *([approved.file] if approved.file else [])]
        require_agreement_to_what_a_command_could_rewrite(policy, files, origin)
    return policy


def _kept_only_if_denied(env: Environment) -> Environment:
    """A name that nothing denies passes like any other: then a file can say the same."""
    denied = {
        name
        for name in env.keep
        if any(component_matches(deny.value, name.value) for deny in env.deny)
    }
    passed = [
        name
        for name in env.keep
        if name not in denied and name.value not in {one.value for one in env.pass_}
    ]
    return replace(
        env, pass_=(*env.pass_, *passed), keep=tuple(name for name in env.keep if name in denied)
    )


def _denies_where_links_lead(filesystem: Filesystem) -> Filesystem:
    """A pattern below a symlink means the names it leads to. (Whole places are followed by the core
    at every start.)
    """
    led: list[Deny] = []
    for deny in filesystem.denies:
        glob = Glob.parse(deny.pattern)
        if not glob.exact and glob.root == "/" and not (way := follow(glob.prefix)).straight:
            led.append(replace(deny, pattern=way.end.path + glob.text.removeprefix(glob.prefix)))
    return replace(filesystem, denies=(*filesystem.denies, *led))


def _rules_where_links_lead(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Programs are judged by the file that really runs: ``/bin/sh`` means what it leads to as
    well.
    """
    inherited: dict[str, Rule] = {}
    for rule in reversed(rules):
        if rule.id in inherited:
            raise wrong(
                rule.source, f"the rule {rule.id!r} is already in {inherited[rule.id].source}"
            )
        inherited[rule.id] = rule
    return tuple(
        replace(rule, matches=tuple(replace(match, values=_led(match)) for match in rule.matches))
        for rule in rules
    )


def rule_paths(rules: tuple[Rule, ...]) -> list[str]:
    """What the rules name that a link can lead elsewhere."""
    named = [
        value
        for rule in rules
        for match in rule.matches
        if match.key in RULE_PATHS
        for value in match.values
    ]
    return [glob.prefix for glob in map(Glob.parse, named) if glob.root == "/"]


def _led(match: Match) -> tuple[str, ...]:
    if match.key not in RULE_PATHS:
        return match.values
    led = [
        way.end.path + value.removeprefix(way.written)
        for value in match.values
        if (glob := Glob.parse(value)).root == "/" and not (way := follow(glob.prefix)).straight
    ]
    return tuple(dict.fromkeys((*match.values, *led)))


def _project_file(request: Request, origin: Origin) -> Found | None:
    """``./paddock.toml``, when nothing else was asked for. Found is found: a dangling link is an
    error later on.
    """
    if request.names_a_policy or request.is_custom or request.container is not None:
        return None
    if not exists(path := os.path.join(origin.cwd, PROJECT_FILE)):
        if origin.trusted.knows(path):
            raise PolicyError(
                "you trusted this file, and it no longer exists: without it, the default profile "
                "would apply",
                where=path,
                hint="restore the file, or type `paddock trust --revoke FILE`, or choose a "
                "profile: --profile ai-agent",
            )
        return None
    return ProfileSearch(origin).at_path(
        f"./{PROJECT_FILE}", flag("the current directory"), relative_to=origin.cwd
    )


def select(request: Request, origin: Origin) -> Iterator[Found]:
    """The policies to merge, undermost first."""
    search = ProfileSearch(origin)
    for name in request.profiles:
        yield search.find(name, flag("--profile"), relative_to=origin.cwd)
    for path in request.policies:
        yield search.at_path(path, flag("--policy"), relative_to=origin.cwd)
    if not request.names_a_policy:
        name = (
            FLOOR
            if request.is_custom or request.container is not None
            else profile_for(request.command)
        )
        yield search.find(name, flag("the default profile"), relative_to=origin.cwd)


def profile_for(command: str | None) -> str:
    """The profile a command gets by its name. So far every agent has the same needs: files, calls,
    environment.
    """
    return DEFAULT


def _syscall_notes(policy: Policy, origin: Origin) -> Iterator[str]:
    """Only for what a person wrote: the built-in profiles name the calls of every machine on
    purpose.
    """
    for call in (*policy.syscalls.block, *(policy.syscalls.allow or ())):
        remark = table()[call.value].remark(origin.machine)
        if remark is not None and not call.source.builtin:
            yield f"{call.source}: {remark}, so this line has no effect"


def writable_trees(policy: Policy) -> list[PathWalk]:
    """Where the command will be able to write, and how that is reached."""
    rootdirs = [str(setting.value) for setting in policy.container if setting.key == "rootdir"]
    if rootdirs:
        return [follow(path) for path in rootdirs]
    return [
        follow(Glob.parse(grant.pattern).prefix)
        for grant in policy.filesystem.grants
        if grant.access in (Access.WRITE, Access.ALLOW) and grant.pattern.startswith("/")
    ]


def reach_of(policy: Policy, origin: Origin) -> WritableHistory:
    """Where a command of this run can write, and where one of an earlier run could."""
    return origin.reach.including([*writable_trees(policy), follow(origin.cwd), follow("/dev/shm")])


def require_agreement_to_what_a_command_could_rewrite(
    policy: Policy, files: list[PolicyText], origin: Origin
) -> None:
    """A policy file in a command's reach could loosen the next run; then the person must know its
    text.

    In reach is what this policy makes writable, and what an earlier run could have written whatever
    this text says of it: the current directory, shared memory, temporary directories, every place a
    run was ever given. A file counts by where it lies and by every link that leads to it.
    """
    reach = reach_of(policy, origin)
    for file in files:
        if file.way is None or _is_closed_to_every_command(file.way, origin):
            continue
        if (
            reach.holds(file.way)
            or in_private_temp(file.way, origin.uid)
            or origin.trusted.knows(file.written)
        ):
            require_agreement(
                file,
                origin,
                shown=file.written,
                why="a command could rewrite this file, and weaken the sandbox of its next run",
            )


def _is_closed_to_every_command(way: PathWalk, origin: Origin) -> bool:
    """In a config directory, under its own name: no policy opens these to writing. A link can lead
    out of them.
    """
    return way.straight and way.end.path.startswith(
        (f"{origin.config_dir}/", f"{origin.system_dir}/")
    )
