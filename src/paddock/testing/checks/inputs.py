"""The inputs of a command: words, stdin, directory, variables, files."""

from __future__ import annotations

import os

from paddock.executors.run import Outcome
from paddock.testing.place import Place, check, refused


@check
async def there_is_nothing_on_stdin(place: Place) -> None:
    assert (await place.run("cat; echo end")).stdout == "end\n"


@check
async def stdin_arrives_and_ends(place: Place) -> None:
    data = os.urandom(1024 * 1024)
    result = await place.run(["cat"], stdin=data, cap=4 * 1024 * 1024)
    assert bytes(result.output["stdout"]) == data


@check
async def a_command_need_not_read_its_stdin(place: Place) -> None:
    result = await place.run("echo done", stdin=b"x" * 1024 * 1024)
    assert (result.stdout, result.exit_code) == ("done\n", 0), result


@check
async def arguments_are_not_for_a_shell(place: Place) -> None:
    words = ["a b", "", "$HOME", "`id`", "'", '"', "*", "\\", "ä ü 漢", "-n", "a\nb", "; exit 3"]
    result = await place.run(["printf", "%s\\0", *words])
    assert bytes(result.output["stdout"]).decode().split("\0")[:-1] == words, result


@check
async def a_line_is_for_a_shell(place: Place) -> None:
    assert (await place.run("x='a  b'; echo \"$x\" | tr a c")).stdout == "c  b\n"


@check
async def it_runs_in_the_workspace(place: Place) -> None:
    assert (await place.run("pwd -P", cwd=None)).stdout == f"{os.path.dirname(place.inside)}\n"


@check
async def it_runs_where_it_is_told_to(place: Place) -> None:
    (place.workspace / "sub" / "dir").mkdir(parents=True)
    assert (
        await place.run("pwd -P", cwd=f"{place.inside}/sub/dir")
    ).stdout == f"{place.inside}/sub/dir\n"
    relative = f"{os.path.basename(place.inside)}/sub"
    assert (await place.run("pwd -P", cwd=relative)).stdout == f"{place.inside}/sub\n"


@check
async def directories_have_odd_names(place: Place) -> None:
    for name in ("with space", "ünï-漢", "quote'\"", "$HOME", "-dash", "semi;colon"):
        (place.workspace / name).mkdir()
        (place.workspace / name / "here").write_text(name)
        result = await place.run(["cat", "here"], cwd=f"{place.inside}/{name}")
        assert result.stdout == name, result


@check
async def a_directory_that_is_not_there_runs_nothing(place: Place) -> None:
    result = await place.run(f"touch {place.inside}/ran", cwd=f"{place.inside}/not/there")
    assert result.exit_code != 0, result
    assert not place.tells_failures or result.outcome is Outcome.FAILED, result
    assert not (place.workspace / "ran").exists()


@check
async def the_environment_given_is_seen(place: Place) -> None:
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
    result = await place.run(shown, env=env)
    assert bytes(result.output["stdout"]).decode().split("\0")[:-1] == list(env.values()), result


@check
async def the_environment_given_lies_on_top(place: Place) -> None:
    assert (await place.run('echo "$HOME"', env={"HOME": "/elsewhere"})).stdout == "/elsewhere\n"


@check
async def there_is_a_path_to_find_programs_on(place: Place) -> None:
    assert "/usr/bin" in (await place.run('echo "$PATH"')).stdout.strip().split(":")


@check
async def a_name_that_is_none_is_refused(place: Place) -> None:
    for name in ("A=B", "", "A\0"):
        with refused():
            await place.executor.spawn(["true"], env={name: "x"})


@check
async def one_call_leaves_no_variable_for_the_next(place: Place) -> None:
    await place.run("export LEFT=1", env={"GIVEN": "1"})
    assert (await place.run('echo "[$LEFT$GIVEN]"')).stdout == "[]\n"


@check
async def what_a_command_writes_the_host_sees(place: Place) -> None:
    await place.run("echo from inside > made")
    assert (place.workspace / "made").read_text() == "from inside\n"
    assert (place.workspace / "made").stat().st_uid == os.getuid()


@check
async def what_the_host_writes_a_command_sees(place: Place) -> None:
    for number in range(20):
        (place.workspace / "turn").write_text(str(number))
        assert (await place.run(["cat", f"{place.inside}/turn"])).stdout == str(number)
