"""Leftovers of one run must not weaken the next: planted links, policies, code, moved directories.

Each attack was found by an attempt to escape.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.repeated_runs import at_home, paddock
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tree import SECRET


def loose(sandbox: SandboxRunner) -> str:
    """A policy that opens the secret for reading."""
    return (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n'
    )


def plant(sandbox: SandboxRunner, name: str, cwd: Path | None = None) -> None:
    """A command writes such a policy."""
    planted = sandbox.inside(["sh", "-c", f"cat > {name}"], stdin=loose(sandbox), cwd=cwd)
    assert planted.exit_code == 0, planted


STRICT = '[meta]\ninherit = "ai-agent"\n'


def elsewhere(sandbox: SandboxRunner) -> Path:
    """A workspace that no run had before."""
    return sandbox.tree.make(sandbox.tree.root / "elsewhere")


def is_kept_from_the_secret(
    sandbox: SandboxRunner, *flags: Word, words: str = "is not trusted yet"
) -> None:
    """A run elsewhere with these flags is refused with these words. The same command without
    Paddock succeeds.
    """
    read: list[Word] = ["cat", sandbox.tree.secret]
    later = paddock(sandbox, "run", *flags, "--", *read, cwd=elsewhere(sandbox))
    assert later.exit_code == 125, later
    assert words in later.stderr, later
    assert SECRET not in later.stdout
    assert sandbox.outside(read).stdout == f"{SECRET}\n"


def test_code_planted_for_python_is_not_run_outside(sandbox: SandboxRunner) -> None:
    """PYTHONPATH may name the workspace. Paddock's interpreter ignores it."""
    marker = sandbox.tree.outside / "ran"
    env = {"PYTHONPATH": str(sandbox.tree.project), "PYTHONSTARTUP": "x.py"}
    plant = f'printf \'open("{marker}", "w")\\n\' > sitecustomize.py'
    assert sandbox.inside(["sh", "-c", plant]).exit_code == 0
    control = sandbox.outside(["python3", "-c", "pass"], env=env)
    assert control.exit_code == 0
    assert marker.exists(), "plain Python does run it"
    marker.unlink()
    for words in (["why", "--path", "/etc"], ["profiles"], ["run", "--", "true"]):
        assert paddock(sandbox, *words, env=env).exit_code == 0
        assert not marker.exists(), words
    assert paddock(sandbox, "profiles", env={"PYTHONHOME": "/nonexistent"}).exit_code == 0


def test_a_link_planted_in_the_workspace_does_not_widen_a_later_grant(
    sandbox: SandboxRunner,
) -> None:
    link = sandbox.tree.project / "build"
    assert sandbox.inside(["ln", "-s", str(sandbox.tree.outside), str(link)]).exit_code == 0
    flags = ("--profile", "read-only", "--allow", "build")
    denied = paddock(sandbox, "run", *flags, "--", "cat", str(sandbox.tree.secret))
    assert denied.exit_code == 125, denied
    assert "leads through a symlink" in denied.stderr
    assert SECRET not in denied.stdout
    link.unlink()
    sandbox.tree.make(link)
    assert paddock(sandbox, "run", *flags, "--", "touch", "build/made").exit_code == 0
    assert (link / "made").exists()


def test_a_workspace_that_is_swapped_for_a_link_while_a_run_starts_opens_nothing(
    sandbox: SandboxRunner,
) -> None:
    """Another run exchanges the directory with a link to the root directory in a loop."""
    sub = sandbox.tree.make(sandbox.tree.project / "sub")
    link = sandbox.tree.project / "link"
    link.symlink_to(sandbox.tree.outside)
    swap = [
        "python3", "-c",
        "import ctypes, time\nlibc = ctypes.CDLL(None)\nprint('started', flush=True)\n"
        "end = time.monotonic() + 120\n"
        "while time.monotonic() < end:\n"
        "    assert libc.renameat2(-100, b'sub', -100, b'link', 2) == 0\n    time.sleep(0.0002)\n",
    ]  # fmt: skip
    with sandbox.starting(swap) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "started\n"
        journal = sandbox.tree.root / "later"
        words = f"--audit-log {journal} -- cat {sandbox.tree.secret}"
        script = (
            f'cd sub 2>/dev/null && exec "$0" run --quiet --tier {sandbox.tier} --profile '
            f"ai-agent "
            f"{words}"
        )
        answers = [
            sandbox.tester.run(
                ["sh", "-c", script, sandbox.installation.paddock], cwd=sandbox.tree.project
            )
            for _ in range(40)
        ]
    # If the working directory is the target of the link, the shell followed the link. A run whose
    # working directory is the real directory, under either name, must not read outside.
    events = sandbox.events(journal)
    stood = [
        e["session"]
        for e in events
        if e["event"] == "session.start" and e["cwd"] in (str(sub), str(link))
    ]
    ended = {e["session"]: e["exit_code"] for e in events if e["event"] == "session.end"}
    refused = [
        one for one in answers if "was moved or replaced while paddock started" in one.stderr
    ]
    assert stood or refused, "the race was never run"
    assert 0 not in [ended.get(session) for session in stood], "a refused run has no end"


