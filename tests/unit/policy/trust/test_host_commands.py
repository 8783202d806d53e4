"""Every path on the command line of a user is checked before the command runs outside of the
sandbox.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.policy.trust.host_commands import Planted, command
from paddock.policy.trust.writable_history import EMPTY_HISTORY, WritableHistory
from paddock.text.path_walk import follow


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path, WritableHistory]:
    """A directory that no command can write, one that a command can write, and the history that
    records it.
    """
    safe, workspace = tmp_path / "safe", tmp_path / "workspace"
    for place in (safe, workspace):
        (place / "bin").mkdir(parents=True)
        (place / "script").write_text("echo secret\n")
    (safe / "link").symlink_to(workspace / "script")
    return safe, workspace, WritableHistory().including([follow(str(workspace))])


def program(path: Path, first: str) -> Path:
    path.write_text(f"{first}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "words",
    [
        "/bin/sh PLACE/script",
        "/bin/sh -c 'exec PLACE/script'",
        "/bin/sh -c '. PLACE/script;id'",
        "/bin/sh -c $HOME/script",
        "/bin/sh -c 'cat ~/script'",
        "/usr/bin/env -CPLACE true",
        "/usr/bin/env --chdir=PLACE true",
        "/usr/bin/env LD_PRELOAD=/lib/x.so:PLACE/x.so true",
        "/bin/cat file://PLACE/script",
        "/bin/cat @PLACE/script",
        "/bin/cat PLACE/not-there-yet",
        "/bin/sh RELATIVE/script",
        "PLACE/script",
    ],
)
def test_every_word_that_names_a_path_is_checked(
    dirs: tuple[Path, Path, WritableHistory], words: str
) -> None:
    import shlex

    safe, workspace, reach = dirs
    for place in (safe, workspace):
        (place / "script").chmod(0o755)
        written = words.replace("PLACE", str(place)).replace(
            "RELATIVE", str(place).removeprefix("/")
        )
        argv, environ = shlex.split(written), {"PATH": "/usr/bin:/bin", "HOME": str(place)}
        if place is safe:
            assert command(argv, environ, reach).argv == tuple(argv), (
                "the control: no command can write it"
            )
        else:
            assert command(argv, environ, EMPTY_HISTORY).argv == tuple(argv)
            with pytest.raises(Planted, match=str(place)):
                command(argv, environ, reach)


def test_a_link_is_followed(dirs: tuple[Path, Path, WritableHistory]) -> None:
    safe, _, reach = dirs
    with pytest.raises(Planted):
        command(["/bin/sh", str(safe / "link")], {}, reach)


def test_the_interpreter_of_a_script_is_checked(dirs: tuple[Path, Path, WritableHistory]) -> None:
    safe, workspace, reach = dirs
    interpreter = program(workspace / "bin" / "shell", "#!/bin/sh")
    between = program(safe / "bin" / "between", f"#!{interpreter}")
    environ = {"PATH": f"{safe}/bin:/usr/bin:/bin"}
    good = program(safe / "good", "#!/bin/sh -e")
    assert command([str(good)], environ, reach).argv == (str(good),)
    by_env = program(safe / "by-env", "#!/usr/bin/env between")
    for first in (f"#!{interpreter}", f"#!{between}", f"#!/bin/sh {workspace}/script"):
        bad = program(safe / "bad", first)
        with pytest.raises(Planted, match=str(workspace)):
            command([str(bad)], environ, reach)
    with pytest.raises(Planted, match=str(workspace)):
        command([str(by_env)], environ, reach)


def test_programs_are_not_looked_for_where_a_command_can_write(
    dirs: tuple[Path, Path, WritableHistory],
) -> None:
    safe, workspace, reach = dirs
    program(safe / "bin" / "token", "#!/bin/sh")
    program(workspace / "bin" / "token", "#!/bin/sh")
    program(workspace / "bin" / "other", "#!/bin/sh")
    environ = {
        "PATH": f"{workspace}/bin:.::{safe}/bin",
        "PYTHONPATH": str(workspace),
        "LANG": "C",
        "HOME": "/",
    }
    assert command(["token"], environ, EMPTY_HISTORY).argv == (f"{workspace}/bin/token",)
    found = command(["token"], environ, reach)
    assert found.argv == (f"{safe}/bin/token",)
    assert found.environ == {"PATH": f"{safe}/bin", "LANG": "C", "HOME": "/"}, (
        "nor does it look there itself"
    )
    with pytest.raises(Planted, match=f"{workspace}/bin/other"):
        command(["other"], environ, reach)
    with pytest.raises(FileNotFoundError):
        command(["./script"], environ, reach)
