"""A session has policy, executor, tools, approver and journal. The tests check each part and the
end.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner
from tests.support.session_program import alive, gone, mark, play, playing, words
from tests.support.waiting import wait_for

TOOLS = """
[meta]
inherit = "ai-agent"
[tools]
require_approval_for_writes = false
require_approval_for_execute = false
"""


def _policy(sandbox: SandboxRunner, text: str = TOOLS) -> str:
    return str(sandbox.tree.put(sandbox.tree.root / "policy" / "paddock.toml", text))


def test_file_tools_and_commands_use_the_same_files(full: SandboxRunner) -> None:
    """H-008 H-012 H-013. One journal has both."""
    journal = full.tree.root / "journal"
    outside = full.tree.put(full.tree.root / "beyond", "secret")
    reported = play(
        full,
        f"""
        os.chdir("/")
        async with Sandbox(**options) as box:
            async def call(name, **arguments):
                return await box.tools.call(ToolCall(name=name, arguments=arguments))
            written = await call("write_file", path="made", content="by a tool")
            read = await call("bash", command="cat made; cat {outside}")
            beyond = await call("read_file", path="{outside}")
            tell(written.outcome.value, read.content.stdout.decode(), read.content.exit_code, \
beyond.outcome.value)
        """,
        policy=_policy(full),
        journal=str(journal),
    )
    assert reported == [["ok", "by a tool", 1, "blocked"]]
    assert (full.tree.project / "made").read_text() == "by a tool"
    assert outside.read_text() == "secret", "the control: it is there"
    kinds = [event["event"] for event in full.events(journal)]
    assert {"session.start", "tool", "tool.end", "session.end"} <= set(kinds), kinds


def test_a_limited_tool_set_still_has_shells(
    sandbox: SandboxRunner,
) -> None:
    """H-016 H-036"""
    reported = play(
        sandbox,
        """
        async def mine(call):
            return "mine"
        async def names(**more):
            async with Sandbox(**options, **more) as box:
                await until_said(box)
                return box.tools.names
        async def until_said(box):
            shell = await box.shells.start("echo said")
            assert await shell.wait_for("said", 60)
        tell(*await names())
        tell(*await names(handlers={"mine": mine}))
        tell(*await names(handlers={"mine": mine}, closed_tool_set=("mine", "read_file")))
        async with Sandbox(**options, closed_tool_set=("read_file",)) as box:
            result = await box.tools.call(ToolCall(name="bash", arguments={"command": "touch \
made"}))
            tell(result.outcome.value, result.message)
        try:
            await names(closed_tool_set=("read_file", "fly"))
        except UsageError:
            tell("ready")
        """,
        policy=_policy(sandbox),
    )
    every = ["read_file", "write_file", "edit_file", "list_directory", "bash"]
    assert [sorted(names) for names in reported[:3]] == [
        sorted(every),
        sorted([*every, "mine"]),
        ["mine", "read_file"],
    ]
    assert reported[3] == ["invalid_arguments", "unknown tool 'bash'"]
    assert reported[4] == ["ready"]
    assert not (sandbox.tree.project / "made").exists()


def test_one_approver_answers_for_tools_and_for_rules(full: SandboxRunner) -> None:
    policy = (
        '[meta]\ninherit = "ai-agent"\ndefault_action = "allow"\n[[rule]]\nid = "r"\n'
        'action = "ask"\n'
    )
    reported = play(
        full,
        """
        asked = []
        def approve(question):
            asked.append(type(question).__name__)
            return Verdict.ONCE
        async with Sandbox(**options, approver=approve) as box:
            result = await box.tools.call(ToolCall(name="bash", arguments={"command": "uname"}))
            tell(result.content.stdout.decode(), sorted(asked))
        """,
        policy=_policy(full, policy + 'exe_basename = "uname"\n'),
    )
    assert reported == [["Linux\n", ["Question", "ToolQuestion"]]]


def test_shells_end_before_the_executor_and_both_end_despite_errors(
    sandbox: SandboxRunner,
) -> None:
    """H-009 H-015 H-024 H-054: a custom executor sees every command."""
    reported = play(
        sandbox,
        """
        order = []
        class Mine:
            name, confines_writes = "mine", False
            def __init__(self):
                self.host = HostExecutor()
            async def spawn(self, command, **more):
                order.append(command)
                return await self.host.spawn(command, **more)
            async def dispose(self):
                order.append("executor")
                await self.host.dispose()
                raise RuntimeError("of the executor")
        del options["tier"]
        async with Sandbox(**options, executor=Mine(), approver=lambda question: Verdict.ONCE) as \
