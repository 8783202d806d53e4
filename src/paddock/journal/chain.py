"""Verifying the chain: each line carries the SHA-256 of the line before, over all days, and a running number.

An edited line breaks its successor's ``prev``; a removed or reordered one breaks ``seq`` and ``prev``; a change of the
very last line, or its removal, disagrees with the head. Whole days removed from the front are not an error
(old days may be cleaned up) but are said.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from paddock.journal.reader import Journal, parse

_ORIGIN = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    events: int
    first_seq: int
    problems: tuple[str, ...]  # "file:line: what is wrong"

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(journal: Journal) -> Verdict:
    problems: list[str] = []
    events = first_seq = 0
    last_seq, last_hash = 0, _ORIGIN
    last_place: tuple[Path, int] | None = None
    with journal.still():
        head = journal.head()
        for path, number, raw in journal.lines():
            where = f"{path.name}:{number}"
            fields = parse(raw)
            seq = fields.get("seq") if fields else None
            if fields is None or type(seq) is not int:
                problems.append(f"{where}: not an event")
                last_seq, last_hash = last_seq + 1, _digest(raw)
                continue
            if last_place is None:
                first_seq = seq
                if seq == 1 and fields.get("prev") != _ORIGIN:
                    problems.append(f"{where}: the first event names a predecessor")
            elif seq != last_seq + 1:
                problems.append(f"{where}: event {seq} follows event {last_seq}: lines were removed, added or moved")
            elif fields.get("prev") != last_hash:
                problems.append(f"{where}: the line before ({last_place[0].name}:{last_place[1]}) was changed")
            events += 1
            last_seq, last_hash, last_place = seq, _digest(raw), (path, number)
    if last_seq != head.seq:
        problems.append(f"{journal.head_path.name}: the journal ends at event {last_seq}, {head.seq} were written")
    elif last_hash != head.hash:
        problems.append(f"{head.file}: the last line was changed")
    return Verdict(events=events, first_seq=first_seq, problems=tuple(problems))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
