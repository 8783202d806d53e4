"""The core trusts no plan. It refuses a plan that it cannot apply exactly, and no command runs."""

from __future__ import annotations

import fcntl
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.core.canonical import canonical
from tests.support import core
from tests.support.core import Plan
from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome


@pytest.fixture
def plan(sandbox: SandboxRunner, host: dict[str, Any]) -> Plan:
    return core.plan_for(
        sandbox.tester,
        sandbox.tree.project,
        landlock_abi=host["landlock_abi"],
        read=[sandbox.programs.directory],
        allow=[sandbox.tree.project],
    )


def run_bytes(sandbox: SandboxRunner, content: bytes, *, seals: int | None = None) -> Outcome:
    with core.sealed(content, seals=seals) as fd:
        words = [
            sandbox.installation.core,
            "run",
            "--plan-fd",
            str(fd),
            "--",
            *sandbox.probe("create", "ran"),
        ]
        return sandbox.tester.run(words, cwd=sandbox.tree.project, pass_fds=[fd])


def assert_refused(sandbox: SandboxRunner, outcome: Outcome) -> None:
    assert outcome.exit_code == 125, str(outcome)
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("paddock: "), str(outcome)
    assert "panicked" not in outcome.stderr
    assert not (sandbox.tree.project / "ran").exists()


def test_control_the_unchanged_plan_runs(sandbox: SandboxRunner, plan: Plan) -> None:
    assert run_bytes(sandbox, core.canonical(plan)).answer == "ok"


def _set(*path: str | int, to: object) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        place: Any = plan
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        place: Any = plan
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return change


def _both(*changes: Callable[[Plan], None]) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        for one in changes:
            one(plan)

    return change


NAMES = _set("files", "protect", to=[{"below": ["**"], "but": [], "names": [".vscode"]}])
WITHOUT_SECCOMP = _set("seccomp", to=None)

GATE = {
    "default": "deny",
    "on_error": "deny",
    "timeout_ms": 250,
    "ask_timeout_s": 300,
    "trace": False,
    "exec_only_granted": True,
    "rules": [
        {
            "id": "all",
            "action": "allow",
            "reason": None,
            "source": "x",
            "match": [{"key": "exe_glob", "not": False, "values": ["/**"]}],
        }
    ],
    "approved": [],
}

HARM = {
    "exec rules that let through what can not be judged": _set(
        "gate", to={**GATE, "on_error": "allow"}
    ),
    "another version": _set("version", to=2),
    "an unknown key": _set("surprise", to=True),
    "an unknown key deep inside": _set("files", "grants", 0, "surprise", to=True),
    "a missing key": _drop("landlock"),
    "somebody else's uid": _set("user", "uid", to=0),
    "an ABI the kernel does not have": _set("landlock", "abi", to=99),
    "an unknown right": _set("landlock", "handled", to=["execute", "fly"]),
    "an unknown access": _set("files", "grants", 0, "access", to="everything"),
    "a relative path": _set("files", "grants", 0, "path", to="usr"),
    "a path with dots": _set("files", "grants", 0, "path", to="/usr/../home"),
    "a path with a NUL": _set("files", "grants", 0, "path", to="/usr\0/x"),
    "a missing grant": _set("files", "grants", 0, to=core.grant("/nowhere/at/all", "read")),
    "an unknown system call": _set("seccomp", "syscalls", to=["ptrce"]),
    "an unknown default": _set("seccomp", "default", to="maybe"),
    "a sandbox without no_new_privs": _set("no_new_privs", to=False),
    "a workdir that does not exist": _set("workdir", to="/nowhere/at/all"),
    "a relative workdir": _set("workdir", to="."),
    "a wrong type": _set("require_enforced", to="yes"),
    "an unknown tier": _set("tier", to="wooden"),
    "a tier without what it is made of": _set("tier", to="full"),
    "names where nothing holds them": _both(NAMES, WITHOUT_SECCOMP),
    "namespaces in the tier without them": _set(
        "namespaces", to={"nested": False, "hostname": "", "tmp_mb": None}
    ),
    "a missing limit": _drop("limits", "wall_s"),
    "an unknown limit": _set("rlimits", to={"fun": 0}),
}


@pytest.mark.parametrize("change", [NAMES, WITHOUT_SECCOMP], ids=["names", "without seccomp"])
def test_control_one_of_two_changes_runs(
    sandbox: SandboxRunner, plan: Plan, change: Callable[[Plan], None]
) -> None:
    """Both together are refused below: names need seccomp in the landlock tier."""
    change(plan)
    assert run_bytes(sandbox, core.canonical(plan)).answer == "ok"


@pytest.mark.parametrize("harm", HARM)
def test_a_plan_with_a_fault_is_refused(sandbox: SandboxRunner, plan: Plan, harm: str) -> None:
    HARM[harm](plan)
    assert_refused(sandbox, run_bytes(sandbox, core.canonical(plan)))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}" * 2, b"[" * 100_000, b'{"version":1}'],
    ids=["empty", "cut", "list", "null", "no text", "two", "deep", "nearly nothing"],
)
def test_an_invalid_plan_is_refused(sandbox: SandboxRunner, content: bytes) -> None:
    assert_refused(sandbox, run_bytes(sandbox, content))


def test_a_key_given_twice_is_refused(sandbox: SandboxRunner, plan: Plan) -> None:
    """Two parsers could choose different values."""
    twice = core.canonical(plan)[:-1] + b',"landlock":null}'
    assert_refused(sandbox, run_bytes(sandbox, twice))


