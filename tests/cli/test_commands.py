"""What each command prints and how it ends, as a user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.fence import Fence, Word
from tests.support.tester import Outcome


def paddock(fence: Fence, *words: Word, cwd: Path | None = None) -> Outcome:
    outcome = fence.tester.run(
        [fence.installation.paddock, *words], cwd=cwd or fence.ground.project
    )
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def test_help_names_every_command_and_the_exit_codes(fence: Fence) -> None:
    """F-022"""
    shown = paddock(fence, "--help")
    assert shown.exit_code == 0
    for word in (
        "run",
        "check",
        "explain",
        "why",
        "sessions",
        "diff",
        "apply",
        "discard",
        "doctor",
        "profiles",
        "trust",
        "audit",
        "approvals",
        "sandbox",
        "125",
        "126",
        "127",
        "128+N",
    ):
        assert word in shown.stdout


def test_bare_paddock_with_a_command_is_run(fence: Fence) -> None:
    shown = paddock(fence, "--", "echo", "hi")
    assert (shown.exit_code, shown.stdout) == (0, "hi\n")


def test_everything_after_the_dashes_belongs_to_the_command(fence: Fence) -> None:
    """C-006"""
    shown = paddock(
        fence, "run", "--", "printf", "%s\\n", "--profile", "-x", "--debug", "--", "end"
    )
    assert shown.stdout.splitlines() == ["--profile", "-x", "--debug", "--", "end"]


def test_check_says_the_exact_words_and_runs_nothing(fence: Fence) -> None:
    """F-023"""
    file = fence.ground.put(
        fence.ground.root / "p.toml", '[filesystem]\nread_globs = ["/usr/**"]\n'
    )
    shown = paddock(fence, "check", file)
    assert (shown.exit_code, shown.stdout) == (0, f"policy ok: {file}\n")
    assert paddock(fence, "check", "--policy", file).stdout == shown.stdout


def test_the_default_profile_is_ai_agent(fence: Fence) -> None:
    """C-007"""
    default = paddock(fence, "run", "--dry-run", "--", "true")
    named = paddock(fence, "run", "--profile", "ai-agent", "--dry-run", "--", "true")
    assert default.exit_code == 0, default
    assert default.stdout == named.stdout


def test_a_dry_run_prints_grants_with_sources_and_runs_nothing(fence: Fence) -> None:
    """C-008"""
    marker = fence.ground.project / "x"
    shown = paddock(
        fence,
        "run",
        "--dry-run",
        "-r",
        fence.ground.outside,
        "--profile",
        "ai-agent",
        "--",
        "touch",
        marker,
    )
    assert shown.exit_code == 0, shown
    assert not marker.exists()
    assert re.search(rf"read +{fence.ground.outside} +-r\n", shown.stdout), shown
    assert re.search(rf"allow +{fence.ground.project} +built-in ai-agent:\d+", shown.stdout), shown
    for word in ("ptrace", "LD_", "journal", "not covered", "network"):
        assert word in shown.stdout


def test_strict_is_ai_agent_and_six_more_system_calls(fence: Fence) -> None:
    """C-031"""

    def plan(profile: str) -> dict[str, object]:
        shown = paddock(fence, "explain", "--profile", profile, "--json")
        assert shown.exit_code == 0, shown
        loaded: dict[str, object] = json.loads(shown.stdout)["plan"]
        return loaded

    default, strict = plan("ai-agent"), plan("strict")
    blocked = [set(one["seccomp"]["syscalls"]) for one in (default, strict)]  # type: ignore[index]
    assert blocked[1] - blocked[0] == {
        "personality",
        "lookup_dcookie",
        "vhangup",
        "quotactl",
        "mbind",
        "move_pages",
    }
    assert blocked[0] < blocked[1]
    for one in (default, strict):
        for key in ("seccomp", "profiles", "notices"):
            del one[key]
    assert default == strict


def test_flags_without_a_profile_start_from_nothing(fence: Fence) -> None:
    """C-015"""
    words: list[Word] = [
        "run",
        "--tier",
        "landlock",
        "--ro",
        "/usr",
        "--rw",
        fence.ground.project,
        "--",
        "ls",
    ]
    listed = paddock(fence, *words, fence.ground.project)
    assert listed.exit_code == 0, listed
    denied = paddock(fence, *words, fence.tester.home)
    assert denied.exit_code != 0
    assert "Permission denied" in denied.stderr
    assert fence.outside(["ls", fence.tester.home]).exit_code == 0


def test_the_start_line_and_warnings_are_on_stderr_and_never_in_the_output(fence: Fence) -> None:
    loud = paddock(fence, "run", "--off", "seccomp", "--", "echo", "hi")
    assert loud.stdout == "hi\n"
    assert "paddock: " in loud.stderr
    assert "seccomp is off" in loud.stderr
    calm = paddock(fence, "run", "--", "echo", "hi")
    assert (calm.stdout, calm.stderr) == ("hi\n", "")


@pytest.mark.parametrize(
    ("path", "op", "code"),
    [
        ("own.txt", "read", 0),
        ("own.txt", "write", 0),
        ("new.txt", "write", 0),
        ("/usr/bin/env", "exec", 0),
        ("/usr/bin/env", "write", 1),
    ],
)
def test_why_answers_with_the_line_that_decided(
    fence: Fence, path: str, op: str, code: int
) -> None:
    shown = paddock(fence, "why", "--path", path, "--op", op)
    assert shown.exit_code == code, shown
    assert shown.stdout.startswith("allowed: " if code == 0 else "denied: ")
    assert "because: " in shown.stdout
    assert "Traceback" not in shown.stderr


def test_why_shows_where_a_link_leads_and_how_to_allow_it(fence: Fence) -> None:
    (fence.ground.project / "link").symlink_to(fence.ground.secret)
    shown = paddock(fence, "why", "--tier", "landlock", "--path", "link")
    assert shown.exit_code == 1
    assert f"(leads to {fence.ground.secret})" in shown.stdout
    assert "EACCES" in shown.stdout
    assert f"--profile ai-agent --read {fence.ground.secret} " in shown.stdout
    again = paddock(
        fence, "why", "--profile", "ai-agent", "--read", str(fence.ground.secret), "--path", "link"
    )
    assert again.exit_code == 0, again


def test_doctor_tries_everything_and_ends_well_here(fence: Fence) -> None:
    """C-009"""
    shown = paddock(fence, "doctor", "--json")
    assert shown.exit_code == 0, shown
    answer = json.loads(shown.stdout)
    assert answer["default_profile"] is True
    assert answer["landlock_abi"] >= 6
    assert {tried["mechanism"]: tried["held"] for tried in answer["tried"]}
    asked = paddock(fence, "doctor", "--tier", "landlock").stdout
    assert "tier: landlock" in asked
    assert "not enforced in this tier: names inside a grant" in asked
    assert "network, if a policy restricts it: through the proxy only" in asked


def test_doctor_names_the_tier_that_a_run_would_have(full: Fence) -> None:
    assert json.loads(paddock(full, "doctor", "--json").stdout)["tier"] == "full"
    assert "tier full" in paddock(full, "explain").stdout
    assert "tier landlock" in paddock(full, "explain", "--tier", "landlock").stdout


def test_explain_shows_what_is_denied_and_protected_by_name_and_what_was_opened(
    full: Fence,
) -> None:
    shown = paddock(full, "explain", "--open-protected", "**/.github/workflows/**").stdout
    assert re.search(r"^denied +denied, also if created during the run: .*\.env", shown, re.M), (
        shown
    )
    assert re.search(
        r"^protected +read-only inside writable directories.* \.envrc ", shown, re.M | re.S
    ), shown
    assert "--open-protected: **/.github/workflows/** is writable: a server runs it" in shown


def test_the_landlock_tier_says_what_it_does_not_hold(fence: Fence) -> None:
    shown = paddock(fence, "explain", "--tier", "landlock").stdout
    assert "names inside a grant (.env, .git/hooks" in shown
    assert "protected  " not in shown


def test_profiles_lists_where_each_comes_from_and_shows_one(fence: Fence) -> None:
    shown = paddock(fence, "profiles", "--json")
    names = {one["name"] for one in json.loads(shown.stdout)}
    assert {"ai-agent", "strict", "dev", "read-only", "base"} <= names
    assert "inherit" in paddock(fence, "profiles", "strict").stdout
    assert paddock(fence, "profiles", "nosuch").exit_code == 125


def test_profiles_shows_a_wrong_one_in_its_row_and_the_others_all_the_same(fence: Fence) -> None:
    config = fence.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    bad, good = config / "bad.toml", config / "good.conf"
    bad.write_text("[meta\n")
    good.write_text("# good: all right\nro /usr\n")
    fence.tester.give(fence.tester.home / ".config")
    try:
        shown = paddock(fence, "profiles")
        assert shown.exit_code == 125, shown
        assert re.search(
            rf"^bad +error: {bad}:1: not valid TOML.*\n +{bad}$", shown.stdout, re.MULTILINE
        ), shown
        assert re.search(r"^good +all right$", shown.stdout, re.MULTILINE)
        assert re.search(r"^ai-agent +\S", shown.stdout, re.MULTILINE)
        assert shown.stderr.startswith("paddock: these profiles cannot be used: bad\n")
        rows = {one["name"]: one for one in json.loads(paddock(fence, "profiles", "--json").stdout)}
        assert "not valid TOML" in rows["bad"]["error"]
        assert (rows["good"]["error"], rows["good"]["about"]) == (None, "all right")
        bad.unlink()
        assert paddock(fence, "profiles").exit_code == 0
    finally:
        bad.unlink(missing_ok=True)
        good.unlink()


@pytest.mark.parametrize("profile", ["ai-agent", "strict", "dev", "read-only", "base"])
def test_every_built_in_profile_runs_true(fence: Fence, profile: str) -> None:
    """C-019"""
    shown = paddock(fence, "run", "--profile", profile, "--", "true")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown


def test_a_project_policy_counts_only_after_its_content_was_trusted(fence: Fence) -> None:
    file = fence.ground.put(fence.ground.project / "paddock.toml", '[meta]\ninherit = "ai-agent"\n')
    untrusted = paddock(fence, "run", "--", "true")
    assert untrusted.exit_code == 125
    assert "paddock trust" in untrusted.stderr
    assert paddock(fence, "trust").exit_code == 0
    assert paddock(fence, "run", "--", "true").exit_code == 0
    # The agent may write its workspace; what it writes there loosens nothing.
    wrote = paddock(
        fence, "run", "--tier", "landlock", "--", "sh", "-c", f"echo '# more' >> {file}"
    )
    assert wrote.exit_code == 0, wrote
    changed = paddock(fence, "run", "--", "true")
    assert changed.exit_code == 125
    assert "changed" in changed.stderr
    assert paddock(fence, "trust").exit_code == 0
    assert paddock(fence, "run", "--", "true").exit_code == 0
    assert paddock(fence, "trust", "--revoke").exit_code == 0
    assert paddock(fence, "run", "--", "true").exit_code == 125


def test_a_user_profile_replaces_the_built_in_one_and_that_is_said(fence: Fence) -> None:
    """C-056"""
    config = fence.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    mine = config / "read-only.conf"
    mine.write_text("ro /usr\n")
    fence.tester.give(fence.tester.home / ".config")
    try:
        shown = paddock(fence, "explain", "--profile", "read-only")
        assert shown.exit_code == 0, shown
        assert str(fence.ground.project) not in re.findall(r"(?:read|allow) +(\S+)", shown.stdout)
        assert ".config/paddock/read-only.conf" in shown.stdout
    finally:
        mine.unlink()


def test_a_line_profile_shown_as_toml_grants_the_same(fence: Fence) -> None:
    """C-073"""
    conf = fence.ground.put(
        fence.ground.root / "a.conf", "ro /usr\nrw $HOME/p?\nblock ptrace\nenv-deny FOO\n"
    )
    toml = fence.ground.put(
        fence.ground.root / "b.toml",
        '[filesystem]\nread_globs = ["/usr"]\nallow_globs = ["~/p?"]\n'
        '[syscalls]\nblock = ["ptrace"]\n[env]\ndeny = ["FOO"]\n',
    )
    one, other = (paddock(fence, "explain", "--policy", file, "--toml") for file in (conf, toml))
    assert one.exit_code == 0, one
    assert one.stdout == other.stdout
    converted = fence.ground.put(fence.ground.root / "c.toml", one.stdout)
    assert paddock(fence, "check", converted).exit_code == 0


def test_audit_show_tail_and_verify(fence: Fence) -> None:
    fence.inside(["true"])
    fence.inside(["sh", "-c", "exit 7"])
    shown = paddock(fence, "audit", "show", "--dir", fence.journal)
    assert shown.exit_code == 0, shown
    assert len(shown.stdout.splitlines()) == 4
    assert "exit_code=7" in shown.stdout
    tail = paddock(fence, "audit", "tail", "-n", "1", "--dir", fence.journal, "--json")
    assert json.loads(tail.stdout)["event"] == "session.end"
    sound = paddock(fence, "audit", "verify", "--dir", fence.journal)
    assert sound.stdout == f"journal ok: 4 events, the chain is complete: {fence.journal}\n"
    day = next(fence.journal.glob("*.jsonl"))
    day.write_text(day.read_text().replace('"exit_code":0', '"exit_code":1', 1))
    broken = paddock(fence, "audit", "verify", "--dir", fence.journal)
    assert broken.exit_code == 125
    assert "was changed" in broken.stderr


def test_output_to_a_closed_pipe_is_no_traceback(fence: Fence) -> None:
    shown = fence.tester.run(
        ["sh", "-c", '"$0" explain | head -n 1', fence.installation.paddock],
        cwd=fence.ground.project,
    )
    assert "Traceback" not in shown.stderr
    assert "Exception" not in shown.stderr
