"""Parallel sessions on one repository: each in its own worktree and network, merged with plain
git.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.support.session_program import play


@pytest.fixture(params=["landlock", "full"])
def sandboxed(request: pytest.FixtureRequest) -> SandboxRunner:
    found = request.getfixturevalue("sandbox" if request.param == "landlock" else "full")
    assert isinstance(found, SandboxRunner)
    return found


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


def _git(sandbox: SandboxRunner, *words: str) -> str:
    settings = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b.invalid",
        "-c",
        "init.defaultBranch=main",
    ]
    done = sandbox.outside([need_program("git"), *settings, *words])
    assert done.exit_code == 0, str(done)
    return done.stdout


def _repository(sandbox: SandboxRunner) -> Path:
    top = sandbox.tree.root / "repository"
    for name, text in {"server.py": SERVER, "read.py": READ}.items():
        sandbox.tree.put(top / name, text)
    _git(sandbox, "init", "-q", str(top))
    _git(sandbox, "-C", str(top), "add", "-A")
    _git(sandbox, "-C", str(top), "commit", "-qm", "first")
    return top


def test_ten_worktrees_serve_the_same_port_and_are_merged(full: SandboxRunner) -> None:
    """H-001 H-004 H-006"""
    top, count = _repository(full), 10
    policy = full.tree.put(full.tree.root / "policy" / "paddock.toml", NETWORK)
    reported = play(full, SCENE, workspace=str(top), policy=str(policy), port=8000, count=count)
    assert reported == [[[f"topic-{number}", 0, ""]] for number in range(count)]
    for number in range(count):
        _git(full, "-C", str(top), "merge", "-q", "--no-edit", f"topic-{number}")
    made = {path.name for path in top.glob("made-*")}
    assert made == {f"made-{number}" for number in range(count)}
    assert _git(full, "-C", str(top), "status", "--porcelain") == ""
    log = _git(full, "-C", str(top), "log", "--no-merges", "--format=%s").split()
    assert sorted(log) == sorted(["first", *(f"topic-{number}" for number in range(count))])


def test_control_worktrees_collide_on_the_hosts_network(full: SandboxRunner) -> None:
    """The control."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        reported = play(
            full, SCENE, workspace=str(_repository(full)), profile="ai-agent", port=port, count=1
        )
    assert "Address already in use" in reported[0][0]


FILTER = "sh -c 'touch {marker} inside; cat'"
PLANTED = """
async with Sandbox(**options) as box:
    done = await box.run("touch {marker}; touch planted")
    tell("denied" in done.stderr)
async with Sandbox(**options, worktree="topic") as box:
    tell(sorted(name for name in os.listdir(box.workspace) if name != ".git"))
    tell(Path(box.workspace, ".envrc").read_text())
"""


def test_filters_of_the_repository_do_not_run_outside(sandbox: SandboxRunner) -> None:
    """The configuration may name a program that a command has changed."""
    top, marker = _repository(sandbox), sandbox.tree.outside / "escaped"
    _git(sandbox, "-C", str(top), "config", "filter.x.smudge", FILTER.format(marker=marker))
    sandbox.tree.put(top / ".gitattributes", "* filter=x\n")
    sandbox.tree.put(top / ".envrc", "protected\n")
    _git(sandbox, "-C", str(top), "add", "-A")
    _git(sandbox, "-C", str(top), "commit", "-qm", "attributes")
    names = [".envrc", ".gitattributes", "inside", "read.py", "server.py"]
    reported = play(sandbox, PLANTED.format(marker=marker), workspace=str(top), profile="ai-agent")
    assert reported == [[True], [names], ["protected\n"]], reported
    assert (top / "planted").exists()
    assert not marker.exists()
    status = _git(sandbox, "-C", f"{top}.worktrees/topic", "status", "--porcelain")
    assert status == "?? inside\n"
    _git(sandbox, "-C", str(top), "worktree", "add", "-q", f"{top}.control")
    assert marker.exists(), "control: git of the host runs the filter"


def test_a_worktree_of_the_full_tier_has_the_protected_names_of_its_commit(
    full: SandboxRunner,
) -> None:
    top = _repository(full)
    full.tree.put(top / ".envrc", "protected\n")
    _git(full, "-C", str(top), "add", "-A")
    _git(full, "-C", str(top), "commit", "-qm", "names")
    body = """
        async with Sandbox(**options, worktree="topic") as box:
            done = await box.run("cat .envrc; git status --porcelain; git log --format=%s -1")
            tell(done.stdout)
        async with Sandbox(**options, worktree="topic") as box:
            done = await box.run("cat .envrc; git status --porcelain; git log --format=%s -1")
            tell(done.stdout)
        """
    reported = play(full, body, workspace=str(top), profile="ai-agent")
    assert reported == [["protected\nnames\n"]] * 2, reported


