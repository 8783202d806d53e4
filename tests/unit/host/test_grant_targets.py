"""The surroundings of the grants: worktrees, files that git obeys, links, the search path."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.host.git import trusted_paths
from paddock.host.git.worktree_links import remember
from paddock.host.grant_targets import Terrain, scan_grant_targets
from paddock.policy import GrantFlag, Origin, Request, load
from paddock.policy.model import Access
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import Tree
from tests.unit.host.git.real_repositories import repository, worktree
from tests.unit.policy.user_dirs import UserDirs


@pytest.fixture(autouse=True)
def no_system_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_paths, "SYSTEM_CONFIG", str(tmp_path / "gitconfig"))


@pytest.fixture(name="dirs")
def _world(tmp_path: Path) -> UserDirs:
    return UserDirs(tmp_path)


def surveyed(
    dirs: UserDirs, *allow: Path, cwd: Path | None = None, reach: tuple[Path, ...] = ()
) -> Terrain:
    origin: Origin = replace(
        dirs.origin,
        cwd=str(cwd or dirs.work),
        writable_history=WritableHistory(trees=tuple(Tree(path=str(path)) for path in reach)),
    )
    flags = tuple(GrantFlag(access=Access.ALLOW, pattern=str(path), flag="-a") for path in allow)
    return scan_grant_targets(load(Request(profiles=("ai-agent",), grants=flags), origin), origin)


def paths(terrain: Terrain) -> set[str]:
    return {place.path for place in terrain.trusted}


def test_an_empty_workspace_has_no_surroundings(dirs: UserDirs) -> None:
    terrain = surveyed(dirs)
    assert (terrain.openings, terrain.trusted, terrain.remarks, dict(terrain.resolved_paths)) == (
        (),
        (),
        (),
        {},
    )


def test_a_worktree_opens_its_part_of_the_repository_elsewhere(
    dirs: UserDirs, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, tmp_path / "topic")
    terrain = surveyed(dirs, cwd=top)
    (opening,) = terrain.openings
    assert opening.read == f"{main}/.git"
    assert f"{main}/.git/objects" in terrain.writable
    assert paths(terrain) == {f"{top}/.git"}, "the file that leads there stays as it is"


def test_a_worktree_whose_repository_is_granted_anyway_needs_nothing(
    dirs: UserDirs, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, main / ".claude" / "worktrees" / "topic")
    assert surveyed(dirs, main, cwd=top).openings == ()


def test_two_previously_writable_paths_do_not_confirm_each_other(
    dirs: UserDirs, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, tmp_path / "topic")
    assert surveyed(dirs, cwd=top, reach=(main,)).openings, "the file was written outside"
    assert surveyed(dirs, cwd=top, reach=(top,)).openings, "the list was written outside"
    both = surveyed(dirs, cwd=top, reach=(main, top))
    assert both.openings == ()
    assert any("an earlier run could have written both" in text for text in both.remarks)
    remember(dirs.origin.state_dir, os.getuid(), str(top), f"{main}/.git/worktrees/topic")
    assert surveyed(dirs, cwd=top, reach=(main, top)).openings, "they were seen to agree before"


def test_a_planted_git_file_opens_nothing_and_is_reported(dirs: UserDirs, tmp_path: Path) -> None:
    main = repository(tmp_path / "victim")
    worktree(main, tmp_path / "topic")
    (dirs.work / ".git").write_bytes((tmp_path / "topic" / ".git").read_bytes())
    terrain = surveyed(dirs)
    assert terrain.openings == ()
    assert any("does not list this worktree" in text for text in terrain.remarks)


def test_files_that_git_obeys_in_a_writable_place_are_found(dirs: UserDirs) -> None:
    repository(dirs.work / "inner")
    (dirs.work / ".git").mkdir()
    (dirs.work / ".git" / "config").write_text(
        "[core]\nhooksPath = .husky/_\nattributesFile = /srv/attributes\n"
    )
    (dirs.home / ".gitconfig").write_text("[include]\npath = ~/work.inc\n")
    assert paths(surveyed(dirs)) == {f"{dirs.work}/.husky/_"}
    assert f"{dirs.home}/work.inc" in paths(surveyed(dirs, dirs.home / "work.inc", dirs.work))


def test_a_relative_path_of_the_persons_configuration_counts_in_every_repository(
    dirs: UserDirs,
) -> None:
    (dirs.work / ".git").mkdir()
    (dirs.work / ".git" / "config").write_text("[core]\nattributesFile = own/attributes\n")
    (dirs.home / ".gitconfig").write_text("[core]\nhooksPath = tools/hooks\n")
    terrain = surveyed(dirs)
    assert paths(terrain) == {f"{dirs.work}/tools/hooks", f"{dirs.work}/own/attributes"}
    assert terrain.trusted_anywhere == {"tools/hooks"}


def test_remotes_with_a_url_of_the_persons_configuration_are_found(dirs: UserDirs) -> None:
    (dirs.work / ".git").mkdir()
    (dirs.work / ".git" / "config").write_text('[remote "own"]\nurl = https://example.org/own\n')
    (dirs.home / ".gitconfig").write_text(
        "[include]\npath = more\n"
        '[remote "backup"]\nurl = https://example.org/b\n[remote "origin"]\nfetch = x\n'
    )
    (dirs.home / "more").write_text('[remote "work"]\npushUrl = https://example.org/w\n')
    assert surveyed(dirs).git_remotes == {"backup", "work"}


def test_the_persons_own_configuration_counts_where_it_leads(dirs: UserDirs) -> None:
    """A link into the workspace counts, and each further link in its path."""
    (dirs.work / "git").mkdir()
    (dirs.work / "git" / "config").write_text("[core]\nhooksPath = /srv/hooks\n")
    (dirs.work / "link").symlink_to("git/config")
    (dirs.home / ".gitconfig").symlink_to(dirs.work / "link")
    assert paths(surveyed(dirs)) == {f"{dirs.work}/link", f"{dirs.work}/git/config"}
    assert f"{dirs.work}/link" in surveyed(dirs).files, "a memo is void when the link is changed"


def test_a_trusted_path_above_the_workspace_is_reported(dirs: UserDirs) -> None:
    (dirs.work / ".git").mkdir()
    (dirs.work / ".git" / "config").write_text("[core]\nhooksPath = .\n")
    terrain = surveyed(dirs)
    assert paths(terrain) == set()
    assert any("cannot be read-only" in text for text in terrain.remarks)


def test_a_link_counts_by_where_it_leads_too(dirs: UserDirs) -> None:
    (dirs.work / "real").mkdir()
    (dirs.work / "hooks").symlink_to("real")
    (dirs.work / ".git").mkdir()
    (dirs.work / ".git" / "config").write_text("[core]\nhooksPath = hooks\n")
    assert paths(surveyed(dirs)) == {f"{dirs.work}/hooks", f"{dirs.work}/real"}
    (dirs.root / "alias").symlink_to(dirs.work)
    assert surveyed(dirs, dirs.root / "alias").resolved_paths == {
        f"{dirs.root}/alias": str(dirs.work)
    }


def test_the_search_path_matters_where_the_home_can_be_written(dirs: UserDirs) -> None:
    dirs.environ["PATH"] = f"/usr/bin:{dirs.home}/tools/bin:{dirs.work}/.venv/bin:relative"
    assert paths(surveyed(dirs)) == set()
    own = {f"{dirs.home}/.gitconfig", f"{dirs.home}/.config/git/config"}
    assert paths(surveyed(dirs, dirs.home)) == {f"{dirs.home}/tools/bin", *own}


def test_everything_that_was_read_is_an_input(dirs: UserDirs) -> None:
    repository(dirs.work / "r")
    terrain = surveyed(dirs, cwd=dirs.work / "r")
    assert terrain.files[f"{dirs.work}/r/.git/config"]
    assert terrain.files[f"{dirs.home}/.gitconfig"] is None
    assert f"{dirs.work}/r/.git" in terrain.directories
