"""The report of a journal in a real browser: it is drawn, makes no request, and runs no script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paddock.journal.report import report
from tests.support.browser import Page
from tests.support.sandbox import SandboxRunner, Word
from tests.unit.journal.test_query import event
from tests.unit.journal.test_report import EVIL, SOUND, everything

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"

[[rule]]
id = "no-touching"
action = "deny"
exe_basename = "touch"
"""
RUNS_SOMETHING = (
    "document.querySelectorAll('script, img, iframe, object, embed, link, form, a[href]').length"
)
HANDLERS = (
    "[...document.querySelectorAll('*')]"
    ".filter((one) => [...one.attributes].some((each) => each.name.startsWith('on'))).length"
)


def shown(sandbox: SandboxRunner, page: Page, events: list[Any]) -> None:
    text = report(events, chain=SOUND, description="journal")
    opened(page, sandbox.tree.put(sandbox.tree.root / "events.html", text))


def opened(page: Page, file: Path) -> None:
    page.go("about:blank")
    page.call(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=0,
        uploadThroughput=0,
    )
    page.requested.clear()
    page.log.clear()
    page.go(file.as_uri())
    assert page.requested == [file.as_uri()]
    assert page.log == []
    assert page.tell(RUNS_SOMETHING) == 0
    assert page.tell(HANDLERS) == 0


def test_a_report_is_drawn_without_a_network(sandbox: SandboxRunner, page: Page) -> None:
    page.size(1280, 900)
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    assert (
        sandbox.inside(
            ["sh", "-c", "/usr/bin/touch '<b>x'; true | cat"], "--policy", policy
        ).exit_code
        == 0
    )
    file = sandbox.tree.root / "report.html"
    words: list[Word] = [
        sandbox.installation.paddock,
        "audit",
        "report",
        "--dir",
        sandbox.journal,
        "-o",
        file,
    ]
    assert sandbox.tester.run(words).exit_code == 0
    opened(page, file)
    assert page.tell("document.querySelectorAll('table').length") >= 1
    assert page.tell("document.querySelectorAll('svg rect').length") > 0
    heights = page.tell(
        "[...document.querySelectorAll('svg')].map((one) => one.getBoundingClientRect().height)"
    )
    assert min(heights) > 10
    output = page.tell("document.body.innerText")
    assert "no-touching" in output
    assert "<b>x" in output
    assert (
        page.tell("getComputedStyle(document.body).maxWidth") != "none"
    )  # the style of the report is applied
    page.size(390, 844)
    page.until("window.innerWidth === 390")


def test_hostile_events_stay_text(sandbox: SandboxRunner, page: Page) -> None:
    shown(sandbox, page, everything(text=EVIL))
    output = page.tell("document.body.innerText")
    assert "<script>alert(1)</script>" in output
    assert "<img src=//evil.example/x" in output
    assert page.tell("document.title").count("alert") == 0
    for letter in ("\u202e", "\x1b", "\x00"):
        assert not page.tell(f"document.documentElement.textContent.includes({json.dumps(letter)})")


def test_a_script_added_to_the_report_does_not_run(sandbox: SandboxRunner, page: Page) -> None:
    """The content security policy of the page. The control is that the element exists."""
    shown(sandbox, page, [event("session.start", cwd="/w", profile="p", command=["sh"])])
    made = "const one = document.createElement('script'); one.textContent = 'document.title = 1'"
    page.tell(f"{{ {made}; document.body.append(one) }}")
    assert page.tell("document.querySelectorAll('script').length") == 1
    assert page.tell("document.title") != "1"
    received = (
        "document.addEventListener('securitypolicyviolation', "
        "(event) => done(event.effectiveDirective))"
    )
    image = "const one = new Image(); one.src = 'http://127.0.0.1:9/x'; document.body.append(one)"
    assert page.tell(f"new Promise((done) => {{ {received}; {image} }})") == "img-src"