def test_git_that_does_not_end_is_reported(full: SandboxRunner) -> None:
    top = _repository(full)
    (top / ".git" / "HEAD").rename(top / ".git" / "old")
    os.mkfifo(top / ".git" / "HEAD")
    full.tester.give(top)
    body = """
        from paddock.session import worktree
        worktree._GIT_TIMEOUT_S = 1.0
        try:
            await Sandbox(**options, worktree="topic").__aenter__()
        except UsageError as error:
            tell(str(error))
        """
    ((message,),) = play(full, body, workspace=str(top), profile="ai-agent")
    assert "did not end within 1 s" in message


PLANTED_GIT = """
tools = Path(options["workspace"], "node_modules", ".bin")
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), str(tools), \
os.environ["PATH"]])
script = "#!/bin/sh\\ntouch {marker}\\nexec {git} \\"$@\\"\\n"
async with Sandbox(**options) as box:
    done = await box.run(["sh", "-c", 'printf "%s" "$1" > "$2/git"; chmod +x "$2/git"; \
touch {marker}', "sh", script, str(tools)])
    tell(done.exit_code != 0)
async with Sandbox(**options, worktree="topic") as box:
    tell(os.path.basename(box.workspace))
"""


def test_a_planted_git_is_not_started_outside(sandboxed: SandboxRunner) -> None:
    """A directory of the project is in PATH, and a command of an earlier session wrote there."""
    top, marker = _repository(sandboxed), sandboxed.tree.outside / "escaped"
    planted = sandboxed.tree.put(top / "node_modules" / ".bin" / "x", "").with_name("git")
    sandboxed.tester.give(top)
    body = PLANTED_GIT.format(marker=marker, git=need_program("git"))
    reported = play(sandboxed, body, workspace=str(top), profile="ai-agent")
    assert reported == [[True], ["topic"]], reported
    assert not marker.exists()
    assert sandboxed.outside([planted, "--version"]).exit_code == 0
    assert marker.exists(), "the control: it runs outside, if it is started"


_REFUSED = """
try:
    async with Sandbox(**options, worktree="topic") as box:
        tell(box.workspace)
except UsageError as error:
    tell(str(error))
"""


def _refusal(sandbox: SandboxRunner, workspace: Path) -> str:
    [[text]] = play(sandbox, _REFUSED, workspace=str(workspace), profile="ai-agent")
    assert isinstance(text, str)
    return text


def test_a_planted_repository_does_not_lead_a_worktree_elsewhere(sandboxed: SandboxRunner) -> None:
    """A command can write these files below its workspace. Git without the check follows them."""
    top, tree = _repository(sandboxed), sandboxed.tree
    foreign = top.rename(tree.root / "foreign")
    by_file, by_setting = tree.make(tree.project / "file"), tree.make(tree.project / "setting")
    plant = (
        f"printf 'gitdir: {foreign}/.git\\n' > file/.git && git init -q setting && "
        f"git -C setting config core.worktree {foreign}"
    )
    assert sandboxed.outside(["sh", "-c", plant], cwd=tree.project).exit_code == 0
    shown = ("rev-parse", "--path-format=absolute")
    assert _git(sandboxed, "-C", str(by_file), *shown, "--git-dir").strip() == f"{foreign}/.git"
    assert _git(sandboxed, "-C", str(by_setting), *shown, "--show-toplevel").strip() == str(foreign)
    assert f"the git directory of {by_file} is {foreign}/.git" in _refusal(sandboxed, by_file)
    assert "is not the top of a git repository" in _refusal(sandboxed, by_setting)
    assert not Path(f"{foreign}.worktrees").exists()
    assert not (foreign / ".git" / "worktrees").exists()
    assert _refusal(sandboxed, foreign) == f"{foreign}.worktrees/topic", "the control"


def test_a_worktree_is_not_made_behind_a_link(sandboxed: SandboxRunner) -> None:
    top, tree = _repository(sandboxed), sandboxed.tree
    link = Path(f"{top}.worktrees")
    link.symlink_to(tree.outside)
    assert f"leads through the symlink {link}" in _refusal(sandboxed, top)
    assert not (tree.outside / "topic").exists()
    link.unlink()
    assert _refusal(sandboxed, top) == f"{link}/topic", "the control"
