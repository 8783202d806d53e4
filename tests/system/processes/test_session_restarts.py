"""The core of a session can start again. It then opens nothing that another run has planted
meanwhile.
"""

from __future__ import annotations

from tests.support.sandbox import SandboxRunner
from tests.support.session_program import play
from tests.support.tree import SECRET

_READS = '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{path}/**"]\n'
# The control is in the same program: the first start reads what the grant opens.
_STARTS_TWICE = """
import subprocess
async with Sandbox(**options) as box:
    first = await box.run(["cat", "{path}/own.txt"])
    tell(first.exit_code, first.stdout)
    await box.executor.dispose()
    {meanwhile}
    again = await box.run(["cat", "{path}/{name}"])
    tell(again.exit_code, again.stdout, again.error)
"""


def _other_run(sandbox: SandboxRunner, cwd: object, script: str) -> str:
    """A run of the same user in another directory."""
    words = [str(sandbox.installation.paddock), "run", "--tier", str(sandbox.tier), "--quiet"]
    words += ["--profile", "ai-agent", "--", "sh", "-c", script]
    return f"subprocess.run({words!r}, cwd={str(cwd)!r}, check=True)"


def test_a_link_that_another_run_plants_is_not_followed_by_a_second_start(
    sandbox: SandboxRunner,
) -> None:
    tree = sandbox.tree
    shared = tree.make(tree.root / "shared")
    granted = tree.make(shared / "granted")
    tree.put(granted / "own.txt", "mine\n")
    policy = tree.put(tree.root / "policy.toml", _READS.format(path=granted))
    plant = _other_run(sandbox, shared, f"mv granted old && ln -s {tree.outside} granted")
    body = _STARTS_TWICE.format(path=granted, meanwhile=plant, name="secret.txt")
    first, again = play(sandbox, body, policy=str(policy))
    assert first == [0, "mine\n"]
    assert again[0] != 0, again
    assert SECRET not in again[1]
    assert "leads through a symlink" in again[2], again
    assert sandbox.outside(["cat", granted / "secret.txt"]).stdout == f"{SECRET}\n"


def test_a_second_start_opens_nothing_that_the_first_did_not_open(sandbox: SandboxRunner) -> None:
    tree = sandbox.tree
    policy = tree.put(tree.root / "policy.toml", _READS.format(path=tree.project))
    wider = _READS.format(path=tree.outside)
    body = _STARTS_TWICE.format(
        path=tree.project,
        meanwhile=f"Path({str(policy)!r}).write_text({wider!r})",
        name="own.txt",
    )
    first, again = play(sandbox, body, policy=str(policy))
    assert first == [0, "mine\n"]
    assert again[0] != 0, again
    assert "would now open more than at the beginning of this session" in again[2], again
    assert str(tree.outside) in again[2], again


def test_a_second_start_without_a_change_runs_commands(sandbox: SandboxRunner) -> None:
    tree = sandbox.tree
    policy = tree.put(tree.root / "policy.toml", _READS.format(path=tree.outside))
    meanwhile = _other_run(sandbox, tree.make(tree.root / "other"), "touch made")
    body = _STARTS_TWICE.format(path=tree.project, meanwhile=meanwhile, name="own.txt")
    assert play(sandbox, body, policy=str(policy)) == [[0, "mine\n"], [0, "mine\n", None]]


def test_a_session_whose_cpu_time_is_spent_runs_nothing_more(sandbox: SandboxRunner) -> None:
    tree = sandbox.tree
    text = '[meta]\ninherit = "ai-agent"\n[limits]\ncpu_s = 2\n'
    policy = tree.put(tree.root / "policy.toml", text)
    body = """
    async def session():
        async with Sandbox(**options) as box:
            for command in ("touch first", "while :; do :; done", "touch ended", "touch later"):
                result = await box.run(command, timeout_s=120)
                tell(result.exit_code == 0, result.error or "")
    await session()
    async with Sandbox(**options) as box:
        tell((await box.run("touch other")).exit_code == 0, "")
    """
    first, *refused, other = play(sandbox, body, policy=str(policy))
    assert first == [True, ""]
    assert [done for done, _ in refused] == [False, False, False], refused
    # The command before may still meet the sandbox while it ends.
    assert "another one would renew its limit cpu_s" in refused[-1][1], refused
    assert not (tree.project / "ended").exists()
    assert not (tree.project / "later").exists()
    assert other == [True, ""], "the control: a new session has a budget of its own"
    assert (tree.project / "other").exists()
