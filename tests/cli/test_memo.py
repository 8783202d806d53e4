"""The front door starts a remembered plan without Python, but only while all it was compiled from is the same."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fence import Fence, Word


class Door:
    """`paddock` with its Python half locked away: what starts, starts from memory."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.plans = fence.tester.home / ".local" / "state" / "paddock" / "plans"

    def run(self, *flags: Word, env: dict[str, str] | None = None, cwd: Path | None = None) -> int:
        return self.fence.tester.run(
            [self.fence.installation.paddock, "run", "--tier", self.fence.tier, *flags, "--", "true"],
            cwd=cwd or self.fence.ground.project,
            env=env,
        ).exit_code

    @contextmanager
    def without_python(self) -> Iterator[None]:
        script = self.fence.installation.paddock.with_name("paddock-python")
        away = script.with_name("paddock-python-away")
        script.rename(away)
        try:
            yield
        finally:
            away.rename(script)

    def remembers(self, *flags: Word, env: dict[str, str] | None = None, cwd: Path | None = None) -> bool:
        with self.without_python():
            code = self.run(*flags, env=env, cwd=cwd)
        assert code in (0, 125)
        return code == 0


@pytest.fixture(params=["fence", "full"])
def door(request: pytest.FixtureRequest) -> Door:
    """In each tier."""
    fresh = Door(request.getfixturevalue(request.param))
    for memo in fresh.plans.iterdir() if fresh.plans.exists() else ():
        memo.unlink()
    return fresh


def test_what_ran_once_starts_without_python(door: Door) -> None:
    assert not door.remembers()
    assert door.run() == 0
    assert door.remembers()


def test_other_options_another_directory_and_another_command_are_not_remembered(door: Door) -> None:
    assert door.run() == 0
    assert not door.remembers("--block", "mlock")
    assert not door.remembers(cwd=door.fence.ground.evil)
    with door.without_python():
        other = door.fence.tester.run(
            [door.fence.installation.paddock, "run", "--tier", door.fence.tier, "--", "echo"],
            cwd=door.fence.ground.project,
        )
    assert other.exit_code == 125


def test_a_changed_policy_file_is_compiled_again(door: Door) -> None:
    file = door.fence.ground.put(door.fence.ground.root / "p.toml", '[meta]\ninherit = "ai-agent"\n')
    assert door.run("--policy", file) == 0
    assert door.remembers("--policy", file)
    times = file.stat()
    file.write_text('[meta]\ninherit = "strict"  \n')
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # the inode's own time can not be turned back
    assert not door.remembers("--policy", file)


def test_a_policy_file_that_became_writable_for_others_is_looked_at_again(door: Door) -> None:
    file = door.fence.ground.put(door.fence.ground.root / "p.toml", '[meta]\ninherit = "ai-agent"\n')
    assert door.run("--policy", file) == 0
    file.chmod(0o666)
    assert not door.remembers("--policy", file)
    assert door.run("--policy", file) == 125


def test_a_policy_reached_through_a_link_is_never_remembered(door: Door) -> None:
    """The links on the way could lead elsewhere the next time."""
    one = door.fence.ground.put(door.fence.ground.root / "one" / "p.toml", '[meta]\ninherit = "ai-agent"\n')
    (door.fence.ground.root / "p.toml").symlink_to(one)
    (door.fence.ground.root / "current").symlink_to(one.parent)
    for path, remembered in ((one, True), (door.fence.ground.root / "p.toml", False)):
        assert door.run("--policy", path) == 0
        assert door.remembers("--policy", path) == remembered
    through = door.fence.ground.root / "current" / "p.toml"
    assert door.run("--policy", through) == 0
    assert not door.remembers("--policy", through)


def test_a_run_with_a_layer_off_is_never_remembered(door: Door) -> None:
    assert door.run("--off", "seccomp") == 0
    assert not door.remembers("--off", "seccomp")


def test_a_profile_that_appears_in_the_search_path_is_noticed(door: Door) -> None:
    config = door.fence.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    door.fence.tester.give(door.fence.tester.home / ".config")
    assert door.run() == 0
    assert door.remembers()
    mine = config / "ai-agent.conf"
    mine.write_text("ro /usr\n")
    door.fence.tester.give(mine)
    try:
        assert not door.remembers()
    finally:
        mine.unlink()


