"""The text of an event has the same values as the stored event. No value can forge a field or a
line.
"""

from __future__ import annotations

import json
from pathlib import Path

from paddock.journal.event_text import line
from paddock.journal.reader import Event

EVENTS = Path(__file__).parents[3] / "schema" / "examples" / "events.jsonl"


def event(**fields: object) -> Event:
    return Event(file="f", line=1, raw=b"", fields={"ts": "2026-11-15T05:00:00.123Z", **fields})


def test_a_start_event_shows_user_directory_and_applied_policy() -> None:
    """C-090, C-094"""
    raw = EVENTS.read_text().splitlines()[0]
    shown = line(Event(file="f", line=1, raw=raw.encode(), fields=json.loads(raw)))
    assert shown == (
        "[2026-11-15 05:00:00] session=9f86d081884c7d65 event=session.start user=ada "
        "uid=1000 pid=4242 "
        "ppid_chain=bash:4100->sshd:900->init:1 cwd=/home/ada/project tty=/dev/pts/0 "
        'command="git status" '
        "profile=ai-agent plan=2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae "
        "network_by=namespace landlock=1 seccomp=1 paths=4 blocked=5 network=filtered"
    )


def test_a_field_has_the_same_type_in_every_event() -> None:
    """F-042"""
    types: dict[str, set[str]] = {}
    for raw in EVENTS.read_text().splitlines():
        for name, value in json.loads(raw).items():
            if value is not None:
                types.setdefault(name, set()).add(type(value).__name__)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_an_exceeded_limit_shows_its_name_and_mechanism() -> None:
    raw = next(raw for raw in EVENTS.read_text().splitlines() if '"limit.exceeded"' in raw)
    shown = line(Event(file="f", line=3, raw=raw.encode(), fields=json.loads(raw)))
    assert shown == (
        "[2026-11-15 05:00:01] session=c3ab8ff13720e8ad event=limit.exceeded limit=memory_mb "
        "value=512 "
        "means=watchdog ended=true unwatched=false"
    )


def test_means_of_two_words_stay_one_value() -> None:
    assert line(event(event="limit.exceeded", means="cgroup v1")).endswith(
        'event=limit.exceeded means="cgroup v1"'
    )


def test_a_value_cannot_forge_a_field() -> None:
    """C-095"""
    shown = line(event(event="session.start", cwd="/a event=FAKE\n[2026-01-01 00:00:00] user=root"))
    assert "\n" not in shown
    assert shown.count(" event=") == 2  # one of them inside quotes
    assert 'cwd="/a event=FAKE\\n[2026' in shown


def test_a_missing_terminal_is_marked() -> None:
    """C-093"""
    assert line(event(tty=None)) == "[2026-11-15 05:00:00] tty=-"


def test_names_show_where_they_are() -> None:
    shown = {}
    for raw in EVENTS.read_text().splitlines():
        fields = json.loads(raw)
        shown[fields["event"]] = line(Event(file="f", line=1, raw=raw.encode(), fields=fields))
    stamp = "[2026-11-15 05:00:00] session=9f86d081884c7d65"
    assert shown["name.flagged"] == f"{stamp} event=name.flagged path=/home/ada/project/Makefile"
    assert (
        shown["name.masked"]
        == f"{stamp} event=name.masked path=/home/ada/project/.env window_us=900"
    )
