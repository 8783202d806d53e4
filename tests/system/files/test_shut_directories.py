"""The rights to a directory are removed. The next run must not treat the files in it as missing.

A command can do so inside its grants, and any other program of the user everywhere.

Each attack was found by an attempt to escape.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.features import need, need_root
from tests.support.repeated_runs import at_home, paddock
from tests.support.sandbox import SandboxRunner, Word
from tests.support.session_program import play
from tests.support.tester import Outcome
from tests.support.tree import SECRET, project_tree


def shut(sandbox: SandboxRunner, path: Path) -> None:
    """Inside a grant a command shuts a directory. Outside it can not: another program does."""
    words: list[Word] = ["chmod", "000", path]
    inside = sandbox.inside(words)
    if path.is_relative_to(sandbox.tree.project):
        assert inside.exit_code == 0, inside
    else:
        assert "Read-only file system" in inside.stderr, inside
        assert sandbox.outside(words).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0


def test_a_denied_place_behind_a_link_stays_closed_when_its_directory_is_shut(
    sandbox: SandboxRunner,
) -> None:
    dot = sandbox.tree.root / "dot"
    secret = sandbox.tree.put(dot / "gradle.properties", SECRET)
    with at_home(sandbox, ".gradle") as gradle:
        (gradle / "gradle.properties").symlink_to(secret)
        assert "Permission denied" in paddock(sandbox, "run", "--", "cat", secret, cwd=dot).stderr
        shut(sandbox, gradle)
        later = paddock(sandbox, "run", "--", "cat", secret, cwd=dot)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later
        assert "cannot locate" in later.stderr
    assert paddock(sandbox, "run", "--", "cat", secret, cwd=dot).stdout == SECRET, (
        "without the link it is an ordinary file"
    )


def run_beside_another_user(full: SandboxRunner, shared: Path, *, opened: bool) -> Outcome:
    """A directory of another user in a shared one: it appears shut, or is shut later."""
    others = shared / "others"
    words = ["sh", "-c", "echo started; read x; touch work"]
    if opened:
        others.mkdir()
        others.chmod(0o777)
    with full.starting(words, "-a", f"{shared}/**", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        others.chmod(0o700) if opened else others.mkdir(mode=0o700)
        stdout, stderr = process.communicate("\n", timeout=120)
    return Outcome(argv=tuple(words), exit_code=process.returncode, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize("opened", [False, True])
def test_a_directory_that_another_user_shuts_does_not_stop_the_run(
    full: SandboxRunner, opened: bool
) -> None:
    """As in /var/tmp, where any user creates directories at any time."""
    need_root()
    shared = full.tree.make(full.tree.root / "shared")
    done = run_beside_another_user(full, shared, opened=opened)
    assert done.exit_code == 0, str(done)


def test_a_directory_that_its_owner_opens_during_the_run_stays_closed(
    full: SandboxRunner,
) -> None:
    tree = full.tree
    tasks = tree.put(tree.project / "shut" / ".vscode" / "tasks.json", "{}\n")
    head = tree.put(tree.project / "shut" / "bare.git" / "HEAD", "ref: refs/heads/main\n")
    for part in ("objects", "refs"):
        tree.make(head.parent / part)
    shut = tree.project / "shut"
    shut.chmod(0)
    words = ["sh", "-c", "echo started; read x; mkdir .vscode; ls shut"]
    with full.starting(words, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        shut.chmod(0o700)
        _, stderr = process.communicate("\n", timeout=120)
    assert "ls: cannot open directory 'shut'" in stderr, "it stays closed for the command"
    assert f"refused: write {tree.project}/.vscode" in stderr
    assert tasks.read_text() == "{}\n"
    assert head.exists()


def test_a_denied_link_in_the_workspace_stays_closed_when_its_directory_is_shut(
    sandbox: SandboxRunner,
) -> None:
    secret = sandbox.tree.put(sandbox.tree.project / "b" / "real", SECRET)
    link = sandbox.tree.make(sandbox.tree.project / "a") / "secret"
    link.symlink_to("../b/real")
    words: list[Word] = ["run", "--profile", "ai-agent", "--deny", link, "--", "cat", secret]
    assert "Permission denied" in paddock(sandbox, *words).stderr
    shut(sandbox, link.parent)
    later = paddock(sandbox, *words)
    link.parent.chmod(0o755)
    assert SECRET not in later.stdout
    assert later.exit_code == 125, later
    assert paddock(sandbox, "run", "--", "cat", secret).stdout == SECRET, (
        "without the deny it is readable"
    )


def test_a_denied_pattern_behind_a_link_stays_closed_when_its_directory_is_shut(
    sandbox: SandboxRunner,
) -> None:
    secret = sandbox.tree.put(sandbox.tree.project / "keys" / "one.pem", SECRET)
    with at_home(sandbox, ".keys") as keys:
        (keys / "dir").symlink_to(secret.parent)
        words: list[Word] = [
            "run",
            "--profile",
            "ai-agent",
            "--deny",
            f"{keys}/dir/*.pem",
            "--",
            "cat",
            secret,
        ]
        assert "cannot be enforced" in paddock(sandbox, *words).stderr
        shut(sandbox, keys)
        later = paddock(sandbox, *words)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later
        assert "cannot follow this path" in later.stderr


def test_a_remembered_plan_does_not_take_a_shut_directory_for_an_empty_one(
    sandbox: SandboxRunner,
) -> None:
    secret = sandbox.tree.put(sandbox.tree.root / "dot" / "gh" / "token", SECRET)
    assert sandbox.inside(["true"]).exit_code == 0, "the writable part stays the same"
    with at_home(sandbox, ".config") as config:
        (config / "gh").symlink_to(secret.parent)
        for _ in range(2):
            assert (
                "Permission denied"
                in paddock(sandbox, "run", "--", "cat", secret, cwd=secret.parent.parent).stderr
            )
        shut(sandbox, config)
        later = paddock(sandbox, "run", "--", "cat", secret, cwd=secret.parent.parent)
        assert SECRET not in later.stdout
        assert later.exit_code == 125, later


def test_a_directory_shut_at_the_right_moment_does_not_hide_a_planted_link(
    sandbox: SandboxRunner,
) -> None:
    """A program sees by the access time of a link that the link was read, and shuts the path to
    it. Many recorded paths give it the time. A command can not do so: the path is not in its grant.
    """
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not change the state of an ordinary user",
    )
    attack = (
        "import os, sys, time\n"
        "link, parent = sys.argv[1:]\n"
        "def arm(): os.utime(link, ns=(0, 0), follow_symlinks=False)\n"
        "arm()\nprint('started', flush=True)\nend = time.monotonic() + 60\n"
        "while time.monotonic() < end:\n"
        "    if os.lstat(link).st_atime_ns:\n"
        "        os.chmod(parent, 0)\n        time.sleep(0.02)\n        os.chmod(parent, "
        "0o755)\n        arm()\n"
        "        open('shut', 'a').write('x')\n"
    )
    link = sandbox.tree.project / "build"
    with project_tree(sandbox.tester) as other:
        assert sandbox.inside(["ln", "-s", other.outside, link]).exit_code == 0
        with (sandbox.tester.home / ".local" / "state" / "paddock" / "reach").open("a") as reach:
            reach.writelines(f"/absent/{number}\n" for number in range(3000))
        words: list[Word] = [
            "run",
            "--profile",
            "ai-agent",
            "--read",
            link,
            "--",
            "cat",
            other.secret,
        ]
        above: list[Word] = ["chmod", "000", sandbox.tree.root]
        assert "Read-only file system" in sandbox.inside(above).stderr
        attacking: list[Word] = ["python3", "-c", attack, link, sandbox.tree.root]
        with sandbox.tester.starting(attacking, cwd=sandbox.tree.project) as attacker:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "started\n"
            answers = [paddock(sandbox, *words, cwd=other.project) for _ in range(20)]
            assert attacker.poll() is None
        assert (sandbox.tree.project / "shut").exists(), "the link was never read"
        assert {one.exit_code for one in answers} == {125}, answers
        assert not [one for one in answers if SECRET in one.stdout]
        sandbox.tree.root.chmod(0o755)  # the run may have ended between its two calls
        own = other.root / "own"
        own.symlink_to(other.outside)
        control = paddock(
            sandbox, "run", "--read", own, "--", "cat", other.secret, cwd=other.project
        )
        assert control.stdout == f"{SECRET}\n", "the link of the user leads there"


@pytest.mark.parametrize("mode", ["0600", "0400", "0300", "0000"])
@pytest.mark.parametrize("flags", [[], ["--cow"]], ids=["live", "cow"])
def test_a_denied_name_in_a_directory_that_an_earlier_run_shut_stays_closed(
    full: SandboxRunner, flags: list[Word], mode: str
) -> None:
    deploy = full.tree.project / "deploy"
    full.tree.put(deploy / ".env", SECRET)
    full.tree.put(deploy / "plain", "plain")
    reading = "echo started; chmod 0700 deploy; cat deploy/.env deploy/plain"
    first = full.inside(["sh", "-c", reading])
    assert first.stdout == "started\nplain", "the control: only the denied name is closed"
    assert full.inside(["chmod", mode, "deploy"]).exit_code == 0
    assert deploy.stat().st_mode & 0o777 == int(mode, 8), "the attack was made"
    later = full.inside(["sh", "-c", reading], *flags)
    assert later.stdout == "started\n", "all of the directory is closed"
    deploy.chmod(0o700)
    assert full.outside(["cat", "deploy/.env"]).stdout == SECRET, "the control: it is there"


@pytest.mark.parametrize("flags", [[], ["--cow"]], ids=["live", "cow"])
def test_a_denied_link_into_a_directory_that_an_earlier_run_shut_stays_closed(
    full: SandboxRunner, flags: list[Word]
) -> None:
    settings = full.tree.put(full.tree.project / "conf" / "settings", SECRET)
    (full.tree.project / ".env").symlink_to("conf/settings")
    assert SECRET not in full.inside(["cat", "conf/settings"]).stdout
    assert full.inside(["chmod", "0600", "conf"]).exit_code == 0
    later = full.inside(["sh", "-c", "echo started; chmod 0700 conf; cat conf/settings"], *flags)
    assert later.stdout == "started\n"
    settings.parent.chmod(0o700)
    (full.tree.project / ".env").unlink()
    assert full.inside(["cat", "conf/settings"]).stdout == SECRET, (
        "the control: without the link nothing denies it"
    )


def test_a_protected_name_in_a_directory_that_an_earlier_run_shut_is_not_changed(
    full: SandboxRunner,
) -> None:
    tasks = full.tree.put(full.tree.project / "app" / ".vscode" / "tasks.json", "mine")
    assert full.inside(["chmod", "0600", "app"]).exit_code == 0
    full.inside(
        ["sh", "-c", "chmod 0700 app; echo evil > app/.vscode/tasks.json; echo evil > app/.envrc"]
    )
    tasks.parent.parent.chmod(0o700)
    assert tasks.read_text() == "mine"
    assert not (full.tree.project / "app" / ".envrc").exists()
    made = full.inside(["sh", "-c", "echo fine > app/made"])
    assert (made.exit_code, (full.tree.project / "app" / "made").read_text()) == (0, "fine\n"), (
        "the control"
    )


# Holds descriptors, shuts the workspace, and plants through the descriptors. Prints the mode of the
# root.
PLANTED_BEHIND_A_SHUT_ROOT = """
import contextlib, os, sys
top = os.getcwd()
held = [os.open(name, os.O_RDONLY | os.O_DIRECTORY) for name in (".git", "sub")]
os.chmod(top, int(sys.argv[1], 8))
for name, held in (("commondir", held[0]), (".envrc", held[1]), ("plain", held[1])):
    with contextlib.suppress(PermissionError):
        os.write(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=held), b"planted\\n")
