"""Loads the Policy for a request, in these steps:

select → find → read (trust) → parents first → merge → command line on top → restrictions of the
machine (managed.py) → checks on the whole
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from paddock.errors import PolicyError
from paddock.policy.command_line import Request
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.flags import flag, from_command_line
from paddock.policy.formats.policy_keys import RULE_PATHS
from paddock.policy.glob import Glob, component_matches
from paddock.policy.inherit import DEFAULT, FLOOR, Layers
from paddock.policy.managed import managed_by, restrict
from paddock.policy.merge import merge
from paddock.policy.model import (
    Access,
    Action,
    Deny,
    Environment,
    Filesystem,
    Match,
    Policy,
    Rule,
    Sourced,
)
from paddock.policy.syscalls import table
from paddock.policy.trust.approved import Approved, load_approved
from paddock.policy.trust.file_trust import PolicyText, require_agreement
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import FoundProfile, ProfileSearch, exists
from paddock.policy.trust.writable_history import WritableHistory, in_private_temp
from paddock.text.path_walk import PathWalk, follow

PROJECT_FILE = "paddock.toml"


def load(request: Request, origin: Origin) -> Policy:
    # A container has its own files, so the host paths of a profile have no meaning there.
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
    managed = managed_by(origin)
    if managed is not None:
        whole = restrict(whole, managed[0])
    whole = replace(
        whole,
        filesystem=_protects_where_links_lead(_denies_where_links_lead(whole.filesystem)),
        env=_drop_needless_keeps(whole.env),
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
        warnings=tuple(_unset_variables(request, origin)),
    )
    if request.trust_required:
        files = [*layers.files, *([approved.file] if approved.file else [])]
        files += [managed[1]] if managed else []
        require_trusted_files(policy, files, origin)
    return policy


def _drop_needless_keeps(env: Environment) -> Environment:
    """A name that nothing denies passes like any other, so a file can express the same."""
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
    """A pattern below a symlink means the names behind it. (The core follows links in whole paths
    at every start.)
    """
    resolved: list[Deny] = []
    for deny in filesystem.denies:
        glob = Glob.parse(deny.pattern)
        if not glob.exact and glob.root == "/" and not (walk := follow(glob.prefix)).straight:
            resolved.append(
                replace(deny, pattern=walk.end.path + glob.text.removeprefix(glob.prefix))
            )
    return replace(filesystem, denies=(*filesystem.denies, *resolved))


def _protects_where_links_lead(filesystem: Filesystem) -> Filesystem:
    """A pattern below a symlink means the names behind it too."""
    resolved = []
    for pattern in filesystem.protects:
        glob = Glob.parse(pattern.value)
        if not glob.floating and not (walk := follow(glob.prefix)).straight:
            behind = walk.end.path + glob.text.removeprefix(glob.prefix)
            resolved.append(Sourced(behind, pattern.source))
    return replace(filesystem, protects=(*filesystem.protects, *resolved))


def _rules_where_links_lead(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Programs are judged by the file that really runs, so ``/bin/sh`` also means the file behind
    the link.
    """
    inherited: dict[str, Rule] = {}
    for rule in reversed(rules):
        if rule.id in inherited:
            raise wrong(
                rule.source, f"the rule {rule.id!r} is already in {inherited[rule.id].source}"
            )
        inherited[rule.id] = rule
    return tuple(
        replace(
            rule, matches=tuple(replace(match, values=_resolved(match)) for match in rule.matches)
        )
        for rule in rules
    )


def protected_paths(filesystem: Filesystem) -> list[str]:
    """The paths in protected patterns that may be links, and their directories."""
    globs = [Glob.parse(pattern.value) for pattern in filesystem.protects]
    prefixes = [glob.prefix for glob in globs if not glob.floating]
    return [path for prefix in prefixes for path in (os.path.dirname(prefix), prefix)]


def rule_paths(rules: tuple[Rule, ...]) -> list[str]:
    """The paths in rules that may be links."""
    named = [
        value
        for rule in rules
        for match in rule.matches
        if match.key in RULE_PATHS
        for value in match.values
    ]
    return [glob.prefix for glob in map(Glob.parse, named) if glob.root == "/"]


def _resolved(match: Match) -> tuple[str, ...]:
    if match.key not in RULE_PATHS:
        return match.values
    resolved = [
        walk.end.path + value.removeprefix(walk.written)
        for value in match.values
        if (glob := Glob.parse(value)).root == "/" and not (walk := follow(glob.prefix)).straight
    ]
    return tuple(dict.fromkeys((*match.values, *resolved)))


