"""The HTML report shows all events and runs no script."""

from __future__ import annotations

import html.parser
from typing import Any

from paddock.journal.chain import ChainReport
from paddock.journal.reader import Loss
from paddock.journal.report import MAX_TABLE_ROWS, report
from tests.unit.journal.test_query import event

ODD: tuple[Any, ...] = (None, 7, [], [[]], {}, {"a": 1}, True, 1.5)
SOUND = ChainReport(events=3, first_seq=1, problems=())
EVIL = (
    "</title></style><script>alert(1)</script><img src=//evil.example/x "
    "onerror=alert(1)>'\"\u202e\x1b[2J\x00\udcff"
)
SAFE_TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "ul", "li", "div",
    "span", "table", "thead", "tbody", "tr", "th", "td", "svg", "line", "rect", "text",
}  # fmt: skip


class Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += f"{data}\n"


def everything(**changed: Any) -> list[Any]:
    text = changed.get("text", "x")
    return [
        event("session.start", cwd=text, profile=text, command=["sh", text]),
        event(
            "exec",
            exe=f"/bin/{text}",
            argv=["git", text],
            action="allow",
            rule_id=text,
            by=text,
            reason=text,
        ),
        event(
            "exec",
            exe="/usr/bin/curl",
            argv=["curl"],
            action="deny",
            rule_id="no-curl",
            by=None,
            reason="never",
        ),
        event(
            "network",
            host=text,
            port=443,
            action="allow",
            rule=text,
            sent=10,
            received=20,
            address=None,
        ),
        event("network", host=None, address=text, port=None, action="deny", rule=None),
        event("name.flagged", path=text),
        event("file.refused", path=text, reason=text, program=text),
        event("tool", tool=text, action="deny", subject=[text, f"/{text}"], rule_id=text, by=text),
        event(text),
        event("session.end", exit_code=3, signal=None),
    ]


def test_report_shows_asked_allowed_and_denied_calls() -> None:
    page = Page(report(everything(), chain=SOUND, description="today"))
    for words in (
        "The chain of the journal is complete: 3 events.",
        "git x",
        "no-curl",
        "x:443",
        "/usr/bin/curl",
        "changed",
    ):
        assert words in page.words, words
    for heading in (
        "Timeline",
        "Sessions",
        "Asked",
        "Denied",
        "Hosts",
        "Programs",
        "Files",
        "Everything",
    ):
        assert f"\n{heading}\n" in page.words
    assert sum(tag == "svg" for tag, _ in page.tags) == 3


def test_event_text_is_escaped_in_the_report() -> None:
    text = report(
        everything(text=EVIL),
        chain=ChainReport(events=1, first_seq=1, problems=(EVIL,)),
        description=EVIL,
    )
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= SAFE_TAGS
    allowed = {
        "class",
        "viewbox",
        "role",
        "aria-label",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "width",
        "height",
    }
    allowed |= {"text-anchor", "lang", "charset", "http-equiv", "content", "name"}
    assert {name for _, attributes in page.tags for name in attributes} <= allowed
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "\u202e" not in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    text.encode("utf-8")


def test_report_begins_with_lost_events() -> None:
    losses = (Loss(where="head", session="00ff", count=12, reason=EVIL),)
    lost = event("journal.lost", count=12, reason="ENOSPC")
    page = Page(
        report(
            [lost],
            chain=ChainReport(events=1, first_seq=1, problems=(), losses=losses),
            description="x",
        )
    )
    assert {tag for tag, _ in page.tags} <= SAFE_TAGS
    assert "The chain of the journal is complete. Some events could not be written" in page.words
    assert "head: 12 events of session 00ff are missing: " in page.words
    assert "12 events are missing: ENOSPC" in page.words
    both = Page(
        report(
            [],
            chain=ChainReport(events=1, first_seq=1, problems=("x",), losses=losses),
            description="x",
        )
    ).words
    assert "was changed after it was written" in both
    assert "12 events of session" in both
    assert "is complete" not in both


def test_report_begins_with_an_altered_journal() -> None:
    problems = tuple(f"2026-11-16.jsonl:{n}: changed" for n in range(30))
    words = Page(
        report(
            [],
            chain=ChainReport(events=1, first_seq=1, problems=problems),
            description="x",
            unreadable=2,
        )
    ).words
    assert "The journal was changed after it was written" in words
    assert "and 10 more" in words
    assert "2 lines of the journal are not events" in words
    assert (
        "could not be verified: no head" in Page(report([], chain="no head", description="x")).words
    )


def test_secrets_are_left_out() -> None:
    known = [
        event(
            "exec",
            argv=["curl", "--token", "hunter2", "https://u:pw123456@h/"],
            exe="/bin/curl",
            action="allow",
        )
    ]
    text = report(known, chain=SOUND, description="x")
    assert "hunter2" not in text
    assert "pw123456" not in text


def test_a_report_of_many_events_stays_small() -> None:
    many = [
        event(exe=f"/bin/{n % 9}", argv=["x" * 500, str(n % 99)], action="deny")
        for n in range(MAX_TABLE_ROWS + 200)
    ]
    text = report(many, chain=SOUND, description="x")
    assert len(text) < 4_000_000
    assert "200 earlier rows are not shown" in text


def test_a_report_accepts_fields_of_any_type() -> None:
    for odd in ODD:
        fields = dict.fromkeys(
            ("ts", "action", "rule", "rule_id", "by", "host", "port", "sent", "received", "exe",
             "argv", "path",
             "subject", "tool", "command", "cwd", "session", "signal", "exit_code", "reason",
             "error"), odd,
        )  # fmt: skip
        names = (
            "session.start",
            "session.end",
            "exec",
            "network",
            "name.flagged",
            "file.refused",
            "tool",
            "limit.exceeded",
        )
        report([event(name, **fields) for name in names], chain=SOUND, description="x")
