"""What one run leaves behind must not loosen the next: planted links, policies, code, moved
directories.

Each attack was found by somebody who tried to get out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.fence import Fence, Word
from tests.support.repeated_runs import at_home, paddock
from tests.support.test_tree import SECRET


def loose(fence: Fence) -> str:
    """A policy that lets the secret be read."""
    return (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{fence.ground.outside}/**"]\n'
    )


def plant(fence: Fence, name: str, cwd: Path | None = None) -> None:
    """A command writes such a policy."""
    planted = fence.inside(["sh", "-c", f"cat > {name}"], stdin=loose(fence), cwd=cwd)
    assert planted.exit_code == 0, planted


STRICT = '[meta]\ninherit = "ai-agent"\n'


def elsewhere(fence: Fence) -> Path:
    """A workspace that no run was given before."""
    return fence.ground.make(fence.ground.root / "elsewhere")


def is_kept_from_the_secret(fence: Fence, *flags: Word, words: str = "is not trusted yet") -> None:
    """A run somewhere else, with these flags, stops with these words; the same command without
    Paddock succeeds.
    """
    read: list[Word] = ["cat", fence.ground.secret]
    later = paddock(fence, "run", *flags, "--", *read, cwd=elsewhere(fence))
    assert later.exit_code == 125, later
    assert words in later.stderr, later
    assert SECRET not in later.stdout
    assert fence.outside(read).stdout == f"{SECRET}\n"


def test_code_planted_for_python_is_not_run_outside(fence: Fence) -> None:
    """PYTHONPATH may lead into the workspace; Paddock's own interpreter must not care."""
    marker = fence.ground.outside / "ran"
    env = {"PYTHONPATH": str(fence.ground.project), "PYTHONSTARTUP": "x.py"}
    plant = f'printf \'open("{marker}", "w")\\n\' > sitecustomize.py'
    assert fence.inside(["sh", "-c", plant]).exit_code == 0
    control = fence.outside(["python3", "-c", "pass"], env=env)
    assert control.exit_code == 0
    assert marker.exists(), "plain Python does run it"
    marker.unlink()
    for words in (["why", "--path", "/etc"], ["profiles"], ["run", "--", "true"]):
        assert paddock(fence, *words, env=env).exit_code == 0
        assert not marker.exists(), words
    assert paddock(fence, "profiles", env={"PYTHONHOME": "/nonexistent"}).exit_code == 0


def test_a_link_planted_in_the_workspace_does_not_widen_a_later_grant(fence: Fence) -> None:
    link = fence.ground.project / "build"
    assert fence.inside(["ln", "-s", str(fence.ground.outside), str(link)]).exit_code == 0
    flags = ("--profile", "read-only", "--allow", "build")
    denied = paddock(fence, "run", *flags, "--", "cat", str(fence.ground.secret))
    assert denied.exit_code == 125, denied
    assert "leads through a symlink" in denied.stderr
    assert SECRET not in denied.stdout
    link.unlink()
    fence.ground.make(link)
    assert paddock(fence, "run", *flags, "--", "touch", "build/made").exit_code == 0
    assert (link / "made").exists()


def test_a_workspace_that_is_swapped_for_a_link_while_a_run_starts_opens_nothing(
    fence: Fence,
) -> None:
    """Another run exchanges the directory with a link to everything, over and over."""
    sub = fence.ground.make(fence.ground.project / "sub")
    link = fence.ground.project / "link"
    link.symlink_to(fence.ground.outside)
    swap = [
        "python3", "-c",
        "import ctypes, time\nlibc = ctypes.CDLL(None)\nprint('started', flush=True)\n"
        "end = time.monotonic() + 120\n"
        "while time.monotonic() < end:\n"
        "    assert libc.renameat2(-100, b'sub', -100, b'link', 2) == 0\n    time.sleep(0.0002)\n",
    ]  # fmt: skip
    with fence.starting(swap) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "started\n"
        journal = fence.ground.root / "later"
        words = f"--audit-log {journal} -- cat {fence.ground.secret}"
        script = (
            f'cd sub 2>/dev/null && exec "$0" run --quiet --tier {fence.tier} --profile '
            f"ai-agent "
            f"{words}"
        )
        answers = [
            fence.tester.run(
                ["sh", "-c", script, fence.installation.paddock], cwd=fence.ground.project
            )
            for _ in range(40)
        ]
    # Who stands in the target of the link was led there by the shell. A run that stands in the
    # directory, which has one name or the other, must not read outside.
    events = fence.events(journal)
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
    assert 0 not in [ended[session] for session in stood]


