"""File tools write by a process in the sandbox. So the judge of writes holds for them as for
commands, whatever a command does meanwhile.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from typing import Any

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.support.session_program import play

POLICY = """
[meta]
version = 1
inherit = "ai-agent"
[filesystem]
workspace = "{workspace}"
[tools]
require_approval_for_writes = {asks}
require_approval_for_execute = false
"""
# ``unjudged``: the control, tools without a sandbox.
CALL = """
from paddock.tools.dispatch import Tools
unjudged = Tools(ToolPolicy(require_approval_for_writes=False))
calls, os_cwd = options.pop("calls", []), os.chdir(options["workspace"])
async def call(tools, name, **arguments):
    result = await tools.call(ToolCall(name=name, arguments=arguments))
    return [result.outcome.value, result.message]
"""


@pytest.fixture(params=["landlock", "full"])
def sandboxed(request: pytest.FixtureRequest) -> SandboxRunner:
    found = request.getfixturevalue("sandbox" if request.param == "landlock" else "full")
    assert isinstance(found, SandboxRunner)
    return found


def scene(
    sandbox: SandboxRunner, body: str, *, asks: bool = False, workspace: str = "live", **more: Any
) -> Any:
    text = POLICY.format(workspace=workspace, asks=str(asks).lower())
    policy = sandbox.tree.put(sandbox.tree.root / "policy" / "paddock.toml", text)
    return play(sandbox, CALL + body, policy=str(policy), **more)


def repository(sandbox: SandboxRunner) -> str:
    """Makes the project a repository with one commit, and returns its hash."""
    git = [need_program("git"), "-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    git += ["-C", str(sandbox.tree.project)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        done = sandbox.outside([*git, *words])
        assert done.exit_code == 0, str(done)
    return sandbox.outside([*git, "rev-parse", "HEAD"]).stdout.strip()


def index(path: bytes) -> str:
    """An index with one entry, as text of the encoding latin-1."""
    entry = struct.pack(">10I", *[0] * 6, 0o100755, 0, 0, 0) + b"\x11" * 20
    entry += struct.pack(">H", len(path)) + path
    entry += b"\0" * (8 - len(entry) % 8)
    body = b"DIRC" + struct.pack(">II", 2, 1) + entry
    return (body + hashlib.sha1(body).digest()).decode("latin-1")


PLANTS = """
def seen():
    files = [Path(one["path"]) for one in calls]
    return [file.read_bytes().decode("latin-1") if file.exists() else None for file in files]
async with Sandbox(**options) as box:
    tell(seen())
    for tools in (box.tools, unjudged):
        tell([await call(tools, "write_file", **arguments) for arguments in calls])
        tell(seen())
"""


def test_content_that_git_would_obey_is_refused(sandboxed: SandboxRunner) -> None:
    head = repository(sandboxed)
    sandboxed.tree.put(sandboxed.tree.project / "bare" / "x", "")
    replaced = f"# pack-refs with: peeled fully-peeled sorted \n{head} refs/replace/{head}\n"
    plants = {
        ".git/index": index(b".git/hooks/post-checkout"),
        ".git/config": "[core]\n\tfsmonitor = touch x\n",
        ".git/ORIG_HEAD": "ref: commondir\n",
        ".git/refs/heads/x": "ref: commondir\n",
        ".git/packed-refs": replaced,
        "sub/.git/config": "[core]\n\tfsmonitor = touch x\n",
        "x/.git": "gitdir: ../bare\n",
    }
    calls = [
        {"path": path, "content": text, **({"encoding": "latin-1"} if "index" in path else {})}
        for path, text in plants.items()
    ]
    [before], [judged], [after], [unjudged], [control] = scene(sandboxed, PLANTS, calls=calls)
    assert [outcome for outcome, _ in judged] == ["blocked"] * len(calls), judged
    assert all("the sandbox denies it" in message for _, message in judged), judged
    assert after == before
    assert [outcome for outcome, _ in unjudged] == ["ok"] * len(calls), unjudged
    assert control == list(plants.values()), "the control: tools without a sandbox write it"


ORDINARY = """
async with Sandbox(**options) as box:
    for name, arguments in calls:
        tell(await call(box.tools, name, **arguments))
    tell(await call(box.tools, "write_file", path="large", content="x" * 5_000_000))
    tell((await box.run("cat plain a/b/new .git/ORIG_HEAD")).stdout)