box:
            shell = await box.shells.start("trap 'exit 3' TERM; echo up; while :; do sleep 0.05; \
done")
            await shell.wait_for("up", 60)
            await box.run("true")
            await box.tools.call(ToolCall(name="bash", arguments={"command": "echo tool"}))
            left = await box.dispose()
            order.append(shell.exit_code)
            tell(left, await box.dispose())
            try:
                await box.run("true")
            except UsageError as error:
                tell(error.message)
        tell(*order[1:])
        """,
        policy=_policy(sandbox),
    )
    assert reported == [
        [["mine: of the executor"], []],
        ["the session has ended"],
        ["true", "echo tool", "executor", 3],
    ]


def test_sigterm_ends_the_session_and_then_the_program(full: SandboxRunner) -> None:
    word = mark()
    body = f"""
        async with Sandbox(**options) as box:
            shell = await box.shells.start("trap 'touch told; exit' TERM; sleep {word} & wait")
            (Path.cwd() / "log").write_text(str(shell.log))
            tell("ready")
            await asyncio.sleep(600)
        """
    with playing(full, body) as process:
        wait_for(lambda: alive(word), "the command runs")
        log = (full.tree.project / "log").read_text()
        assert os.path.exists(log)
        process.terminate()
        assert process.wait(timeout=120) == -signal.SIGTERM
    gone(word)
    assert (full.tree.project / "told").exists(), "it was asked to end"
    assert not os.path.exists(log)


def test_a_program_that_handles_sigterm_keeps_its_handler(sandbox: SandboxRunner) -> None:
    body = """
        came = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, came.set)
        async with Sandbox(**options) as box:
            tell("ready")
            await came.wait()
            tell((await box.run("echo on")).stdout)
        """
    with playing(sandbox, body) as process:
        process.terminate()
        assert process.communicate(timeout=120) == ('["on\\n"]\n', "")
        assert process.returncode == 0


@pytest.mark.parametrize("tier", ["landlock", "full"])
def test_a_session_that_is_dropped_ends_with_a_warning(
    request: pytest.FixtureRequest, tier: str
) -> None:
    sandbox: SandboxRunner = request.getfixturevalue("sandbox" if tier == "landlock" else "full")
    word = mark()
    body = f"""
        import gc, warnings
        box = await Sandbox(**options).__aenter__()
        shell = await box.shells.start("sleep {word}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del box, shell
            gc.collect()
        assert any("was not closed" in str(one.message) for one in caught), caught
        tell("ready")
        await until("go")
        tell("end")
        """
    with playing(sandbox, body) as process:
        gone(word)
        sandbox.tree.put(sandbox.tree.project / "go", "")
        assert process.communicate(timeout=120)[0] == '["end"]\n'


def test_run_sync_has_all_features_of_a_session(sandbox: SandboxRunner) -> None:
    """The calls run in a thread beside an event loop."""
    body = """
        from paddock import run_sync
        def script():
            del options["tier"]
            heard = []
            said = run_sync("cat; echo $GIVEN; pwd; exit 3", cwd="sub", env={"GIVEN": "x"}, \
stdin="in ",
                            on_output=lambda stream, chunk: heard.append(stream), **options)
            late = run_sync(["sleep", "86400"], timeout_s=1, **options)
            return said.stdout, said.exit_code, heard[:1], late.timed_out
        os.makedirs("sub")
        tell(*await asyncio.to_thread(script))
        try:
            run_sync("true")
        except UsageError as error:
            tell(error.message)
        """
    outcome = sandbox.tester.run(words(sandbox, body), cwd=sandbox.tree.project)
    assert outcome.exit_code == 0, str(outcome)
    assert [json.loads(line) for line in outcome.stdout.splitlines()] == [
        [f"in x\n{sandbox.tree.project}/sub\n", 3, ["stdout"], True],
        ["run_sync cannot be called while an event loop runs"],
    ]


def test_a_session_without_a_policy_uses_the_project_policy(sandbox: SandboxRunner) -> None:
    """The project policy needs trust, as on the command line. Without the file the default profile
    applies.
    """
    body = """
        async with Sandbox(**options) as box:
            tell((await box.run("echo hello > made && cat made")).stdout)
        Path("paddock.toml").write_text("[meta]")
        try:
            await Sandbox(**options).__aenter__()
        except PolicyError as error:
            tell("trust" in str(error.hint))
        """
    assert play(sandbox, body) == [["hello\n"], [True]]


def test_spooled_output_follows_no_link_of_a_command(sandbox: SandboxRunner) -> None:
    victim = sandbox.tree.root / "victim"
    victim.mkdir()
    sandbox.tester.give(victim)
    spool = sandbox.tree.root / "spool"
    spool.mkdir()
    sandbox.tester.give(spool)
    reported = play(
        sandbox,
        f"""
        async with Sandbox(**options) as box:
            await box.run("ln -s {victim} led")
            for place in ("led", "led/below", box.workspace, "{spool}"):
                try:
                    tell((await box.run("echo said", spool=os.path.join(box.workspace, \
place))).outcome.value)
                except UsageError as error:
                    tell(str(error))
        """,
        policy=_policy(sandbox),
    )
    assert [reported[3]] == [["exited"]], reported
    assert all("is in the workspace" in line for (line,) in reported[:3]), reported
    assert list(victim.iterdir()) == []
    assert len(list(spool.iterdir())) == 2, "the control: stdout and stderr are spooled"


GRANTING = '[meta]\nversion = 1\ninherit = "ai-agent"\n[filesystem]\nallow_globs = '
# The command finds the log directory and plants a link at the name of the first log.
LOGS = """
found = "$(find . {reach} -maxdepth 1 -name 'paddock-shells-*')"
writer = f"for d in {{found}}; do ln -sf {victim} $d/shell_2.log; done; echo x >> {victim}"
async with Sandbox(**options) as box:
    first = await box.shells.start("true")
    await first.wait(60)
    done = await box.run(writer)
    tell("denied" in done.stderr or "Read-only" in done.stderr)
    shell = await box.shells.start("echo chosen by the command")
    await shell.wait(60)
    tell(shell.log.read_text(), os.stat(shell.log.parent).st_mode & 0o777)
"""


@pytest.mark.parametrize("reach", ["workspace", "granted"])
def test_commands_cannot_reach_shell_logs(sandbox: SandboxRunner, reach: str) -> None:
    victim = sandbox.tree.put(sandbox.tree.root / "victim", "kept")
    place = {
        "workspace": sandbox.tree.make(sandbox.tree.project / "temp"),
        "granted": sandbox.tree.make(sandbox.tree.root / "granted"),
    }[reach]
    policy = sandbox.tree.put(
        sandbox.tree.root / "logs.toml",
        f'{GRANTING}["{sandbox.tree.root}/granted/**?"]\n',
    )
    reported = play(
        sandbox,
        LOGS.format(reach=place, victim=victim),
        env={"TMPDIR": str(place)},
        policy=str(policy),
    )
    assert reported == [[True], ["chosen by the command\n", 0o700]], reported
    assert victim.read_text() == "kept"
    assert not list(place.glob("paddock-shells-*"))


def test_a_chosen_directory_of_logs_is_refused_where_commands_can_write(
    sandbox: SandboxRunner,
) -> None:
    victim = sandbox.tree.put(sandbox.tree.root / "victim", "kept")
    granted = sandbox.tree.make(sandbox.tree.root / "granted")
    apart = sandbox.tree.make(sandbox.tree.root / "apart")
    (apart / "shell_1.log").symlink_to(victim)
    policy = sandbox.tree.put(
        sandbox.tree.root / "logs.toml",
        f'{GRANTING}["{granted}/**"]\n',
    )
    reported = play(
        sandbox,
        f"""
        async with Sandbox(**options) as box:
            await box.run("mkdir logs; ln -s {victim} logs/shell_1.log; ln -s {apart} led")
            for place in ("logs", "led", "{granted}", "{apart}"):
                shells = Shells(box.executor, os.path.join(box.workspace, place))
                try:
                    shell = await shells.start("echo said")
                    await shell.wait(60)
                    tell(shell.log.read_text())
                except UsageError as error:
                    tell(str(error))
                finally:
                    await shells.dispose()
            try:
                await box.run("echo said", spool="{granted}")
            except UsageError as error:
                tell(str(error))
        """,
        policy=str(policy),
    )
    assert all("could create a link" in line for (line,) in (*reported[:3], reported[4])), reported
    assert reported[3] == ["said\n"], "control: commands can not write that directory"
    assert victim.read_text() == "kept"
    assert not (apart / "shell_1.log").is_symlink()


def test_commands_cannot_reach_ssh_control_sockets(sandbox: SandboxRunner) -> None:
    place = sandbox.tree.make(sandbox.tree.project / "temp")
    body = """
        async with Sandbox(**options) as box:
            await box.run("true")
        from paddock.executors.ssh import SshExecutor
        executor = SshExecutor("nowhere.invalid", exec_cwd="/")
        tell(executor._directory.name)
        """
    ((path,),) = play(sandbox, body, env={"TMPDIR": str(place)})
    assert Path(path).name.startswith("paddock-ssh-")
    assert not path.startswith(str(sandbox.tree.project))


def test_file_tools_are_refused_for_paths_that_commands_see_differently(
    full: SandboxRunner,
) -> None:
    hosts = Path("/var/tmp") / f"paddock-host-{os.getpid()}"
    hosts.write_text("the host's")
    hosts.chmod(0o644)
    everywhere = TOOLS + 'allowed_paths = ["/**"]\n'
    try:
        reported = play(
            full,
            f"""
            async with Sandbox(**options) as box:
                for path in ("{hosts}", "/proc/1/status", "made"):
                    read = await box.tools.call(ToolCall(name="read_file", arguments={{"path": \
path}}))
                    tell(read.outcome.value, (await box.run(["cat", "{hosts}"])).exit_code)
            """,
            policy=_policy(full, everywhere),
        )
    finally:
        hosts.unlink()
    assert reported == [["blocked", 1], ["blocked", 1], ["not_found", 1]]
