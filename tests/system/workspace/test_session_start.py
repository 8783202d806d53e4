"""Copies that cannot be made, and two copies at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.features import need_root
from tests.support.sandbox import SandboxRunner


@contextmanager
def overlay_at(place: Path, full: SandboxRunner) -> Iterator[None]:
    """A file system that cannot be an upper layer: another overlay."""
    need_root()
    layers = [full.tree.make(full.tree.root / name) for name in ("lower", "upper", "work")]
    assert full.tester.run(["mkdir", "-p", place]).exit_code == 0, (
        "the parent directories belong to the tester too"
    )
    options = "lowerdir={},upperdir={},workdir={}".format(*layers)
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_where_no_overlay_can_be_made_nothing_runs(full: SandboxRunner) -> None:
    store = full.tester.home / ".local" / "state" / "paddock" / "sessions"
    with overlay_at(store, full):
        done = full.inside(["sh", "-c", "echo started; echo x > made"], "--cow")
        assert (done.exit_code, done.stdout) == (125, ""), str(done)
        assert f"cannot mount a copy over {full.tree.project}" in done.stderr
        assert "run without --cow" in done.stderr
        assert not list(store.iterdir()), "nothing is left of it"
    assert not (full.tree.project / "made").exists()
    assert full.inside(["sh", "-c", "echo started; echo x > made"], "--cow").started


def test_two_copies_of_one_workspace_are_separate(full: SandboxRunner) -> None:
    script = "echo started; echo mine > file; cat file; read -r end; cat file; ls"
    with full.starting(["sh", "-c", script], "--cow", stdin=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "started\n"
        assert first.stdout.readline() == "mine\n"
        second = full.inside(
            ["sh", "-c", "echo started; ls; echo other > file; echo x > more"], "--cow"
        )
        assert (second.exit_code, second.stdout) == (0, "started\nown.txt\n"), str(second)
        print(file=first.stdin, flush=True)
        assert first.stdout.read() == "mine\nfile\nown.txt\n"
    assert not (full.tree.project / "file").exists()


def test_a_workspace_inside_a_denied_place_is_refused(full: SandboxRunner) -> None:
    for place in (full.tree.project, full.tree.root):
        for flags in ((), ("--cow",)):
            done = full.inside(["sh", "-c", "echo started"], *flags, "--deny", str(place))
            assert (done.exit_code, done.stdout) == (125, ""), str(done)
            assert "is denied by" in done.stderr
