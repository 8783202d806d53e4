"""Exec rules that are valid but ineffective: they never match, are shadowed, or can be bypassed.

Only the text of the rules is compared; regular expressions are not interpreted.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from paddock.policy.glob import Glob
from paddock.policy.model import Action, Match, Policy, Rule

_NAMING = ("exe", "exe_basename", "exe_glob", "exe_sha256")
_ANCHORS = ("^", "\\A")


def weak_rules(policy: Policy) -> Iterator[str]:
    default = policy.meta.default_action.value if policy.meta.default_action else Action.DENY
    rules = policy.rules
    for index, rule in enumerate(rules):
        shadow = next((earlier for earlier in rules[:index] if _shadows(earlier, rule)), None)
        if never := _never(rule):
            yield f"{_name(rule)} can never match: {never}"
        elif shadow:
            yield (
                f"{_name(rule)} has no effect: {shadow.id!r} ({shadow.source}) comes first and "
                "matches the same programs"
            )
        else:
            yield from (f"{_name(rule)} {said}" for said in _bypasses(rule, default))
    if rules and default is Action.DENY and all(rule.action is Action.DENY for rule in rules):
        yield (
            f"{rules[0].source}: no rule allows a program and default_action is deny, so no "
            "program can start"
        )


def _name(rule: Rule) -> str:
    return f"{rule.source}: rule {rule.id!r}"


def _never(rule: Rule) -> str | None:
    wanted = {match.key: match for match in rule.matches if not match.negate}
    for match in rule.matches:
        same = wanted.get(match.key)
        if match.negate and same and set(same.values) <= set(match.values):
            return f"{match.key} and {match.key}_not contradict each other"
    if "exe" not in wanted:
        return None
    for key in ("exe_basename", "exe_glob"):
        if key in wanted and not any(_fits(exe, wanted[key]) for exe in wanted["exe"].values):
            return f"exe and {key} contradict each other"
    return None


def _fits(exe: str, match: Match) -> bool:
    if match.key == "exe_basename":
        return os.path.basename(exe) in match.values
    return any(Glob.parse(value).matches(exe) for value in match.values)


def _shadows(earlier: Rule, later: Rule) -> bool:
    """Whether the earlier rule matches whenever the later one does. A rule that allows by name
    alone does not apply to programs that a command could have written; more specific rules judge
    those.
    """
    if earlier.action is Action.ALLOW and later.identifies and not earlier.identifies:
        return False
    return all(any(_implies(narrow, wide) for narrow in later.matches) for wide in earlier.matches)


def _implies(narrow: Match, wide: Match) -> bool:
    if narrow.negate != wide.negate:
        return False
    if narrow.key == wide.key:
        fewer, more = (wide, narrow) if wide.negate else (narrow, wide)
        return set(fewer.values) <= set(more.values)
    if narrow.key == "exe" and wide.key in ("exe_basename", "exe_glob") and not wide.negate:
        return all(_fits(exe, wide) for exe in narrow.values)
    return False


def _bypasses(rule: Rule, default: Action) -> Iterator[str]:
    keys = {match.key for match in rule.matches if not match.negate}
    if rule.action is Action.ALLOW:
        yield from _open_allow(rule, keys)
    elif default is Action.ALLOW and keys & set(_NAMING):
        yield (
            "denies a program by its name while default_action is allow, so the same program in "
            "another file still runs; list the allowed programs instead"
        )
    elif default is Action.ALLOW:
        yield (
            "denies some arguments while default_action is allow, so the same command in another "
            "spelling still runs; list the allowed commands instead"
        )


def _open_allow(rule: Rule, keys: set[str]) -> Iterator[str]:
    if not keys & set(_NAMING):
        yield "allows every program that matches the other keys; add exe or exe_glob"
    elif not rule.identifies:
        yield "allows every file of that name in a granted directory; add exe or exe_glob"
    for match in rule.matches:
        if match.key == "argv_regex" and not match.negate:
            loose = [value for value in match.values if not value.startswith(_ANCHORS)]
            if loose:
                yield (
                    "allows by an expression that matches anywhere in the arguments: "
                    f"{loose[0]!r}; begin it with '^'"
                )
    if "argv_contains" in keys and "argv_regex" not in keys:
        yield "allows by one argument and does not check the others; use argv_regex"
    if "argv_host_in" in keys:
        yield (
            "checks only http and https addresses, so a host without a scheme is not found; "
            "see [network]"
        )
    if "parent_argv" in keys:
        yield "trusts the arguments of the parent, which a process can rewrite; use parent_exe"