_SESSION = """
import asyncio, sys
from paddock import *
from paddock.policy.model import Tier

def told(act):
    try:
        print(act().stdout)
    except UsageError as error:
        print(error)

read, place = ["cat", "secret.txt"], sys.argv[1]
options = dict(profile="ai-agent", tier=Tier(sys.argv[2]))

async def session():
    async with Sandbox(workspace=place, **options) as box:
        return await box.run(read)

told(lambda: run_sync(read, workspace=place, **options))
told(lambda: asyncio.run(session()))
"""


def test_a_workspace_that_a_run_replaced_by_a_link_is_not_worked_in(
    sandbox: SandboxRunner,
) -> None:
    """A link in $PWD too: the directory behind it would become the workspace."""
    tree, name = sandbox.tree, "sub"
    link = tree.make(tree.project / name)
    swap = f"rmdir {name} && ln -s {tree.outside} {name}"
    assert sandbox.inside(["sh", "-c", swap]).exit_code == 0
    start = f'"$0" run --tier {sandbox.tier} --profile ai-agent -- cat secret.txt'
    paddock_here = sandbox.installation.paddock
    words: list[Word] = ["sh", "-c", f"cd {link} && {start}", paddock_here]
    real: list[Word] = ["sh", "-c", f"cd {tree.outside} && {start}", paddock_here]
    refused = f"leads through the symlink {link}, which a sandboxed command could have made"
    python = sandbox.installation.root / "bin" / "python"
    session: list[Word] = [python, "-c", _SESSION, link, str(sandbox.tier)]
    for _ in range(2):  # the second time with a stored plan for the real directory
        run = sandbox.tester.run(words, cwd=tree.project)
        assert run.exit_code == 125, run
        assert refused in run.stderr, run
        sessions = sandbox.tester.run(session, cwd=tree.root)
        assert sessions.stdout.count(refused) == 2, sessions
        assert SECRET not in run.stdout + sessions.stdout
        assert sandbox.tester.run(real, cwd=tree.project).stdout == f"{SECRET}\n"
    assert sandbox.outside(["cat", link / "secret.txt"]).stdout == f"{SECRET}\n"
    link.unlink()
    tree.make(link)
    tree.put(link / "secret.txt", "own")
    assert sandbox.tester.run(session, cwd=tree.root).stdout.split() == ["own", "own"]


def test_a_policy_beside_the_work_cannot_rewrite_itself(sandbox: SandboxRunner) -> None:
    file = sandbox.tree.put(
        sandbox.tree.project / "p.toml",
        '[meta]\ninherit = "read-only"\n[filesystem]\nallow_globs = ["<cwd>/**"]\n',
    )
    assert paddock(sandbox, "trust", str(file)).exit_code == 0
    loose = (
        f'[meta]\ninherit = "read-only"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n'
    )
    act: list[Word] = ["sh", "-c", f"printf '{loose}' > p.toml"]
    rewrite = ("--policy", "p.toml", "--", *act)
    for tier in ("full", "landlock"):
        assert "Permission denied" in paddock(sandbox, "run", "--tier", tier, *rewrite).stderr
    assert paddock(sandbox, "run", "--policy", "p.toml", "--", "true").exit_code == 0
    # Another program of the user can do it.
    assert sandbox.outside(act).exit_code == 0
    again = paddock(sandbox, "run", "--policy", "p.toml", "--", "cat", str(sandbox.tree.secret))
    assert again.exit_code == 125, again
    assert "has changed since you trusted it" in again.stderr
    assert SECRET not in again.stdout


