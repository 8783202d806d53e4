from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pytest

from tests.support import browser
from tests.support.browser import Page
from tests.support.features import need, need_program
from tests.support.installation import Installation
from tests.support.tester import Tester
from tests.support.waiting import wait_for

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"
ask_timeout_s = 120

[[rule]]
id = "touching-asks"
action = "ask"
exe_basename = "touch"
reason = "makes files"
"""


@dataclass(slots=True)
class Server:
    """``paddock approvals serve`` of the tester."""

    address: str
    pid: int

    @property
    def host(self) -> str:
        return self.address.split("/")[2]

    @property
    def token(self) -> str:
        return self.address.split("/")[3]

    def state(self) -> dict[str, Any]:
        """The first message of the event stream of the page."""
        with urllib.request.urlopen(f"{self.address}events", timeout=START_S) as stream:
            reported: dict[str, Any] = json.loads(stream.readline().removeprefix(b"data: "))
            return reported


START_S = 60.0


@contextmanager
def serving(tester: Tester, installation: Installation) -> Iterator[Server]:
    with tester.starting([installation.paddock, "approvals", "serve"]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output: list[str] = []

        def listen(stream: IO[str]) -> None:
            for line in stream:
                output.append(line)

        reader = threading.Thread(target=listen, args=(process.stdout,))
        reader.start()
        try:
            wait_for(
                lambda: len(output) >= 3 or process.poll() is not None,
                "the server has said its address",
                START_S,
            )
            assert output, process.stderr.read()
            yield Server(address=output[0].strip(), pid=process.pid)
        finally:
            process.terminate()
            process.wait()
            reader.join()


@pytest.fixture(scope="module")
def server(tester: Tester, installation: Installation) -> Iterator[Server]:
    need("root", tester.disposable, "the tests do not answer approvals of an ordinary user")
    with serving(tester, installation) as started:
        yield started


@pytest.fixture(scope="module")
def page(tester: Tester) -> Iterator[Page]:
    with browser.opened(tester, need_program("chromium")) as opened:
        yield opened
