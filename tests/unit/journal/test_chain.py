"""verify finds an edited, removed, added or moved line. The head fixes the end of the chain."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from paddock.errors import JournalError
from paddock.journal import Journal, verify


def write(directory: Path, days: dict[str, int], last: dict[str, object] | None = None) -> Journal:
    """A journal as the core writes it. ``last`` has the fields of its last event."""
    prev, seq, size, name = "0" * 64, 0, 0, ""
    for name, count in days.items():
        lines: list[str] = []
        for _ in range(count):
            seq += 1
            says = last if last and seq == sum(days.values()) else {"event": "session.start"}
            fields = {"seq": seq, "prev": prev, "ts": f"{name[:10]}T05:00:00.000Z", **says}
            line = json.dumps(fields if lines else {**fields, "opens": True})
            prev = hashlib.sha256(line.encode()).hexdigest()
            lines.append(line + "\n")
        (directory / name).write_text("".join(lines))
        (directory / name).chmod(0o600)
        size = (directory / name).stat().st_size
    (directory / "head").write_text(f"{seq} {prev} {name} {size}\n")
    (directory / "head").chmod(0o600)
    directory.chmod(0o700)
    return Journal.at(str(directory))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return write(tmp_path, {"2026-11-14.jsonl": 3, "2026-11-15.jsonl": 4})


def edit(journal: Journal, name: str, change: dict[int, str | None]) -> None:
    path = journal.dir / name
    lines = path.read_text().splitlines()
    path.write_text(
        "".join(
            f"{line}\n" for at, old in enumerate(lines) if (line := change.get(at, old)) is not None
        )
    )


def test_an_untouched_chain_over_two_days_is_whole(journal: Journal) -> None:
    chain = verify(journal)
    assert chain.sound
    assert (chain.events, chain.first_seq) == (7, 1)


def test_an_edited_line_is_found(journal: Journal) -> None:
    old = (journal.dir / "2026-11-15.jsonl").read_text().splitlines()[1]
    edit(journal, "2026-11-15.jsonl", {1: old.replace("05:00", "06:00")})
    assert verify(journal).problems == (
        "2026-11-15.jsonl:3: the line before (2026-11-15.jsonl:2) was changed",
    )


def test_an_edited_last_line_is_found(journal: Journal) -> None:
    old = (journal.dir / "2026-11-15.jsonl").read_text().splitlines()[3]
    edit(journal, "2026-11-15.jsonl", {3: old.replace("05:00", "06:00")})
    assert verify(journal).problems == ("2026-11-15.jsonl: the last line was changed",)


def test_a_removed_line_is_found(journal: Journal) -> None:
    edit(journal, "2026-11-14.jsonl", {1: None})
    assert "event 3 follows event 1" in verify(journal).problems[0]


def test_a_removed_last_line_is_found(journal: Journal) -> None:
    edit(journal, "2026-11-15.jsonl", {3: None})
    assert verify(journal).problems == (
        "head: the journal ends at event 6, but 7 events were written",
    )


def test_a_removed_last_day_is_found(journal: Journal) -> None:
    (journal.dir / "2026-11-15.jsonl").unlink()
    assert not verify(journal).sound


def test_reordered_lines_are_found(journal: Journal) -> None:
    lines = (journal.dir / "2026-11-15.jsonl").read_text().splitlines()
    edit(journal, "2026-11-15.jsonl", {1: lines[2], 2: lines[1]})
    assert not verify(journal).sound


def test_an_edit_at_the_end_of_a_day_is_found_from_the_next(journal: Journal) -> None:
    old = (journal.dir / "2026-11-14.jsonl").read_text().splitlines()[2]
    edit(journal, "2026-11-14.jsonl", {2: old.replace("05:00", "06:00")})
    assert verify(journal).problems == (
        "2026-11-15.jsonl:1: the line before (2026-11-14.jsonl:3) was changed",
    )


def test_old_days_may_be_cleaned_up_and_that_is_visible(journal: Journal) -> None:
    """C-097"""
    (journal.dir / "2026-11-14.jsonl").unlink()
    chain = verify(journal)
    assert chain.sound
    assert chain.first_seq == 4


def test_lines_removed_from_the_front_of_a_day_are_found(journal: Journal) -> None:
    (journal.dir / "2026-11-14.jsonl").unlink()
    edit(journal, "2026-11-15.jsonl", {0: None, 1: None})
    assert verify(journal).problems[0] == "2026-11-15.jsonl:1: earlier lines were removed"


def test_a_renamed_day_and_lines_moved_to_another_day_are_found(journal: Journal) -> None:
    (journal.dir / "2026-11-14.jsonl").rename(journal.dir / "2019-11-14.jsonl")
    assert verify(journal).problems[0] == "2019-11-14.jsonl:1: the event is of another day"


def test_a_cut_newline_is_found(journal: Journal) -> None:
    path = journal.dir / "2026-11-15.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert "not the" in verify(journal).problems[0]


def test_a_missing_head_is_a_problem(journal: Journal) -> None:
    (journal.dir / "head").unlink()
    with pytest.raises(JournalError, match="the end of the chain is unknown"):
        verify(journal)


def test_a_journal_that_others_could_have_written_is_not_verified(journal: Journal) -> None:
    (journal.dir / "2026-11-15.jsonl").chmod(0o666)
    with pytest.raises(JournalError, match="has mode 0666"):
        verify(journal)


def test_a_pipe_in_place_of_a_file_does_not_hang(journal: Journal) -> None:
    os.mkfifo(journal.dir / "2026-11-16.jsonl", 0o600)
    with pytest.raises(JournalError, match="not a regular file"):
        verify(journal)


def test_a_line_of_brackets_is_no_event_and_no_crash(journal: Journal) -> None:
    edit(journal, "2026-11-15.jsonl", {2: "[" * 100_000})
    assert "2026-11-15.jsonl:3: not an event" in verify(journal).problems


def test_a_line_that_is_no_event_is_found(journal: Journal) -> None:
    edit(journal, "2026-11-15.jsonl", {2: "garbage"})
    assert "2026-11-15.jsonl:3: not an event" in verify(journal).problems


def test_a_journal_that_is_not_there_is_an_error_and_not_an_empty_success(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot read the journal"):
        verify(Journal.at(str(tmp_path / "nowhere")))


def lose(journal: Journal, text: str) -> None:
    with journal.head_path.open("a") as head:
        head.write(text)


def test_verify_reports_lost_events_of_an_unbroken_chain(tmp_path: Path) -> None:
    lost = {"event": "journal.lost", "session": "00ff", "count": 12, "reason": "ENOSPC"}
    journal = write(tmp_path, {"2026-11-14.jsonl": 3, "2026-11-15.jsonl": 4}, lost)
    chain = verify(journal)
    assert (chain.problems, chain.sound) == ((), False)
    assert [*map(str, chain.losses)] == [
        "2026-11-15.jsonl:4: 12 events of session 00ff are missing: ENOSPC"
    ]


def test_verify_reads_lost_events_from_the_head(journal: Journal) -> None:
    lose(journal, "\x0000ff 1 ENOSPC\n\x00ab 3 other users could access it\n\x00\x00")
    chain = verify(journal)
    assert (chain.problems, chain.sound) == ((), False)
    assert [*map(str, chain.losses)] == [
        "head: 1 event of session 00ff is missing: ENOSPC",
        "head: 3 events of session ab are missing: other users could access it",
    ]


@pytest.mark.parametrize("odd", ["\x0000ff ENOSPC\n", "\x0000ff many ENOSPC\n", "\x00x\n"])
def test_an_invalid_head_is_a_problem(journal: Journal, odd: str) -> None:
    lose(journal, odd)
    with pytest.raises(JournalError, match="not a journal head"):
        verify(journal)


@pytest.mark.parametrize("count", [None, "12", [], 1.5])
def test_a_loss_without_a_number_is_a_problem(tmp_path: Path, count: object) -> None:
    journal = write(tmp_path, {"2026-11-15.jsonl": 2}, {"event": "journal.lost", "count": count})
    assert verify(journal).problems == (
        "2026-11-15.jsonl:2: the count of missing events is invalid",
    )
