"""Selects events by kind, action, rule, time and session. Times are UTC, as in the journal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from paddock.errors import UsageError
from paddock.frozen import dataclass
from paddock.journal.reader import Event

_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# Events whose name alone implies a denial.
_REFUSALS = frozenset(
    {
        "exec.denied",
        "file.refused",
        "session.refused",
        "syscall.killed",
        "limit.exceeded",
        "exec.attack",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """All given parts must match; of several kinds, actions or rules one must match."""

    kinds: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    session: str | None = None

    def fits(self, event: Event) -> bool:
        return (
            (
                not self.kinds
                or any(
                    event.name == kind or event.name.startswith(f"{kind}.") for kind in self.kinds
                )
            )
            and (not self.actions or action_of(event) in self.actions)
            and (not self.rules or rule_of(event) in self.rules)
            and (self.session is None or event.session == self.session)
            and self._in_time(event)
        )

    def _in_time(self, event: Event) -> bool:
        if self.since is None and self.until is None:
            return True
        at = time_of(event)
        if at is None:
            return False
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


def action_of(event: Event) -> str | None:
    """allow, deny or ask; None for an event without a decision."""
    value = event.fields.get("action")
    if isinstance(value, str):
        return value
    return "deny" if event.name in _REFUSALS else None


def rule_of(event: Event) -> str | None:
    for key in ("rule_id", "rule"):
        value = event.fields.get(key)
        if isinstance(value, str):
            return value
    return None


def time_of(event: Event) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(event.fields.get("ts")))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def moment(text: str, now: datetime) -> datetime:
    """``2026-11-16``, ``2026-11-16T10:30``, or how long ago: ``90s``, ``15m``, ``2h``, ``3d``."""
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        hint = "write 2026-11-16, 2026-11-16T10:30 (UTC), or an age: 15m, 2h, 3d"
        raise UsageError(f"{text!r} is not a time", hint=hint) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def day(text: str) -> tuple[datetime, datetime]:
    """From its first moment to that of the next day."""
    try:
        start = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        return start, start + timedelta(days=1)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a day", hint="write 2026-11-16") from None