def test_a_link_to_another_projects_trusted_policy_is_not_trusted(sandbox: SandboxRunner) -> None:
    other = sandbox.tree.put(
        sandbox.tree.outside / "paddock.toml",
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n',
    )
    assert paddock(sandbox, "trust", str(other)).exit_code == 0
    act: list[Word] = ["ln", "-s", str(other), "paddock.toml"]
    assert "Permission denied" in sandbox.inside(act).stderr
    assert sandbox.outside(act).exit_code == 0, "another program of the user can do it"
    denied = paddock(sandbox, "run", "--", "cat", str(sandbox.tree.secret))
    assert denied.exit_code == 125, denied
    assert "is not trusted yet" in denied.stderr
    (sandbox.tree.project / "paddock.toml").unlink()


def test_the_default_journal_is_closed_to_a_run_that_does_not_use_it(
    sandbox: SandboxRunner,
) -> None:
    """C-084"""
    assert paddock(sandbox, "run", "--", "true").exit_code == 0
    head = f"/var/tmp/paddock-audit-{sandbox.tester.uid}/head"
    for flags in (("--off", "audit"), ("--audit-log", str(sandbox.journal))):
        inside = paddock(
            sandbox,
            "run",
            "--profile",
            "ai-agent",
            "--allow",
            "/var/tmp",
            *flags,
            "--",
            "cat",
            head,
        )
        assert "Permission denied" in inside.stderr, inside
    assert sandbox.outside(["cat", head]).exit_code == 0


def test_a_journal_placed_elsewhere_is_closed_to_every_later_run(sandbox: SandboxRunner) -> None:
    """C-084: also for a plan that was cached before the journal existed."""
    second = sandbox.tree.make(sandbox.tree.root / "second")
    second.chmod(0o700)
    head = sandbox.tree.put(second / "head", mode=0o600)
    beside = sandbox.tree.put(sandbox.tree.root / "beside" / "file", "open\n")
    flags = (
        "-r",
        f"{sandbox.programs.directory}/**",
        "--profile",
        "ai-agent",
        "--allow",
        f"{sandbox.tree.root}/**",
    )

    def later(*act: Word) -> str:
        return paddock(sandbox, "run", *flags, "--", *sandbox.probe(*act)).answer

    acts = [
        ("read", head),
        ("list", second),
        ("create", second / "new"),
        ("unlink", head),
        ("rename", second, "taken"),
    ]
    assert later("read", head) == "ok ", "no run has used it as a journal yet"
    assert paddock(sandbox, "run", "--audit-log", second, "--", "true").exit_code == 0
    for act in acts:
        assert later(*act) == "EACCES", act
    assert later("read", beside) == "ok open"
    assert [event["event"] for event in sandbox.events(second)] == ["session.start", "session.end"]
    assert sandbox.outside(sandbox.probe("read", head)).answer.startswith("ok 2 ")


def test_a_journal_file_placed_elsewhere_is_closed_with_its_head_and_nothing_else(
    sandbox: SandboxRunner,
) -> None:
    logs = sandbox.tree.make(sandbox.tree.root / "logs")
    note = sandbox.tree.put(logs / "note", "open\n")
    file = logs / "mine.jsonl"
    assert paddock(sandbox, "run", f"--audit={file}", "--", "true").exit_code == 0
    flags = (
        "-r",
        f"{sandbox.programs.directory}/**",
        "--profile",
        "ai-agent",
        "--allow",
        f"{logs}/**",
    )
    for path, answer in ((file, "EACCES"), (logs / "mine.jsonl.head", "EACCES"), (note, "ok open")):
        assert (
            paddock(sandbox, "run", *flags, "--", *sandbox.probe("read", path)).answer == answer
        ), path
    assert sandbox.outside(sandbox.probe("read", file)).answer.startswith("ok {")


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_place_that_was_refused_as_a_journal_does_not_stay_closed(
    sandbox: SandboxRunner, mode: int
) -> None:
    shared = sandbox.tree.make(sandbox.tree.root / "shared")
    note = sandbox.tree.put(shared / "note", "open\n")
    shared.chmod(mode)
    inside = sandbox.tree.project / "log"
    for place in (shared, inside):
        refused = paddock(sandbox, "run", "--audit-log", place, "--", "true")
        assert refused.exit_code == 125, refused
    assert (
        sandbox.inside(sandbox.probe("read", note), "--allow", f"{shared}/**").answer == "ok open"
    )
    assert sandbox.inside(sandbox.probe("create", sandbox.tree.project / "new")).answer == "ok"


