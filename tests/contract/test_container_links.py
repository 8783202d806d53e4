"""An engine follows symlinks and lets directories move. A container still protects names, or the
executor reports that it does not.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from paddock.executors import container, container_covers
from paddock.executors.run import Result, run
from tests.contract.engine import Engine
from tests.contract.test_container import SECRET, _executor, _git


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text(SECRET)
    return work


def session(engine: Engine, work: Path, line: str) -> tuple[Result, bool, tuple[str, ...]]:
    async def scene() -> tuple[Result, bool, tuple[str, ...]]:
        async with _executor(engine, work) as executor:
            ran = await run(executor, line)
            return ran, executor.confines_writes, await executor.dispose()

    return asyncio.run(scene())


@pytest.mark.parametrize("name", [".vscode", ".envrc", "sub/.idea"])
def test_a_protected_name_that_is_a_link_opens_nothing(
    engine: Engine, work: Path, name: str
) -> None:
    """A cover of the link would mount the target directory."""
    (work / "sub").mkdir()
    (work / name).symlink_to("../" * (1 + name.count("/")) + "outside")
    assert (work / name / "key").read_text() == SECRET, "the control: the link leads there"
    ran, confines, _ = session(engine, work, f"ls -l {name}; cat {name}/key")
    assert "outside" in ran.stdout, ran
    assert SECRET not in ran.stdout + ran.stderr
    assert not confines
    assert any("cannot hold a symlink" in note and name in note for note in ran.notes), ran.notes


def test_a_link_in_the_common_git_directory_is_not_mounted(engine: Engine, work: Path) -> None:
    _git(work, "init", "--quiet")
    _git(work, "commit", "--quiet", "--allow-empty", "-m", "first")
    linked = work.parent / "linked"
    _git(work, "worktree", "add", "--quiet", str(linked))
    logs = work / ".git" / "logs"
    ran, _, _ = session(engine, linked, f"ls {logs}")
    assert "HEAD" in ran.stdout, "the control: without the link it is mounted"
    logs.rename(work / ".git" / "logs.old")
    logs.symlink_to(work.parent / "outside")
    ran, _, _ = session(engine, linked, f"echo x > {logs}/planted")
    assert "logs is a symlink" in (ran.error or ""), ran
    assert not (work.parent / "outside" / "planted").exists()


def test_a_replaced_link_is_reported(engine: Engine, work: Path) -> None:
    _git(work, "init", "--quiet")
    hooks = work / ".git" / "hooks"
    hooks.rename(work / "githooks")
    hooks.symlink_to("../githooks")
    ran, confines, left = session(
        engine, work, "rm .git/hooks; mkdir .git/hooks; echo x > .git/hooks/post-commit; echo done"
    )
    assert ran.stdout == "done\n"
    assert (hooks / "post-commit").exists(), "an engine cannot prevent that"
    assert not confines
    assert any(text.startswith(f"{hooks}: ") and "was replaced" in text for text in left), left


def test_a_directory_above_a_protected_name_stays_where_it_is(engine: Engine, work: Path) -> None:
    library = work / "lib" / "inner"
    library.mkdir(parents=True)
    _git(library, "init", "--quiet")
    (library / ".envrc").write_text("the person's\n")
    (work / "free").mkdir()
    ran, confines, left = session(
        engine,
        work,
        "mv free moved; mv lib old; mv lib/inner lib/old; echo x > lib/inner/new; echo done",
    )
    assert ran.stdout == "done\n", ran
    assert (work / "moved").is_dir(), "the control: another directory is moved"
    assert (library / "new").exists(), "the control: the rest of it can be written"
    assert (library / ".envrc").read_text() == "the person's\n"
    assert not (work / "old").exists()
    assert not (work / "lib" / "old").exists()
    assert confines
    assert not any("replaced" in text for text in left), left


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "control"])
def test_a_directory_that_became_a_link_since_the_search_is_not_mounted(
    engine: Engine, work: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    (work / "conf").mkdir()
    (work / "conf" / ".env").write_text(SECRET)
    victim = work.parent / "outside"
    searched = container_covers.covered_names

    def exchanged(*arguments: object, **named: object) -> container_covers.CoveredNames:
        found = searched(*arguments, **named)  # type: ignore[arg-type]
        if not (work / "conf").is_symlink():
            os.rename(work / "conf", work / "conf.old")
            os.symlink(victim, work / "conf")
        return found

    monkeypatch.setattr(container, "covered_names", exchanged)
    if not checked:
        monkeypatch.setattr(container, "check_mounts", lambda names, pid: None)
        ran, _, _ = session(engine, work, "echo x > conf/planted; echo done")
        assert ran.stdout == "done\n", ran
        assert (victim / "planted").exists(), "the engine follows the link"
        return
    ran, confines, _ = session(engine, work, "echo x > conf/planted")
    assert "moved or replaced" in (ran.error or ""), ran
    assert not confines
    assert not (victim / "planted").exists()


def test_the_locations_of_mounts_are_read_from_the_kernel(work: Path) -> None:
    table = {"/": ("8:1", "/"), "/home": ("8:2", "/@home"), "/home/ada/a b": ("0:9", "/")}
    location = container_covers._location
    assert location("/srv/x", table) == ("8:1", "/srv/x")
    assert location("/home/ada", table) == ("8:2", "/@home/ada")
    assert location("/home/ada/a b/c", table) == ("0:9", "/c")
    assert location("/home/ada/a b", table) == ("0:9", "/")
    assert container_covers._unescaped(rb"/a\040b\134c") == "/a b\\c"
    own = container_covers._mount_table("self")
    device = os.stat("/proc").st_dev
    assert own["/proc"] == (f"{os.major(device)}:{os.minor(device)}", "/")
