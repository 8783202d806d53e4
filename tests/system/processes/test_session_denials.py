"""The result of a command lists its own denials only."""

from __future__ import annotations

import pytest

from tests.support.sandbox import SandboxRunner
from tests.support.session_program import play

RULES = """
[meta]
inherit = "ai-agent"
default_action = "allow"
[[rule]]
id = "no-ids"
action = "deny"
exe_basename = "id"
reason = "who one is is nobody's business"
[[rule]]
id = "ask-for-names"
action = "ask"
exe_basename = "uname"
"""
SHOW = (
    "show = lambda result: [[one.kind.value, one.target, one.rule_id, "
    "one.reason] for one in result.denials]"
)
NO_IDS = ["exec", "id -u", "no-ids", "who one is is nobody's business"]


@pytest.fixture(params=["landlock", "full"])
def sandboxed(request: pytest.FixtureRequest) -> SandboxRunner:
    found = request.getfixturevalue("sandbox" if request.param == "landlock" else "full")
    assert isinstance(found, SandboxRunner)
    return found


def _policy(sandbox: SandboxRunner, text: str) -> str:
    return str(sandbox.tree.put(sandbox.tree.root / "policy" / "paddock.toml", text))


def test_result_names_an_exec_that_a_rule_denied(sandboxed: SandboxRunner) -> None:
    reported = play(
        sandboxed,
        f"""
        {SHOW}
        async with Sandbox(**options) as box:
            control = await box.run("true; echo ran")
            tell(control.stdout, show(control))
            within = await box.run("id -u; echo $?")
            tell(within.outcome.value, within.stdout, show(within))
            itself = await box.run(["id", "-u"])
            tell(itself.outcome.value, itself.exit_code, show(itself))
            tell(show(await box.run("true")))
        """,
        policy=_policy(sandboxed, RULES),
    )
    assert reported == [
        ["ran\n", []],
        ["exited", "126\n", [NO_IDS]],
        ["denied", 126, [NO_IDS]],
        [[]],
    ]


def test_concurrent_results_name_their_own_denials_only(sandboxed: SandboxRunner) -> None:
    reported = play(
        sandboxed,
        """
        async with Sandbox(**options) as box:
            lines = [f"id -{number}" if number % 2 else "true" for number in range(12)]
            # The shell is gone before what it left behind is refused.
            away = "(setsid sh -c 'id -{0}; echo > told-{0}' &) ; while ! test -e told-{0}; do \
sleep 0.02; done"
            lines += [away.format(number) for number in (20, 21)]
            results = await asyncio.gather(*map(box.run, lines))
            tell(*[[one.target for one in result.denials] for result in results])
        """,
        policy=_policy(sandboxed, RULES),
    )
    assert reported == [
        [*[[f"id -{number}"] if number % 2 else [] for number in range(12)], ["id -20"], ["id -21"]]
    ]


def test_result_names_the_approvers_denial_and_waiting_counts_as_time(
    sandboxed: SandboxRunner,
) -> None:
    reported = play(
        sandboxed,
        f"""
        import threading
        {SHOW}
        never = threading.Event()
        answers = iter([lambda: Verdict.ONCE, lambda: Verdict.DENY, lambda: never.wait() and \
Verdict.DENY])
        async with Sandbox(**options, approver=lambda question: next(answers)()) as box:
            allowed = await box.run(["uname"])
            tell(allowed.stdout, show(allowed))
            tell(show(await box.run(["uname"])))
            late = await box.run(["uname"], timeout_s=1)
            tell(late.outcome.value, late.exit_code, late.stdout)
            never.set()
        """,
        policy=_policy(sandboxed, RULES),
    )
    denied = ["exec", "uname", "ask-for-names", None]
    assert reported == [["Linux\n", []], [[denied]], ["timed out", 124, ""]]


def test_result_names_a_denied_host(full: SandboxRunner) -> None:
    policy = (
        '[meta]\ninherit = "ai-agent"\n[network]\nmode = "filtered"\n'
        'allowed_hosts = ["allowed.example"]\n'
    )
    dial = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 8443), 20).recv(1)'"
    look_up = "python3 -c 'import socket; socket.getaddrinfo(\"denied.example\", 443)'"
    reported = play(
        full,
        f"""
        {SHOW}
        async with Sandbox(**options) as box:
            alone, other = await asyncio.gather(box.run({dial!r}), box.run("echo other"))
            tell(alone.exit_code, show(alone))
            tell(other.stdout, show(other))
            named = await box.run({look_up!r})
            tell(named.exit_code, show(named)[:1])
        """,
        policy=_policy(full, policy),
    )
    (_, denials), other, (named_code, [named]) = reported
    assert named_code == 1
    assert [denial[:2] for denial in denials] == [["host", "192.0.2.1:8443"]]
    assert other == ["other\n", []]
    assert named[:2] == ["host", "denied.example"]
