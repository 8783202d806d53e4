"""The inputs of a command: words, stdin, directory, variables, files."""

from __future__ import annotations

import os

from paddock.executors.run import Outcome
from paddock.testing.executor_under_test import ExecutorUnderTest, check, refused


@check
async def there_is_nothing_on_stdin(subject: ExecutorUnderTest) -> None:
    assert (await subject.run("cat; echo end")).stdout == "end\n"


@check
async def stdin_arrives_and_ends(subject: ExecutorUnderTest) -> None:
    data = os.urandom(1024 * 1024)
    result = await subject.run(["cat"], stdin=data, cap=4 * 1024 * 1024)
    assert bytes(result.output["stdout"]) == data


@check
async def a_command_need_not_read_its_stdin(subject: ExecutorUnderTest) -> None:
    result = await subject.run("echo done", stdin=b"x" * 1024 * 1024)
    assert (result.stdout, result.exit_code) == ("done\n", 0), result


@check
async def arguments_are_not_for_a_shell(subject: ExecutorUnderTest) -> None:
    words = ["a b", "", "$HOME", "`id`", "'", '"', "*", "\\", "ä ü 漢", "-n", "a\nb", "; exit 3"]
    result = await subject.run(["printf", "%s\\0", *words])
    assert bytes(result.output["stdout"]).decode().split("\0")[:-1] == words, result


@check
async def a_line_is_for_a_shell(subject: ExecutorUnderTest) -> None:
    assert (await subject.run("x='a  b'; echo \"$x\" | tr a c")).stdout == "c  b\n"


@check
async def it_runs_in_the_workspace(subject: ExecutorUnderTest) -> None:
    assert (await subject.run("pwd -P", cwd=None)).stdout == f"{os.path.dirname(subject.inside)}\n"


@check
async def it_runs_in_the_given_directory(subject: ExecutorUnderTest) -> None:
    (subject.workspace / "sub" / "dir").mkdir(parents=True)
    assert (
        await subject.run("pwd -P", cwd=f"{subject.inside}/sub/dir")
    ).stdout == f"{subject.inside}/sub/dir\n"
    relative = f"{os.path.basename(subject.inside)}/sub"
    assert (await subject.run("pwd -P", cwd=relative)).stdout == f"{subject.inside}/sub\n"


@check
async def directories_have_odd_names(subject: ExecutorUnderTest) -> None:
    for name in ("with space", "ünï-漢", "quote'\"", "$HOME", "-dash", "semi;colon"):
        (subject.workspace / name).mkdir()
        (subject.workspace / name / "here").write_text(name)
        result = await subject.run(["cat", "here"], cwd=f"{subject.inside}/{name}")
        assert result.stdout == name, result


@check
async def a_missing_directory_runs_nothing(subject: ExecutorUnderTest) -> None:
    result = await subject.run(f"touch {subject.inside}/ran", cwd=f"{subject.inside}/not/there")
    assert result.exit_code != 0, result
    assert not subject.tells_failures or result.outcome is Outcome.FAILED, result
    assert not (subject.workspace / "ran").exists()


@check
async def given_variables_are_seen(subject: ExecutorUnderTest) -> None:
    env = {
        "PLAIN": "1",
        "SPACED": "a b  c",
        "LINES": "a\nb",
        "QUOTED": "'\"$x`",
        "EQUAL": "a=b",
        "UNICODE": "ü漢",
        "EMPTY": "",
    }
    shown = "; ".join(f'printf "%s\\0" "${name}"' for name in env)
    result = await subject.run(shown, env=env)
    assert bytes(result.output["stdout"]).decode().split("\0")[:-1] == list(env.values()), result


@check
async def given_variables_override_the_environment(subject: ExecutorUnderTest) -> None:
    assert (await subject.run('echo "$HOME"', env={"HOME": "/elsewhere"})).stdout == "/elsewhere\n"


@check
async def there_is_a_path_to_find_programs_on(subject: ExecutorUnderTest) -> None:
    assert "/usr/bin" in (await subject.run('echo "$PATH"')).stdout.strip().split(":")


@check
async def an_invalid_variable_name_is_refused(subject: ExecutorUnderTest) -> None:
    for name in ("A=B", "", "A\0"):
        with refused():
            await subject.executor.spawn(["true"], env={name: "x"})


@check
async def one_call_leaves_no_variable_for_the_next(subject: ExecutorUnderTest) -> None:
    await subject.run("export LEFT=1", env={"GIVEN": "1"})
    assert (await subject.run('echo "[$LEFT$GIVEN]"')).stdout == "[]\n"


@check
async def the_host_sees_files_of_commands(subject: ExecutorUnderTest) -> None:
    await subject.run("echo from inside > made")
    assert (subject.workspace / "made").read_text() == "from inside\n"
    assert (subject.workspace / "made").stat().st_uid == os.getuid()


@check
async def commands_see_files_of_the_host(subject: ExecutorUnderTest) -> None:
    for number in range(20):
        (subject.workspace / "turn").write_text(str(number))
        assert (await subject.run(["cat", f"{subject.inside}/turn"])).stdout == str(number)
