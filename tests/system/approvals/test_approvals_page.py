"""A person answers the questions of a run in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.browser import Page
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome
from tests.support.waiting import wait_for
from tests.system.approvals.conftest import POLICY, Server

ANSWERED_S = 120.0
READY = "!document.body.matches('.locked, .gone') && document.querySelectorAll('.card').length"


class Run:
    def __init__(self, outcome: list[Outcome]) -> None:
        self._outcome = outcome

    @property
    def outcome(self) -> Outcome:
        return self._outcome[0]


@contextmanager
def running(sandbox: SandboxRunner, script: str) -> Iterator[Run]:
    """A run without a terminal, so that it asks the server."""
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    ended: list[Outcome] = []
    command = sandbox.command(["sh", "-c", script], "--policy", policy)
    run = threading.Thread(
        target=lambda: ended.append(
            sandbox.tester.run(command, cwd=sandbox.tree.project, timeout_s=ANSWERED_S)
        )
    )
    run.start()
    try:
        yield Run(ended)
    finally:
        run.join()


def cards(page: Page, count: int) -> None:
    page.until(f"({READY}) === {count}")


@pytest.mark.parametrize("tier", ["sandbox", "full"])
def test_keys_of_the_page_give_each_answer(
    tier: str, request: pytest.FixtureRequest, server: Server, page: Page
) -> None:
    sandbox: SandboxRunner = request.getfixturevalue(tier)
    made = [sandbox.tree.project / name for name in ("one", "two", "three", "four")]
    page.go(server.address)
    script = (
        "touch one; echo $?; touch two; echo $?; touch three; echo $?; touch three; echo $?; "
        "touch four; echo $?"
    )
    with running(sandbox, script) as run:
        cards(page, 1)
        assert page.tell("document.querySelector('.lines').textContent") == "touch one"
        assert not made[0].exists()
        page.key("y")
        page.until("document.querySelector('.lines')?.textContent === 'touch two'")
        assert made[0].exists()
        cards(page, 1)
        page.key("n")
        page.until("document.querySelector('.lines')?.textContent === 'touch three'")
        cards(page, 1)
        page.key("s")
        page.until("document.querySelector('.lines')?.textContent === 'touch four'")
        cards(page, 1)
        page.key("d")  # not an answer key
        page.key("n")
    assert run.outcome.stdout == "0\n126\n0\n0\n126\n", run.outcome
    assert [one.exists() for one in made] == [True, False, True, False]
    page.until("document.querySelector('#none').hidden === false")
    verdicts = (
        "[...document.querySelectorAll('#history .verdict')].map((one) => "
        "one.textContent).slice(0, 4)"
    )
    assert page.tell(verdicts) == ["deny", "session", "deny", "once"]
    assert page.tell("document.querySelector('#history .how').textContent").startswith(
        "web, after "
    )


def test_one_of_several_questions_can_be_chosen(
    sandbox: SandboxRunner, server: Server, page: Page
) -> None:
    page.go(server.address)
    with running(sandbox, "for i in 1 2 3; do touch f$i & done; wait") as run:
        cards(page, 3)
        second = page.tell(
            "document.querySelectorAll('.card')[1].querySelector('.lines').textContent"
        )
        page.key("j")
        page.until("document.querySelectorAll('.card')[1].matches('.chosen')")
        cards(page, 3)
        page.key("y")
        cards(page, 2)
        # The answer removes the card, and the command runs after it.
        wait_for((sandbox.tree.project / second.split()[1]).exists, "the allowed command runs")
        page.key("?")
        page.until("document.querySelector('#keys').open")
        page.key("y")  # ignored while a dialog is open
        page.key("Escape")
        page.until("!document.querySelector('#keys').open")
        cards(page, 2)
        page.tell("document.querySelectorAll('.card')[1].querySelector('[data-act=deny]').click()")
        cards(page, 1)
        page.key("n")
    assert run.outcome.exit_code == 0, run.outcome
    assert sum((sandbox.tree.project / f"f{i}").exists() for i in (1, 2, 3)) == 1


def test_a_question_that_has_just_come_up_takes_no_answer(
    sandbox: SandboxRunner, server: Server, page: Page
) -> None:
    page.go(server.address)
    # The clock of the page stands still, so the delay of a new question never ends.
    page.until("document.querySelector('#state').textContent === 'connected'")
    page.tell("window.setTimeout = () => 0")
    with running(sandbox, "touch made") as run:
        page.until("document.querySelectorAll('.card').length === 1")
        page.key("y")
        page.tell("document.querySelector('[data-act=once]').click()")
        assert page.tell("document.body.matches('.locked')")
        assert not (sandbox.tree.project / "made").exists()
        page.go(server.address)
        cards(page, 1)
        page.key("n")
    assert run.outcome.exit_code == 126


def test_always_shows_the_rule_and_writes_it_after_a_yes(
    sandbox: SandboxRunner, server: Server, page: Page
) -> None:
    approved = sandbox.tester.home / ".config" / "paddock" / "approved.toml"
    approved.unlink(missing_ok=True)
    page.go(server.address)
    with running(sandbox, "touch made; echo $?") as run:
        cards(page, 1)
        page.key("a")
        page.until("document.querySelector('#rule').open")
        assert "argv_regex" in page.tell("document.querySelector('#text').textContent")
        page.key("Enter")  # the safe button has the focus
        page.until("!document.querySelector('#rule').open")
        assert not approved.exists()
        page.key("a")
        page.until("document.querySelector('#rule').open")
        page.tell("document.querySelector('#rule [value=yes]').click()")
    assert run.outcome.stdout == "0\n"
    assert approved.stat().st_mode & 0o777 == 0o600
    with running(sandbox, "touch made; echo $?") as run:
        pass
    assert run.outcome.stdout == "0\n"
    approved.unlink()


def test_hostile_arguments_are_text(sandbox: SandboxRunner, server: Server, page: Page) -> None:
    page.go(server.address)
    evil = (
        "<img src=x onerror=document.title=1><script>document.title=1</script>\u202e\u0007\u001b[2J"
    )
    long = "A" * 9000
    sandbox.tree.put(sandbox.tree.project / "evil", evil)
    with running(sandbox, f'touch -- "$(cat evil)" --token=hunter2 {long}') as run:
        cards(page, 1)
        shown = page.tell("document.querySelector('.lines').textContent")
        assert "<img src=x onerror" in shown
        assert "\\u202e\\x07\\x1b[2J" in shown
        assert "characters are not shown here" in shown
        assert "hunter2" not in shown
        assert page.tell("document.querySelectorAll('img, .lines *').length") == 0
        page.key("w")
        page.until("document.querySelector('.lines').textContent.includes('hunter2')")
        assert page.tell("document.querySelector('.lines').textContent").count("A") >= 9000
        assert page.tell("document.documentElement.scrollWidth <= window.innerWidth")
        page.key("n")
    assert run.outcome.exit_code == 126
    page.until("document.title === 'paddock approvals'")


def test_page_fits_a_phone_and_loads_nothing_from_other_hosts(
    sandbox: SandboxRunner, server: Server, page: Page
) -> None:
    page.go("about:blank")
    page.requested.clear()
    page.log.clear()
    page.size(390, 844)
    page.go(server.address)
    try:
        with running(
            sandbox,
            "touch one; touch -d yesterday --no-dereference "
            + "long-name-" * 12
            + " & touch -m two & wait",
        ):
            cards(page, 1)
            page.key("y")
            cards(page, 2)
            assert page.tell("document.documentElement.scrollWidth") <= 390
            buttons = "[...document.querySelectorAll('.answers button')]"
            assert (
                min(page.tell(f"{buttons}.map((one) => one.getBoundingClientRect().height)")) >= 44
            )
            for dark in (False, True):
                page.size(390, 844, dark=dark)
                page.until(
                    "new Promise((done) => requestAnimationFrame(() => "
                    "requestAnimationFrame(() => done(true))))"
                )
                (sandbox.tree.root / f"phone-{dark}.png").write_bytes(page.screenshot())
            page.key("n")
            cards(page, 1)
            page.key("n")
    finally:
        page.size(1280, 900)
    assert page.requested
    assert all(url.startswith((server.address, "data:")) for url in page.requested), page.requested
    assert not page.log, page.log