def test_links_made_in_another_project_are_not_followed(sandbox: SandboxRunner) -> None:
    """A dotfiles set-up: ~/.vim is a link into a project in which an agent worked."""
    dot = sandbox.tree.make(sandbox.tree.root / "dot")
    sandbox.tree.make(dot / "vim")
    home_link = sandbox.tester.home / ".vim"
    ours = sandbox.tester.disposable or not os.path.lexists(home_link)
    need("root", ours, "the tests do not replace ~/.vim of an ordinary user")
    home_link.symlink_to(dot / "vim")
    read = ["cat", str(sandbox.tree.secret)]
    try:
        assert (
            sandbox.inside(
                ["sh", "-c", f"rmdir vim; ln -s {sandbox.tree.outside} vim"], cwd=dot
            ).exit_code
            == 0
        )
        assert (dot / "vim").is_symlink()
        later = sandbox.inside(read)
        assert "Permission denied" in later.stderr, later
        assert "leads through a symlink" in later.stderr, later
    finally:
        home_link.unlink()
    explicit = sandbox.inside(read, "--read", f"{dot}/vim")
    assert explicit.exit_code == 125, explicit


def test_a_policy_in_the_workspace_of_another_run_needs_trust(sandbox: SandboxRunner) -> None:
    file = sandbox.tree.put(sandbox.tree.project / "pol.toml", '[meta]\ninherit = "ai-agent"\n')
    loose = (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n'
    )
    assert sandbox.inside(["sh", "-c", f"printf '{loose}' > pol.toml"]).exit_code == 0
    sub = sandbox.tree.make(sandbox.tree.evil / "sub")
    words = ["run", "--policy", str(file), "--", "cat", str(sandbox.tree.secret)]
    later = sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sub)
    assert later.exit_code == 125, later
    assert "is not trusted yet" in later.stderr


def test_a_directory_swapped_for_a_link_does_not_carry_trust_elsewhere(
    sandbox: SandboxRunner,
) -> None:
    policy = sandbox.tree.put(
        sandbox.tree.project / "pd" / "q.toml", '[meta]\ninherit = "ai-agent"\n'
    )
    assert paddock(sandbox, "trust", str(policy)).exit_code == 0
    codex = sandbox.tree.make(sandbox.tree.root / "codex")
    loose = (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n'
    )
    act: list[Word] = [
        "sh", "-c", f"printf '{loose}' > {codex}/q.toml; rm -r pd; ln -s {codex} pd",
    ]  # fmt: skip
    flags = ("--policy", "./pd/q.toml")
    swapping = (*flags, "--allow", str(codex), "--", *act)
    assert "Permission denied" in paddock(sandbox, "run", "--tier", "full", *swapping).stderr
    sandbox.tree.put(sandbox.tree.project / "pd" / "q.toml", '[meta]\ninherit = "ai-agent"\n')
    assert "Permission denied" in paddock(sandbox, "run", "--tier", "landlock", *swapping).stderr
    assert policy.exists()
    assert sandbox.outside(act).exit_code == 0, "another program of the user can do it"
    later = paddock(sandbox, "run", *flags, "--", "cat", str(sandbox.tree.secret))
    assert later.exit_code == 125, later
    assert SECRET not in later.stdout


def test_state_behind_a_link_that_the_command_could_change_stops_the_run(
    sandbox: SandboxRunner,
) -> None:
    need("root", sandbox.tester.disposable, "the tests do not move the state of an ordinary user")
    state = sandbox.tester.home / ".local" / "state"
    assert paddock(sandbox, "run", "--", "true").exit_code == 0, "the first run makes the state"
    real = sandbox.tree.make(sandbox.tree.root / "real")
    state.rename(real / "state")
    (sandbox.tree.project / "s").symlink_to(real / "state")
    state.symlink_to(sandbox.tree.project / "s")
    try:
        stopped = paddock(sandbox, "run", "--", "true")
        assert stopped.exit_code == 125, stopped
        assert "leads through a symlink in" in stopped.stderr
        # A link of the user in a directory that no command could write is no danger.
        state.unlink()
        state.symlink_to(real / "state")
        assert paddock(sandbox, "run", "--", "true").exit_code == 0
    finally:
        state.unlink()
        (real / "state").rename(state)


