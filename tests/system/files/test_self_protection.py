"""The sandbox protects itself: a command cannot change files that the sandbox relies on, under any
grant.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Tester
from tests.support.tree import Snapshot


@pytest.fixture
def config(tester: Tester) -> Iterator[Path]:
    """The user's configuration directory with a policy in it."""
    need("root", tester.disposable, "the tests do not write the configuration of an ordinary user")
    directory = tester.home / ".config" / "paddock"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mine.conf").write_text("inherit ai-agent\n")
    (directory / "mine.conf").chmod(0o644)
    (tester.home / ".config").chmod(0o755)
    directory.chmod(0o755)
    tester.give(tester.home / ".config")
    yield directory
    shutil.rmtree(directory)


def harm(paths: list[Path]) -> list[str]:
    """Every method to change or replace a file."""
    lines = ["echo started"]
    for path in paths:
        lines += [
            f"echo evil >> '{path}'",
            f"true > '{path}'",  # not `:`, whose failed redirection ends the shell
            f"rm -f '{path}'",
            f"mv '{path}' '{path}.old'",
            f"mv '{path.parent}' '{path.parent}.old'",
            f"echo evil > '{path.parent}/new' && mv '{path.parent}/new' '{path}'",
        ]
    return ["sh", "-c", "\n".join(lines)]


def test_the_configuration_stays_as_it_is_in_a_granted_home(
    sandbox: SandboxRunner, config: Path, tester: Tester
) -> None:
    """C-057: also a profile that does not exist yet."""
    before = Snapshot.of(config)
    script = harm([config / "mine.conf"])
    script[-1] += f"\necho 'rw /' > {config}/ai-agent.conf\nmkdir -p ~/.config/paddock/profiles"
    denied = sandbox.inside(script, "-a", f"{tester.home}/**", journal=False)
    assert denied.started, str(denied)
    assert Snapshot.of(config) == before
    control = sandbox.outside(["sh", "-c", f"echo evil >> {config}/mine.conf"])
    assert control.exit_code == 0
    assert "evil" in (config / "mine.conf").read_text()


