"""Exec rules become a gate. Rules that cannot be enforced are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from paddock.errors import HostError, PolicyError
from paddock.plan import compile_plan
from paddock.plan.plan import Gate, GateMatch, GateRule, Level
from paddock.policy.model import Access, Action, Match, Meta, Rule, Sourced, Switch, Syscalls

from .plan_inputs import FULL, HOST, files, grant, policy, source

SCHEMA = Path(__file__).parents[3] / "schema"
SIMPLE = policy(files(grant(Access.READ, "/usr/**")))
GIT = Rule(
    id="git",
    action=Action.ASK,
    matches=(Match(key="exe_basename", values=("git",), negate=True),),
    reason="why",
    source=source(3),
)
RULED = replace(SIMPLE, rules=(GIT,))


def default(action: Action) -> Meta:
    return Meta(default_action=Sourced(action, source(2)))


def test_rules_become_a_gate_with_its_defaults() -> None:
    """F-053"""
    for host in (HOST, FULL):
        plan = compile_plan(RULED, host)
        assert plan.gate == Gate(
            default=Action.DENY,
            on_error=Action.DENY,
            timeout_ms=250,
            ask_timeout_s=300,
            trace=False,
            exec_only_granted=True,
            rules=(
                GateRule(
                    id="git",
                    action=Action.ASK,
                    reason="why",
                    source="p.toml:3",
                    match=(GateMatch(key="exe_basename", not_=True, values=("git",)),),
                ),
            ),
        )
        schema = json.loads((SCHEMA / "plan.schema.json").read_text())
        jsonschema.validate(json.loads(plan.canonical()), schema)
        assert "programs by 1 rule, else deny" in plan.notices[0].text


def test_a_written_value_wins_over_the_default() -> None:
    meta = Meta(
        default_action=Sourced(Action.ASK, source()),
        on_policy_error=Sourced(Action.ASK, source()),
        on_supervisor_timeout_ms=Sourced(7, source()),
        ask_timeout_s=Sourced(8, source()),
    )
    gate = compile_plan(replace(RULED, meta=meta), HOST).gate
    assert gate
    assert (gate.default, gate.on_error, gate.timeout_ms, gate.ask_timeout_s) == (
        Action.ASK,
        Action.ASK,
        7,
        8,
    )


@pytest.mark.parametrize(
    "meta", [Meta(), default(Action.ALLOW), Meta(ask_timeout_s=Sourced(8, source()))]
)
def test_without_rules_a_default_that_allows_is_no_gate(meta: Meta) -> None:
    asked = replace(SIMPLE, meta=meta)
    assert compile_plan(asked, HOST).gate is None


def test_layers_that_the_gate_needs_cannot_be_off_or_missing() -> None:
    with pytest.raises(PolicyError, match=r"--off seccomp: the exec rules \(p\.toml:3\)"):
        compile_plan(replace(RULED, off=(Switch.SECCOMP,)), HOST)
    with pytest.raises(HostError, match=r"p\.toml:3: exec rules need seccomp user notification"):
        compile_plan(RULED, replace(HOST, user_notification=False))
    assert compile_plan(SIMPLE, replace(HOST, user_notification=False)).gate is None


def test_without_landlock_exec_is_not_limited_to_granted_programs() -> None:
    gate = compile_plan(replace(RULED, off=(Switch.LANDLOCK,)), HOST).gate
    assert gate
    assert not gate.exec_only_granted


def test_tracing_gives_a_notice_on_every_run_with_a_gate() -> None:
    traced = Syscalls(trace=Sourced(True, source(5)))
    for asked, output in ((RULED, 1), (SIMPLE, 0)):
        plan = compile_plan(replace(asked, syscalls=traced), HOST)
        warnings = [
            one.text
            for one in plan.notices
            if one.level is Level.WARNING and "trace each other" in one.text
        ]
        assert len(warnings) == output
        assert plan.gate is None or plan.gate.trace


def test_rules_are_refused_if_process_memory_can_be_written() -> None:
    for access, path in ((Access.ALLOW, "/proc/**"), (Access.WRITE, "/proc/self/**")):
        writing = replace(
            policy(files(grant(Access.READ, "/usr/**"), grant(access, path))), rules=(GIT,)
        )
        for host in (HOST, FULL):
            with pytest.raises(PolicyError, match="after the check"):
                compile_plan(writing, host)
            traced = Syscalls(trace=Sourced(True, source(4)))
            assert compile_plan(replace(writing, syscalls=traced), host).gate is not None
            assert compile_plan(replace(writing, rules=()), host).gate is None
