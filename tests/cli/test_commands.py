"""Output and exit code of each command, as a user sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome


def paddock(sandbox: SandboxRunner, *words: Word, cwd: Path | None = None) -> Outcome:
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, *words], cwd=cwd or sandbox.tree.project
    )
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def test_help_names_every_command_and_the_exit_codes(sandbox: SandboxRunner) -> None:
    """F-022"""
    shown = paddock(sandbox, "--help")
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


def test_bare_paddock_with_a_command_is_run(sandbox: SandboxRunner) -> None:
    shown = paddock(sandbox, "--", "echo", "hi")
    assert (shown.exit_code, shown.stdout) == (0, "hi\n")


def test_everything_after_the_dashes_belongs_to_the_command(sandbox: SandboxRunner) -> None:
    """C-006"""
    shown = paddock(
        sandbox, "run", "--", "printf", "%s\\n", "--profile", "-x", "--debug", "--", "end"
    )
    assert shown.stdout.splitlines() == ["--profile", "-x", "--debug", "--", "end"]


def test_check_prints_policy_ok_and_runs_nothing(sandbox: SandboxRunner) -> None:
    """F-023"""
    file = sandbox.tree.put(
        sandbox.tree.root / "p.toml", '[filesystem]\nread_globs = ["/usr/**"]\n'
    )
    shown = paddock(sandbox, "check", file)
    assert (shown.exit_code, shown.stdout) == (0, f"policy ok: {file}\n")
    assert paddock(sandbox, "check", "--policy", file).stdout == shown.stdout


def test_the_default_profile_is_ai_agent(sandbox: SandboxRunner) -> None:
    """C-007"""
    default = paddock(sandbox, "run", "--dry-run", "--", "true")
    named = paddock(sandbox, "run", "--profile", "ai-agent", "--dry-run", "--", "true")
    assert default.exit_code == 0, default
    assert default.stdout == named.stdout


def test_a_dry_run_prints_grants_with_sources_and_runs_nothing(sandbox: SandboxRunner) -> None:
    """C-008"""
    marker = sandbox.tree.project / "x"
    shown = paddock(
        sandbox,
        "run",
        "--dry-run",
        "-r",
        sandbox.tree.outside,
        "--profile",
        "ai-agent",
        "--",
        "touch",
        marker,
    )
    assert shown.exit_code == 0, shown
    assert not marker.exists()
    assert re.search(rf"read +{sandbox.tree.outside} +-r\n", shown.stdout), shown
    assert re.search(rf"allow +{sandbox.tree.project} +built-in ai-agent:\d+", shown.stdout), shown
    for word in ("ptrace", "LD_", "journal", "not covered", "network"):
        assert word in shown.stdout


def test_strict_is_ai_agent_and_six_more_system_calls(sandbox: SandboxRunner) -> None:
    """C-031"""

    def plan(profile: str) -> dict[str, object]:
        shown = paddock(sandbox, "explain", "--profile", profile, "--json")
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


def test_only_starts_from_nothing(sandbox: SandboxRunner) -> None:
    """C-015"""
    words: list[Word] = [
        "run",
        "--only",
        "--tier",
        "landlock",
        "--ro",
        "/usr",
        "--rw",
        sandbox.tree.project,
        "--",
        "ls",
    ]
    listed = paddock(sandbox, *words, sandbox.tree.project)
    assert listed.exit_code == 0, listed
    denied = paddock(sandbox, *words, sandbox.tester.home)
    assert denied.exit_code != 0
    assert "Permission denied" in denied.stderr
    assert sandbox.outside(["ls", sandbox.tester.home]).exit_code == 0


def test_the_start_line_and_warnings_are_on_stderr_and_never_in_the_output(
    sandbox: SandboxRunner,
) -> None:
    loud = paddock(sandbox, "run", "--off", "seccomp", "--", "echo", "hi")
    assert loud.stdout == "hi\n"
    assert "paddock: " in loud.stderr
    assert "seccomp is off" in loud.stderr
    calm = paddock(sandbox, "run", "--", "echo", "hi")
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
    sandbox: SandboxRunner, path: str, op: str, code: int
) -> None:
    shown = paddock(sandbox, "why", "--path", path, "--op", op)
    assert shown.exit_code == code, shown
    assert shown.stdout.startswith("allowed: " if code == 0 else "denied: ")
    assert "because: " in shown.stdout
    assert "Traceback" not in shown.stderr


def test_why_shows_where_a_link_leads_and_how_to_allow_it(sandbox: SandboxRunner) -> None:
    (sandbox.tree.project / "link").symlink_to(sandbox.tree.secret)
    shown = paddock(sandbox, "why", "--tier", "landlock", "--path", "link")
    assert shown.exit_code == 1
    assert f"(leads to {sandbox.tree.secret})" in shown.stdout
    assert "EACCES" in shown.stdout
    assert f"paddock run --read {sandbox.tree.secret} " in shown.stdout
    again = paddock(
        sandbox,
        "why",
        "--profile",
        "ai-agent",
        "--read",
        str(sandbox.tree.secret),
        "--path",
        "link",
    )
    assert again.exit_code == 0, again


def test_doctor_tries_everything_and_ends_well_here(sandbox: SandboxRunner) -> None:
    """C-009"""
    shown = paddock(sandbox, "doctor", "--json")
    assert shown.exit_code == 0, shown
    answer = json.loads(shown.stdout)
    assert answer["default_profile"] is True
    assert answer["landlock_abi"] >= 6
    assert {tried["mechanism"]: tried["held"] for tried in answer["tried"]}
    asked = paddock(sandbox, "doctor", "--tier", "landlock").stdout
    assert "tier: landlock" in asked
    assert "not enforced in this tier: reading of names that are denied inside a grant" in asked
    assert "network, if a policy restricts it: through the proxy only" in asked


# The kernel that brought what Paddock uses of each mechanism. See landlock(7), seccomp(2),
# pidfd_getfd(2) and mount_setattr(2).
_NEEDS = {
    "landlock read": "5.13",
    "landlock write": "5.13",
    "landlock ptrace": "5.13",
    "landlock refer": "5.19",
    "landlock truncate": "6.2",
    "landlock tcp ports": "6.7",
    "landlock ioctl_dev": "6.10",
    "landlock signal scope": "6.12",
    "landlock abstract socket scope": "6.12",
    "user notification": "5.9",
    "user notification despite signals": "5.19",
    "socket of another process": "5.6",
    "user namespace": "5.12",
    "ptrace stop": "3.4",
}


def test_doctor_names_the_kernel_that_has_each_mechanism(sandbox: SandboxRunner) -> None:
    """F-008"""
    tried = json.loads(paddock(sandbox, "doctor", "--json").stdout)["tried"]
    needs = {one["mechanism"]: one["needs"] for one in tried}
    assert {name: needs[name] for name in _NEEDS} == {
        name: f"Linux {version}" for name, version in _NEEDS.items()
    }


def test_doctor_names_the_tier_that_a_run_would_have(full: SandboxRunner) -> None:
    assert json.loads(paddock(full, "doctor", "--json").stdout)["tier"] == "full"
    assert "tier full" in paddock(full, "explain").stdout
    assert "tier landlock" in paddock(full, "explain", "--tier", "landlock").stdout


def test_explain_shows_what_is_denied_and_protected_by_name_and_what_was_opened(
    full: SandboxRunner,
) -> None:
    shown = paddock(full, "explain", "--open-protected", "**/.github/workflows/**").stdout
    assert re.search(r"^denied +denied, also if created during the run: .*\.env", shown, re.M), (
        shown
    )
    assert re.search(
        r"^protected +read-only inside writable directories.* \.envrc ", shown, re.M | re.S
    ), shown
    assert "--open-protected: **/.github/workflows/** is writable: a server runs it" in shown


def test_explain_lists_the_rules_that_the_landlock_tier_does_not_enforce(
    sandbox: SandboxRunner,
) -> None:
    shown = paddock(sandbox, "explain", "--tier", "landlock").stdout
    assert "not covered  network; reading of names that are denied inside a grant" in shown
    assert re.search(
        r"^denied +cannot be created, written or removed, but .*\.env", shown, re.M | re.S
    )
    assert re.search(
        r"^protected +read-only inside writable directories, cannot be created: .*\.envrc ",
        shown,
        re.M | re.S,
    ), shown
    # Without seccomp no call waits for a decision.
    shown = paddock(sandbox, "explain", "--tier", "landlock", "--off", "seccomp").stdout
    assert "names inside a grant (.env, .git/hooks" in shown
    assert "protected  " not in shown


def test_profiles_lists_where_each_comes_from_and_shows_one(sandbox: SandboxRunner) -> None:
    shown = paddock(sandbox, "profiles", "--json")
    names = {one["name"] for one in json.loads(shown.stdout)}
    assert {"ai-agent", "strict", "dev", "read-only", "base"} <= names
    assert "inherit" in paddock(sandbox, "profiles", "strict").stdout
    assert paddock(sandbox, "profiles", "nosuch").exit_code == 125


def test_profiles_shows_a_wrong_one_in_its_row_and_the_others_all_the_same(
    sandbox: SandboxRunner,
) -> None:
    config = sandbox.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    bad, good = config / "bad.toml", config / "good.conf"
    bad.write_text("[meta\n")
    good.write_text("# good: all right\nro /usr\n")
    sandbox.tester.give(sandbox.tester.home / ".config")
    try:
        shown = paddock(sandbox, "profiles")
        assert shown.exit_code == 125, shown
        assert re.search(
            rf"^bad +error: {bad}:1: not valid TOML.*\n +{bad}$", shown.stdout, re.MULTILINE
        ), shown
        assert re.search(r"^good +all right$", shown.stdout, re.MULTILINE)
        assert re.search(r"^ai-agent +\S", shown.stdout, re.MULTILINE)
        assert shown.stderr.startswith("paddock: these profiles cannot be used: bad\n")
        rows = {
            one["name"]: one for one in json.loads(paddock(sandbox, "profiles", "--json").stdout)
        }
        assert "not valid TOML" in rows["bad"]["error"]
        assert (rows["good"]["error"], rows["good"]["about"]) == (None, "all right")
        bad.unlink()
        assert paddock(sandbox, "profiles").exit_code == 0
    finally:
        bad.unlink(missing_ok=True)
        good.unlink()


@pytest.mark.parametrize("profile", ["ai-agent", "strict", "dev", "read-only", "base"])
def test_every_built_in_profile_runs_true(sandbox: SandboxRunner, profile: str) -> None:
    """C-019"""
    shown = paddock(sandbox, "run", "--profile", profile, "--", "true")
    assert (shown.exit_code, shown.stderr) == (0, ""), shown


def test_a_project_policy_counts_only_after_its_content_was_trusted(sandbox: SandboxRunner) -> None:
    file = sandbox.tree.put(sandbox.tree.project / "paddock.toml", '[meta]\ninherit = "ai-agent"\n')
    untrusted = paddock(sandbox, "run", "--", "true")
    assert untrusted.exit_code == 125
    assert "paddock trust" in untrusted.stderr
    assert paddock(sandbox, "trust").exit_code == 0
    assert paddock(sandbox, "run", "--", "true").exit_code == 0
    # The agent may write its workspace, but no policy in it.
    change = ["sh", "-c", f"echo '# more' >> {file}"]
    before = file.read_text()
    refused = paddock(sandbox, "run", "--tier", "landlock", "--", *change)
    assert (refused.exit_code, file.read_text()) == (2, before), refused
    assert paddock(sandbox, "run", "--", "true").exit_code == 0
    # A policy that was changed outside gives no rights.
    assert sandbox.outside(change).exit_code == 0
    assert file.read_text() != before
    changed = paddock(sandbox, "run", "--", "true")
    assert changed.exit_code == 125
    assert "changed" in changed.stderr
    assert paddock(sandbox, "trust").exit_code == 0
    assert paddock(sandbox, "run", "--", "true").exit_code == 0
    assert paddock(sandbox, "trust", "--forget", "paddock.toml").exit_code == 0
    assert paddock(sandbox, "run", "--", "true").exit_code == 125


def test_a_user_profile_replaces_the_built_in_one_with_a_note(sandbox: SandboxRunner) -> None:
    """C-056"""
    config = sandbox.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    mine = config / "read-only.conf"
    mine.write_text("ro /usr\n")
    sandbox.tester.give(sandbox.tester.home / ".config")
    try:
        shown = paddock(sandbox, "explain", "--profile", "read-only")
        assert shown.exit_code == 0, shown
        assert str(sandbox.tree.project) not in re.findall(r"(?:read|allow) +(\S+)", shown.stdout)
        assert ".config/paddock/read-only.conf" in shown.stdout
    finally:
        mine.unlink()


def test_a_line_profile_shown_as_toml_grants_the_same(sandbox: SandboxRunner) -> None:
    """C-073"""
    conf = sandbox.tree.put(
        sandbox.tree.root / "a.conf", "ro /usr\nrw $HOME/p?\nblock ptrace\nenv-deny FOO\n"
    )
    toml = sandbox.tree.put(
        sandbox.tree.root / "b.toml",
        '[filesystem]\nread_globs = ["/usr"]\nallow_globs = ["~/p?"]\n'
        '[syscalls]\nblock = ["ptrace"]\n[env]\ndeny = ["FOO"]\n',
    )
    one, other = (paddock(sandbox, "explain", "--policy", file, "--toml") for file in (conf, toml))
    assert one.exit_code == 0, one
    assert one.stdout == other.stdout
    converted = sandbox.tree.put(sandbox.tree.root / "c.toml", one.stdout)
    assert paddock(sandbox, "check", converted).exit_code == 0


def test_audit_show_tail_and_verify(sandbox: SandboxRunner) -> None:
    sandbox.inside(["true"])
    sandbox.inside(["sh", "-c", "exit 7"])
    shown = paddock(sandbox, "audit", "show", "--dir", sandbox.journal)
    assert shown.exit_code == 0, shown
    assert len(shown.stdout.splitlines()) == 4
    assert "exit_code=7" in shown.stdout
    tail = paddock(sandbox, "audit", "tail", "-n", "1", "--dir", sandbox.journal, "--json")
    assert json.loads(tail.stdout)["event"] == "session.end"
    sound = paddock(sandbox, "audit", "verify", "--dir", sandbox.journal)
    assert sound.stdout == f"journal ok: 4 events, the chain is complete: {sandbox.journal}\n"
    day = next(sandbox.journal.glob("*.jsonl"))
    day.write_text(day.read_text().replace('"exit_code":0', '"exit_code":1', 1))
    broken = paddock(sandbox, "audit", "verify", "--dir", sandbox.journal)
    assert broken.exit_code == 125
    assert "was changed" in broken.stderr


def test_output_to_a_closed_pipe_is_no_traceback(sandbox: SandboxRunner) -> None:
    shown = sandbox.tester.run(
        ["sh", "-c", '"$0" explain | head -n 1', sandbox.installation.paddock],
        cwd=sandbox.tree.project,
    )
    assert "Traceback" not in shown.stderr
    assert "Exception" not in shown.stderr