def test_a_profile_that_became_unreadable_is_not_skipped(sandbox: SandboxRunner) -> None:
    """A command can not shut the directory of the configuration. Another program of the user
    can.
    """
    config = sandbox.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    sandbox.tester.give(sandbox.tester.home / ".config")
    act: list[Word] = ["chmod", "000", config]
    assert "Read-only file system" in sandbox.inside(act).stderr
    assert sandbox.outside(act).exit_code == 0
    try:
        later = paddock(sandbox, "run", "--", "true")
        assert later.exit_code == 125, later
        assert "cannot be examined" in later.stderr
    finally:
        config.chmod(0o755)


def test_a_run_is_refused_if_the_trusted_project_policy_is_gone(sandbox: SandboxRunner) -> None:
    sandbox.tree.put(sandbox.tree.project / "paddock.toml", '[meta]\ninherit = "strict"\n')
    assert paddock(sandbox, "trust").exit_code == 0
    act: list[Word] = ["rm", "-f", "paddock.toml"]
    assert "Permission denied" in paddock(sandbox, "run", "--tier", "full", "--", *act).stderr
    denied = paddock(sandbox, "run", "--tier", "landlock", "--", *act)
    assert "Permission denied" in denied.stderr, denied
    assert sandbox.outside(act).exit_code == 0, "another program of the user can do it"
    later = paddock(sandbox, "run", "--", "true")
    assert later.exit_code == 125, later
    assert later.stderr.count("it no longer exists") == 1, later
    assert f"paddock trust --forget {sandbox.tree.project}/paddock.toml" in later.stderr
    assert paddock(sandbox, "run", "--profile", "ai-agent", "--", "true").exit_code == 0
    assert paddock(sandbox, "trust", "--forget", "paddock.toml").exit_code == 0
    assert paddock(sandbox, "run", "--", "true").exit_code == 0


def test_what_one_wide_run_could_write_is_shown_and_forgotten(sandbox: SandboxRunner) -> None:
    """A directory that another run could write stays known."""
    root = sandbox.tree.root
    policy = sandbox.tree.put(root / "tools" / "strict.toml", STRICT)
    planted = sandbox.tree.project / "loose.toml"
    plant(sandbox, planted.name)
    use: list[Word] = ["run", "--policy", policy, "--", "true"]
    assert paddock(sandbox, *use, cwd=elsewhere(sandbox)).exit_code == 0, "the control"
    wide = ("--profile", "ai-agent", "--allow", root)
    assert paddock(sandbox, "run", *wide, "--", "true").exit_code == 0
    refused = paddock(sandbox, *use, cwd=elsewhere(sandbox))
    assert refused.exit_code == 125, refused
    assert f"a command of an earlier run could write {root}, where this file is" in refused.stderr
    assert f"paddock trust --forget {root}" in refused.stderr
    assert f"a command could write: {root}\n" in paddock(sandbox, "trust", "--list").stdout
    inner = paddock(sandbox, "trust", "--forget", policy.parent)
    assert (inner.exit_code, f"--forget {root}" in inner.stderr) == (125, True), inner
    forgotten = paddock(sandbox, "trust", "--forget", root)
    assert forgotten.exit_code == 0, forgotten
    assert f"a command could still write: {sandbox.tree.project}\n" in forgotten.stdout
    assert f"a command could write: {root}\n" not in paddock(sandbox, "trust", "--list").stdout
    assert paddock(sandbox, *use, cwd=elsewhere(sandbox)).exit_code == 0
    is_kept_from_the_secret(sandbox, "--policy", planted)
    assert paddock(sandbox, "run", *wide, "--", "true").exit_code == 0
    assert paddock(sandbox, *use, cwd=elsewhere(sandbox)).exit_code == 125, "recorded again"


