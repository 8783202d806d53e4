"""Questions without an approver: no server, or a server that ends."""

from __future__ import annotations

import os
import signal
import threading

from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome
from tests.support.waiting import wait_for
from tests.system.approvals.conftest import POLICY, serving

ANSWERED_S = 120.0


def test_without_a_server_no_question_is_asked(sandbox: SandboxRunner) -> None:
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    for chosen, why in (
        ("", "no terminal is available for the question"),
        ("terminal", "no terminal is available for the question"),
        ("web", "cannot connect to the approvals server"),
        ("nobody", "PADDOCK_APPROVER is neither terminal nor web"),
    ):
        run = sandbox.inside(
            ["sh", "-c", "touch made"], "--policy", policy, env={"PADDOCK_APPROVER": chosen}
        )
        assert (run.exit_code, why in run.stderr) == (126, True), run
    assert not (sandbox.tree.project / "made").exists()


def test_the_end_of_the_server_denies_what_is_open_and_what_comes(sandbox: SandboxRunner) -> None:
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not answer approvals of an ordinary user",
    )
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    ended: list[Outcome] = []
    with serving(sandbox.tester, sandbox.installation) as server:
        command = sandbox.command(
            ["sh", "-c", "touch made; echo $?; touch other; echo $?"], "--policy", policy
        )
        run = threading.Thread(
            target=lambda: ended.append(
                sandbox.tester.run(command, cwd=sandbox.tree.project, timeout_s=ANSWERED_S)
            )
        )
        run.start()
        try:
            wait_for(lambda: server.state()["pending"] or None, "it is asked", ANSWERED_S)
        finally:
            os.kill(server.pid, signal.SIGKILL)
            run.join()
    assert ended[0].stdout == "126\n126\n"
    assert "the approver has ended" in ended[0].stderr
