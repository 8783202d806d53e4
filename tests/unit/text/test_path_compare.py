"""Comparison of paths: every spelling of a file is that file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock import Action, Decision, Step, ToolCall, ToolPolicy
from paddock.text.path_compare import PathError, PathKind, locate, normal


def at(written: str, platform: str = "linux") -> str:
    return normal(written, cwd="/w", home="/home/ada", platform=platform)[1]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/etc/../etc/passwd", "/etc/passwd"),
        ("//etc/shadow", "/etc/shadow"),
        ("///etc//shadow/", "/etc/shadow"),
        ("/etc/./shadow", "/etc/shadow"),
        ("/../../etc/shadow", "/etc/shadow"),
        ("a/b/../c", "/w/a/c"),
        ("../x", "/x"),
        ("./.env", "/w/.env"),
        ("~/x", "/home/ada/x"),
        ("/etc\\shadow", "/etc/shadow"),
        ("C:\\p\\f", "/c:/p/f"),
        ("c:/p/f", "/c:/p/f"),
        ("C:\\p\\..\\q\\.\\f", "/c:/q/f"),
        ("\\\\s\\sh\\f", "/\\\\s/sh/f"),
        ("\\\\?\\C:\\p\\f", "/c:/p/f"),
        ("\\\\?\\UNC\\s\\sh\\f", "/\\\\s/sh/f"),
        ("C:\\x\\.env. .", "/c:/x/.env"),
        ("C:\\x\\.env::$DATA", "/c:/x/.env"),
        ("C:\\x\\.env:stream", "/c:/x/.env"),
    ],
)
def test_a_path_has_one_normal_spelling(written: str, path: str) -> None:
    """A-170 to A-172, A-176"""
    assert at(written) == path


def test_a_share_is_one_on_windows_and_two_slashes_elsewhere() -> None:
    assert normal("//s/sh/f", cwd="C:/w", home="C:/h", platform="win32") == (
        PathKind.UNC,
        "/\\\\s/sh/f",
    )
    assert normal("//s/sh/f", cwd="/w", home="/h", platform="linux") == (PathKind.POSIX, "/s/sh/f")


@pytest.mark.parametrize(
    "written", ["", "a\0b", "C:\\PROGRA~1\\x", "\ud800", "x" * 5000, "a/" * 3000 + ("y" * 300)]
)
def test_an_invalid_path_is_an_error(written: str) -> None:
    with pytest.raises(PathError):
        locate(written, cwd="/w", home="/home/ada", platform="linux")


def test_letter_case_is_folded_where_file_systems_do() -> None:
    """A-027"""
    policy = ToolPolicy(allowed_paths=None, platform="win32", cwd="C:/w", home="C:/h")
    for path in ("C:\\x\\.ENV", "c:/x/ID_RSA", "C:\\x\\.Ssh\\known_hosts", "\\\\srv\\share\\.Env"):
        assert reads(policy, path).action is Action.DENY, path
    assert reads(policy, "C:\\x\\readme").action is Action.ALLOW
    linux = ToolPolicy(allowed_paths=None, platform="linux", cwd="/w", home="/h")
    assert reads(linux, "/x/.ENV").action is Action.ALLOW
    assert reads(linux, "C:\\x\\.env").action is Action.DENY


def reads(policy: ToolPolicy, path: str) -> Decision:
    return policy.check(ToolCall(name="read_file", arguments={"path": path}))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    (work / "file").write_text("inside")
    (work / ".env").write_text("x")
    return work


def policy_in(work: Path) -> ToolPolicy:
    return ToolPolicy(cwd=work, home=work.parent / "home", require_approval_for_writes=False)


def test_neither_a_link_nor_dots_leave_the_boundary(workspace: Path) -> None:
    """A-011, A-173, A-175"""
    (workspace / "link").symlink_to(workspace.parent / "outside")
    (workspace / "direct").symlink_to("../outside/file")
    (workspace / "within").symlink_to("file")
    (workspace / "loop").symlink_to("loop")
    (workspace / "deep").mkdir()
    (workspace / "deep" / "up").symlink_to("..")
    policy = policy_in(workspace)
    outside = str(workspace.parent / "outside" / "file")
    for path in ("link/file", "direct", "../outside/file", outside, f"{workspace}/link/file",
    "link/new",
    "link/../outside/file",
                 "deep/up/link/file", f"/proc/self/root{outside}",
                 f"/proc/{os.getpid()}/root{outside}",
                 f"{workspace}-evil/x"):  # fmt: skip
        decision = reads(policy, path)
        assert (decision.action, decision.step) == (Action.DENY, Step.ALLOWED_PATHS), path
    for path in (
        "file",
        "within",
        "./deep/../file",
        "deep/up/file",
        f"{workspace}/file",
        "new/file",
    ):
        assert reads(policy, path).action is Action.ALLOW, path
    assert reads(policy, "loop").rule_id == "invalid-path"


def test_a_link_to_a_denied_file_is_that_file(workspace: Path) -> None:
    (workspace / "plain").symlink_to(".env")
    (workspace / "shadow").symlink_to("/etc/shadow")
    policy = ToolPolicy(allowed_paths=None, cwd=workspace, home=workspace)
    for path in (
        "plain",
        "shadow",
        "/proc/self/root/etc/shadow",
        "/proc/thread-self/root/etc/shadow",
        "/dev/fd/../root/etc/shadow",
    ):
        assert reads(policy, path).step is Step.DENIED_PATHS, path


def test_a_boundary_that_is_a_link_means_both_names(tmp_path: Path, workspace: Path) -> None:
    (tmp_path / "alias").symlink_to(workspace)
    policy = ToolPolicy(
        allowed_paths=[f"{tmp_path}/alias/**"], cwd=tmp_path / "alias", home=tmp_path
    )
    assert reads(policy, "file").action is Action.ALLOW
    assert reads(policy, f"{workspace}/file").action is Action.ALLOW
    assert reads(policy, str(tmp_path / "outside" / "file")).action is Action.DENY


def test_the_boundary_stays_when_the_process_moves(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-056"""
    monkeypatch.chdir(workspace)
    policy = ToolPolicy(home=workspace)
    monkeypatch.chdir(workspace.parent / "outside")
    assert reads(policy, "file").action is Action.ALLOW
    assert reads(policy, str(workspace.parent / "outside" / "file")).action is Action.DENY


NAMES = st.sampled_from(["a", "b", "..", ".", "", "link", "etc", "x y"])


@given(
    st.lists(NAMES, max_size=8),
    st.sampled_from(["/etc/shadow", "/etc/sudoers.d/x", "/x/.env", "/x/.ssh/id", "/x/secrets/y"]),
)
@settings(max_examples=400, deadline=None)
def test_no_spelling_of_a_denied_path_passes(detour: list[str], denied: str) -> None:
    depth = 0
    way = ["/"]
    for name in detour:
        depth = max(0, depth - 1) if name == ".." else depth + (name not in (".", ""))
        way.append(f"{name}/")
    spelled = "".join(way) + "../" * depth + denied.replace("/", "//./")
    policy = ToolPolicy(allowed_paths=None, cwd="/", home="/home/ada")
    for tool, more in (("read_file", {}), ("write_file", {"content": ""}), ("list_directory", {})):
        # "\\\\a" would be a share, and so another file.
        backwards = spelled.replace("/", "\\") if not spelled.startswith("//") else spelled
        for path in (spelled, spelled.lstrip("/") or spelled, backwards):
            decision = policy.check(ToolCall(name=tool, arguments={"path": path, **more}))
            assert decision.action is Action.DENY, path