def test_a_refused_run_records_no_writable_path(sandbox: SandboxRunner) -> None:
    """The refused run wrote nothing, so a policy in its writable path is still trusted."""
    place = elsewhere(sandbox)
    policy = sandbox.tree.put(place / "pol.toml", STRICT)
    refused = paddock(sandbox, "run", "--", "true", cwd=sandbox.tester.home)
    assert (refused.exit_code, "your home directory" in refused.stderr) == (125, True), refused
    assert paddock(sandbox, "run", "--policy", policy, "--", "true").exit_code == 0
    assert paddock(sandbox, "run", "--allow", f"{place}/**", "--", "true").exit_code == 0
    later = paddock(sandbox, "run", "--policy", policy, "--", "true")
    assert (later.exit_code, "is not trusted yet" in later.stderr) == (125, True), (
        "the control: a run that started is recorded"
    )


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm", "/proc"])
def test_system_directories_are_refused_as_a_workspace(
    sandbox: SandboxRunner, directory: str
) -> None:
    outcome = sandbox.tester.run([sandbox.installation.paddock, "run", "--", "true"], cwd=directory)
    assert outcome.exit_code == 125, outcome
    assert "the workspace would be" in outcome.stderr


def test_shared_memory_and_queues_of_the_user_are_out_of_reach(sandbox: SandboxRunner) -> None:
    """They are not files, so no grant is about them."""
    script = (
        "import ctypes, os; print('started'); libc = ctypes.CDLL(None, use_errno=True)\n"
        "for call in (lambda: libc.shmget(4660, 8, 0o1600), lambda: libc.msgget(4660, 0o1600),"
        " lambda: libc.semget(4660, 1, 0o1600)):\n"
        "    print('ok' if call() >= 0 else os.strerror(ctypes.get_errno()))"
    )
    words = ["python3", "-c", script]
    inside = sandbox.inside(words)
    assert inside.stdout.splitlines() == ["started", *["Operation not permitted"] * 3], inside
    try:
        assert sandbox.outside(words).stdout.splitlines() == ["started", "ok", "ok", "ok"]
    finally:
        sandbox.outside(["ipcrm", "-M", "4660", "-Q", "4660", "-S", "4660"])


def test_other_terminals_of_the_user_cannot_be_opened(sandbox: SandboxRunner) -> None:
    """A command could read the keys that are typed into them."""
    script = (
        "import os, pty, sys; print('started', flush=True)\n"
        "try:\n    os.close(os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)); print('ok')\n"
        "except OSError as error: print(error.strerror)"
    )
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        os.chown(name, sandbox.tester.uid, sandbox.tester.gid)
        words = ["python3", "-c", script, name]
        assert sandbox.outside(words).stdout.splitlines() == ["started", "ok"]
        assert sandbox.inside(words).stdout.splitlines() == ["started", "Permission denied"]
    finally:
        os.close(master)
        os.close(slave)


