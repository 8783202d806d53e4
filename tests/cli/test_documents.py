"""Every command in the documents runs (C-156), as the tester, in a directory of its own.

The info string of a block says what it is: ``sh`` holds commands; ``console`` is a transcript whose
commands follow a ``$``; ``toml`` is a policy, which ``paddock check`` has to accept; ``python`` is
a program against the API; ``text`` is output. ``stand-ins: claude`` names programs that are not
available here, such as an agent or the network; a script replaces them. No command needs root. The
test makes the root directory ``/srv/jail`` of the documents.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import paddock
from paddock.policy import Origin
from paddock.policy.formats.agent_config import read_config
from tests.support.features import need
from tests.support.installation import REPOSITORY, Installation
from tests.support.jail import build_root
from tests.support.sandbox import SandboxRunner
from tests.support.saved_state import remove
from tests.support.tester import SEARCH_PATH, Tester
from tests.support.tree import ProjectTree

DOCUMENTS = (
    "README.md",
    "docs/claude-code.md",
    "docs/codex.md",
    "docs/allow-a-host.md",
    "docs/keep-a-key-outside.md",
    "docs/keep-shells-offline.md",
    "docs/deny-a-command.md",
    "docs/ask-a-person.md",
    "docs/review-before-applying.md",
    "docs/find-out-why.md",
    "docs/journal.md",
    "docs/containers.md",
    "docs/use-from-python.md",
    "docs/tools.md",
    "docs/places.md",
    "docs/policy.md",
    "docs/how-it-works.md",
)
BIN = ".local/bin"  # the directory of tools of a user
FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)

# The acts of the agent in the examples.
AGENT = """#!/bin/sh
echo "$0 stands in"
mkdir -p src docs 2>/dev/null
echo change >> src/app.py 2>/dev/null
echo new > src/new.py 2>/dev/null
mv docs/a.md docs/b.md 2>/dev/null
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    document: str
    line: int
    language: str
    stand_ins: tuple[str, ...]
    text: str

    @property
    def script(self) -> str:
        if self.language == "sh":
            return self.text
        return "".join(f"{line[2:]}\n" for line in self.text.splitlines() if line.startswith("$ "))

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks() -> Iterator[Block]:
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text()
        for found in FENCED.finditer(text):
            language, *marks = found[1].split()
            yield Block(
                document=document,
                line=text[: found.start()].count("\n") + 1,
                language=language,
                stand_ins=tuple(marks[marks.index("stand-ins:") + 1 :])
                if "stand-ins:" in marks
                else (),
                text=found[2],
            )


BLOCKS = list(blocks())
RUN = ("sh", "console")


def test_every_code_block_has_a_language() -> None:
    assert {block.language for block in BLOCKS} == {*RUN, "toml", "python", "text", "json"}
    assert all(block.script for block in BLOCKS if block.language in RUN)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_every_configuration_of_the_documents_is_read(block: Block) -> None:
    """A-118, A-128, A-140"""
    read_config(block.text, str(block), Origin.of_process())


