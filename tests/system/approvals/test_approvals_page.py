"""A person answers in a real browser: what a run waits for happens, or does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.browser import Page
from tests.support.fence import Fence
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
def running(fence: Fence, script: str) -> Iterator[Run]:
    """Without a terminal: it asks the server."""
    policy = fence.ground.put(fence.ground.root / "p.toml", POLICY)
    ended: list[Outcome] = []
    command = fence.command(["sh", "-c", script], "--policy", policy)
    run = threading.Thread(
        target=lambda: ended.append(
            fence.tester.run(command, cwd=fence.ground.project, timeout_s=ANSWERED_S)
        )
    )
    run.start()
    try:
        yield Run(ended)
    finally:
        run.join()


def cards(page: Page, count: int) -> None:
    page.until(f"({READY}) === {count}")


@pytest.mark.parametrize("tier", ["fence", "full"])
def test_keys_answer(tier: str, request: pytest.FixtureRequest, server: Server, page: Page) -> None:
    fence: Fence = request.getfixturevalue(tier)
    made = [fence.ground.project / name for name in ("one", "two", "three", "four")]
    page.go(server.address)
    script = (
        "touch one; echo $?; touch two; echo $?; touch three; echo $?; touch three; echo $?; "
        "touch four; echo $?"
    )
    with running(fence, script) as run:
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
        page.key("d")  # no answer
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


def test_several_wait_and_one_is_chosen(fence: Fence, server: Server, page: Page) -> None:
    page.go(server.address)
    with running(fence, "for i in 1 2 3; do touch f$i & done; wait") as run:
        cards(page, 3)
        second = page.tell(
            "document.querySelectorAll('.card')[1].querySelector('.lines').textContent"
        )
        page.key("j")
        page.until("document.querySelectorAll('.card')[1].matches('.chosen')")
        cards(page, 3)
        page.key("y")
        cards(page, 2)
        # The card goes with the answer, and the command comes after it.
        wait_for((fence.ground.project / second.split()[1]).exists, "what was allowed happens")
        page.key("?")
        page.until("document.querySelector('#keys').open")
        page.key("y")  # not while something else is on the screen
        page.key("Escape")
        page.until("!document.querySelector('#keys').open")
        cards(page, 2)
        page.tell("document.querySelectorAll('.card')[1].querySelector('[data-act=deny]').click()")
        cards(page, 1)
        page.key("n")
    assert run.outcome.exit_code == 0, run.outcome
    assert sum((fence.ground.project / f"f{i}").exists() for i in (1, 2, 3)) == 1


def test_a_question_that_has_just_come_up_takes_no_answer(
    fence: Fence, server: Server, page: Page
) -> None:
    page.go(server.address)
    # The page's own clock stands still: nothing settles.
    page.until("document.querySelector('#state').textContent === 'connected'")
    page.tell("window.setTimeout = () => 0")
    with running(fence, "touch made") as run:
        page.until("document.querySelectorAll('.card').length === 1")
        page.key("y")
        page.tell("document.querySelector('[data-act=once]').click()")
        assert page.tell("document.body.matches('.locked')")
        assert not (fence.ground.project / "made").exists()
        page.go(server.address)
        cards(page, 1)
        page.key("n")
    assert run.outcome.exit_code == 126


def test_always_shows_the_rule_and_writes_it_after_a_yes(
    fence: Fence, server: Server, page: Page
) -> None:
    approved = fence.tester.home / ".config" / "paddock" / "approved.toml"
    approved.unlink(missing_ok=True)
    page.go(server.address)
    with running(fence, "touch made; echo $?") as run:
        cards(page, 1)
        page.key("a")
        page.until("document.querySelector('#rule').open")
        assert "argv_regex" in page.tell("document.querySelector('#text').textContent")
        page.key("Enter")  # the careful one has the focus
        page.until("!document.querySelector('#rule').open")
        assert not approved.exists()
        page.key("a")
        page.until("document.querySelector('#rule').open")
        page.tell("document.querySelector('#rule [value=yes]').click()")
    assert run.outcome.stdout == "0\n"
    assert approved.stat().st_mode & 0o777 == 0o600
    with running(fence, "touch made; echo $?") as run:
        pass
    assert run.outcome.stdout == "0\n"
    approved.unlink()


def test_hostile_arguments_are_text(fence: Fence, server: Server, page: Page) -> None:
    page.go(server.address)
    evil = (
        "<img src=x onerror=document.title=1><script>document.title=1</script>\u202e\u0007\u001b[2J"
    )
    long = "A" * 9000
    fence.ground.put(fence.ground.project / "evil", evil)
    with running(fence, f'touch -- "$(cat evil)" --token=hunter2 {long}') as run:
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


def test_it_fits_a_phone_and_asks_for_nothing_from_elsewhere(
    fence: Fence, server: Server, page: Page
) -> None:
    page.go("about:blank")
    page.requested.clear()
    page.log.clear()
    page.size(390, 844)
    page.go(server.address)
    try:
        with running(
            fence,
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
                (fence.ground.root / f"phone-{dark}.png").write_bytes(page.screenshot())
            page.key("n")
            cards(page, 1)
            page.key("n")
    finally:
        page.size(1280, 900)
    assert page.requested
    assert all(url.startswith((server.address, "data:")) for url in page.requested), page.requested
    assert not page.log, page.log