def test_the_end_is_journaled_although_the_mode_of_the_journal_changed(
    sandbox: SandboxRunner,
) -> None:
    """A command can not change the mode. Another program of the user can: the core holds the file
    open.
    """
    script = (
        "import datetime, os, sys; print('started', flush=True)\n"
        "day = datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%d.jsonl')\n"
        "try:\n    os.chmod(os.path.join(sys.argv[1], day), 0)\n"
        "except OSError as error: print(error.strerror, flush=True)\n"
        "sys.stdin.read()"
    )
    words: list[Word] = ["python3", "-c", script, sandbox.journal]
    with sandbox.starting(words, stdin=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        assert running.stdout.readline() == "Read-only file system\n"
        (day,) = sandbox.journal.glob("*.jsonl")
        assert sandbox.outside(["chmod", "000", day]).exit_code == 0
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait() == 0
    day.chmod(0o600)
    assert [event["event"] for event in sandbox.events()] == ["session.start", "session.end"]


def test_a_hostile_policy_key_does_not_use_all_memory(sandbox: SandboxRunner) -> None:
    file = sandbox.tree.put(sandbox.tree.root / "deep.toml", "a." * 100_000 + "a = 1\n")
    checked = sandbox.tester.run(
        ["sh", "-c", 'ulimit -v 4000000; exec "$0" check "$1"', sandbox.installation.paddock, file],
        cwd=sandbox.tree.project,
    )
    assert checked.exit_code == 125, checked
    assert "internal error" not in checked.stderr


# Links in the path of a policy.


def test_a_link_in_the_config_directory_is_judged_by_where_it_leads(sandbox: SandboxRunner) -> None:
    """The directory itself is closed to every command. The target of a link in it is not."""
    with at_home(sandbox, ".config/paddock") as config:
        team = config / "team.toml"
        for place in (sandbox.tree.evil, sandbox.tree.project):
            team.unlink(missing_ok=True)
            team.symlink_to(sandbox.tree.put(place / "team.toml", STRICT))
            assert (
                paddock(
                    sandbox, "run", "--policy", team, "--", "true", cwd=elsewhere(sandbox)
                ).exit_code
                == 0
            )
        plant(sandbox, "team.toml")
        is_kept_from_the_secret(sandbox, "--policy", team)
        assert paddock(sandbox, "trust", team).exit_code == 0
        assert (
            paddock(
                sandbox, "run", "--policy", team, "--", "true", cwd=elsewhere(sandbox)
            ).exit_code
            == 0
        )
        assert paddock(sandbox, "trust", "--forget", team).exit_code == 0


def test_a_linked_directory_in_the_config_directory_is_judged_by_where_it_leads(
    sandbox: SandboxRunner,
) -> None:
    sandbox.tree.put(sandbox.tree.project / "pol" / "team.toml", STRICT)
    with at_home(sandbox, ".config/paddock") as config:
        (config / "pol").symlink_to(sandbox.tree.project / "pol")
        (config / "mine.toml").write_text('[meta]\ninherit = "./pol/team.toml"\n')
        sandbox.tester.give(config)
        assert (
            paddock(
                sandbox, "run", "--profile", "mine", "--", "true", cwd=elsewhere(sandbox)
            ).exit_code
            == 0
        )
        plant(sandbox, "pol/team.toml")
        is_kept_from_the_secret(sandbox, "--profile", "mine")


def test_a_config_directory_that_an_earlier_run_filled_counts_only_as_trusted(
    sandbox: SandboxRunner,
) -> None:
    """The directory is a link, as with stow. The agent had written its target before the link
    existed.
    """
    kept = sandbox.tree.make(sandbox.tree.project / "paddock")
    plant(sandbox, "paddock/ai-agent.toml")
    with at_home(sandbox, ".config/paddock", kept):
        is_kept_from_the_secret(sandbox)
    with at_home(sandbox, ".config/paddock", sandbox.tree.make(sandbox.tree.evil / "paddock")):
        sandbox.tree.put(sandbox.tree.evil / "paddock" / "mine.toml", STRICT)
        assert (
            paddock(
                sandbox, "run", "--profile", "mine", "--", "true", cwd=elsewhere(sandbox)
            ).exit_code
            == 0
        )


def test_a_directory_that_became_a_link_does_not_borrow_trust(sandbox: SandboxRunner) -> None:
    """The looser file is trusted too, but only at its own path."""
    strict = sandbox.tree.put(sandbox.tree.project / "sub" / "paddock.toml", STRICT)
    other = sandbox.tree.put(sandbox.tree.evil / "paddock.toml", loose(sandbox))
    for file in (strict, other):
        assert paddock(sandbox, "trust", file).exit_code == 0
    act: list[Word] = ["sh", "-c", f"mv sub gone && ln -s {other.parent} sub"]
    assert "Permission denied" in sandbox.inside(act).stderr
    assert sandbox.outside(act).exit_code == 0, "another program of the user can do it"
    is_kept_from_the_secret(sandbox, "--policy", strict, words="has changed since you trusted it")
    assert (
        paddock(sandbox, "run", "--policy", other, "--", "true", cwd=elsewhere(sandbox)).exit_code
        == 0
    )


def test_a_link_inside_a_path_does_not_borrow_trust(sandbox: SandboxRunner) -> None:
    """The user's link leads into the project, where a command plants the next link."""
    sandbox.tree.put(sandbox.tree.project / "policies" / "p.toml", STRICT)
    other = sandbox.tree.put(sandbox.tree.evil / "p.toml", loose(sandbox))
    assert paddock(sandbox, "trust", other).exit_code == 0
    pols = sandbox.tree.root / "pols"
    pols.symlink_to(sandbox.tree.project / "policies")
    assert (
        sandbox.inside(["sh", "-c", f"mv policies gone && ln -s {other.parent} policies"]).exit_code
        == 0
    )
    is_kept_from_the_secret(sandbox, "--policy", pols / "p.toml")


def test_a_renamed_project_still_counts_as_previously_writable(sandbox: SandboxRunner) -> None:
    plant(sandbox, "pol.toml")
    assert sandbox.inside(["ln", "-s", sandbox.tree.outside, "build"]).exit_code == 0
    renamed = sandbox.tree.project.rename(sandbox.tree.root / "project-old")
    sandbox.tree.make(sandbox.tree.project)
    is_kept_from_the_secret(sandbox, "--policy", renamed / "pol.toml")
    flags = ("--profile", "ai-agent", "--read", renamed / "build")
    is_kept_from_the_secret(sandbox, *flags, words="leads through a symlink")


def test_a_directory_with_the_inode_number_of_a_removed_one_was_not_written(
    sandbox: SandboxRunner,
) -> None:
    """The control is the project itself, which a command could write: its links are refused."""
    for number in range(20):
        project = sandbox.tree.make(sandbox.tree.root / f"old-{number}")
        assert (
            sandbox.inside(["ln", "-s", sandbox.tree.outside, "build"], cwd=project).exit_code == 0
        )
        link = project / "build"
        is_kept_from_the_secret(
            sandbox, "--profile", "ai-agent", "--read", link, words="leads through a symlink"
        )
        known = project.stat().st_ino
        link.unlink()
        project.rmdir()
        fresh = sandbox.tree.make(sandbox.tree.root / f"fresh-{number}")
        if fresh.stat().st_ino == known:
            break
    else:
        pytest.skip("this file system does not give an inode number again")
    sandbox.tree.put(fresh / "strict.toml", STRICT)
    (fresh / "build").symlink_to(sandbox.tree.outside)
    flags = ("--policy", fresh / "strict.toml", "--read", fresh / "build")
    read: list[Word] = ["cat", sandbox.tree.secret]
    later = paddock(sandbox, "run", *flags, "--", *read, cwd=elsewhere(sandbox))
    assert (later.exit_code, later.stdout) == (0, f"{SECRET}\n"), later


def test_a_project_with_a_line_break_in_its_name_counts_as_previously_writable(
    sandbox: SandboxRunner,
) -> None:
    project = sandbox.tree.make(sandbox.tree.root / "line\nbreak")
    plant(sandbox, "pol.toml", cwd=project)
    assert sandbox.inside(["ln", "-s", sandbox.tree.outside, "build"], cwd=project).exit_code == 0
    is_kept_from_the_secret(sandbox, "--policy", project / "pol.toml")
    flags = ("--profile", "ai-agent", "--read", project / "build")
    is_kept_from_the_secret(sandbox, *flags, words="leads through a symlink")


def test_a_link_in_the_temporary_directory_of_a_living_run_is_not_followed(
    sandbox: SandboxRunner,
) -> None:
    script = f'ln -s {sandbox.tree.outside} "$TMPDIR/link" && echo "$TMPDIR/link"; sleep 60'
    with sandbox.starting(["sh", "-c", script]) as living:
        assert living.stdout is not None
        link = living.stdout.readline().strip()
        assert os.readlink(link) == str(sandbox.tree.outside)
        flags = ("--profile", "ai-agent", "--read", link)
        is_kept_from_the_secret(sandbox, *flags, words="leads through a symlink")


def test_a_planted_link_does_not_redirect_the_journal(sandbox: SandboxRunner) -> None:
    """The journal is written outside the sandbox: a planted link would choose its path."""
    target = sandbox.tree.make(sandbox.tree.evil / "target")
    assert sandbox.inside(["ln", "-s", target, "logs"]).exit_code == 0
    own = sandbox.tree.root / "own"
    own.symlink_to(target)
    for link, code in ((sandbox.tree.project / "logs", 125), (own, 0)):
        run = paddock(
            sandbox, "run", "--audit-log", link / "journal", "--", "true", cwd=elsewhere(sandbox)
        )
        assert run.exit_code == code, run
        assert (target / "journal").exists() == (code == 0)


@pytest.mark.parametrize("mode", [0o622, 0o606])
def test_a_writable_list_of_paths_is_refused(sandbox: SandboxRunner, mode: int) -> None:
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not change the state of an ordinary user",
    )
    assert paddock(sandbox, "run", "--", "true").exit_code == 0
    reach = sandbox.tester.home / ".local" / "state" / "paddock" / "reach"
    before = reach.stat().st_mode
    reach.chmod(mode)
    later = paddock(sandbox, "run", "--", "true")
    reach.chmod(before)
    assert later.exit_code == 125, later
    assert "only you can write" in later.stderr
