"""Merging is pure and associative. --env-pass lifts the deny of the named variables only."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from paddock.policy import Policy, Request
from paddock.policy.glob import component_matches
from paddock.policy.merge import merge
from paddock.policy.model import (
    Access,
    Action,
    CommandRule,
    Deny,
    Destination,
    Environment,
    Filesystem,
    Grant,
    Limit,
    Meta,
    Network,
    NetworkMode,
    PathRule,
    Route,
    Rule,
    Setting,
    Source,
    Sourced,
    Syscalls,
    ToolSettings,
    Upstream,
)
from tests.unit.policy.user_dirs import UserDirs

EMPTY = Policy(profiles=())


def random_policy(dice: random.Random, name: str) -> Policy:
    source = Source(file=name, line=dice.randint(1, 9))

    def some(words: str) -> tuple[Sourced[str], ...]:
        return tuple(Sourced(word, source) for word in words.split() if dice.random() < 0.5)

    return Policy(
        profiles=(name,),
        meta=Meta(
            ask_timeout_s=Sourced(dice.randint(1, 9), source) if dice.random() < 0.5 else None
        ),
        filesystem=Filesystem(
            grants=tuple(
                Grant(
                    access=dice.choice(list(Access)),
                    pattern=p.value,
                    optional=dice.random() < 0.5,
                    workspace=False,
                    source=source,
                )
                for p in some("/a /b /c")
            ),
            denies=tuple(
                Deny(pattern=p.value, source=source, optional=dice.random() < 0.5)
                for p in some("/d /e")
            ),
            protects=some("/m /n"),
            open_protected=some("/o /p"),
        ),
        network=None
        if dice.random() < 0.4
        else Network(
            mode=Sourced(dice.choice(list(NetworkMode)), source) if dice.random() < 0.5 else None,
            default=Sourced(dice.choice(list(Action)), source) if dice.random() < 0.5 else None,
            allowed_hosts=None
            if dice.random() < 0.4
            else tuple(Sourced(Destination(host=h.value), source) for h in some("x y")),
            routes=tuple(
                Route(
                    name=r.value,
                    upstream=Upstream(scheme="https", host=name, port=443),
                    source=source,
                )
                for r in some("r s")
            ),
        ),
        syscalls=Syscalls(
            block=some("read write"), allow=None if dice.random() < 0.5 else some("open close")
        ),
        env=Environment(
            pass_=some("A B"), deny=some("C D"), set=tuple((v.value, v) for v in some("E F"))
        ),
        limits=tuple(
            Limit(name=v.value, value=dice.randint(1, 9), source=source)
            for v in some("wall_s cpu_s")
        ),
        rules=tuple(
            Rule(id=v.value, action=Action.DENY, matches=(), reason=name, source=source)
            for v in some("p q r")
        ),
        tools=ToolSettings(
            read_only=Sourced(dice.random() < 0.5, source) if dice.random() < 0.5 else None,
            allowed_paths=None if dice.random() < 0.5 else some("/a /b"),
            denied_paths=some("/c /d"),
            path_rules=tuple(
                PathRule(action=Action.DENY, path=v.value, source=source) for v in some("/e /f")
            ),
            command_rules=tuple(
                CommandRule(action=Action.DENY, exe=v.value, source=source) for v in some("g h")
            ),
            denied_commands=some("i j"),
        ),
        container=tuple(
            Setting(key=v.value, value=dice.choice([(name,), ("t",)]), source=source)
            for v in some("k l")
        )
        + tuple(Setting(key=v.value, value=name, source=source) for v in some("m n")),
        workdir=Sourced(name, source) if dice.random() < 0.5 else None,
        notes=(name,) if dice.random() < 0.5 else (),
    )


def test_merging_is_associative_and_the_empty_policy_changes_nothing() -> None:
    dice = random.Random(3)
    for _ in range(500):
        a, b, c = (random_policy(dice, name) for name in "abc")
        assert merge(merge(a, b), c) == merge(a, merge(b, c))
        assert merge(EMPTY, a) == merge(a, EMPTY) == merge(a, a) == a


def test_a_later_rule_stands_in_front() -> None:
    def rule(name: str) -> Rule:
        return Rule(id=name, action=Action.DENY, matches=(), reason=None, source=Source(file="x"))

    under = replace(EMPTY, rules=(rule("a"), rule("b")))
    over = replace(EMPTY, rules=(rule("c"), rule("d")))
    assert [rule.id for rule in merge(under, over).rules] == ["c", "d", "a", "b"]


def test_a_value_that_is_there_already_keeps_its_first_source() -> None:
    def blocks(file: str) -> Policy:
        return replace(EMPTY, syscalls=Syscalls(block=(Sourced("ptrace", Source(file=file)),)))

    assert merge(blocks("a"), blocks("b")).syscalls.block[0].source.file == "a"


def passes(policy: Policy, name: str) -> bool:
    """The rule of the core: a pass pattern lets a variable in, a deny pattern removes it, its exact
    name keeps it.
    """
    if name in [kept.value for kept in policy.env.keep]:
        return True
    return any(component_matches(p.value, name) for p in policy.env.pass_) and not any(
        component_matches(d.value, name) for d in policy.env.deny
    )


SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "LC_SECRET",
    "BASH_ENV",
    "LD_PRELOAD",
)


def test_variables_with_secrets_are_removed(dirs: UserDirs) -> None:
    """C-046, C-047."""
    policy = dirs.load()
    assert passes(policy, "PATH")
    assert passes(policy, "LC_ALL")
    assert not any(passes(policy, name) for name in (*SECRETS, "SOMETHING_ELSE"))


def test_a_named_variable_passes_and_no_other_with_it(dirs: UserDirs) -> None:
    """C-047: also if a policy passes every variable that the base profile does not deny."""
    dirs.environ.update(dict.fromkeys(SECRETS, "x"))
    everything = dirs.file("p.toml", "[meta]\ninherit = 'ai-agent'\n[env]\npass = ['*']\n")
    for request in (Request(), Request(policies=(str(everything),))):
        before = dirs.load(request)
        after = dirs.load(replace(request, env_pass=("AWS_SECRET_ACCESS_KEY",)))
        assert not passes(before, "AWS_SECRET_ACCESS_KEY")
        assert passes(after, "AWS_SECRET_ACCESS_KEY")
        assert not any(passes(after, name) for name in SECRETS[1:])


def test_a_wildcard_after_env_pass_lifts_nothing(dirs: UserDirs) -> None:
    assert not passes(dirs.load(Request(env_pass=("AWS_*",))), "AWS_SESSION_TOKEN")


def test_a_pass_in_a_file_lifts_nothing(dirs: UserDirs) -> None:
    policy = dirs.load_text("[env]\npass = ['GITHUB_TOKEN', 'PLAIN']\n")
    assert passes(policy, "PLAIN")
    assert not passes(policy, "GITHUB_TOKEN")


@pytest.mark.parametrize("name", ["1A", "", "A-B", "A=B", "Ä"])
def test_a_name_that_no_variable_has_is_refused(dirs: UserDirs, name: str) -> None:
    assert "--env-pass" in dirs.refuse_request(Request(env_pass=(name,))).message


def test_a_deny_that_is_needed_stays_beside_the_optional_one(dirs: UserDirs) -> None:
    policy = dirs.load_text('[filesystem]\ndeny_globs = ["**/.env"]\n')
    kinds = {
        deny.optional: deny.source.builtin
        for deny in policy.filesystem.denies
        if deny.pattern == "**/.env"
    }
    assert kinds == {True: True, False: False}


def test_a_call_that_a_person_blocks_stays_beside_the_built_in_block(dirs: UserDirs) -> None:
    policy = dirs.load_text('[syscalls]\nblock = ["shmget"]\n')
    assert {call.source.builtin for call in policy.syscalls.block if call.value == "shmget"} == {
        True,
        False,
    }


def test_a_file_cannot_imitate_a_built_in_profile() -> None:
    assert Source(file="built-in base", line=3).builtin
    assert not Source(file="built-in base.toml", line=3).builtin
    assert not Source(file="built-in x.conf", line=3).builtin