"""


def test_ordinary_files_are_written(sandboxed: SandboxRunner) -> None:
    """In new directories, through links, with mode and attributes; also harmless files of git."""
    head, project = repository(sandboxed), sandboxed.tree.project
    for name, mode in (("plain", 0o640), ("program", 0o755), ("target", 0o600)):
        sandboxed.tree.put(project / name, "old\n").chmod(mode)
    (project / "link").symlink_to("target")
    (project / ".git" / "ORIG_HEAD").write_text("0" * 40 + "\n")
    sandboxed.tester.give(project)
    edit = {"old_text": "old", "new_text": "new"}
    calls = [
        ("write_file", {"path": "plain", "content": "new\n"}),
        ("edit_file", {"path": "program", **edit}),
        ("edit_file", {"path": "link", **edit}),
        ("write_file", {"path": "a/b/new", "content": "täxt\n"}),
        ("write_file", {"path": ".git/ORIG_HEAD", "content": f"{head}\n"}),
        ("write_file", {"path": ".git/refs/heads/x", "content": f"{head}\n"}),
    ]
    *reported, (seen,) = scene(sandboxed, ORDINARY, calls=calls)
    assert [outcome for ((outcome, _),) in reported] == ["ok"] * (len(calls) + 1), reported
    assert seen == f"new\ntäxt\n{head}\n"
    found = {name: project / name for name in ("plain", "program", "target")}
    assert {name: path.read_text() for name, path in found.items()} == dict.fromkeys(found, "new\n")
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}
    assert modes == {"plain": 0o640, "program": 0o755, "target": 0o600}
    assert (project / "link").is_symlink()
    assert (project / "large").stat().st_size == 5_000_000
    left = [path.name for path in project.rglob(".paddock-*")]
    assert left == []


RACER = """
import os, sys, time
source, target = sys.argv[1:]
end = time.monotonic() + 20
print("started", flush=True)
while time.monotonic() < end:
    try:
        if any(name.startswith(".paddock-") for name in os.listdir(source)):
            os.rename(source, target)
            print("renamed", flush=True)
            break
    except FileNotFoundError:
        break
    if os.path.exists("stop"):
        break
"""
RACE = """
target, name, rounds = [options.pop(key) for key in ("target", "name", "rounds")]
async def once(box, tools, number, to):
    source, stop = Path(f"d{number}"), Path("stop")
    source.mkdir()
    stop.unlink(missing_ok=True)
    (Path(to).parent).mkdir(exist_ok=True)
    async with box.spawn(["python3", "racer.py", str(source), to]) as racer:
        await racer.stdout.readline()
        outcome, _ = await call(tools, "write_file", path=f"{source}/{name}", \
content="[x]\\n" + "#" * 4_000_000)
        stop.touch()
        moved = b"renamed" in await racer.stdout.read()
    landed = Path(to, name).exists()
    for left in (source, Path(to)):
        await box.run(["rm", "-rf", str(left)])
    return [outcome, moved, landed]
async with Sandbox(**options) as box:
    for number in range(rounds):
        tell(await once(box, box.tools, f"j{number}", target))
    for number in range(rounds):
        seen = await once(box, unjudged, f"u{number}", target)
        tell(seen)
        if seen[2]:
            break
"""


@pytest.mark.parametrize(("target", "name"), [(".hg", "hgrc"), ("sub/.git", "config")])
def test_a_directory_that_moves_meanwhile_carries_no_write_to_a_protected_name(
    sandboxed: SandboxRunner, target: str, name: str
) -> None:
    sandboxed.tree.put(sandboxed.tree.project / "racer.py", RACER)
    rounds = 8
    reported = scene(sandboxed, RACE, target=target, name=name, rounds=rounds)
    judged = [one for (one,) in reported[:rounds]]
    assert any(moved for _, moved, _ in judged), "the directory was never moved in time"
    assert not any(landed for *_, landed in judged), judged
    assert {outcome for outcome, moved, _ in judged if moved} <= {"changed", "blocked"}, judged
    assert reported[-1][0][2], f"the control: without the judge it lands: {reported}"


PARALLEL = """
parts = [("HEAD", "ref: refs/heads/m\\n"), ("objects/x", "x"), ("config", "[core]\\n")]
async def write(tools, directory):
    Path(directory, "refs").mkdir(parents=True)
    writes = [call(tools, "write_file", path=f"{directory}/{name}", content=text) \
for name, text in parts]
    outcomes = [outcome for outcome, _ in await asyncio.gather(*writes)]
    tell(sorted(outcomes), all(Path(directory, name).exists() for name, _ in parts))
async with Sandbox(**options) as box:
    for number in range(5):
        await write(box.tools, f"judged{number}")
    await write(unjudged, "control")
