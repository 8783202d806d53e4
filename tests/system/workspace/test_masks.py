"""Denied names in a copy-on-write workspace stay hidden and unchanged, whatever the host does."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support.cow import Cow
from tests.support.features import need_root
from tests.support.guard import wait_until_judged

WATCH = """
    import os, select, sys
    sys.stdout.write("started\\n"); sys.stdout.flush()
    paths = sys.argv[1:]
    seen, rounds, listed = set(), 0, False
    stop = False
    while not stop:
        stop = bool(select.select([0], [], [], 0)[0])
        rounds += 1
        for path in paths:
            try:
                seen.add(open(path).read())
            except OSError:
                pass
            listed = listed or os.path.basename(path) in os.listdir(os.path.dirname(path) or ".")
    print(rounds, listed, sorted(seen))
    """


def watched(
    cow: Cow, paths: list[str], script: str, *, live: bool = False
) -> tuple[int, bool, list[str]]:
    """A command that reads the paths in a loop while the host runs a script."""
    words = ["python3", "-c", textwrap.dedent(WATCH), *paths]
    argv = cow.running(*words)
    if live:
        argv = [word for word in argv if word != "--cow"]
    known = cow.sessions()
    with cow.tester.starting(argv, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        cow.host(script)
        text, _ = process.communicate("stop\n", timeout=120)
    cow.made.extend(cow.sessions() - known)
    rounds, listed, seen = text.split(" ", 2)
    return int(rounds), listed == "True", json.loads(seen.replace("'", '"'))


SAVES = "for i in $(seq 200); do echo secret > .tmp; mv .tmp {path}; done"


def test_a_file_that_the_host_replaces_is_never_read(cow: Cow) -> None:
    cow.put(".env", "secret\n")
    cow.put("sub/.env", "secret\n")
    cow.put("plain", "old\n")
    script = (
        SAVES.format(path=".env")
        + "; "
        + SAVES.format(path="sub/.env")
        + "; "
        + SAVES.format(path="plain")
    )
    rounds, listed, seen = watched(cow, [".env", "sub/.env"], script)
    assert rounds > 10
    assert not listed
    assert seen == []
    # the control: an allowed name is read, also the new file
    _, listed, seen = watched(cow, ["plain"], SAVES.format(path="plain"), live=True)
    assert listed
    assert "secret\n" in seen


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_the_host_creates_is_not_seen(cow: Cow, large: bool) -> None:
    """In a small workspace in every directory. In a large one in its root, and beside another
    hidden name.
    """
    cow.host("mkdir -p sub/deep other; echo x > sub/deep/a; echo secret > other/.env.local")
    if large:
        cow.host("for i in $(seq 300); do mkdir -p many/$i; done")
    paths = [".env", "id_rsa", "other/.env"] + (
        [] if large else ["sub/.env", "sub/deep/.env.production"]
    )
    script = "; ".join(f"echo secret > {path}" for path in [*paths, "plain"])
    rounds, listed, seen = watched(cow, [*paths, "other/.env.local"], script)
    assert rounds > 10
    assert not listed
    assert seen == []
    assert watched(cow, ["plain"], "true")[1:] == (True, ["secret\n"])


def test_exact_paths_are_hidden_before_they_are_there(cow: Cow) -> None:
    cow.host("mkdir -p conf; for i in $(seq 300); do mkdir -p many/$i; done")
    policy = cow.tree.root / "deny.toml"
    deny = [
        f"{cow.workspace}/conf/token",
        f"{cow.workspace}/conf/keys/**",
        f"{cow.workspace}/absent/token",
    ]
    policy.write_text(
        f'[meta]\nversion = 1\ninherit = "ai-agent"\n[filesystem]\n'
        f"deny_globs = {json.dumps(deny)}\n"
    )
    cow.tester.give(policy)
    words = [
        "sh",
        "-c",
        "ls -A conf; echo started; read x; cat conf/token; cat conf/keys/a; ls -A conf; ls",
    ]
    argv: list[str | Path] = [
        cow.installation.paddock,
        "run",
        "--cow",
        "--policy",
        policy,
        "--",
        *words,
    ]
    with cow.tester.starting(argv, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", process.stderr and process.stderr.read()
        cow.host(
            "echo secret > conf/token; mkdir conf/keys; echo secret > conf/keys/a; "
            "echo x > conf/plain"
        )
        out, err = process.communicate("\n", timeout=120)
    assert "secret" not in out
    assert out == "plain\nconf\nmany\nown.txt\n", err


def test_a_directory_with_hidden_names_lists_its_other_entries(cow: Cow) -> None:
    cow.host(
        "mkdir -p sub; echo secret > sub/.env; echo 1 > sub/a; chmod 710 sub; "
        "touch -d 2020-01-02 sub"
    )
    facts = (
        "stat -c '%a %Y %U %F' sub sub/a; stat -c '%i' sub/a; ls -A sub | grep -v .env; "
        "stat -c '%a' ."
    )
    outside = cow.tester.run(["sh", "-c", facts], cwd=cow.workspace)
    inside = cow.run("sh", "-c", facts)
    assert inside.stdout == outside.stdout


def test_command_may_create_a_masked_name_and_the_hosts_file_stays(cow: Cow) -> None:
    cow.put(".env", "secret\n")
    cow.put("sub/.env", "secret\n")
    cow.put("sub/a", "1\n")
    done = cow.run("sh", "-ec", "echo own > .env; cat .env; rm -r sub; echo 1 > changed")
    assert done.stdout == "own\n", done
    session = cow.only_session()
    again = cow.run(
        "sh", "-ec", "cat .env; test ! -e sub; echo 2 >> changed", flags=["--resume", session]
    )
    assert again.stdout == "own\n", again
    applied = cow.paddock("apply", session)
    assert applied.exit_code == 1, "something was left"
    assert (cow.workspace / ".env").read_text() == "secret\n"
    assert (cow.workspace / "sub/.env").read_text() == "secret\n"
    assert not (cow.workspace / "sub/a").exists()
    assert (cow.workspace / "changed").read_text() == "1\n2\n"


def test_a_masked_name_that_the_host_creates_meanwhile_is_not_overwritten(cow: Cow) -> None:
    words = ["sh", "-ec", "echo own > .env; echo started; read x; cat .env"]
    known = cow.sessions()
    with cow.tester.starting(
        cow.running(*words), cwd=cow.workspace, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        cow.host("echo secret > .tmp; mv .tmp .env; echo x > later")
        assert process.communicate("\n", timeout=120)[0] == "own\n", (
            "the command can read its own file"
        )
    cow.made.extend(cow.sessions() - known)
    assert cow.diff()[".env"].endswith("!masked")
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / ".env").read_text() == "secret\n"


def test_a_directory_with_a_hidden_name_can_be_renamed(cow: Cow) -> None:
    cow.host("mkdir -p d/s; echo secret > d/.env; echo secret > d/s/.env; echo 1 > d/s/a")
    done = cow.run(
        "python3", "-c", "import os; os.rename('d', 'e'); print(os.listdir('e'), os.listdir('e/s'))"
    )
    assert done.stdout == "['s'] ['a']\n", done
    assert cow.paddock("apply").exit_code == 1
    left = sorted(str(path.relative_to(cow.workspace)) for path in cow.workspace.rglob("*"))
    assert left == ["d", "d/.env", "d/s", "d/s/.env", "e", "e/s", "e/s/a", "own.txt"]
    assert Path(cow.workspace / "d/s/.env").read_text() == "secret\n"


def test_a_name_looked_up_before_it_exists_stays_hidden(cow: Cow) -> None:
    """The overlay has cached that the name is missing, so it cannot be covered. When the kernel
    drops its cache, the name must stay hidden.
    """
    need_root()
    # too many directories for whiteouts in each
    cow.host(
        "mkdir plain d; touch plain/file; for n in $(seq 400); do mkdir d/$n; touch d/$n/file; done"
    )
    words = [
        "sh",
        "-c",
        (
            "cat plain/.env new/.env 2>/dev/null; echo started; read x; cat plain/.env new/.env; "
            "echo end"
        ),
    ]
    known = cow.sessions()
    with cow.tester.starting(
        cow.running(*words), cwd=cow.workspace, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        cow.host("echo secret > plain/.env; mkdir new; echo secret > new/.env")
        wait_until_judged(cow.tester, cow.workspace, cow.journal)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        assert process.communicate("\n", timeout=120)[0] == "end\n"
    cow.made.extend(cow.sessions() - known)
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / "plain" / ".env").read_text() == "secret\n", (
        "the file of the owner stays"
    )
    assert (cow.workspace / "new" / ".env").read_text() == "secret\n"
