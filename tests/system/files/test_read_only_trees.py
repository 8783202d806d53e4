"""Denied names in readable trees: grants of profiles, and changes of the host during a run."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Tester
from tests.support.tree import SECRET
from tests.support.waiting import wait_for

# Grants of the built-in profiles in the home, with the directories of the secrets.
GRANTED = (".config/nvim", ".config/fish", "bin", ".vim", ".oh-my-zsh/custom/a/b", ".deno",
".local/lib",
           ".local/share/pipx/venvs/x")  # fmt: skip
DENIED = (".env", "id_rsa", ".env.production~")


@pytest.fixture
def home(tester: Tester) -> Iterator[Path]:
    need("root", tester.disposable, "the tests do not change the home of an ordinary user")
    before = set(tester.home.iterdir())
    yield tester.home
    for path in set(tester.home.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def put(tester: Tester, path: Path, text: str = SECRET + "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    tester.give(tester.home / path.relative_to(tester.home).parts[0])
    return path


def readable(sandbox: SandboxRunner, paths: list[Path], *, inside: bool) -> list[str]:
    words: list[Word] = [
        "sh",
        "-c",
        'echo started; for path; do cat "$path" >/dev/null 2>&1 && echo "$path"; done',
        "sh",
        *paths,
    ]
    done = sandbox.inside(words) if inside else sandbox.outside(words)
    assert done.started, str(done)
    return done.stdout.splitlines()[1:]


def test_a_denied_name_is_closed_in_what_profiles_grant_of_the_home(
    full: SandboxRunner, tester: Tester, home: Path
) -> None:
    secrets = [put(tester, home / place / name) for place in GRANTED for name in DENIED]
    plain = [put(tester, home / place / "plain") for place in GRANTED]
    assert readable(full, [*secrets, *plain], inside=True) == [str(path) for path in plain]
    assert readable(full, secrets, inside=False) == [str(path) for path in secrets]
    for path in secrets[:3]:
        why = tester.run([full.installation.paddock, "why", "--path", path], cwd=full.tree.project)
        assert "denied" in why.stdout, str(why)


def test_a_denied_name_is_closed_three_levels_deep_in_opt_and_why_says_where_the_search_ends(
    full: SandboxRunner, tester: Tester
) -> None:
    need("root", tester.disposable, "only root can write /opt")
    top = Path(f"/opt/paddock-test-{tester.uid}")
    searched, deeper = top / "app" / ".env", top / "app" / "lib" / ".env"
    deeper.parent.mkdir(parents=True)
    try:
        for path in (searched, deeper):
            path.write_text(SECRET)
        assert readable(full, [searched, deeper], inside=True) == [str(deeper)]
        assert readable(full, [searched], inside=False) == [str(searched)]
        for path, answer in ((searched, "denied"), (deeper, "allowed")):
            why = tester.run(
                [full.installation.paddock, "why", "--path", path], cwd=full.tree.project
            )
            assert answer in why.stdout, str(why)
    finally:
        shutil.rmtree(top)


@contextmanager
def reading(full: SandboxRunner, home: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A command that prints for each line of input what it can read or reach."""
    script = """
import socket, sys
print("started", flush=True)
for line in sys.stdin:
    kind, _, path = line.rstrip("\\n").partition(" ")
    try:
        if kind == "read":
            print("read " + open(path).read().strip(), flush=True)
        else:
            socket.socket(socket.AF_UNIX).connect(path)
            print("connected", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""
    words = ["/usr/bin/python3", "-c", script]
    with full.starting(words, "--read", f"{home}/**", *flags, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


def answer(process: subprocess.Popen[str], kind: str, path: Path) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{kind} {path}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def settles(process: subprocess.Popen[str], kind: str, path: Path, expected: str) -> None:
    wait_for(
        lambda: answer(process, kind, path) == expected or None, f"{path} answers {expected}", 10
    )


@pytest.mark.parametrize("act", ["creates", "replaces", "makes the directory of"])
def test_a_path_deny_holds_when_the_host_changes_the_file(
    full: SandboxRunner, tester: Tester, home: Path, act: str
) -> None:
    """A deny of the base profile and one of a user's policy."""
    of_base, of_person = home / ".netrc", home / "docs" / "a" / "secret"
    if act != "makes the directory of":
        put(tester, home / "docs" / "a" / "plain", "plain\n")
    if act == "replaces":
        put(tester, of_base, "old\n")
        put(tester, of_person, "old\n")
    with reading(full, home, "--deny", str(of_person)) as process:
        put(tester, home / "new", SECRET + "\n").rename(of_base)
        settles(process, "read", of_base, "PermissionError")
        put(tester, home / "control", SECRET + "\n")
        settles(process, "read", home / "control", f"read {SECRET}")
        of_person.parent.mkdir(parents=True, exist_ok=True)
        put(tester, home / "new", SECRET + "\n").rename(of_person)
        settles(process, "read", of_person, "PermissionError")
    assert readable(full, [of_base, of_person], inside=False) == [str(of_base), str(of_person)]


def test_a_service_that_starts_during_a_run_is_not_reached_through_a_directory_that_is_only_read(
    full: SandboxRunner, home: Path
) -> None:
    """In the directories above a path deny, such as the home itself."""
    with reading(full, home) as process, socket.socket(socket.AF_UNIX) as service:
        service.bind(str(home / "service"))
        (home / "service").chmod(0o777)
        service.listen()
        settles(process, "connect", home / "service", "PermissionError")
        control = full.outside(
            [
                "python3",
                "-c",
                "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])",
                home / "service",
            ]
        )
        assert control.exit_code == 0, str(control)