print("planted", flush=True)
"""


@pytest.mark.parametrize("mode", ["0000", "0600", "0300", "0755"])
def test_no_name_is_planted_behind_a_shut_workspace(full: SandboxRunner, mode: str) -> None:
    project = full.tree.project
    assert full.outside(["git", "init", "-q"]).exit_code == 0
    full.tree.make(project / "sub")
    reported = full.inside(["python3", "-c", PLANTED_BEHIND_A_SHUT_ROOT, mode])
    project.chmod(0o755)
    assert "planted" in reported.stdout, str(reported)
    assert (project / "sub" / "plain").read_text() == "planted\n", (
        "the control: an ordinary name stays"
    )
    assert not (project / ".git" / "commondir").exists()
    assert not (project / "sub" / ".envrc").exists()
    kinds = [event["event"] for event in full.events()]
    assert kinds.count("file.refused") == 2, kinds


def test_no_name_is_planted_in_a_directory_that_is_shut_at_once(
    full: SandboxRunner,
) -> None:
    program = (
        "import contextlib, os\n"
        "for i in range(20):\n"
        "    os.mkdir(f'a{i}'); open(f'a{i}/x', 'w').write('evil'); open(f'a{i}/y', "
        "'w').write('fine')\n"
        "for i in range(20):\n"
        "    with contextlib.suppress(PermissionError): os.rename(f'a{i}/x', f'a{i}/.envrc')\n"
        "    os.chmod(f'a{i}', 0o600)\n"
        "print('planted')\n"
    )
    assert full.inside(["python3", "-c", program]).stdout == "planted\n"
    for number in range(20):
        (full.tree.project / f"a{number}").chmod(0o700)
    assert not list(full.tree.project.glob("a*/.envrc"))
    assert len(list(full.tree.project.glob("a*/y"))) == 20, "the control: an ordinary name stays"


def test_a_denied_name_in_a_directory_that_an_earlier_session_shut_stays_closed(
    full: SandboxRunner,
) -> None:
    full.tree.put(full.tree.project / "deploy" / ".env", SECRET)
    reported = play(
        full,
        """
        said = []
        for script in ("chmod 0600 deploy", "echo started; chmod 0700 deploy; cat deploy/.env"):
            async with Sandbox(**options) as box:
                said.append((await box.run(script, timeout_s=60)).stdout)
        tell(*said)
        """,
    )
    assert reported == [["", "started\n"]]
    (full.tree.project / "deploy").chmod(0o700)
    assert full.outside(["cat", "deploy/.env"]).stdout == SECRET, "the control: it is there"


# Paths that a run could write, under any name.
