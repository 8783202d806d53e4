"""What lies where the grants lead: worktrees, what git obeys, links, the search path."""

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
from tests.unit.policy.world import World


@pytest.fixture(autouse=True)
def no_system_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_paths, "SYSTEM_CONFIG", str(tmp_path / "gitconfig"))


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path)


def surveyed(
    world: World, *allow: Path, cwd: Path | None = None, reach: tuple[Path, ...] = ()
) -> Terrain:
    origin: Origin = replace(
        world.origin,
        cwd=str(cwd or world.work),
        writable_history=WritableHistory(trees=tuple(Tree(path=str(path)) for path in reach)),
    )
    flags = tuple(GrantFlag(access=Access.ALLOW, pattern=str(path), flag="-a") for path in allow)
    return scan_grant_targets(load(Request(profiles=("ai-agent",), grants=flags), origin), origin)


def paths(terrain: Terrain) -> set[str]:
    return {place.path for place in terrain.trusted}


def test_a_bare_workspace_has_no_terrain(world: World) -> None:
    terrain = surveyed(world)
    assert (terrain.openings, terrain.trusted, terrain.remarks, dict(terrain.resolved_paths)) == (
        (),
        (),
        (),
        {},
    )


def test_a_worktree_opens_its_part_of_the_repository_elsewhere(
    world: World, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, tmp_path / "topic")
    terrain = surveyed(world, cwd=top)
    (opening,) = terrain.openings
    assert opening.read == f"{main}/.git"
    assert f"{main}/.git/objects" in terrain.writable
    assert paths(terrain) == {f"{top}/.git"}, "the file that leads there stays as it is"


def test_a_worktree_whose_repository_is_granted_anyway_needs_nothing(
    world: World, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, main / ".claude" / "worktrees" / "topic")
    assert surveyed(world, main, cwd=top).openings == ()


def test_two_places_that_earlier_runs_could_write_do_not_vouch_for_each_other(
    world: World, tmp_path: Path
) -> None:
    main = repository(tmp_path / "main")
    top = worktree(main, tmp_path / "topic")
    assert surveyed(world, cwd=top, reach=(main,)).openings, "the file was written outside"
    assert surveyed(world, cwd=top, reach=(top,)).openings, "the list was written outside"
    both = surveyed(world, cwd=top, reach=(main, top))
    assert both.openings == ()
    assert any("an earlier run could have written both" in text for text in both.remarks)
    remember(world.origin.state_dir, os.getuid(), str(top), f"{main}/.git/worktrees/topic")
    assert surveyed(world, cwd=top, reach=(main, top)).openings, "they were seen to agree before"


def test_a_planted_pointer_opens_nothing_and_is_said(world: World, tmp_path: Path) -> None:
    main = repository(tmp_path / "victim")
    worktree(main, tmp_path / "topic")
    (world.work / ".git").write_bytes((tmp_path / "topic" / ".git").read_bytes())
    terrain = surveyed(world)
    assert terrain.openings == ()
    assert any("does not list this worktree" in text for text in terrain.remarks)


def test_files_that_git_obeys_in_a_writable_place_are_found(world: World) -> None:
    repository(world.work / "inner")
    (world.work / ".git").mkdir()
    (world.work / ".git" / "config").write_text(
        "[core]\nhooksPath = .husky/_\nattributesFile = /srv/attributes\n"
    )
    (world.home / ".gitconfig").write_text("[include]\npath = ~/work.inc\n")
    assert paths(surveyed(world)) == {f"{world.work}/.husky/_"}
    assert f"{world.home}/work.inc" in paths(surveyed(world, world.home / "work.inc", world.work))


def test_the_persons_own_configuration_counts_where_it_leads(world: World) -> None:
    """By a link into the workspace, and by each further link on the way."""
    (world.work / "git").mkdir()
    (world.work / "git" / "config").write_text("[core]\nhooksPath = /srv/hooks\n")
    (world.work / "link").symlink_to("git/config")
    (world.home / ".gitconfig").symlink_to(world.work / "link")
    assert paths(surveyed(world)) == {f"{world.work}/link", f"{world.work}/git/config"}
    assert f"{world.work}/link" in surveyed(world).files, "a memo is void when the link is changed"


def test_what_holds_the_workspace_can_not_be_locked_and_is_said(world: World) -> None:
    (world.work / ".git").mkdir()
    (world.work / ".git" / "config").write_text("[core]\nhooksPath = .\n")
    terrain = surveyed(world)
    assert paths(terrain) == set()
    assert any("cannot be read-only" in text for text in terrain.remarks)


def test_a_link_counts_by_where_it_leads_too(world: World) -> None:
    (world.work / "real").mkdir()
    (world.work / "hooks").symlink_to("real")
    (world.work / ".git").mkdir()
    (world.work / ".git" / "config").write_text("[core]\nhooksPath = hooks\n")
    assert paths(surveyed(world)) == {f"{world.work}/hooks", f"{world.work}/real"}
    (world.root / "alias").symlink_to(world.work)
    assert surveyed(world, world.root / "alias").resolved_paths == {
        f"{world.root}/alias": str(world.work)
    }


def test_the_search_path_matters_where_the_home_can_be_written(world: World) -> None:
    world.environ["PATH"] = f"/usr/bin:{world.home}/tools/bin:{world.work}/.venv/bin:relative"
    assert paths(surveyed(world)) == set()
    own = {f"{world.home}/.gitconfig", f"{world.home}/.config/git/config"}
    assert paths(surveyed(world, world.home)) == {f"{world.home}/tools/bin", *own}


def test_everything_that_was_read_is_an_input(world: World) -> None:
    repository(world.work / "r")
    terrain = surveyed(world, cwd=world.work / "r")
    assert terrain.files[f"{world.work}/r/.git/config"]
    assert terrain.files[f"{world.home}/.gitconfig"] is None
    assert f"{world.work}/r/.git" in terrain.directories
