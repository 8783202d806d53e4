"""The events that a query selects."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from paddock.errors import UsageError
from paddock.journal import Event
from paddock.journal.query import Query, action_of, day, moment

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def event(name: str = "exec", **fields: Any) -> Event:
    output = {"event": name, "session": "s1", "ts": "2026-11-16T10:00:00.000Z", **fields}
    return Event(file="f", line=1, raw=json.dumps(output).encode(), fields=output)


@pytest.mark.parametrize(
    ("query", "one", "fits"),
    [
        (Query(), event(), True),
        (Query(kinds=("exec",)), event("exec.attack"), True),
        (Query(kinds=("exec",)), event("executed"), False),
        (Query(kinds=("exec.attack",)), event("exec"), False),
        (Query(kinds=("network", "exec")), event(), True),
        (Query(actions=("deny",)), event(action="deny"), True),
        (Query(actions=("deny",)), event(action="allow"), False),
        (Query(actions=("deny",)), event("file.refused"), True),
        (Query(actions=("allow",)), event("session.start"), False),
        (Query(rules=("r",)), event(rule_id="r"), True),
        (Query(rules=("r",)), event("network", rule="r"), True),
        (Query(rules=("r",)), event(rule_id="rr"), False),
        (Query(session="s1"), event(), True),
        (Query(session="s"), event(), False),
        (Query(since=moment("2026-11-16T10:00", NOW)), event(), True),
        (Query(since=moment("2026-11-16T10:00:01", NOW)), event(), False),
        (Query(until=moment("2026-11-16T10:00", NOW)), event(), False),
        (Query(since=moment("3h", NOW), until=moment("1h", NOW)), event(), True),
        (Query(since=moment("90m", NOW)), event(), False),
        (Query(since=moment("1d", NOW)), event(ts="nonsense"), False),
        (Query(since=moment("2026-11-16T12:00+02:00", NOW)), event(), True),
    ],
)
def test_an_event_has_to_match_every_part_of_a_query(query: Query, one: Event, fits: bool) -> None:
    assert query.fits(one) is fits


def test_a_day_ends_where_the_next_begins() -> None:
    since, until = day("2026-11-16")
    query = Query(since=since, until=until)
    assert query.fits(event(ts="2026-11-16T00:00:00.000Z"))
    assert query.fits(event(ts="2026-11-16T23:59:59.999Z"))
    assert not query.fits(event(ts="2026-11-17T00:00:00.000Z"))
    assert not query.fits(event(ts="2026-11-15T23:59:59.999Z"))


def test_a_query_accepts_fields_of_any_type() -> None:
    values: tuple[Any, ...] = (None, 7, [], {}, True)
    for odd in values:
        strange = event(action=odd, rule_id=odd, rule=odd, ts=odd)
        assert action_of(strange) is None
        assert not Query(actions=("deny",), rules=("r",), since=NOW).fits(strange)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "5", "5y", "-1h", "999999999d", "2026-11-16T25:00"]
)
def test_an_invalid_time_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        moment(text, NOW)


@pytest.mark.parametrize("text", ["", "today", "2026-11", "9999-12-31"])
def test_an_invalid_day_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        day(text)
