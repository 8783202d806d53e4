"""Sessions are listed, locked while they run, found by their directory and removed completely.
Broken ones are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.support.cow import Cow, tree_entries
from tests.support.terminal import opened
from tests.support.waiting import wait_for


def rows(cow: Cow) -> dict[str, dict[str, object]]:
    shown = cow.paddock("sessions", "--json")
    assert shown.exit_code == 0, shown
    return {row["id"]: row for row in json.loads(shown.stdout)}


def test_sessions_are_listed_newest_first_with_what_they_hold(cow: Cow) -> None:
    one = cow.session("printf 12345 > a; rm own.txt")
    two = cow.session("true")
    found = rows(cow)
    assert [name for name in found if name in (one, two)] == [two, one]
    assert found[one]["changes"] == 2
    assert found[one]["bytes"] == 5
    assert found[one]["state"] == "ended"
    assert found[one]["workspace"] == str(cow.workspace)
    line = next(
        line for line in cow.paddock("sessions").stdout.splitlines() if line.startswith(one)
    )
    assert "ended    2 changes, 5 B" in line
    assert str(cow.workspace) in line


def test_commands_without_an_id_use_the_session_of_this_directory(cow: Cow) -> None:
    nothing = cow.paddock("diff")
    assert nothing.exit_code == 125
    assert "no finished copy-on-write session" in nothing.stderr
    one = cow.session("mkdir sub; echo 1 > sub/f")
    assert cow.paddock("apply", "sub").exit_code == 0
    assert cow.paddock("diff", cwd=cow.workspace / "sub").exit_code == 0
    elsewhere = cow.paddock("diff", cwd=cow.tree.outside)
    assert elsewhere.exit_code == 125
    two = cow.session("echo 2 > g")
    assert cow.diff() == {"g": "added"}, "the newest session by default"
    for command in ("apply", "discard"):
        ambiguous = cow.paddock(command)
        assert ambiguous.exit_code == 125
        assert one in ambiguous.stderr
        assert two in ambiguous.stderr
    assert not (cow.workspace / "g").exists()
    assert cow.paddock("discard", one).exit_code == 0
    assert cow.paddock("apply").exit_code == 0


def test_a_running_session_can_only_be_diffed(cow: Cow) -> None:
    cow.put("a", "1\n")
    words = cow.command(["sh", "-c", "echo 2 > a; echo ready; cat; echo 3 > b"])
    session = cow.made[-1]
    with cow.tester.starting(words, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert cow.diff() == {"a": "changed"}
        assert rows(cow)[session]["state"] == "running"
        for command in ("apply", "discard"):
            refused = cow.paddock(command, session)
            assert refused.exit_code == 125
            assert "is running" in refused.stderr
            assert "hint: wait until it has ended" in refused.stderr
        assert (cow.workspace / "a").read_text() == "1\n"
        process.communicate("")
        assert process.returncode == 0
    assert cow.diff(session) == {"a": "changed", "b": "added"}
    assert cow.paddock("apply", session).exit_code == 0


def test_a_session_that_was_killed_has_ended(cow: Cow) -> None:
    words = cow.command(["sh", "-c", "echo 2 > own.txt; echo ready; cat"])
    with cow.tester.starting(words, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
    wait_for(lambda: rows(cow)[cow.made[-1]]["state"] == "ended", "the kernel drops the lock")
    assert cow.paddock("apply", cow.made[-1]).exit_code == 0
    assert (cow.workspace / "own.txt").read_text() == "2\n"


def test_broken_sessions_are_shown_with_their_error_and_can_be_discarded(cow: Cow) -> None:
    good = cow.session("echo 1 > f")
    text = (cow.store / good / "session.json").read_text()
    damaged = {
        "torn": text[:40],
        "newer": text.replace('"version": 1', '"version": 2'),
        "other-id": text,
        "no-plan": json.dumps({**json.loads(text), "id": "no-plan", "plan": None}),
        "list": "[]",
    }
    for name, content in damaged.items():
        (cow.store / name / "upper").mkdir(parents=True)
        (cow.store / name / "session.json").write_text(content)
        cow.made.append(name)
    (cow.store / "half" / "work" / "work").mkdir(parents=True)
    (cow.store / "half" / "work" / "work").chmod(0)
    cow.tester.give(cow.store)
    found = rows(cow)
    for name in (*damaged, "half"):
        assert found[name]["state"] == "broken", name
    assert "session.json is invalid" in str(found["torn"]["error"])
    assert "version 2" in str(found["newer"]["error"])
    assert "to session" in str(found["other-id"]["error"])
    assert "has no session.json" in str(found["half"]["error"])
    assert cow.diff() == {"f": "added"}, "broken sessions do not hide the valid one"
    shown = cow.paddock("diff", "torn")
    assert shown.exit_code == 125
    assert "session torn: session.json is invalid" in shown.stderr
    for name in (*damaged, "half"):
        gone = cow.paddock("discard", name)
        assert gone.exit_code == 0, gone
        assert not (cow.store / name).exists()


def test_a_workspace_that_is_another_directory_now_is_refused(cow: Cow) -> None:
    session = cow.session("echo 1 > f")
    aside = cow.workspace.with_name("moved")
    cow.workspace.rename(aside)
    for command in ("diff", "apply"):
        missing = cow.paddock(command, session, cwd=cow.tree.root)
        assert missing.exit_code == 125
        assert "cannot open the workspace" in missing.stderr
    shutil.copytree(aside, cow.workspace)
    cow.tester.give(cow.workspace)
    for command in ("diff", "apply"):
        other = cow.paddock(command, session)
        assert other.exit_code == 125
        assert "is not the same directory" in other.stderr
    assert not (cow.workspace / "f").exists()
    assert "not the same directory" in str(rows(cow)[session]["error"])
    shutil.rmtree(cow.workspace)
    aside.rename(cow.workspace)
    assert cow.paddock("apply", session).exit_code == 0


def test_a_reboot_may_give_the_disk_another_number(cow: Cow) -> None:
    session = cow.session("echo 1 > f")
    file = cow.store / session / "session.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "device": fields["device"] + 1}))
    assert cow.paddock("apply").exit_code == 0


def test_discard_leaves_nothing_and_touches_no_workspace(cow: Cow) -> None:
    before = tree_entries(cow.workspace)
    session = cow.session(
        "mkdir -p a/b/c; touch a/b/c/d; chmod 000 a/b/c a/b a; ln -s / root; rm own.txt"
    )
    assert os.listdir(cow.store / session / "work") == ["work"]
    assert cow.paddock("discard").exit_code == 0
    assert not [name for name in os.listdir(cow.store) if session in name]
    assert tree_entries(cow.workspace) == before
    again = cow.paddock("discard", session)
    assert again.exit_code == 125
    assert f"the session {session} does not exist" in again.stderr


def test_discard_keeps_the_versions_of_the_person(cow: Cow) -> None:
    cow.put("a", "old\n")
    session = cow.session("echo theirs > a")
    cow.put("a", "mine\n")
    assert cow.paddock("apply", "--overwrite", "a").exit_code == 0
    assert (cow.workspace / "a").read_text() == "theirs\n"
    gone = cow.paddock("discard")
    assert gone.exit_code == 0, gone
    place = cow.store.parent / "kept" / session
    assert str(place) in gone.stdout
    assert [one.read_text() for one in place.glob("*/a")] == ["mine\n"]
    assert str(place) in cow.paddock("sessions").stdout
    assert not (cow.store / session).exists()


def test_the_beginning_of_an_id_names_a_session(cow: Cow) -> None:
    one = cow.session("echo 1 > f", name="beef0001aaaaaaaa")
    two = cow.session("echo 2 > g", name="beef0002aaaaaaaa")
    assert cow.diff(one[:8]) == {"f": "added"}
    both = cow.paddock("discard", "beef")
    assert both.exit_code == 125
    assert f"2 sessions begin with beef: {two} {one}" in both.stderr, both
    assert cow.paddock("discard", two[:8]).exit_code == 0
    assert cow.sessions() >= {one}
    assert two not in cow.sessions()


def test_discard_asks_on_a_terminal_before_changes_are_lost(cow: Cow) -> None:
    session = cow.session("echo 1 > f")
    argv: list[str | Path] = [cow.installation.paddock, "discard", session]
    prompt = f"paddock: 1 change of session {session} not applied. Remove anyway? [y/N]"
    for answer in ("n", "y"):
        with opened(cow.tester, argv, cwd=cow.workspace) as screen:
            screen.shows(prompt)
            assert session in cow.sessions()
            screen.line(answer)
            screen.shows(
                "paddock: nothing was removed" if answer == "n" else f"discarded: {session}"
            )
        assert (session in cow.sessions()) is (answer == "n")
    applied = cow.session("echo 2 > g")
    assert cow.paddock("apply").exit_code == 0
    kept_open = ["sh", "-c", '"$@"; exec cat', "sh", *argv[:2], applied]
    with opened(cow.tester, kept_open, cwd=cow.workspace) as screen:
        screen.shows(f"discarded: {applied}")


def test_discard_says_what_was_not_applied(cow: Cow) -> None:
    session = cow.session("echo 1 > f; echo 2 > g")
    assert cow.paddock("apply", "f").exit_code == 0
    gone = cow.paddock("discard")
    assert (gone.exit_code, gone.stdout) == (0, f"discarded: {session}\n")
    assert f"1 change of session {session} not applied, and removed" in gone.stderr
    assert (cow.workspace / "f").exists()


def test_discard_all_removes_every_session_that_has_ended(cow: Cow) -> None:
    ended = {cow.session("echo 1 > f"), cow.session("true")}
    words = cow.command(["sh", "-c", "echo ready; cat"])
    running = cow.made[-1]
    with cow.tester.starting(words, cwd=cow.workspace, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert cow.paddock("discard", "--all").exit_code == 0
        assert not ended & cow.sessions()
        assert running in cow.sessions()
        process.communicate("")
    mixed = cow.paddock("discard", "--all", running)
    assert mixed.exit_code == 125
    assert "contradict each other" in mixed.stderr
    assert running in cow.sessions()


def test_an_interrupted_removal_is_finished_by_the_next(cow: Cow) -> None:
    half = cow.store / ".discarded-0123" / "upper" / "d"
    half.mkdir(parents=True)
    cow.tester.give(cow.store)
    foreign = cow.store / ".discarded-4567" / "upper" / "d"
    foreign.mkdir(parents=True)
    foreign.parent.chmod(0o000)
    cow.session("true")
    assert ".discarded" not in cow.paddock("sessions").stdout
    assert cow.paddock("discard").exit_code == 0
    assert not half.parent.parent.exists()
    if (
        foreign.exists()
    ):  # root created it: a session that cannot be removed does not stop the removal of others
        shutil.rmtree(foreign.parent.parent)


def test_a_name_that_is_no_session_id_reaches_no_file(cow: Cow) -> None:
    session = cow.session("echo 1 > f")
    (cow.store / "inner" / "upper").mkdir(parents=True)
    cow.tester.give(cow.store)
    before = set(tree_entries(cow.store.parent))
    for name in ("..", f"../sessions/{session}", ".", "inner/upper", "-", "x" * 100, ""):
        shown = cow.paddock("discard", "--", name)
        assert shown.exit_code == 125
        assert "does not exist" in shown.stderr
    assert set(tree_entries(cow.store.parent)) == before
    cow.made.append("inner")


def test_a_session_is_resumed_after_a_reboot_and_during_a_diff(cow: Cow) -> None:
    cow.run("sh", "-ec", "echo 1 > f")
    session = cow.only_session()
    file = cow.store / session / "session.json"
    text = file.read_text()
    fields = json.loads(text)
    file.write_text(
        text.replace(f'"device":{fields["device"]}', f'"device":{fields["device"] + 1}')
    )
    words: list[str | Path] = ["flock", "-s", cow.store / session, "sh", "-c", "echo held; cat"]
    resume = cow.running("cat", "f", flags=["--resume", session])
    with cow.tester.starting(words, stdin=subprocess.PIPE) as looking:
        assert looking.stdout is not None
        assert looking.stdout.readline() == "held\n"
        with cow.tester.starting(resume, cwd=cow.workspace) as resumed:
            wait_for(
                lambda: has_open(resumed.pid, cow.store / session),
                "the run tries to lock the session",
            )
            looking.communicate("")
            assert resumed.communicate(timeout=120)[0] == "1\n"


def has_open(pid: int, path: Path) -> bool:
    """The process or one of its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    links = [link for one in (pid, *children) for link in Path(f"/proc/{one}/fd").glob("*")]
    return any(os.path.realpath(link) == str(path) for link in links)


def test_a_session_that_runs_or_is_of_another_directory_is_not_resumed(cow: Cow) -> None:
    cow.run("sh", "-ec", "echo 1 > f")
    session = cow.only_session()
    with cow.tester.starting(
        ["flock", cow.store / session, "sh", "-c", "echo held; cat"], stdin=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        refused = cow.run("cat", "f", flags=["--resume", session])
        assert refused.exit_code == 125
        assert "is still running" in refused.stderr
        held.communicate("")
    cow.workspace.rename(cow.workspace.with_name("aside"))
    cow.workspace.mkdir()
    cow.tester.give(cow.workspace)
    refused = cow.run("cat", "f", flags=["--resume", session])
    assert refused.exit_code == 125
    assert "belongs to another workspace" in refused.stderr, refused
