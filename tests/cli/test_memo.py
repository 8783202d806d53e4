"""The launcher starts a cached plan without Python only while all its inputs are unchanged."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome


class Launcher:
    """`paddock` without its Python part: a command can start only from a cached plan."""

    def __init__(self, sandbox: SandboxRunner) -> None:
        self.sandbox = sandbox
        self.plans = sandbox.tester.home / ".local" / "state" / "paddock" / "plans"

    def run(self, *flags: Word, env: dict[str, str] | None = None, cwd: Path | None = None) -> int:
        return self.sandbox.tester.run(
            [
                self.sandbox.installation.paddock,
                "run",
                "--tier",
                self.sandbox.tier,
                *flags,
                "--",
                "true",
            ],
            cwd=cwd or self.sandbox.tree.project,
            env=env,
        ).exit_code

    @contextmanager
    def without_python(self) -> Iterator[None]:
        script = self.sandbox.installation.paddock.with_name("paddock-python")
        away = script.with_name("paddock-python-away")
        script.rename(away)
        try:
            yield
        finally:
            away.rename(script)

    def remembers(
        self, *flags: Word, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> bool:
        with self.without_python():
            code = self.run(*flags, env=env, cwd=cwd)
        assert code in (0, 125)
        return code == 0


@pytest.fixture(params=["sandbox", "full"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """The launcher in each tier."""
    fresh = Launcher(request.getfixturevalue(request.param))
    for memo in fresh.plans.iterdir() if fresh.plans.exists() else ():
        memo.unlink()
    return fresh


def test_a_repeated_command_starts_without_python(launcher: Launcher) -> None:
    assert not launcher.remembers()
    assert launcher.run() == 0
    assert launcher.remembers()


def test_other_options_another_directory_and_another_command_are_not_remembered(
    launcher: Launcher,
) -> None:
    assert launcher.run() == 0
    assert not launcher.remembers("--block", "mlock")
    assert not launcher.remembers(cwd=launcher.sandbox.tree.evil)
    with launcher.without_python():
        other = launcher.sandbox.tester.run(
            [
                launcher.sandbox.installation.paddock,
                "run",
                "--tier",
                launcher.sandbox.tier,
                "--",
                "echo",
            ],
            cwd=launcher.sandbox.tree.project,
        )
    assert other.exit_code == 125


def test_a_changed_policy_file_is_compiled_again(launcher: Launcher) -> None:
    file = launcher.sandbox.tree.put(
        launcher.sandbox.tree.root / "p.toml", '[meta]\ninherit = "ai-agent"\n'
    )
    assert launcher.run("--policy", file) == 0
    assert launcher.remembers("--policy", file)
    times = file.stat()
    file.write_text('[meta]\ninherit = "strict"  \n')
    os.utime(
        file, ns=(times.st_atime_ns, times.st_mtime_ns)
    )  # the change time of the inode cannot be set back
    assert not launcher.remembers("--policy", file)


def test_a_policy_file_that_became_writable_for_others_is_looked_at_again(
    launcher: Launcher,
) -> None:
    file = launcher.sandbox.tree.put(
        launcher.sandbox.tree.root / "p.toml", '[meta]\ninherit = "ai-agent"\n'
    )
    assert launcher.run("--policy", file) == 0
    file.chmod(0o666)
    assert not launcher.remembers("--policy", file)
    assert launcher.run("--policy", file) == 125


def test_a_policy_reached_through_a_link_is_never_remembered(launcher: Launcher) -> None:
    """The links in the path could point to other files the next time."""
    one = launcher.sandbox.tree.put(
        launcher.sandbox.tree.root / "one" / "p.toml", '[meta]\ninherit = "ai-agent"\n'
    )
    (launcher.sandbox.tree.root / "p.toml").symlink_to(one)
    (launcher.sandbox.tree.root / "current").symlink_to(one.parent)
    for path, remembered in ((one, True), (launcher.sandbox.tree.root / "p.toml", False)):
        assert launcher.run("--policy", path) == 0
        assert launcher.remembers("--policy", path) == remembered
    through = launcher.sandbox.tree.root / "current" / "p.toml"
    assert launcher.run("--policy", through) == 0
    assert not launcher.remembers("--policy", through)


def test_a_run_with_a_layer_off_is_never_remembered(launcher: Launcher) -> None:
    assert launcher.run("--off", "seccomp") == 0
    assert not launcher.remembers("--off", "seccomp")


def test_a_profile_that_appears_in_the_search_path_is_noticed(launcher: Launcher) -> None:
    config = launcher.sandbox.tester.home / ".config" / "paddock"
    config.mkdir(parents=True, exist_ok=True)
    launcher.sandbox.tester.give(launcher.sandbox.tester.home / ".config")
    assert launcher.run() == 0
    assert launcher.remembers()
    mine = config / "ai-agent.conf"
    mine.write_text("ro /usr\n")
    launcher.sandbox.tester.give(mine)
    try:
        assert not launcher.remembers()
    finally:
        mine.unlink()


def test_a_project_policy_that_appears_is_noticed(launcher: Launcher) -> None:
    assert launcher.run() == 0
    launcher.sandbox.tree.put(
        launcher.sandbox.tree.project / "paddock.toml", '[meta]\ninherit = "dev"\n'
    )
    assert not launcher.remembers()
    assert launcher.run() == 125


def test_a_variable_that_a_pattern_used_counts_and_others_do_not(launcher: Launcher) -> None:
    file = launcher.sandbox.tree.put(
        launcher.sandbox.tree.root / "p.toml",
        '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["${TOOLS}"]\n',
    )
    assert launcher.run("--policy", file, env={"TOOLS": "/usr"}) == 0
    assert launcher.remembers("--policy", file, env={"TOOLS": "/usr"})
    assert launcher.remembers("--policy", file, env={"TOOLS": "/usr", "OTHER": "x"})
    assert not launcher.remembers("--policy", file, env={"TOOLS": "/etc"})
    assert not launcher.remembers("--policy", file)


def test_a_memo_that_others_could_have_written_is_ignored(launcher: Launcher) -> None:
    assert launcher.run() == 0
    for memo in launcher.plans.iterdir():
        memo.chmod(0o666)
    assert not launcher.remembers()


def test_a_dry_run_is_never_remembered(launcher: Launcher) -> None:
    assert launcher.run("--dry-run") == 0
    assert not launcher.remembers("--dry-run")


def test_memos_are_few_and_private(launcher: Launcher) -> None:
    for number in range(3):
        assert launcher.run("--env", f"N={number}") == 0
    kept = list(launcher.plans.iterdir())
    assert 3 <= len(kept) <= 64
    assert {memo.stat().st_mode & 0o777 for memo in kept} == {0o600}
    assert launcher.plans.stat().st_mode & 0o777 == 0o700


def test_a_remembered_plan_gives_the_same_sandbox(launcher: Launcher) -> None:
    sandbox = launcher.sandbox
    read = ["cat", str(sandbox.tree.secret)]
    words: list[Word] = [sandbox.installation.paddock, "run", "--tier", sandbox.tier, "--", *read]
    first = sandbox.tester.run(words, cwd=sandbox.tree.project)
    with launcher.without_python():
        again = sandbox.tester.run(words, cwd=sandbox.tree.project)
    assert (first.exit_code, first.stdout, first.stderr) == (
        again.exit_code,
        again.stdout,
        again.stderr,
    )
    assert again.exit_code == 1
    assert sandbox.outside(read).exit_code == 0


def test_a_changed_git_configuration_is_read_again(full: SandboxRunner) -> None:
    launcher = Launcher(full)
    project = full.tree.project
    assert full.outside(["git", "init", "-q", project]).exit_code == 0
    assert full.outside(["git", "-C", project, "config", "core.hooksPath", "one"]).exit_code == 0
    assert launcher.run() == 0
    assert launcher.remembers()
    assert full.outside(["sh", "-c", "echo the work goes on > file && git add file"]).exit_code == 0
    assert launcher.remembers(), "a changed index changes no plan"
    assert full.outside(["git", "-C", project, "config", "core.hooksPath", "two"]).exit_code == 0
    assert not launcher.remembers()


@pytest.mark.parametrize(
    "given", [{}, {"LC_CTYPE": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"LANG": "C.UTF-8"}], ids=str
)
def test_a_remembered_plan_gives_the_same_environment(
    launcher: Launcher, given: dict[str, str]
) -> None:
    """In the C locale Python sets LC_CTYPE for itself. The command must not see it."""
    sandbox = launcher.sandbox
    without = [
        "/usr/bin/env",
        "-u",
        "LANG",
        "-u",
        "LC_ALL",
        "-u",
        "LC_CTYPE",
        *(f"{k}={v}" for k, v in given.items()),
    ]
    words: list[Word] = [*without, sandbox.installation.paddock, "run", "--", "env"]
    first = sandbox.tester.run(words, cwd=sandbox.tree.project)
    with launcher.without_python():
        again = sandbox.tester.run(words, cwd=sandbox.tree.project)
    shown = [re.sub(r"/tmp/paddock-\d+-\w+", "<tmp>", one.stdout) for one in (first, again)]
    assert (first.exit_code, again.exit_code) == (0, 0), (first, again)
    assert shown[0] == shown[1]
    locale = dict(
        line.split("=", 1) for line in shown[0].splitlines() if line.startswith(("LANG=", "LC_"))
    )
    assert locale == given
    control = sandbox.tester.run(
        [*without, "python3", "-c", "import os; print(os.environ.get('LC_CTYPE'))"]
    )
    if given in ({}, {"LC_CTYPE": "C"}):
        assert control.stdout != f"{given.get('LC_CTYPE')}\n", "plain Python does change it"


def test_a_writable_place_behind_a_link_that_was_turned_is_recorded(launcher: Launcher) -> None:
    """Later runs have to know the writable paths of the next run, and the path is another one
    now.
    """
    sandbox = launcher.sandbox
    site = sandbox.tree.make(sandbox.tree.root / "site")
    current = site / "current"
    flags: list[Word] = ["--profile", "ai-agent", "--allow", current]
    loose = (
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["{sandbox.tree.outside}/**"]\n'
    )
    for version in ("v1", "v2"):
        sandbox.tree.make(site / version)
        current.unlink(missing_ok=True)
        current.symlink_to(version)
        assert not launcher.remembers(*flags)
        words: list[Word] = [
            sandbox.installation.paddock,
            "run",
            *flags,
            "--",
            "sh",
            "-c",
            f"cat > {current}/p.toml",
        ]
        assert sandbox.tester.run(words, stdin=loose, cwd=sandbox.tree.project).exit_code == 0
        words = [
            sandbox.installation.paddock,
            "run",
            "--policy",
            site / version / "p.toml",
            "--",
            "cat",
        ]
        later = sandbox.tester.run([*words, sandbox.tree.secret], cwd=sandbox.tree.evil)
        assert later.exit_code == 125, later
        assert "is not trusted yet" in later.stderr
        assert launcher.run(*flags) == 0
        assert launcher.remembers(*flags)


def test_a_writable_place_that_was_replaced_is_recorded_again(launcher: Launcher) -> None:
    """The same name is another directory now, and the list records directories by inode."""
    work = launcher.sandbox.tree.make(launcher.sandbox.tree.root / "work")
    assert launcher.run("--profile", "ai-agent", "--allow", work) == 0
    assert launcher.remembers("--profile", "ai-agent", "--allow", work)
    work.rename(work.with_name("old"))
    launcher.sandbox.tree.make(work)
    assert not launcher.remembers("--profile", "ai-agent", "--allow", work)


def test_a_profile_that_appears_behind_a_linked_config_directory_is_noticed(
    launcher: Launcher,
) -> None:
    tester = launcher.sandbox.tester
    config = tester.home / ".config" / "paddock"
    aside = config.with_name("paddock-aside")
    config.parent.mkdir(exist_ok=True)
    if config.exists():
        config.rename(aside)
    kept = launcher.sandbox.tree.make(launcher.sandbox.tree.root / "dot")
    config.symlink_to(kept)
    tester.give(config.parent)
    try:
        assert launcher.run() == 0
        assert launcher.remembers()
        launcher.sandbox.tree.put(kept / "ai-agent.conf", "ro /usr\n")
        assert not launcher.remembers()
    finally:
        config.unlink()
        if aside.exists():
            aside.rename(config)


def test_a_new_paddock_on_the_search_path_is_noticed(launcher: Launcher) -> None:
    """The command must not change this file either."""
    directory = launcher.sandbox.tree.make(launcher.sandbox.tree.root / "bin")
    env = {"PATH": f"{directory}:/usr/bin:/bin"}
    assert launcher.run(env=env) == 0
    assert launcher.remembers(env=env)
    (directory / "paddock").symlink_to(launcher.sandbox.installation.paddock)
    assert not launcher.remembers(env=env)
    assert launcher.run(env=env) == 0
    assert launcher.remembers(env=env)
    assert not launcher.remembers()


def test_a_weaker_plan_is_remembered_until_a_better_one_is_possible(
    sandbox: SandboxRunner, host: dict[str, Any]
) -> None:
    """The caller chose no tier, and this user may not make namespaces. The next start uses the memo
    until namespaces are possible.
    """
    launcher = Launcher(sandbox)
    for memo in launcher.plans.iterdir() if launcher.plans.exists() else ():
        memo.unlink()
    unasked: list[Word] = [sandbox.installation.paddock, "run", "--", "true"]
    without: list[Word] = ["/usr/bin/python3", "-c", NO_NAMESPACES]

    def run(prefix: list[Word]) -> Outcome:
        return sandbox.tester.run([*prefix, *unasked], cwd=sandbox.tree.project)

    need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    assert run(without).exit_code == 0
    with launcher.without_python():
        assert run(without).exit_code == 0, "from memory"
        assert run([]).exit_code == 125, (
            "a stronger tier is possible here, so Python has to compile"
        )
    assert run([]).exit_code == 0
    with launcher.without_python():
        assert run([]).exit_code == 0


# A user namespace with the same user, in which no further user namespace can be made.
NO_NAMESPACES = """
import ctypes, os, sys
uid, gid = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for name, text in (('setgroups', 'deny'), ('uid_map', f'{uid} {uid} 1'), ('gid_map', f'{gid} {gid} \
1')):
    open(f'/proc/self/{name}', 'w').write(text)
open('/proc/sys/user/max_user_namespaces', 'w').write('0')
os.execv(sys.argv[1], sys.argv[1:])
"""