PROGRAMS = [block for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize(
    "block", [block for block in PROGRAMS if "asyncio.run" not in block.text], ids=str
)
def test_every_program_of_the_documents_uses_existing_names(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not run, because the reader has to supply its policy and its command."""
    takes = inspect.signature(paddock.run_sync)

    def run_sync(*arguments: object, **named: object) -> paddock.Result:
        takes.bind(*arguments, **named)
        return paddock.Result(outcome=paddock.Outcome.EXITED, exit_code=0)

    monkeypatch.setattr(paddock, "run_sync", run_sync, raising=False)
    exec(compile(block.text, str(block), "exec"), {})


@pytest.mark.parametrize(
    "block", [block for block in PROGRAMS if "asyncio.run" in block.text], ids=str
)
def test_every_complete_program_of_the_documents_runs(block: Block, sandbox: SandboxRunner) -> None:
    python = sandbox.installation.paddock.with_name("python")
    done = sandbox.tester.run([python, "-c", block.text], cwd=sandbox.tree.project)
    assert done.exit_code == 0, str(done)
    assert ("ToolOutcome.BLOCKED" in done.stdout) == ("open_tools" in block.text), str(done)


@pytest.fixture
def home(tester: Tester, tree: ProjectTree) -> Iterator[Path]:
    """A user's home: a project, documents, and the directory of an agent."""
    need("root", tester.disposable, "the paths of the documents would be created in your home")
    made = {
        "project/src/app.py": "print()\n",
        "project/docs/a.md": "text\n",
        "project/Makefile": "all:\n\ttrue\n",
        "docs/page.md": "text\n",
        "notes.txt": "text\n",
    }
    for name, text in made.items():
        place = tester.home / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (tester.home / BIN).mkdir(parents=True)
    tops = {BIN, *(name.split("/")[0] for name in made)}
    for top in (*tops, ".local"):
        tester.give(tester.home / top)
    try:
        yield tester.home
    finally:
        for top in (
            *tops,
            ".local/state/paddock/trusted",
        ):  # a trusted policy must not be missing later
            remove(tester.home / top)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_every_policy_of_the_documents_is_accepted(
    block: Block, tester: Tester, installation: Installation, home: Path
) -> None:
    policy = home / "project" / "policy.toml"
    policy.write_text(block.text)
    tester.give(policy)
    done = tester.run([installation.paddock, "check", policy], cwd=policy.parent)
    assert done.exit_code == 0, str(done)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in RUN], ids=str)
def test_every_command_of_the_documents_runs(
    block: Block, tester: Tester, installation: Installation, tree: ProjectTree, home: Path
) -> None:
    jail = tree.root / "jail"
    uses_jail = "/srv/jail" in block.text or "container.conf" in block.script
    if uses_jail and "mkdir -p /srv/jail" not in block.script:
        build_root(jail)
        tester.give(jail)
    for name in block.stand_ins:
        (home / BIN / name).write_text(AGENT)
        (home / BIN / name).chmod(0o755)
    project = home / "project"
    if "container.conf" in block.script:
        sample = (REPOSITORY / "examples" / "container.conf").read_text()
        (project / "container.conf").write_text(sample.replace("/srv/jail", str(jail)))
    if "audit" in block.script:  # makes a journal to read
        rules, meta = (
            home / "rules.toml",
            '[meta]\ninherit = "ai-agent"\ndefault_action = "allow"\n',
        )
        rules.write_text(f'{meta}[[rule]]\nid = "no-ls"\naction = "deny"\nexe_basename = "ls"\n')
        tester.give(rules)
        first = tester.run(
            [installation.paddock, "run", "--policy", rules, "--", "true"], cwd=project
        )
        assert first.exit_code == 0, str(first)
    if "paddock.toml" in block.script:
        policy = next(block for block in BLOCKS if block.language == "toml")
        (project / "paddock.toml").write_text(policy.text)
        tester.give(project)
    # Paddock's own failures, and what is not found or can not be run; a refusal that is shown is no
    # failure.
    complaint = 'code=$?; [ $code -lt 125 ] || echo "FAILED $code: $BASH_COMMAND" >&2'
    script = f"set -E; trap '{complaint}' ERR\n{block.script.replace('/srv/jail', str(jail))}"
    path = f"{installation.paddock.parent}:{home / BIN}:{SEARCH_PATH}"
    done = tester.run(
        ["bash", "-c", script], cwd=project, env={"PATH": path, "ANTHROPIC_API_KEY": "x"}
    )
    assert "FAILED" not in done.stderr, str(done)
    assert "Traceback" not in done.stderr, str(done)
    assert done.stdout or "paddock " not in block.script, str(done)


def test_the_documents_say_that_the_network_is_open_by_default() -> None:
    for document in ("README.md", "docs/allow-a-host.md"):
        output = [
            line
            for line in (REPOSITORY / document).read_text().splitlines()
            if "network is open" in line
        ]
        assert any("127.0.0.1 included" in line for line in output), document
