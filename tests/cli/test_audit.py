"""Searching and reporting a journal that a real run wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.terminal import opened
from tests.support.tester import Outcome

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"

[[rule]]
id = "no-touching"
action = "deny"
exe_basename = "touch"
"""


@pytest.fixture
def journaled(sandbox: SandboxRunner) -> SandboxRunner:
    policy = sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)
    assert (
        sandbox.inside(
            ["sh", "-c", "/usr/bin/touch '<b>x'; true | cat"], "--policy", policy
        ).exit_code
        == 0
    )
    return sandbox


def audit(sandbox: SandboxRunner, *words: Word) -> Outcome:
    return sandbox.tester.run(
        [sandbox.installation.paddock, "audit", *words, "--dir", sandbox.journal],
        cwd=sandbox.tree.root,
    )


def test_query_filters(journaled: SandboxRunner) -> None:
    denied = audit(journaled, "query", "--action", "deny", "--json")
    (event,) = map(json.loads, denied.stdout.splitlines())
    assert (event["event"], event["rule_id"], event["argv"]) == (
        "exec",
        "no-touching",
        ["/usr/bin/touch", "<b>x"],
    )
    session = event["session"]
    everything = audit(journaled, "query", "--session", session).stdout.splitlines()
    assert len(everything) == len(audit(journaled, "show").stdout.splitlines()) >= 4
    assert len(audit(journaled, "query", "--kind", "session").stdout.splitlines()) == 2
    assert (
        len(audit(journaled, "query", "--rule", "no-touching", "--since", "1h").stdout.splitlines())
        == 1
    )
    for none in (
        ["--rule", "other"],
        ["--until", "1h"],
        ["--day", "2020-01-01"],
        ["--session", "x"],
    ):
        assert audit(journaled, "query", *none).stdout == ""


def test_query_goes_on_as_events_come(journaled: SandboxRunner) -> None:
    words: list[Word] = [
        journaled.installation.paddock,
        "audit",
        "query",
        "--kind",
        "exec",
        "--action",
        "deny",
    ]
    with journaled.tester.starting(
        [*words, "--follow", "--json", "--dir", journaled.journal]
    ) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["argv"] == ["/usr/bin/touch", "<b>x"]
        policy = journaled.tree.root / "p.toml"
        journaled.inside(["sh", "-c", "/usr/bin/touch later"], "--policy", policy)
        assert json.loads(following.stdout.readline())["argv"] == ["/usr/bin/touch", "later"]


def test_report_is_readable_by_its_owner_only(journaled: SandboxRunner) -> None:
    out = journaled.tree.root / "report.html"
    output = audit(journaled, "report", "-o", out)
    assert (output.exit_code, output.stderr) == (0, ""), output
    assert output.stdout.endswith(f"events: {out}\n")
    assert (out.stat().st_mode & 0o777, out.stat().st_uid) == (0o600, journaled.tester.uid)
    page = out.read_text()
    assert "The chain of the journal is complete" in page
    assert "no-touching" in page
    assert "&lt;b&gt;x" in page
    assert "<b>x" not in page
    printed = audit(journaled, "report")
    assert printed.stdout == page
    assert [path.name for path in journaled.tree.root.glob("report*")] == ["report.html"]


def test_report_prints_no_page_on_a_terminal(journaled: SandboxRunner) -> None:
    paddock = str(journaled.installation.paddock)
    argv = ["sh", "-c", '"$@"; exec cat', "sh", paddock, "audit", "report"]
    argv += ["--dir", str(journaled.journal)]
    with opened(journaled.tester, argv, cwd=journaled.tree.root) as screen:
        shown = screen.shows("hint: paddock audit report -o report.html")
    assert "<html" not in shown
    assert audit(journaled, "report", "-o", journaled.tree.root / "report.html").exit_code == 0


def test_report_names_an_altered_journal(journaled: SandboxRunner) -> None:
    (file,) = Path(journaled.journal).glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:1], b"nonsense\n", *lines[2:]]))
    output = audit(journaled, "report")
    assert output.exit_code == 125
    assert "was changed after it was written" in output.stdout
    assert "1 lines of the journal are not events" in output.stdout
    (journaled.journal / "head").unlink()
    lost = audit(journaled, "report")
    assert (lost.exit_code, "could not be verified" in lost.stdout) == (125, True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["query", "--since", "soon"], "'soon' is not a time"),
        (["query", "--day", "x"], "'x' is not a day"),
        (["query", "--day", "2026-11-16", "--since", "1h"], "--day cannot be used with --since"),
        (["query", "--session", "nobody"], "the journal has no events of session 'nobody'"),
        (["show", "--session", "nobody"], "the journal has no events of session 'nobody'"),
        (["tail", "--session", "nobody"], "the journal has no events of session 'nobody'"),
        (["show", "--kind", "exec"], "only query and report accept filters"),
        (["query", "-o", "x"], "only report accepts --output"),
        (["query", "--action", "maybe"], "invalid choice"),
        (["report", "--session", "nobody"], "the journal has no events of session 'nobody'"),
        (["report", "-o", "/nowhere/x.html"], "/nowhere/x.html"),
    ],
)
def test_audit_refuses_contradicting_options(
    journaled: SandboxRunner, words: list[Word], complaint: str
) -> None:
    output = audit(journaled, *words)
    assert (output.exit_code, output.stdout) == (125, ""), output
    assert complaint in output.stderr
    assert "Traceback" not in output.stderr
