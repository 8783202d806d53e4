"""A later plan of a session closes more, and opens nothing more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.host.facts import Host
from paddock.plan import Plan, compile_plan
from paddock.plan import widened as module
from paddock.policy.model import Access, Limit, Policy, ShellSettings
from paddock.text.path_walk import Identity, Tree
from tests.unit.plan.plan_inputs import FULL, HOST, deny, files, grant, policy, source

_GRANT = grant(Access.READ, "/data/**")
_OTHER = grant(Access.READ, "/other/**")
_POLICY = policy(files(_GRANT, denies=(deny("/data/key"),)))


def widened(before: Plan, now: Plan, *, journals_exist: bool = True) -> str | None:
    return module.widened(before, now, lambda path: journals_exist)


def _plan(host: Host = HOST, written: Policy = _POLICY) -> Plan:
    return compile_plan(written, host)


@pytest.mark.parametrize("host", [HOST, FULL], ids=["landlock", "full"])
def test_equal_and_narrower_plans_pass(host: Host) -> None:
    assert widened(_plan(host), _plan(host)) is None
    reached = (Tree(path="/elsewhere", identity=Identity(1, 2)),)
    more_known = replace(host, previously_writable=reached, journals=("/data/journal",))
    assert widened(_plan(host), _plan(more_known)) is None
    assert (
        widened(_plan(host, policy(files(_GRANT, _OTHER))), _plan(host, policy(files(_GRANT))))
        is None
    )


@pytest.mark.parametrize("host", [HOST, FULL], ids=["landlock", "full"])
def test_a_removed_journal_is_not_closed_any_more(host: Host) -> None:
    before = _plan(replace(host, journals=("/data/journal",)))
    assert widened(before, _plan(host), journals_exist=False) is None
    assert widened(before, _plan(host)) is not None


@pytest.mark.parametrize("host", [HOST, FULL], ids=["landlock", "full"])
def test_wider_plans_are_named(host: Host) -> None:
    more = policy(files(_GRANT, _OTHER, denies=(deny("/data/key"),)))
    assert widened(_plan(host), _plan(host, more)) == "/other (read)"
    assert widened(_plan(host), _plan(host, policy(files(_GRANT)))) is not None
    known = replace(host, previously_writable=(Tree(path="/elsewhere"),))
    assert widened(_plan(known), _plan(host)) == "/elsewhere (reached)"


def test_any_other_difference_counts() -> None:
    limited = replace(_POLICY, limits=(Limit(name="wall_s", value=9, source=source()),))
    assert widened(_plan(written=limited), _plan()) == "limits"


def test_restricted_shells_may_know_more_previously_writable_paths() -> None:
    shells = ShellSettings(grants=(grant(Access.WRITE, "/data/**"),), source=source())
    written = policy(files(grant(Access.ALLOW, "/data/**")), shell=shells)
    known = replace(FULL, previously_writable=(Tree(path="/elsewhere"),))
    before, now = _plan(FULL, written), _plan(known, written)
    assert before.shell != now.shell
    assert widened(before, now) is None
    assert widened(now, before) is not None