def test_a_project_policy_that_appears_is_noticed(door: Door) -> None:
    assert door.run() == 0
    door.fence.ground.put(door.fence.ground.project / "paddock.toml", '[meta]\ninherit = "dev"\n')
    assert not door.remembers()
    assert door.run() == 125


def test_a_variable_that_a_pattern_used_counts_and_others_do_not(door: Door) -> None:
    file = door.fence.ground.put(
        door.fence.ground.root / "p.toml", '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["${TOOLS}"]\n'
    )
    assert door.run("--policy", file, env={"TOOLS": "/usr"}) == 0
    assert door.remembers("--policy", file, env={"TOOLS": "/usr"})
    assert door.remembers("--policy", file, env={"TOOLS": "/usr", "OTHER": "x"})
    assert not door.remembers("--policy", file, env={"TOOLS": "/etc"})
    assert not door.remembers("--policy", file)


def test_a_memo_that_others_could_have_written_is_not_believed(door: Door) -> None:
    assert door.run() == 0
    for memo in door.plans.iterdir():
        memo.chmod(0o666)
    assert not door.remembers()


def test_a_dry_run_is_never_remembered(door: Door) -> None:
    assert door.run("--dry-run") == 0
    assert not door.remembers("--dry-run")


def test_memos_are_few_and_private(door: Door) -> None:
    for number in range(3):
        assert door.run("--env", f"N={number}") == 0
    kept = list(door.plans.iterdir())
    assert 3 <= len(kept) <= 64
    assert {memo.stat().st_mode & 0o777 for memo in kept} == {0o600}
    assert door.plans.stat().st_mode & 0o777 == 0o700


def test_the_fence_of_a_remembered_plan_is_the_same_fence(door: Door) -> None:
    fence = door.fence
    read = ["cat", str(fence.ground.secret)]
    words: list[Word] = [fence.installation.paddock, "run", "--tier", fence.tier, "--", *read]
    first = fence.tester.run(words, cwd=fence.ground.project)
    with door.without_python():
        again = fence.tester.run(words, cwd=fence.ground.project)
    assert (first.exit_code, first.stdout, first.stderr) == (again.exit_code, again.stdout, again.stderr)
    assert again.exit_code == 1
    assert fence.outside(read).exit_code == 0


def test_what_git_obeys_is_looked_at_again_when_its_configuration_changes(full: Fence) -> None:
    door = Door(full)
    project = full.ground.project
    assert full.outside(["git", "init", "-q", project]).exit_code == 0
    assert full.outside(["git", "-C", project, "config", "core.hooksPath", "one"]).exit_code == 0
    assert door.run() == 0
    assert door.remembers()
    assert full.outside(["sh", "-c", "echo the work goes on > file && git add file"]).exit_code == 0
    assert door.remembers(), "a changed index changes no plan"
    assert full.outside(["git", "-C", project, "config", "core.hooksPath", "two"]).exit_code == 0
    assert not door.remembers()


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LANG": "C.UTF-8"}], ids=str)
def test_the_environment_of_a_remembered_plan_is_the_same_environment(door: Door, given: dict[str, str]) -> None:
    """In the C locale Python sets LC_CTYPE for itself; that is none of the command's business."""
    fence = door.fence
    without = ["/usr/bin/env", "-u", "LANG", "-u", "LC_ALL", "-u", "LC_CTYPE", *(f"{k}={v}" for k, v in given.items())]
    words: list[Word] = [*without, fence.installation.paddock, "run", "--", "env"]
    first = fence.tester.run(words, cwd=fence.ground.project)
    with door.without_python():
        again = fence.tester.run(words, cwd=fence.ground.project)
    shown = [re.sub(r"/tmp/paddock-\d+-\w+", "<tmp>", one.stdout) for one in (first, again)]
    assert (first.exit_code, again.exit_code) == (0, 0), (first, again)
    assert shown[0] == shown[1]
    locale = dict(line.split("=", 1) for line in shown[0].splitlines() if line.startswith(("LANG=", "LC_")))
    assert locale == given
    control = fence.tester.run([*without, "python3", "-c", "import os; print(os.environ.get('LC_CTYPE'))"])
    if given in ({}, {"LC_CTYPE": "C"}):
        assert control.stdout != f"{given.get('LC_CTYPE')}\n", "plain Python does change it"