def _project_file(request: Request, origin: Origin) -> FoundProfile | None:
    """``./paddock.toml``, if no policy was requested. A dangling link counts as found and is an
    error later.
    """
    if request.names_a_policy or request.only or request.container is not None:
        return None
    if not exists(path := os.path.join(origin.cwd, PROJECT_FILE)):
        if origin.trusted.knows(path):
            raise PolicyError(
                "you trusted this file, and it no longer exists: without it, the default profile "
                "would apply",
                where=path,
                hint=f"type `paddock trust --forget {shlex.quote(path)}` if this is right; or "
                "restore the file, or choose a profile: --profile ai-agent",
            )
        return None
    return ProfileSearch(origin).at_path(
        f"./{PROJECT_FILE}", flag("the current directory"), relative_to=origin.cwd
    )


def select(request: Request, origin: Origin) -> Iterator[FoundProfile]:
    """The policies to merge, lowest first."""
    search = ProfileSearch(origin)
    for name in request.profiles:
        yield search.find(name, flag("--profile"), relative_to=origin.cwd)
    for path in request.policies:
        yield search.at_path(path, flag("--policy"), relative_to=origin.cwd)
    if not request.names_a_policy:
        name = (
            FLOOR if request.only or request.container is not None else profile_for(request.command)
        )
        yield search.find(name, flag("the default profile"), relative_to=origin.cwd)


def profile_for(command: str | None) -> str:
    """The profile for a command name. So far every agent has the same needs: files, calls,
    environment.
    """
    return DEFAULT


def _syscall_notes(policy: Policy, origin: Origin) -> Iterator[str]:
    """Only for calls that the user wrote: the built-in profiles name the calls of every machine on
    purpose.
    """
    for call in (*policy.syscalls.block, *(policy.syscalls.allow or ())):
        remark = table()[call.value].remark(origin.machine)
        if remark is not None and not call.source.builtin:
            yield f"{call.source}: {remark}, so this line has no effect"


def _unset_variables(request: Request, origin: Origin) -> Iterator[str]:
    """The value of a variable that is set is not read here: a memo would store it."""
    there = set(origin.environ)
    for name in request.env_pass:
        if "*" not in name and name not in there:
            import difflib  # it takes 4 ms to import

            origin.environ.get(name)  # a memo notes that the variable is not set
            near = difflib.get_close_matches(name, there, 1)
            remedy = f"did you mean {near[0]}?" if near else f"set it: export {name}=…"
            yield f"--env-pass {name}: this variable is not set; {remedy}"


def writable_trees(policy: Policy) -> list[PathWalk]:
    """The paths that the command will be able to write, and the links on them."""
    rootdirs = [str(setting.value) for setting in policy.container if setting.key == "rootdir"]
    if rootdirs:
        return [follow(path) for path in rootdirs]
    return [
        follow(Glob.parse(grant.pattern).prefix)
        for grant in policy.filesystem.grants
        if grant.access in (Access.WRITE, Access.ALLOW) and grant.pattern.startswith("/")
    ]


def writable_history_of(policy: Policy, origin: Origin) -> WritableHistory:
    """The paths that a command of this run can write, or one of an earlier run could."""
    return origin.writable_history.including(
        [*writable_trees(policy), follow(origin.cwd), follow("/dev/shm")]
    )


def require_trusted_files(policy: Policy, files: list[PolicyText], origin: Origin) -> None:
    """A policy file that a command can write could loosen the next run. So the user must have
    trusted its text.

    These are paths that this policy makes writable, and paths that an earlier run could have
    written in any case: the current directory, shared memory, temporary directories, every
    previously writable path. A file counts by its resolved path and by every link that leads to it.
    """
    writable_history = writable_history_of(policy, origin)
    for file in files:
        if file.walk is None or _is_read_only_config(file.walk, origin):
            continue
        if earlier := origin.writable_history.holding(file.walk):
            where = shlex.quote(earlier.path)
            why = f"a command of an earlier run could write {earlier.path}, where this file is"
            otherwise = f" (`paddock trust --forget {where}`: trust all that is there now)"
        elif (
            writable_history.holds(file.walk)
            or in_private_temp(file.walk, origin.uid)
            or origin.trusted.knows(file.written)
        ):
            why = "a command could rewrite this file, and weaken the sandbox of its next run"
            otherwise = ""
        else:
            continue
        require_agreement(file, origin, shown=file.written, why=why, otherwise=otherwise)


def _is_read_only_config(walk: PathWalk, origin: Origin) -> bool:
    """In a config directory, under its own name: no policy makes these writable. A link can lead
    out of them.
    """
    return walk.straight and walk.end.path.startswith(
        (f"{origin.config_dir}/", f"{origin.system_dir}/")
    )