@pytest.mark.parametrize(
    "seals",
    [
        0,
        fcntl.F_SEAL_WRITE,
        fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW,
        fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK,
    ],
    ids=["none", "write", "no shrink", "no write"],
)
def test_a_plan_that_can_still_be_changed_is_refused(
    sandbox: SandboxRunner, plan: Plan, seals: int
) -> None:
    assert_refused(sandbox, run_bytes(sandbox, core.canonical(plan), seals=seals))


def test_a_plan_in_a_plain_file_is_refused(sandbox: SandboxRunner, plan: Plan) -> None:
    path: Path = sandbox.tree.put(sandbox.tree.root / "plan.json", core.canonical(plan).decode())
    fd = os.open(path, os.O_RDONLY)
    try:
        words = [
            sandbox.installation.core,
            "run",
            "--plan-fd",
            str(fd),
            "--",
            *sandbox.probe("create", "ran"),
        ]
        assert_refused(sandbox, sandbox.tester.run(words, cwd=sandbox.tree.project, pass_fds=[fd]))
    finally:
        os.close(fd)


@pytest.mark.parametrize("number", ["999", "-1", "x", ""])
def test_a_descriptor_that_is_not_there_is_refused(sandbox: SandboxRunner, number: str) -> None:
    words = [
        sandbox.installation.core,
        "run",
        "--plan-fd",
        number,
        "--",
        *sandbox.probe("create", "ran"),
    ]
    assert_refused(sandbox, sandbox.tester.run(words, cwd=sandbox.tree.project))


def test_a_deny_is_found_through_links_and_before_it_exists(
    sandbox: SandboxRunner, plan: Plan
) -> None:
    """``except`` means a file, not a spelling: through a link, and with a part that does not exist
    yet.
    """
    place = sandbox.tree.make(sandbox.tree.root / "place")
    key = sandbox.tree.put(place / "private" / "key", "secret\n")
    sandbox.tree.put(place / "open", "open\n")
    alias = sandbox.tree.root / "alias"
    alias.symlink_to(place)
    grants = plan["files"]["grants"]
    for kept_out in (alias / "private", place / "private", alias / "private" / "later"):
        plan["files"]["grants"] = [*grants, core.grant(place, "read", kept_out=[kept_out])]
        expected = {
            place / "open": "ok open",
            key: "ok secret" if kept_out.name == "later" else "EACCES",
        }
        for path, answer in expected.items():
            tried = core.run_core(
                sandbox.tester, sandbox.installation.core, plan, sandbox.probe("read", path)
            )
            assert tried.answer == answer, f"{kept_out}: {tried}"


def test_a_damaged_question_gets_an_answer_or_a_refusal(sandbox: SandboxRunner, plan: Plan) -> None:
    """`judge` reads the questions of people. The gate itself reads no text."""
    whole = canonical({"path": "/usr/bin/ls", "argv": ["ls", "caf\udce9"], "cwd": "/"})
    gated = core.changed(plan, gate=GATE)
    dice = random.Random(7)
    answers = set()
    for number in range(80):
        question = list(whole)
        for _ in range(number and dice.randint(1, 3)):
            at = dice.randrange(len(question))
            question[at : at + dice.randint(0, 3)] = dice.choice(
                ['"', "{", "]", ",", "0", "\\", "null", "\\ud800", ""]
            )
        outcome = core.run_core(
            sandbox.tester,
            sandbox.installation.core,
            gated,
            [],
            verb="judge",
            stdin="".join(question),
        )
        assert outcome.exit_code in (0, 125), outcome
        if outcome.exit_code == 0:
            decision = json.loads(outcome.stdout)["decision"]
            assert decision is None or decision["action"] in ("allow", "deny")
        else:
            assert outcome.stderr.startswith("paddock: "), outcome
            assert outcome.stdout == ""
        assert "panicked" not in outcome.stderr
        answers.add(outcome.exit_code)
    assert answers == {0, 125}


def test_a_command_without_a_judge_of_its_writes_is_ended(
    sandbox: SandboxRunner, host: dict[str, Any]
) -> None:
    """Init makes the judge when the command runs. The command waits in its first write."""
    need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    project = sandbox.tree.project
    granted = sandbox.tree.put(project / "granted", "before")
    plan = core.plan_for(
        sandbox.tester, project, landlock_abi=host["landlock_abi"], read=[project], allow=[granted]
    )
    namespaces = {"nested": False, "hostname": "", "tmp_mb": None}
    plan = core.changed(plan, tier="full", namespaces=namespaces, judges_writes=True)

    def write(denied: int) -> Outcome:
        """``denied`` squared patterns can match only in the granted file, which has no tree."""
        below = [f"{granted}/{number}" for number in range(denied)]
        names = [str(number) for number in range(denied)]
        files = {**plan["files"], "deny_names": [{"below": below, "but": [], "names": names}]}
        words = ["sh", "-c", "echo after > granted; echo written"]
        return core.run_core(
            sandbox.tester, sandbox.installation.core, core.changed(plan, files=files), words
        )

    ended = write(250)
    assert (ended.exit_code, ended.stdout) == (125, ""), str(ended)
    assert ended.stderr.startswith("paddock: the plan has too many name patterns"), str(ended)
    assert granted.read_text() == "before"
    control = write(2)
    assert (control.exit_code, control.stdout) == (0, "written\n"), str(control)
    assert granted.read_text() == "after\n"
