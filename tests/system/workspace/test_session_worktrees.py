"""Sessions side by side on one repository: each in a worktree and a network of its own, merged with
plain git.
"""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.features import need_program
from tests.support.fence import Fence
from tests.support.session_program import play

NETWORK = '[meta]\ninherit = "ai-agent"\n[network]\nmode = "none"\n'
SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), \
http.server.SimpleHTTPRequestHandler)
print("serving", flush=True)
server.serve_forever()
"""
READ = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/name", timeout=120).read().decode())
"""
SCENE = """
from contextlib import AsyncExitStack
port, count = options.pop("port"), options.pop("count")
async def work(box, number):
    name = f"topic-{number}"
    Path(box.workspace, "name").write_text(name)
    server = await box.shells.start(["python3", "server.py", str(port)])
    if not await server.wait_for("serving", 60):
        return server.read().text.splitlines()[-1]
    met.append(number)
    while len(met) < count:
        await asyncio.sleep(0.02)
    read = await box.run(["python3", "read.py", str(port)])
    git = "git -c user.name=a -c user.email=a@b.invalid"
    done = await box.run(f"{git} add -A && {git} rm -q --cached name && {git} commit -qm {name}", \
timeout_s=60)
    return [read.stdout.strip(), done.exit_code, done.stderr]
met = []
async with AsyncExitStack() as held:
    boxes = [Sandbox(**options, worktree=f"topic-{number}") for number in range(count)]
    boxes = [await held.enter_async_context(box) for box in boxes]
    for number, box in enumerate(boxes):
        Path(box.workspace, f"made-{number}").write_text("x")
    for result in await asyncio.gather(*(work(box, number) for number, box in enumerate(boxes))):
        tell(result)
"""


def _git(fence: Fence, *words: str) -> str:
    settings = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b.invalid",
        "-c",
        "init.defaultBranch=main",
    ]
    done = fence.outside([need_program("git"), *settings, *words])
    assert done.exit_code == 0, str(done)
    return done.stdout


def _repository(fence: Fence) -> Path:
    top = fence.ground.root / "repository"
    for name, text in {"server.py": SERVER, "read.py": READ}.items():
        fence.ground.put(top / name, text)
    _git(fence, "init", "-q", str(top))
    _git(fence, "-C", str(top), "add", "-A")
    _git(fence, "-C", str(top), "commit", "-qm", "first")
    return top


def test_ten_serve_the_same_port_and_are_merged(full: Fence) -> None:
    """H-001 H-004 H-006"""
    top, count = _repository(full), 10
    policy = full.ground.put(full.ground.root / "policy" / "paddock.toml", NETWORK)
    told = play(full, SCENE, workspace=str(top), policy=str(policy), port=8000, count=count)
    assert told == [[[f"topic-{number}", 0, ""]] for number in range(count)]
    for number in range(count):
        _git(full, "-C", str(top), "merge", "-q", "--no-edit", f"topic-{number}")
    made = {path.name for path in top.glob("made-*")}
    assert made == {f"made-{number}" for number in range(count)}
    assert _git(full, "-C", str(top), "status", "--porcelain") == ""
    log = _git(full, "-C", str(top), "log", "--no-merges", "--format=%s").split()
    assert sorted(log) == sorted(["first", *(f"topic-{number}" for number in range(count))])


def test_on_the_hosts_network_they_would_collide(full: Fence) -> None:
    """The control."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        told = play(
            full, SCENE, workspace=str(_repository(full)), profile="ai-agent", port=port, count=1
        )
    assert "Address already in use" in told[0][0]