def test_a_policy_beside_the_work_can_not_rewrite_itself(fence: Fence) -> None:
    file = fence.ground.put(
        fence.ground.project / "p.toml",
        '[meta]\ninherit = "read-only"\n[filesystem]\nallow_globs = ["<cwd>/**"]\n',
    )
    assert paddock(fence, "trust", str(file)).exit_code == 0
    loose = (
        f'[meta]\ninherit = "read-only"\n[filesystem]\nread_globs = ["{fence.ground.outside}/**"]\n'
    )
    rewrite = ("--policy", "p.toml", "--", "sh", "-c", f"printf '{loose}' > p.toml")
    assert "Read-only file system" in paddock(fence, "run", "--tier", "full", *rewrite).stderr
    rewritten = paddock(fence, "run", "--tier", "landlock", *rewrite)
    assert rewritten.exit_code == 0, rewritten
    again = paddock(fence, "run", "--policy", "p.toml", "--", "cat", str(fence.ground.secret))
    assert again.exit_code == 125, again
    assert "has changed since you trusted it" in again.stderr
    assert SECRET not in again.stdout


def test_a_link_to_another_projects_trusted_policy_is_not_trusted(fence: Fence) -> None:
    other = fence.ground.put(
        fence.ground.outside / "paddock.toml",
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{fence.ground.outside}/**"]\n',
    )
    assert paddock(fence, "trust", str(other)).exit_code == 0
    assert fence.inside(["ln", "-s", str(other), "paddock.toml"]).exit_code == 0
    denied = paddock(fence, "run", "--", "cat", str(fence.ground.secret))
    assert denied.exit_code == 125, denied
    assert "is not trusted yet" in denied.stderr
    (fence.ground.project / "paddock.toml").unlink()


def test_the_default_journal_is_closed_to_a_run_that_does_not_use_it(fence: Fence) -> None:
    """C-084"""
    assert paddock(fence, "run", "--", "true").exit_code == 0
    head = f"/var/tmp/paddock-audit-{fence.tester.uid}/head"
    for flags in (("--off", "audit"), ("--audit-log", str(fence.journal))):
        inside = paddock(
            fence, "run", "--profile", "ai-agent", "--allow", "/var/tmp", *flags, "--", "cat", head
        )
        assert "Permission denied" in inside.stderr, inside
    assert fence.outside(["cat", head]).exit_code == 0


def test_a_journal_placed_elsewhere_is_closed_to_every_later_run(fence: Fence) -> None:
    """C-084: also to a plan that was remembered before there was such a journal."""
    second = fence.ground.make(fence.ground.root / "second")
    second.chmod(0o700)
    head = fence.ground.put(second / "head", mode=0o600)
    beside = fence.ground.put(fence.ground.root / "beside" / "file", "open\n")
    flags = (
        "-r",
        f"{fence.programs.directory}/**",
        "--profile",
        "ai-agent",
        "--allow",
        f"{fence.ground.root}/**",
    )

    def later(*act: Word) -> str:
        return paddock(fence, "run", *flags, "--", *fence.probe(*act)).answer

    acts = [
        ("read", head),
        ("list", second),
        ("create", second / "new"),
        ("unlink", head),
        ("rename", second, "taken"),
    ]
    assert later("read", head) == "ok ", "nobody has called it a journal yet"
    assert paddock(fence, "run", "--audit-log", second, "--", "true").exit_code == 0
    for act in acts:
        assert later(*act) == "EACCES", act
    assert later("read", beside) == "ok open"
    assert [event["event"] for event in fence.events(second)] == ["session.start", "session.end"]
    assert fence.outside(fence.probe("read", head)).answer.startswith("ok 2 ")


def test_a_journal_file_placed_elsewhere_is_closed_with_its_head_and_nothing_else(
    fence: Fence,
) -> None:
    logs = fence.ground.make(fence.ground.root / "logs")
    note = fence.ground.put(logs / "note", "open\n")
    file = logs / "mine.jsonl"
    assert paddock(fence, "run", f"--audit={file}", "--", "true").exit_code == 0
    flags = (
        "-r",
        f"{fence.programs.directory}/**",
        "--profile",
        "ai-agent",
        "--allow",
        f"{logs}/**",
    )
    for path, answer in ((file, "EACCES"), (logs / "mine.jsonl.head", "EACCES"), (note, "ok open")):
        assert paddock(fence, "run", *flags, "--", *fence.probe("read", path)).answer == answer, (
            path
        )
    assert fence.outside(fence.probe("read", file)).answer.startswith("ok {")


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_place_that_was_refused_as_a_journal_does_not_stay_closed(
    fence: Fence, mode: int
) -> None:
    shared = fence.ground.make(fence.ground.root / "shared")
    note = fence.ground.put(shared / "note", "open\n")
    shared.chmod(mode)
    inside = fence.ground.project / "log"
    for place in (shared, inside):
        refused = paddock(fence, "run", "--audit-log", place, "--", "true")
        assert refused.exit_code == 125, refused
    assert fence.inside(fence.probe("read", note), "--allow", f"{shared}/**").answer == "ok open"
    assert fence.inside(fence.probe("create", fence.ground.project / "new")).answer == "ok"


def test_links_made_in_another_project_are_not_followed(fence: Fence) -> None:
    """A dotfiles set-up: ~/.vim leads into a project, where an agent worked once."""
    dot = fence.ground.make(fence.ground.root / "dot")
    fence.ground.make(dot / "vim")
    home_link = fence.tester.home / ".vim"
    ours = fence.tester.disposable or not os.path.lexists(home_link)
    need("root", ours, "an ordinary user's own ~/.vim is not the tests' to replace")
    home_link.symlink_to(dot / "vim")
    read = ["cat", str(fence.ground.secret)]
    try:
        assert (
            fence.inside(
                ["sh", "-c", f"rmdir vim; ln -s {fence.ground.outside} vim"], cwd=dot
            ).exit_code
            == 0
        )
        assert (dot / "vim").is_symlink()
        later = fence.inside(read)
        assert "Permission denied" in later.stderr, later
        assert "leads through a symlink" in later.stderr, later
    finally:
        home_link.unlink()
    explicit = fence.inside(read, "--read", f"{dot}/vim")
    assert explicit.exit_code == 125, explicit


def test_a_policy_in_another_runs_workspace_needs_the_word(fence: Fence) -> None:
    file = fence.ground.put(fence.ground.project / "pol.toml", '[meta]\ninherit = "ai-agent"\n')
    loose = (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{fence.ground.outside}/**"]\n'
    )
    assert fence.inside(["sh", "-c", f"printf '{loose}' > pol.toml"]).exit_code == 0
    sub = fence.ground.make(fence.ground.evil / "sub")
    words = ["run", "--policy", str(file), "--", "cat", str(fence.ground.secret)]
    later = fence.tester.run([fence.installation.paddock, *words], cwd=sub)
    assert later.exit_code == 125, later
    assert "is not trusted yet" in later.stderr


def test_a_directory_swapped_for_a_link_does_not_carry_trust_elsewhere(fence: Fence) -> None:
    policy = fence.ground.put(
        fence.ground.project / "pd" / "q.toml", '[meta]\ninherit = "ai-agent"\n'
    )
    assert paddock(fence, "trust", str(policy)).exit_code == 0
    codex = fence.ground.make(fence.ground.root / "codex")
    loose = (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{fence.ground.outside}/**"]\n'
    )
    swap = f"printf '{loose}' > {codex}/q.toml; rm -r pd; ln -s {codex} pd"
    flags = ("--policy", "./pd/q.toml")
    swapping = (*flags, "--allow", str(codex), "--", "sh", "-c", swap)
    assert "busy" in paddock(fence, "run", "--tier", "full", *swapping).stderr
    fence.ground.put(fence.ground.project / "pd" / "q.toml", '[meta]\ninherit = "ai-agent"\n')
    assert paddock(fence, "run", "--tier", "landlock", *swapping).exit_code == 0
    later = paddock(fence, "run", *flags, "--", "cat", str(fence.ground.secret))
    assert later.exit_code == 125, later
    assert SECRET not in later.stdout


def test_state_behind_a_link_that_the_command_could_change_stops_the_run(fence: Fence) -> None:
    need("root", fence.tester.disposable, "an ordinary user's own state is not the tests' to move")
    state = fence.tester.home / ".local" / "state"
    assert paddock(fence, "run", "--", "true").exit_code == 0, "the first run makes the state"
    real = fence.ground.make(fence.ground.root / "real")
    state.rename(real / "state")
    (fence.ground.project / "s").symlink_to(real / "state")
    state.symlink_to(fence.ground.project / "s")
    try:
        stopped = paddock(fence, "run", "--", "true")
        assert stopped.exit_code == 125, stopped
        assert "leads through a symlink in" in stopped.stderr
        # A link of the person's own, where no command could ever write, is no danger.
        state.unlink()
        state.symlink_to(real / "state")
        assert paddock(fence, "run", "--", "true").exit_code == 0
    finally:
        state.unlink()
        (real / "state").rename(state)


def test_a_profile_that_became_unreadable_is_not_skipped(fence: Fence) -> None:
    """Landlock does not judge chmod: a command can shut the config directory, not make it
    vanish.
    """
    config = fence.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    fence.tester.give(fence.tester.home / ".config")
    assert fence.inside(["chmod", "000", str(config)]).exit_code == 0
    try:
        later = paddock(fence, "run", "--", "true")
        assert later.exit_code == 125, later
        assert "cannot be examined" in later.stderr
    finally:
        config.chmod(0o755)


def test_a_trusted_project_policy_that_is_gone_is_missed(fence: Fence) -> None:
    fence.ground.put(fence.ground.project / "paddock.toml", '[meta]\ninherit = "strict"\n')
    assert paddock(fence, "trust").exit_code == 0
    assert "busy" in paddock(fence, "run", "--tier", "full", "--", "rm", "paddock.toml").stderr
    assert paddock(fence, "run", "--tier", "landlock", "--", "rm", "paddock.toml").exit_code == 0
    later = paddock(fence, "run", "--", "true")
    assert later.exit_code == 125, later
    assert "it no longer exists" in later.stderr
    assert paddock(fence, "run", "--profile", "ai-agent", "--", "true").exit_code == 0
    assert paddock(fence, "trust", "--revoke").exit_code == 0
    assert paddock(fence, "run", "--", "true").exit_code == 0


def test_a_run_that_was_refused_leaves_no_place_distrusted(fence: Fence) -> None:
    """It wrote nowhere: a policy where it would have written is believed as before."""
    place = elsewhere(fence)
    policy = fence.ground.put(place / "pol.toml", STRICT)
    refused = paddock(fence, "run", "--", "true", cwd=fence.tester.home)
    assert (refused.exit_code, "your home directory" in refused.stderr) == (125, True), refused
    assert paddock(fence, "run", "--policy", policy, "--", "true").exit_code == 0
    assert paddock(fence, "run", "--allow", f"{place}/**", "--", "true").exit_code == 0
    later = paddock(fence, "run", "--policy", policy, "--", "true")
    assert (later.exit_code, "is not trusted yet" in later.stderr) == (125, True), (
        "one that ran is remembered"
    )


@pytest.mark.parametrize("directory", ["/tmp", "/dev/shm", "/proc"])
def test_places_that_are_no_project_are_no_workspace(fence: Fence, directory: str) -> None:
    outcome = fence.tester.run([fence.installation.paddock, "run", "--", "true"], cwd=directory)
    assert outcome.exit_code == 125, outcome
    assert "the workspace would be" in outcome.stderr


def test_shared_memory_and_queues_of_the_user_are_out_of_reach(fence: Fence) -> None:
    """They are no files: no grant judges them."""
    script = (
        "import ctypes, os; print('started'); libc = ctypes.CDLL(None, use_errno=True)\n"
        "for call in (lambda: libc.shmget(4660, 8, 0o1600), lambda: libc.msgget(4660, 0o1600),"
        " lambda: libc.semget(4660, 1, 0o1600)):\n"
        "    print('ok' if call() >= 0 else os.strerror(ctypes.get_errno()))"
    )
    words = ["python3", "-c", script]
    inside = fence.inside(words)
    assert inside.stdout.splitlines() == ["started", *["Operation not permitted"] * 3], inside
    try:
        assert fence.outside(words).stdout.splitlines() == ["started", "ok", "ok", "ok"]
    finally:
        fence.outside(["ipcrm", "-M", "4660", "-Q", "4660", "-S", "4660"])


def test_other_terminals_of_the_user_can_not_be_opened(fence: Fence) -> None:
    """What is typed into them could be read."""
    script = (
        "import os, pty, sys; print('started', flush=True)\n"
        "try:\n    os.close(os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)); print('ok')\n"
        "except OSError as error: print(error.strerror)"
    )
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        os.chown(name, fence.tester.uid, fence.tester.gid)
        words = ["python3", "-c", script, name]
        assert fence.outside(words).stdout.splitlines() == ["started", "ok"]
        assert fence.inside(words).stdout.splitlines() == ["started", "Permission denied"]
    finally:
        os.close(master)
        os.close(slave)


def test_the_end_is_journaled_although_the_command_took_the_rights_away(fence: Fence) -> None:
    """Landlock does not judge chmod; the core holds the file open."""
    script = (
        "import datetime, os, sys; print('started', flush=True)\n"
        "day = datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%d.jsonl')\n"
        "os.chmod(os.path.join(sys.argv[1], day), 0)"
    )
    outcome = fence.inside(["python3", "-c", script, str(fence.journal)])
    assert outcome.started, str(outcome)
    (day,) = fence.journal.glob("*.jsonl")
    assert day.stat().st_mode & 0o777 == 0, "the command did change the mode"
    day.chmod(0o600)
    assert [event["event"] for event in fence.events()] == ["session.start", "session.end"]


def test_a_hostile_key_does_not_take_all_memory(fence: Fence) -> None:
    file = fence.ground.put(fence.ground.root / "deep.toml", "a." * 100_000 + "a = 1\n")
    checked = fence.tester.run(
        ["sh", "-c", 'ulimit -v 4000000; exec "$0" check "$1"', fence.installation.paddock, file],
        cwd=fence.ground.project,
    )
    assert checked.exit_code == 125, checked
    assert "internal error" not in checked.stderr


# Links that lead a policy elsewhere.


def test_a_link_in_the_config_directory_is_judged_by_where_it_leads(fence: Fence) -> None:
    """The directory itself is closed to every command; what a link in it leads to is not."""
    with at_home(fence, ".config/paddock") as config:
        team = config / "team.toml"
        for place in (fence.ground.evil, fence.ground.project):
            team.unlink(missing_ok=True)
            team.symlink_to(fence.ground.put(place / "team.toml", STRICT))
            assert (
                paddock(
                    fence, "run", "--policy", team, "--", "true", cwd=elsewhere(fence)
                ).exit_code
                == 0
            )
        plant(fence, "team.toml")
        is_kept_from_the_secret(fence, "--policy", team)
        assert paddock(fence, "trust", team).exit_code == 0
        assert (
            paddock(fence, "run", "--policy", team, "--", "true", cwd=elsewhere(fence)).exit_code
            == 0
        )
        assert paddock(fence, "trust", "--revoke", team).exit_code == 0


def test_a_linked_directory_in_the_config_directory_is_judged_by_where_it_leads(
    fence: Fence,
) -> None:
    fence.ground.put(fence.ground.project / "pol" / "team.toml", STRICT)
    with at_home(fence, ".config/paddock") as config:
        (config / "pol").symlink_to(fence.ground.project / "pol")
        (config / "mine.toml").write_text('[meta]\ninherit = "./pol/team.toml"\n')
        fence.tester.give(config)
        assert (
            paddock(fence, "run", "--profile", "mine", "--", "true", cwd=elsewhere(fence)).exit_code
            == 0
        )
        plant(fence, "pol/team.toml")
        is_kept_from_the_secret(fence, "--profile", "mine")


def test_a_config_directory_that_an_earlier_run_filled_counts_only_as_trusted(fence: Fence) -> None:
    """Kept elsewhere and linked, as stow does it; the agent was there before the link."""
    kept = fence.ground.make(fence.ground.project / "paddock")
    plant(fence, "paddock/ai-agent.toml")
    with at_home(fence, ".config/paddock", kept):
        is_kept_from_the_secret(fence)
    with at_home(fence, ".config/paddock", fence.ground.make(fence.ground.evil / "paddock")):
        fence.ground.put(fence.ground.evil / "paddock" / "mine.toml", STRICT)
        assert (
            paddock(fence, "run", "--profile", "mine", "--", "true", cwd=elsewhere(fence)).exit_code
            == 0
        )


def test_a_directory_that_became_a_link_does_not_borrow_trust(fence: Fence) -> None:
    """The looser file is trusted too, but in its own place."""
    strict = fence.ground.put(fence.ground.project / "sub" / "paddock.toml", STRICT)
    other = fence.ground.put(fence.ground.evil / "paddock.toml", loose(fence))
    for file in (strict, other):
        assert paddock(fence, "trust", file).exit_code == 0
    swap = f"mv sub gone && ln -s {other.parent} sub"
    assert fence.inside(["sh", "-c", swap]).exit_code == 0
    is_kept_from_the_secret(fence, "--policy", strict, words="has changed since you trusted it")
    assert (
        paddock(fence, "run", "--policy", other, "--", "true", cwd=elsewhere(fence)).exit_code == 0
    )


def test_a_link_in_the_middle_of_the_way_does_not_borrow_trust(fence: Fence) -> None:
    """The person's own link leads into the project, and there a command puts the next one."""
    fence.ground.put(fence.ground.project / "policies" / "p.toml", STRICT)
    other = fence.ground.put(fence.ground.evil / "p.toml", loose(fence))
    assert paddock(fence, "trust", other).exit_code == 0
    pols = fence.ground.root / "pols"
    pols.symlink_to(fence.ground.project / "policies")
    assert (
        fence.inside(["sh", "-c", f"mv policies gone && ln -s {other.parent} policies"]).exit_code
        == 0
    )
    is_kept_from_the_secret(fence, "--policy", pols / "p.toml")


# A directory that a command has shut: Landlock does not judge chmod.


def test_a_renamed_project_is_still_in_reach(fence: Fence) -> None:
    plant(fence, "pol.toml")
    assert fence.inside(["ln", "-s", fence.ground.outside, "build"]).exit_code == 0
    renamed = fence.ground.project.rename(fence.ground.root / "project-old")
    fence.ground.make(fence.ground.project)
    is_kept_from_the_secret(fence, "--policy", renamed / "pol.toml")
    flags = ("--profile", "ai-agent", "--read", renamed / "build")
    is_kept_from_the_secret(fence, *flags, words="leads through a symlink")


def test_a_project_with_a_line_break_in_its_name_is_in_reach(fence: Fence) -> None:
    project = fence.ground.make(fence.ground.root / "line\nbreak")
    plant(fence, "pol.toml", cwd=project)
    assert fence.inside(["ln", "-s", fence.ground.outside, "build"], cwd=project).exit_code == 0
    is_kept_from_the_secret(fence, "--policy", project / "pol.toml")
    flags = ("--profile", "ai-agent", "--read", project / "build")
    is_kept_from_the_secret(fence, *flags, words="leads through a symlink")


def test_a_link_in_the_temporary_directory_of_a_living_run_is_not_followed(fence: Fence) -> None:
    script = f'ln -s {fence.ground.outside} "$TMPDIR/link" && echo "$TMPDIR/link"; sleep 60'
    with fence.starting(["sh", "-c", script]) as living:
        assert living.stdout is not None
        link = living.stdout.readline().strip()
        assert os.readlink(link) == str(fence.ground.outside)
        flags = ("--profile", "ai-agent", "--read", link)
        is_kept_from_the_secret(fence, *flags, words="leads through a symlink")


def test_a_journal_is_not_led_elsewhere(fence: Fence) -> None:
    """It is written outside the fence: a planted link would choose where."""
    target = fence.ground.make(fence.ground.evil / "target")
    assert fence.inside(["ln", "-s", target, "logs"]).exit_code == 0
    own = fence.ground.root / "own"
    own.symlink_to(target)
    for link, code in ((fence.ground.project / "logs", 125), (own, 0)):
        run = paddock(
            fence, "run", "--audit-log", link / "journal", "--", "true", cwd=elsewhere(fence)
        )
        assert run.exit_code == code, run
        assert (target / "journal").exists() == (code == 0)


@pytest.mark.parametrize("mode", [0o622, 0o606])
def test_a_list_of_places_that_others_could_write_is_not_believed(fence: Fence, mode: int) -> None:
    need(
        "root", fence.tester.disposable, "an ordinary user's own state is not the tests' to change"
    )
    assert paddock(fence, "run", "--", "true").exit_code == 0
    reach = fence.tester.home / ".local" / "state" / "paddock" / "reach"
    before = reach.stat().st_mode
    reach.chmod(mode)
    later = paddock(fence, "run", "--", "true")
    reach.chmod(before)
    assert later.exit_code == 125, later
    assert "only you can write" in later.stderr
