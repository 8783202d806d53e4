"""Policies with routes, and the process that serves them."""

from __future__ import annotations

from pathlib import Path

from tests.support.sandbox import SandboxRunner
from tests.system.network.upstreams import UpstreamServer

SECRET = "sk-secret/0123456789+abcdef"
KEY = {"ROUTE_KEY": SECRET}


def policy(sandbox: SandboxRunner, text: str) -> Path:
    return sandbox.tree.put(
        sandbox.tree.root / "served.toml", f'[meta]\ninherit = "ai-agent"\n{text}'
    )


def route(
    name: str, server: UpstreamServer, *lines: str, host: str = "127.0.0.1", scheme: str = "http"
) -> str:
    return "\n".join(
        [f"[network.routes.{name}]", f'upstream = "{scheme}://{host}:{server.port}"', *lines, ""]
    )


def served_by(core: int) -> int:
    """The HTTP helper process of this run."""
    for pid in Path(f"/proc/{core}/task/{core}/children").read_text().split():
        if b"http" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return int(pid)
    raise AssertionError("no HTTP helper process")