def test_a_configuration_directory_that_does_not_exist_cannot_be_made(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    need("root", tester.disposable, "the tests do not write the configuration of an ordinary user")
    directory = tester.home / ".config" / "paddock"
    assert not directory.exists()
    script = [
        "sh",
        "-c",
        "echo started; mkdir -p ~/.config/paddock; echo x > ~/.config/paddock/ai-agent.conf",
    ]
    denied = sandbox.inside(script, "-a", f"{tester.home}/**", journal=False)
    assert denied.started, str(denied)
    assert not directory.exists(), str(denied)


def test_the_installation_stays_as_it_is(sandbox: SandboxRunner, tester: Tester) -> None:
    """The tester owns it, in the home. Only the sandbox denies changes."""
    need("root", tester.disposable, "the tests do not risk the installation of an ordinary user")
    installed = sandbox.installation
    victims = [
        installed.core,
        installed.paddock,
        installed.package / "__init__.py",
        installed.package / "policy" / "model.py",
    ]
    before = [(path.stat().st_ino, path.read_bytes()) for path in victims]
    denied = sandbox.inside(harm(victims), "-a", f"{tester.home}/**", journal=False)
    assert denied.started, str(denied)
    assert [(path.stat().st_ino, path.read_bytes()) for path in victims] == before
    granted_directly = sandbox.inside(harm(victims), "-a", f"{installed.root}/**", journal=False)
    assert granted_directly.started or granted_directly.exit_code == 125, str(granted_directly)
    assert [(path.stat().st_ino, path.read_bytes()) for path in victims] == before
    control = sandbox.outside(["sh", "-c", f"echo '# seen' >> '{victims[2]}'"])
    assert control.exit_code == 0, "the control: the tester may do it without the sandbox"
    victims[2].write_bytes(before[2][1])


def test_no_module_can_be_planted_beside_the_installed_ones(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    need("root", tester.disposable, "the tests do not risk the installation of an ordinary user")
    site = sandbox.installation.package.parent
    planted = [
        site / "sitecustomize.py",
        site / "evil.pth",
        sandbox.installation.root / "bin" / "evil",
    ]
    script = ["sh", "-c", "echo started; " + "; ".join(f"echo x > '{path}'" for path in planted)]
    assert sandbox.inside(script, "-a", f"{tester.home}/**", journal=False).started
    assert not any(path.exists() for path in planted)


@pytest.mark.parametrize("suffix", ["toml", "conf"])
def test_the_policy_file_of_the_run_stays_as_it_is(sandbox: SandboxRunner, suffix: str) -> None:
    """The policy is named on the command line and is in a granted directory."""
    place = sandbox.tree.make(sandbox.tree.root / "policies")
    text = (
        "inherit ai-agent\n" if suffix == "conf" else '[meta]\nversion = 1\ninherit = "ai-agent"\n'
    )
    policy = sandbox.tree.put(place / f"mine.{suffix}", text)
    sandbox.tree.put(place / "other.txt", "open\n")
    flags = ("--policy", policy, "-a", f"{place}/**")
    before = Snapshot.of(place)
    denied = sandbox.tester.run(
        [sandbox.installation.paddock, "run", *flags, "--off", "audit", "--", *harm([policy])],
        cwd=sandbox.tree.project,
    )
    assert denied.started or denied.exit_code == 125, str(denied)
    assert [entry for entry in Snapshot.of(place).entries if entry[0] == policy.name] == [
        entry for entry in before.entries if entry[0] == policy.name
    ]


def test_the_journal_of_the_run_stays_closed_in_a_granted_home(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    """C-084 where the default journal lies below a grant: carved out, or the run is refused."""
    default = Path(f"/var/tmp/paddock-audit-{tester.uid}")
    script = f"echo started; cat {default}/*; ls {default}; echo x > {default}/x; rm -rf {default}"
    outcome = sandbox.inside(["sh", "-c", script], "-a", "/var/tmp/**", journal=False)
    assert outcome.exit_code == 125 or outcome.stdout == "started\n", str(outcome)
    assert default.is_dir()
    assert not (default / "x").exists()


def test_a_layer_is_off_only_by_a_command_line_flag(sandbox: SandboxRunner) -> None:
    """A file, the environment or the command itself can not turn a layer off."""
    policy = sandbox.tree.put(sandbox.tree.root / "off.conf", "inherit ai-agent\nlandlock off\n")
    refused = sandbox.tester.run(
        [
            sandbox.installation.paddock,
            "run",
            "--profile",
            policy,
            "--",
            *sandbox.probe("create", "ran"),
        ],
        cwd=sandbox.tree.project,
    )
    assert refused.exit_code == 125, str(refused)
    assert "off.conf:2" in refused.stderr, str(refused)
    assert "--off landlock" in refused.stderr, str(refused)
    assert not (sandbox.tree.project / "ran").exists()
    env = {"PADDOCK_OFF": "landlock", "PADDOCK_DISABLE": "1", "PADDOCK_PROFILE": "none"}
    assert sandbox.inside(sandbox.probe("read", sandbox.tree.secret), env=env).answer == "EACCES"


def test_a_repository_does_not_choose_its_own_sandbox(sandbox: SandboxRunner) -> None:
    """A paddock.toml in the workspace counts only after it was trusted once."""
    loose = (
        f'[meta]\nversion = 1\ninherit = "ai-agent"\n[filesystem]\n'
        f'read_globs = ["{sandbox.tree.outside}/**"]\n'
    )
    sandbox.tree.put(sandbox.tree.project / "paddock.toml", loose)
    words: list[Word] = [
        sandbox.installation.paddock,
        "run",
        "--tier",
        sandbox.tier,
        "-r",
        f"{sandbox.programs.directory}/**",
        "--off",
        "audit",
        "--",
    ]
    outcome = sandbox.tester.run(
        [*words, *sandbox.probe("read", sandbox.tree.secret)], cwd=sandbox.tree.project
    )
    assert outcome.exit_code == 125 or outcome.answer == "EACCES", str(outcome)


@pytest.mark.parametrize(
    ("switch", "left_on"),
    [("seccomp", "landlock"), ("landlock", "seccomp")],
)
def test_one_layer_off_leaves_the_others_on(
    sandbox: SandboxRunner, switch: str, left_on: str
) -> None:
    """C-049, C-050. The run reports the disabled layer."""
    read = sandbox.inside(sandbox.probe("read", sandbox.tree.secret), "--off", switch)
    trace = sandbox.inside(sandbox.probe("clone3", "0x10000000"), "--off", switch)
    assert (read.answer == "EACCES") == (left_on == "landlock"), str(read)
    assert (trace.answer == "ENOSYS") == (left_on == "seccomp"), str(trace)
    assert switch in read.stderr
    actual = sandbox.events()[0]["actual"]
    assert isinstance(actual, dict)
    assert (actual["landlock_abi"] == 0) == (switch == "landlock")
    assert actual["seccomp"] == (switch != "seccomp")


@pytest.mark.parametrize("name", [".config/paddock", ".local/state/paddock"])
def test_files_of_paddock_stay_unchanged_behind_a_link(
    sandbox: SandboxRunner, tester: Tester, name: str
) -> None:
    """Linked dotfiles: the target is protected, not only the link (C-057)."""
    need("root", tester.disposable, "the tests do not write the configuration of an ordinary user")
    kept = sandbox.tree.make(sandbox.tree.root / "dotfiles" / "kept")
    sandbox.tree.put(kept / "mine.conf", "inherit ai-agent\n")
    before = Snapshot.of(kept)
    with linked(tester.home / name, kept, tester):
        script = harm([kept / "mine.conf"])
        script[-1] += f"\necho 'rw /' > {kept}/ai-agent.conf"
        outcome = sandbox.inside(script, "-a", f"{kept.parent}/**")
    assert outcome.started or outcome.exit_code == 125, str(outcome)
    # Paddock itself adds plans, lists of journals, of writable paths and of runs, and the lock of
    # writes.
    changed = [
        entry
        for entry in Snapshot.of(kept).entries
        if not entry[0].startswith(("plans", "reach", "journals", "runs", "writes.lock"))
    ]
    assert changed == list(before.entries)


@contextmanager
def linked(link: Path, target: Path, tester: Tester) -> Iterator[None]:
    """Replaces a path by a link during the block."""
    aside = link.with_name(link.name + "-aside")
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(aside)
    link.symlink_to(target)
    for parent in link.relative_to(tester.home).parents[:-1]:
        os.chown(tester.home / parent, tester.uid, tester.gid)
    try:
        yield
    finally:
        link.unlink()
        if aside.exists():
            aside.rename(link)


def test_remembered_plans_cannot_be_written_in_a_granted_home(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    """A forged plan would be the sandbox of the next run."""
    need("root", tester.disposable, "the tests do not risk the state of an ordinary user")
    plans = tester.home / ".local" / "state" / "paddock" / "plans"
    assert sandbox.inside(["true"], journal=False).exit_code == 0
    mine = {
        entry
        for entry in Snapshot.of(plans).entries
        if os.fsencode(sandbox.tree.project) in entry[-1]
    }
    assert mine, "a run leaves a memo to attack"
    script = (
        f"echo started; for f in {plans}/*; do echo x > $f; rm -f $f; done; "
        f"touch {plans}/forged; rm -rf {plans}"
    )
    script += (
        "; mv ~/.local ~/.local-old; mv ~/.local/state ~/.local/old; "
        "mv ~/.local/state/paddock ~/.local/state/old"
    )
    outcome = sandbox.inside(["sh", "-c", script], "-a", f"{tester.home}/**", journal=False)
    assert outcome.started, str(outcome)
    assert mine <= set(Snapshot.of(plans).entries)
    assert not (plans / "forged").exists()


@pytest.mark.parametrize("grant", ["-a", "-r", "-w"])
def test_a_grant_of_the_root_directory_is_refused(sandbox: SandboxRunner, grant: str) -> None:
    """F-102: a pattern without a static prefix would be the whole machine."""
    for pattern in ("/**", "/*"):
        refused = sandbox.inside(sandbox.probe("create", "ran"), grant, pattern)
        assert refused.exit_code == 125, str(refused)
        assert not (sandbox.tree.project / "ran").exists()


def test_modules_in_the_workspace_are_not_imported_by_paddock(sandbox: SandboxRunner) -> None:
    """Paddock starts outside the sandbox, in a directory that the agent has written."""
    for name in (
        "paddock/__init__.py",
        "paddock/cli/__init__.py",
        "json.py",
        "sitecustomize.py",
        "usercustomize.py",
        "os.py",
    ):
        sandbox.tree.put(
            sandbox.tree.project / name, f"open({str(sandbox.tree.root / 'imported')!r}, 'w')\n"
        )
    assert sandbox.inside(sandbox.probe("create", "ran")).answer == "ok"
    assert not (sandbox.tree.root / "imported").exists()


def test_a_core_in_the_workspace_or_on_the_path_is_not_started(sandbox: SandboxRunner) -> None:
    fake = sandbox.tree.put(
        sandbox.tree.project / "paddock-core",
        f"#!/bin/sh\ntouch {sandbox.tree.root}/taken\n",
        mode=0o755,
    )
    launcher = sandbox.tree.make(sandbox.tree.root / "launcher")  # PATH finds paddock there first
    (launcher / "paddock").symlink_to(sandbox.installation.paddock)
    env = {"PATH": f"{launcher}:{fake.parent}:/usr/bin:/bin"}
    assert sandbox.inside(sandbox.probe("read", sandbox.tree.secret), env=env).answer == "EACCES"
    assert not (sandbox.tree.root / "taken").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&- <&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_leak_no_other_descriptor(
    sandbox: SandboxRunner, closed: str
) -> None:
    """The plan, the journal or a directory must not end up as the command's standard input or
    output.
    """
    words = sandbox.command(["sh", "-c", "readlink /proc/self/fd/* > held; true"])
    sandbox.outside(["sh", "-c", f'"$@" {closed}', "sh", *words])
    held = (sandbox.tree.project / "held").read_text().splitlines()
    assert not [
        name for name in held if "memfd" in name or "jsonl" in name or str(sandbox.journal) in name
    ], held


def test_the_environment_paddock_was_started_with_cannot_be_read_from_its_processes(
    sandbox: SandboxRunner,
) -> None:
    """The supervisor still has the variables that the command did not get."""
    script = (
        "echo started; cat /proc/$PPID/environ /proc/[0-9]*/environ; "
        "cat /proc/$PPID/maps /proc/$PPID/mem"
    )
    outcome = sandbox.inside(["sh", "-c", script], env={"GITHUB_TOKEN": "leaked-token"})
    assert outcome.started, str(outcome)
    assert "leaked-token" not in outcome.stdout
