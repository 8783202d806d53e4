"""The container executor: the arguments of the engine, the inside of the container, and
leftovers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock import ContainerExecutor, Outcome, Sandbox, ToolCall, Verdict
from paddock.executors import container_covers
from paddock.executors.container import PATH
from paddock.executors.interface import NotStarted
from paddock.executors.orphan_containers import LABEL, is_dead, owner
from paddock.executors.run import Result, run
from paddock.policy.command_line import Request
from paddock.policy.model import Tier
from tests.contract.engine import IMAGE, OPTIONS, Engine
from tests.support.session_program import alive
from tests.support.waiting import wait_for

SECRET = "value-that-nobody-may-read"


@asynccontextmanager
async def _executor(
    engine: Engine, workspace: Path, **more: Any
) -> AsyncIterator[ContainerExecutor]:
    client, *options = engine.words
    executor = ContainerExecutor(
        IMAGE, workspace=workspace, engine=client, engine_options=options, options=OPTIONS, **more
    )
    try:
        yield executor
    finally:
        await executor.dispose()


def test_a_worktree_has_one_container_with_the_callers_uid_and_few_rights(
    engine: Engine, tmp_path: Path
) -> None:
    """H-039 H-041 H-044 H-049"""

    async def scene() -> tuple[Result, Any]:
        async with _executor(engine, tmp_path) as executor:
            show = (
                "echo $0 $PATH; id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; "
                "ls /sys/class/net"
            )
            shown = await run(executor, show)
            assert shown.exit_code == 0, shown
            return shown, json.loads(engine.ask("inspect", executor.container))[0]

    shown, container = asyncio.run(scene())
    assert shown.stdout.split("\n") == [
        "sh /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        str(os.getuid()),
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "lo",
        "",
    ]
    assert [(mount["Source"], mount["Destination"]) for mount in container["Mounts"]] == [
        (str(tmp_path), "/work")
    ]
    assert container["HostConfig"]["AutoRemove"] is True
    assert container["HostConfig"]["Memory"] == 4096 * 1024 * 1024
    assert container["HostConfig"]["PidsLimit"] == 1024
    assert container["Config"]["Labels"][LABEL] == owner()


def test_a_variable_of_a_call_wins_and_is_not_on_the_command_line(
    engine: Engine, tmp_path: Path
) -> None:
    """H-029 H-042 H-043"""

    async def scene() -> tuple[str, list[str]]:
        os.environ["HOSTSECRET"] = "1"
        async with _executor(
            engine, tmp_path, env={"ONE": "container", "TWO": "container"}
        ) as executor:
            line = "env; touch /work/up; until test -e /work/go; do sleep 0.02; done"
            running = asyncio.create_task(run(executor, line, env={"ONE": SECRET}))
            while not (tmp_path / "up").exists():
                await asyncio.sleep(0.02)
            words = [
                path.read_bytes()
                for path in Path("/proc").glob("[0-9]*/cmdline")
                if _is_there(path)
            ]
            (tmp_path / "go").touch()
            return (await running).stdout, [word.decode(errors="replace") for word in words]

    try:
        output, words = asyncio.run(scene())
    finally:
        os.environ.pop("HOSTSECRET")
    assert {f"ONE={SECRET}", "TWO=container"} <= set(output.splitlines())
    assert "HOSTSECRET" not in output
    assert any('export ONE="$PADDOCK_' in word for word in words), (
        "the control: the client was seen"
    )
    assert not any(SECRET in word for word in words)


def test_the_engine_obeys_no_variable_that_is_for_the_command(
    engine: Engine, tmp_path: Path
) -> None:
    """A client that reads a configuration in the workspace would run programs of the command on the
    host.
    """
    client, seen, work = tmp_path / "engine", tmp_path / "seen", tmp_path / "work"
    work.mkdir()
    client.write_text(
        f"#!{sys.executable} -I\nimport os, sys\nopen({str(seen)!r}, "
        f"'a').writelines(f'{{n}}={{v}}\\n' for n, v in "
        f"os.environ.items())\nos.execv({engine.words[0]!r}, [*{engine.words!r}, *sys.argv[1:]])\n"
    )
    client.chmod(0o755)
    given = {
        "XDG_CONFIG_HOME": f"{work}/cfg",
        "CONTAINERS_STORAGE_CONF": f"{work}/s.conf",
        "LD_LIBRARY_PATH": f"{work}",
    }
    odd = {"UID": "77", "a.b": "dotted", "PADDOCK_X_0": "own", "IFS": "x"}

    async def scene() -> Result:
        executor = ContainerExecutor(
            IMAGE,
            workspace=work,
            exec_cwd=str(work),
            engine=str(client),
            options=OPTIONS,
            env=given,
        )
        try:
            return await run(executor, ["env"], env={"HOME": "/elsewhere", **odd})
        finally:
            await executor.dispose()

    ran = asyncio.run(scene())
    inside, outside = ran.stdout.splitlines(), seen.read_text()
    everything = {**given, **odd, "HOME": "/elsewhere"}
    assert {f"{name}={value}" for name, value in everything.items()} <= set(inside), ran
    assert [line for line in inside if line.startswith("PADDOCK_")] == [
        line for line in inside if line.startswith(("PADDOCK_COMMAND=", "PADDOCK_X_0="))
    ], "nothing is left of the names that the client saw"
    assert f"={work}/cfg\n" in outside, "the control: the client hands the values over"
    assert not [line for line in outside.splitlines() if line.partition("=")[0] in given]


def test_four_worktrees_run_at_once_each_in_a_container_of_its_own(
    engine: Engine, tmp_path: Path
) -> None:
    """H-007"""
    suite = (
        "for n in 1 2 3; do test -e case$n || exit 1; done; touch up; until test -e go; "
        "do sleep 0.02; done"
    )

    async def one(number: int) -> tuple[str, str]:
        place = tmp_path / str(number)
        place.mkdir()
        for name in ("case1", "case2", "case3"):
            (place / name).touch()
        (place / "name").write_text(str(number))
        async with _executor(engine, place) as executor:
            return (await run(executor, f"{suite}; cat name")).stdout, executor.container

    async def scene() -> tuple[list[tuple[str, str]], list[str]]:
        running = [asyncio.create_task(one(number)) for number in range(4)]
        while not all((tmp_path / str(number) / "up").exists() for number in range(4)):
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in running)
        seen = await asyncio.to_thread(engine.ask, "ps", "--quiet", "--no-trunc")
        for number in range(4):
            (tmp_path / str(number) / "go").touch()
        return await asyncio.gather(*running), seen.split()

    done, seen = asyncio.run(asyncio.wait_for(scene(), 120))
    assert [output for output, _ in done] == ["0", "1", "2", "3"]
    assert (len(seen), len({container for _, container in done})) == (4, 4)
    assert engine.ask("ps", "--all", "--quiet") == ""


def _is_there(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def test_file_tools_work_on_the_host_without_the_container(engine: Engine, tmp_path: Path) -> None:
    """H-008 H-010 H-014"""
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[meta]\ninherit = "ai-agent"\n[tools]\nrequire_approval_for_writes = false\n'
    )
    work = tmp_path / "work"
    work.mkdir()

    async def scene() -> list[object]:
        async with _executor(engine, work) as executor:
            approver = lambda question: Verdict.ONCE  # noqa: E731
            async with Sandbox(
                policy=policy, workspace=work, executor=executor, approver=approver
            ) as box:

                async def call(name: str, **arguments: Any) -> Any:
                    return await box.tools.call(ToolCall(name=name, arguments=arguments))

                (work / "sub").mkdir()
                await call("write_file", path="sub/made", content="by a tool")
                seen = await call("bash", command="pwd; cat sub/made")
                engine.ask("rm", "--force", "--time", "0", executor.container)
                written = await call("write_file", path="later", content="x")
                refused = await box.run("true")
                return [seen.content.stdout, written.outcome.value, refused.exit_code]

    seen, written, refused = asyncio.run(scene())
    assert (seen, written) == (b"/work\nby a tool", "ok")
    assert refused == 125


def test_without_an_engine_no_command_runs(tmp_path: Path) -> None:
    """H-048 H-052"""

    async def scene() -> tuple[Result, tuple[str, ...]]:
        executor = ContainerExecutor(IMAGE, workspace=tmp_path, engine=str(tmp_path / "no-engine"))
        result = await run(executor, f"touch {tmp_path}/ran")
        return result, await executor.dispose()

    result, left = asyncio.run(scene())
    assert (result.outcome, result.exit_code, left) == (Outcome.FAILED, 127, ())
    assert "no-engine" in str(result.error)
    assert not (tmp_path / "ran").exists()


def test_an_engine_that_disappears_is_an_error_result(engine: Engine, tmp_path: Path) -> None:
    """H-048"""
    client, work = tmp_path / "engine", tmp_path / "work"
    work.mkdir()
    client.write_text(f'#!/bin/sh\nexec {" ".join(engine.words)} "$@"\n')
    client.chmod(0o755)

    async def scene() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        executor = ContainerExecutor(IMAGE, workspace=work, engine=str(client), options=OPTIONS)
        output = (await run(executor, "echo up")).stdout
        client.write_text("#!/bin/sh\necho broken >&2; exit 125\n")
        return output, await executor.dispose(), await executor.dispose()

    output, left, again = asyncio.run(scene())
    assert output == "up\n"
    assert [text.endswith(": broken") for text in left] == [True]
    assert again == ()
    wait_for(
        lambda: engine.ask("ps", "--all", "--quiet") == "",
        "the end of its pipe ended the container",
    )


def test_docker_gets_the_same_arguments(tmp_path: Path) -> None:
    """H-040 H-051: a docker that records its arguments and does nothing."""
    docker, work = tmp_path / "docker", tmp_path / "work"
    work.mkdir()
    docker.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"open({str(tmp_path / 'told')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "if sys.argv[1] == 'run':\n    print('ready', flush=True); sys.stdin.read()\n"
    )
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)

    async def scene() -> str:
        executor = ContainerExecutor("image", workspace=work, engine=str(docker))
        await run(executor, "exit 0", cwd="sub", env={"A": "x"})
        await executor.dispose()
        return executor.container

    name = asyncio.run(scene())
    lines = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    reported = {words[0]: words for words in lines}
    user = f"{os.getuid()}:{os.getgid()}"
    assert reported["run"] == [
        "run", "--rm", "--interactive", "--name", name, "--label", f"{LABEL}={owner()}", "--user",
        user, "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none",
        "--memory", "4096m", "--pids-limit", "1024", "--volume", f"{work}:/work", "--workdir",
        "/work", "image", "sh", "-c",
        "echo ready `command -v bash || command -v sh`; cat >/dev/null; exit",
    ]  # fmt: skip
    disguise = reported["exec"][8]
    assert re.fullmatch("PADDOCK_[0-9A-F]{8}_0", disguise)
    assert reported["exec"] == [
        "exec", "--workdir", "/work/sub", "--env", f"PATH={PATH}", "--env", "HOME=/work", "--env",
        disguise, "--env", "PADDOCK_COMMAND", name, "sh", "-c",
        f'export A="${disguise}"; unset {disguise}; exec "$@"', "sh", "sh", "-c", "exit 0",
    ]  # fmt: skip
    assert reported["rm"] == ["rm", "--force", name]


HELD = """
import asyncio, sys
from paddock import ContainerExecutor
from paddock.executors.run import run
async def main():
    image, workspace, engine, *more = sys.argv[1:]
    at = more.index("--")
    engine = {"engine": engine, "engine_options": more[:at]}
    executor = ContainerExecutor(image, workspace=workspace, **engine, options=more[at + 1:])
    await run(executor, "setsid sleep 86400.5 & touch /work/up")
    print(executor.container, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_killed_owner_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    """H-053"""
    words = [sys.executable, "-c", HELD, IMAGE, str(tmp_path), *engine.words, "--", *OPTIONS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name in engine.ask("ps", "--format", "{{.Names}}").split(), "the control: it runs"
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: engine.ask("ps", "--all", "--quiet") == "", "the container is gone")
    wait_for(lambda: not alive("86400.5"), "and what ran in it")


def test_leftovers_of_a_dead_owner_are_removed_by_the_next(engine: Engine, tmp_path: Path) -> None:
    """H-053: the helpers of the owner were killed as well. Containers of living owners and without
    an owner stay.
    """
    program = "from paddock.executors.orphan_containers import owner; print(owner())"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        dead, _ = process.communicate()
    machine, boot, namespace, pid, began = owner().split("/")
    living = {
        "ours": owner(),
        "elsewhere": "/".join(("another-machine", boot, namespace, dead.split("/")[3], began)),
        "other-processes": "/".join((machine, boot, "1", dead.split("/")[3], began)),
    }
    left = {
        "dead": dead.strip(),
        "number-used-again": "/".join((machine, boot, namespace, pid, "1")),
    }
    left["before-the-boot"] = "/".join((machine, "another", namespace, pid, began))
    assert {name: is_dead(text) for name, text in {**living, **left}.items()} == {
        **dict.fromkeys(living, False),
        **dict.fromkeys(left, True),
    }

    async def scene() -> set[str]:
        async with _executor(engine, tmp_path) as executor:
            await run(executor, "true")
            await executor.swept()
            return set(engine.ask("ps", "--all", "--format", "{{.Names}}").split()) - {
                executor.container
            }

    try:
        for name, text in {"ours": living["ours"], "dead": left["dead"], "nobodys": ""}.items():
            label = ["--label", f"{LABEL}={text}"] if text else []
            engine.ask("create", "--name", name, "--network", "none", *label, IMAGE, "true")
        assert asyncio.run(scene()) == {"ours", "nobodys"}
    finally:
        engine.ask("rm", "--all", "--force")


@pytest.mark.parametrize("name", ["", "x", "a/b/c/d/e/f", "////"])
def test_a_container_with_an_unknown_owner_is_kept(name: str) -> None:
    assert not is_dead(name)


def _git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    return subprocess.run(
        ["git", *identity, "-C", directory, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


ATTACK = (
    "echo started; cat .env sub/.env.local; echo '#!/bin/sh' > .git/hooks/post-checkout; "
    "echo x >> .git/config; "
    "mv .git .git2; mv .git/hooks .git/hooks2; rm -f .env; echo x > .env; echo free > made; "
    "echo x > .git/description"
)


def test_protected_and_denied_names_hold_in_a_container(engine: Engine, tmp_path: Path) -> None:
    """The host checks: no hook, the same configuration, no secret in the output."""
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    _git(work, "init", "--quiet")
    for name in (".env", "sub/.env.local"):
        (work / name).write_text(f"KEY={SECRET}\n")
    config = (work / ".git" / "config").read_text()

    async def scene() -> tuple[bool, bool, Result, tuple[str, ...]]:
        async with _executor(engine, work) as executor:
            before = executor.confines_writes
            ran = await run(executor, ATTACK)
            await run(executor, "mkdir late && echo x > late/.env")
            return before, executor.confines_writes, ran, await executor.dispose()

    before, confines, ran, left = asyncio.run(scene())
    assert ran.stdout.startswith("started\n"), ran
    assert SECRET not in ran.stdout + ran.stderr
    assert (work / "made").read_text() == "free\n", (
        "the control: the rest of the workspace can be written"
    )
    assert (work / ".git" / "description").read_text() == "x\n", "the control: and the rest of .git"
    assert not (work / ".git" / "hooks" / "post-checkout").exists()
    assert (work / ".git" / "config").read_text() == config
    assert (work / ".env").read_text() == f"KEY={SECRET}\n"
    assert (before, confines) == (False, True)
    assert any(
        "only protected and denied names that exist at the start are covered" in note
        for note in ran.notes
    )
    assert [text for text in left if "late/.env" in text and "nothing protected it" in text], left


def test_the_common_directory_of_a_linked_worktree_comes_along(
    engine: Engine, tmp_path: Path
) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    _git(main, "init", "--quiet")
    _git(main, "commit", "--quiet", "--allow-empty", "-m", "first")
    _git(main, "worktree", "add", "--quiet", str(linked))
    common = main / ".git"
    line = (
        f"cat {common}/HEAD; echo x > {common}/objects/new; echo x > {common}/hooks/post-checkout; "
        f"echo x >> {common}/config; echo x > {common}/worktrees/linked/gitdir; echo x > .git"
    )
    kept = [common / "config", common / "worktrees" / "linked" / "gitdir", linked / ".git"]
    texts = [path.read_text() for path in kept]

    async def scene() -> Result:
        async with _executor(engine, linked) as executor:
            return await run(executor, line)

    ran = asyncio.run(scene())
    assert ran.stdout.startswith("ref: refs/heads/"), (ran.outcome, ran.stdout, ran.stderr)
    assert (common / "objects" / "new").exists(), "the control: commits can be made"
    assert not (common / "hooks" / "post-checkout").exists()
    assert [path.read_text() for path in kept] == texts


def test_a_container_that_cannot_search_for_names_reports_it(
    engine: Engine, tmp_path: Path
) -> None:
    request = Request(profiles=("ai-agent",), tier=Tier.LANDLOCK, command="/bin/sh")

    async def scene() -> tuple[Result, bool]:
        async with _executor(engine, tmp_path, request=request) as executor:
            return await run(executor, "echo ran"), executor.confines_writes

    ran, confines = asyncio.run(scene())
    assert (ran.stdout, confines) == ("ran\n", False)
    assert any("are not covered here" in note for note in ran.notes)
    mount = container_covers.Mount(
        source=None, target="/work/a:b/.env", directory=False, read_only=True
    )
    with pytest.raises(NotStarted, match="a name with a colon"):
        list(container_covers.volumes(container_covers.CoveredNames(mounts=(mount,)), "/empty"))
