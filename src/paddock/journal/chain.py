"""Verifies the chain: each line has the SHA-256 of the previous line, across days, and a running
number.

An edited line breaks the ``prev`` of its successor. A removed or moved line breaks ``seq`` and
``prev``. A change or removal of the last line contradicts the head. The first line of each file
says that it is the first, and the time of each line is on the day of its file. Days removed from
the front are not an error (old days may be deleted), but are reported.

A valid chain may still be incomplete: events that could not be written, for example on a full disk,
are counted in a ``journal.lost`` event, or in the head until a line fits again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from paddock.frozen import dataclass
from paddock.journal.reader import Head, Journal, Loss, parse

_ORIGIN = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    events: int
    first_seq: int
    problems: tuple[str, ...]  # "file:line: what is wrong"
    losses: tuple[Loss, ...] = ()
    endless: tuple[
        str, ...
    ] = ()  # sessions with a start and no end: they still run, or were killed

    @property
    def sound(self) -> bool:
        """Nothing was changed, and nothing is missing."""
        return not self.problems and not self.losses


def verify(journal: Journal) -> ChainReport:
    journal.check()
    with journal.still():
        chain = _Chain(daily=journal.file is None)
        problems = [
            problem
            for path, number, raw in journal.lines()
            for problem in chain.take(path, number, raw)
        ]
        head = journal.head()
        problems += _end(journal, head, chain)
    losses = (*chain.losses, *head.losses)
    return ChainReport(
        events=chain.events,
        first_seq=chain.first_seq,
        problems=tuple(problems),
        losses=losses,
        endless=tuple(chain.open),
    )


class _Chain:
    """The state after the lines so far."""

    def __init__(self, *, daily: bool) -> None:
        self._daily = daily
        self.events = self.first_seq = self.seq = 0
        self.hash = _ORIGIN
        self._last: tuple[Path, int] | None = None
        self.losses: list[Loss] = []
        self.open: dict[str, None] = {}  # sessions without an end so far, in order

    def take(self, path: Path, number: int, raw: bytes) -> Iterator[str]:
        where = f"{path.name}:{number}"
        fields = parse(raw)
        seq = fields.get("seq") if fields else None
        if fields is None or type(seq) is not int:
            yield f"{where}: not an event"
            self.seq, self.hash = self.seq + 1, _digest(raw)
            return
        if self._last is None:
            self.first_seq = seq
            if (seq == 1) != (fields.get("prev") == _ORIGIN):
                yield f"{where}: event {seq} cannot be the first event"
        elif seq != self.seq + 1:
            yield (
                f"{where}: event {seq} follows event {self.seq}: lines were removed, added or moved"
            )
        elif fields.get("prev") != self.hash:
            yield f"{where}: the line before ({self._last[0].name}:{self._last[1]}) was changed"
        if (number == 1) != bool(fields.get("opens")):
            yield f"{where}: " + (
                "earlier lines were removed"
                if number == 1
                else "it was the first line of another file"
            )
        if self._daily and str(fields.get("ts", ""))[:10] != path.stem:
            yield f"{where}: the event is of another day"
        if fields.get("event") == "session.start":
            self.open[str(fields.get("session"))] = None
        elif fields.get("event") in ("session.end", "session.refused"):
            self.open.pop(str(fields.get("session")), None)
        if fields.get("event") == "journal.lost":
            session, count, reason = (fields.get(key) for key in ("session", "count", "reason"))
            if type(count) is not int:
                yield f"{where}: the count of missing events is invalid"
            else:
                self.losses.append(
                    Loss(where=where, session=str(session), count=count, reason=str(reason))
                )
        self.events += 1
        self.seq, self.hash, self._last = seq, _digest(raw), (path, number)


def _end(journal: Journal, head: Head, chain: _Chain) -> Iterator[str]:
    if chain.seq != head.seq:
        yield (
            f"{journal.head_path.name}: the journal ends at event {chain.seq}, but {head.seq} "
            "events were written"
        )
    elif chain.hash != head.hash:
        yield f"{head.file}: the last line was changed"
    else:
        file = journal.dir / head.file
        if not file.exists() or file.stat().st_size != head.size:
            yield f"{head.file}: the size is not the {head.size} bytes that were written"


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