"""


def test_parallel_writes_complete_no_repository(sandboxed: SandboxRunner) -> None:
    """Each of the names is free, as long as the others do not exist."""
    *judged, control = scene(sandboxed, PARALLEL)
    for outcomes, is_complete in judged:
        # "not_found": the directory above must not be made
        assert set(outcomes) & {"blocked", "not_found"}, judged
        assert not is_complete
    assert control == [["ok"] * 3, True], "the control"


ASKED = """
from paddock import Verdict
meanwhile = options.pop("meanwhile")
shown = []
async def answer(question):
    shown.append(question.diff)
    done = await held[0].run(["sh", "-c", meanwhile])
    assert done.ok, done.stderr
    return Verdict.ONCE
async with Sandbox(**options, approver=answer) as box:
    held = [box]
    for name, arguments in calls:
        tell(*await call(box.tools, name, **arguments), "".join(shown))
"""


def test_a_repository_that_grows_while_a_person_reads_is_not_completed(
    sandboxed: SandboxRunner,
) -> None:
    project = sandboxed.tree.project
    for name in ("refs/x", "config"):
        sandboxed.tree.put(project / "d" / name, "")
    calls = [("write_file", {"path": "d/HEAD", "content": "ref: refs/heads/m\n"})]
    growing = "mkdir d/objects"
    (reported,) = scene(sandboxed, ASKED, asks=True, calls=calls, meanwhile=growing)
    assert reported[0] == "blocked", reported
    assert "the sandbox denies it" in reported[1]
    assert (project / "d" / "objects").exists()
    assert not (project / "d" / "HEAD").exists()
    (project / "d" / "objects").rmdir()
    (control,) = scene(sandboxed, ASKED, asks=True, calls=calls, meanwhile="true")
    assert control[0] == "ok", "the control: nothing happens meanwhile"
    assert (project / "d" / "HEAD").exists()


@pytest.mark.parametrize(
    ("name", "more"),
    [("write_file", {"content": "tool"}), ("edit_file", {"old_text": "shown", "new_text": "tool"})],
)
def test_a_file_that_changes_while_a_person_reads_is_not_written(
    sandboxed: SandboxRunner, name: str, more: dict[str, str]
) -> None:
    file = sandboxed.tree.put(sandboxed.tree.project / "f", "shown")
    calls = [(name, {"path": "f", **more})]
    changing = "printf shown-not > f"
    ((outcome, message, diff),) = scene(
        sandboxed, ASKED, asks=True, calls=calls, meanwhile=changing
    )
    assert (outcome, "another program changed the file" in message) == ("changed", True)
    assert [line for line in diff.splitlines() if line[0] in "-+"] == ["-shown", "+tool"]
    assert file.read_text() == "shown-not"
    file.write_text("shown")
    ((outcome, *_),) = scene(sandboxed, ASKED, asks=True, calls=calls, meanwhile="true")
    assert (outcome, file.read_text()) == ("ok", "tool"), "the control"


COPIED = """
async def own(path: Path):
    return None
async with Sandbox(**options, handlers={"own": own}) as box:
    await box.run("echo copy > f; echo x > made")
    for name, arguments in calls:
        tell(*await call(box.tools, name, **arguments))
    tell((await box.run("cat f made new/file old; stat -c %a old")).stdout)
"""


def test_in_a_copy_of_the_workspace_file_tools_use_the_copy(full: SandboxRunner) -> None:
    """The host's files do not change until `paddock apply`."""
    project = full.tree.project
    host = full.tree.put(project / "f", "host\n")
    old = full.tree.put(project / "old", "a\n")
    old.chmod(0o640)
    calls = [
        ("edit_file", {"path": "f", "old_text": "copy", "new_text": "tool"}),
        ("read_file", {"path": "made"}),
        ("list_directory", {"path": "."}),
        ("write_file", {"path": "new/file", "content": "new\n"}),
        ("edit_file", {"path": "old", "old_text": "a", "new_text": "b"}),
        ("own", {"path": "f"}),
    ]
    *reported, (seen,) = scene(full, COPIED, workspace="cow", calls=calls)
    assert [outcome for outcome, _ in reported] == [*["ok"] * 5, "blocked"], reported
    assert "use bash" in reported[-1][1]
    assert seen == "tool\nx\nnew\nb\n640\n"
    assert (host.read_text(), old.read_text()) == ("host\n", "a\n")
    assert not (project / "new").exists()
    assert not (project / "made").exists()
    *live, _ = scene(full, COPIED, calls=calls)
    assert [outcome for outcome, _ in live[:-1]] == ["ok"] * 5, live
    assert (host.read_text(), old.read_text()) == ("tool\n", "b\n"), "control: a live workspace"
