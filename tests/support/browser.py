"""A headless Chromium, driven by the DevTools protocol: one page, keys, sizes, screenshots."""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from websockets.sync.client import ClientConnection, connect

from tests.support.tester import Tester
from tests.support.waiting import wait_for

START_S = 60.0
PAGE_S = 60.0
# Without Chromium's own sandbox: the tests are about namespaces, and the page is ours. Without
# traffic other than that of the page.
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--no-proxy-server", "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)  # fmt: skip


class Page:
    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self._numbers = itertools.count(1)
        self.log: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._line.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._line.recv(timeout=PAGE_S))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled":
                self.log.append(json.dumps(message["params"]))
            case "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def tell(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reported = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reported, reported
        return reported["result"].get("value")

    def until(self, expression: str) -> Any:
        return wait_for(lambda: self.tell(expression) or None, expression, PAGE_S)

    def key(self, key: str, *, shift: bool = False) -> None:
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key)
        held: dict[str, Any] = {"key": key, "modifiers": 8 if shift else 0}
        if code is not None:
            held |= {"windowsVirtualKeyCode": code, "code": key}
        text = "\r" if key == "Enter" else key if code is None else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **held)
        self.call("Input.dispatchKeyEvent", type="keyUp", **held)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def opened(tester: Tester, program: str) -> Iterator[Page]:
    with tempfile.TemporaryDirectory(
        prefix="paddock-browser-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as profile:
        tester.give(Path(profile))
        words = [program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        with tester.starting(
            words, env={"HOME": profile, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        ) as process:
            output: list[str] = []

            def listen(stream: IO[str]) -> None:
                for line in stream:
                    output.append(line)

            readers = [
                threading.Thread(target=listen, args=(stream,), daemon=True)
                for stream in (process.stdout, process.stderr)
            ]
            for reader in readers:
                reader.start()
            port = wait_for(
                lambda: next(
                    (
                        line.split(":")[-1].split("/")[0]
                        for line in output
                        if "DevTools listening" in line
                    ),
                    None,
                ),
                "the browser has started",
                START_S,
            )
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/json/list", timeout=PAGE_S
            ) as answer:
                (target,) = [one for one in json.load(answer) if one["type"] == "page"]
            try:
                address = target["webSocketDebuggerUrl"]
                with connect(
                    address, max_size=None, compression=None, proxy=None, ping_interval=None
                ) as line:
                    yield Page(line)
            finally:
                process.terminate()
                process.wait()
                for reader in readers:
                    reader.join()
