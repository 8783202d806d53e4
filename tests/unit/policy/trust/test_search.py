"""Which file a name means."""

from __future__ import annotations

import pytest

from paddock.policy import Request
from tests.unit.policy.world import World


def workdir(world: World, name: str) -> str | None:
    policy = world.load(Request(profiles=(name,)))
    return None if policy.workdir is None else policy.workdir.value


def test_order_is_path_then_user_then_system_then_built_in(world: World) -> None:
    """C-055, C-011: one name everywhere; take one away after the other."""
    path = world.file("ai-agent.conf", "workdir /at-path\n")
    user = world.user("ai-agent.conf", "workdir /at-user\n")
    system = world.etc("ai-agent.toml", "[meta]\nworkdir = '/at-system'\n")
    assert workdir(world, str(path)) == "/at-path"
    assert workdir(world, "ai-agent") == "/at-user"
    user.unlink()
    assert workdir(world, "ai-agent") == "/at-system"
    system.unlink()
    assert workdir(world, "ai-agent") is None


def test_a_user_file_replaces_the_built_in_and_a_note_says_so(world: World) -> None:
    """C-056."""
    world.user("ai-agent.conf", "ro /only\n")
    policy = world.load(Request(profiles=("ai-agent",)))
    assert [grant.pattern for grant in policy.filesystem.grants] == ["/only"]
    assert (
        f"ai-agent comes from {world.config}/ai-agent.conf, which replaces the built-in profile"
        in policy.notes
    )


def test_a_file_of_another_name_replaces_nothing(world: World) -> None:
    world.user("mine.conf", "inherit ai-agent\n")
    assert world.load(Request(profiles=("mine",))).notes == ()


def test_an_inherited_name_goes_through_the_search_too(world: World) -> None:
    """C-079: the user's ai-agent changes what strict gets, and the policy says so."""
    world.user("ai-agent.conf", "ro /only\n")
    policy = world.load(Request(profiles=("strict",)))
    assert [grant.pattern for grant in policy.filesystem.grants] == ["/only"]
    assert any("replaces the built-in" in note for note in policy.notes)
    assert "mbind" in [call.value for call in policy.syscalls.block]


def test_inheriting_the_own_name_means_the_next_search_level(world: World) -> None:
    """C-078, over all three rungs."""
    world.user("ai-agent.conf", "inherit ai-agent\nro /user\n")
    world.etc("ai-agent.conf", "inherit ai-agent\nro /system\n")
    policy = world.load(Request(profiles=("ai-agent",)))
    patterns = [grant.pattern for grant in policy.filesystem.grants]
    assert patterns[-2:] == ["/system", "/user"]
    assert "/usr/**" in patterns


def test_a_file_named_by_path_inherits_from_the_next_search_level(world: World) -> None:
    path = world.user("ai-agent.conf", "inherit ai-agent\nro /user\n")
    patterns = [
        grant.pattern for grant in world.load(Request(profiles=(str(path),))).filesystem.grants
    ]
    assert patterns[-1] == "/user"
    assert "/usr/**" in patterns


def test_a_file_elsewhere_may_inherit_its_own_name(world: World) -> None:
    path = world.file("ai-agent.conf", "inherit ai-agent\nro /mine\n")
    assert world.load_file(path).filesystem.grants[-1].pattern == "/mine"


def test_inheriting_the_own_name_on_the_last_search_level_is_an_error(world: World) -> None:
    world.user("lonely.conf", "inherit lonely\n")
    error = world.refuse_request(Request(profiles=("lonely",)))
    assert "the profile 'lonely' does not exist" in error.message
    assert str(world.config) not in error.message.partition("looked in")[2]


def test_an_unknown_name_is_an_error_with_the_searched_paths_and_a_suggestion(world: World) -> None:
    """C-058."""
    error = world.refuse_request(Request(profiles=("ai-agnet",)))
    assert f"looked in {world.config}, {world.system}, built in" in error.message
    assert error.hint == "did you mean 'ai-agent'?"


@pytest.mark.parametrize("name", ["", ".", ".hidden", "a b", "a\nb", "ai-agent\0"])
def test_an_invalid_name_is_refused(world: World, name: str) -> None:
    assert "not the name of a profile" in world.refuse_request(Request(profiles=(name,))).message


@pytest.mark.parametrize("name", ["../x", "./x", "x/y"])
def test_a_name_with_a_slash_is_a_path(world: World, name: str) -> None:
    """C-059."""
    world.user("x.conf", "ro /a\n")
    assert "ends in .toml or .conf" in world.refuse_request(Request(profiles=(name,))).message


def test_a_name_with_a_suffix_is_a_path_beside_the_person(world: World) -> None:
    world.trust(world.write(world.work / "f.conf", "ro /here\n"))
    world.user("f.conf", "ro /user\n")
    assert world.load(Request(profiles=("f.conf",))).filesystem.grants[0].pattern == "/here"
    assert world.load(Request(profiles=("f",))).filesystem.grants[0].pattern == "/user"


def test_an_inherited_path_is_relative_to_the_file(world: World) -> None:
    world.file("sub/parent.conf", "ro /parent\n")
    child = world.file("child.toml", "[meta]\ninherit = './sub/parent.conf'\n")
    assert world.load_file(child).filesystem.grants[0].pattern == "/parent"


def test_a_missing_path_is_an_error(world: World) -> None:
    assert "does not exist" in world.refuse_request(Request(policies=("./nope.toml",))).message


def test_one_name_in_two_formats_is_an_error(world: World) -> None:
    world.user("x.conf", "ro /a\n")
    world.user("x.toml", "")
    assert ".toml and as .conf" in world.refuse_request(Request(profiles=("x",))).message


def test_a_found_but_wrong_file_is_never_skipped(world: World) -> None:
    world.user("strict.conf", "nonsense\n")
    assert "strict.conf:1" in (world.refuse_request(Request(profiles=("strict",))).where or "")


def test_a_dangling_link_is_found_and_wrong(world: World) -> None:
    (world.config / "strict.toml").symlink_to(world.config / "gone.toml")
    assert "cannot be read" in world.refuse_request(Request(profiles=("strict",))).message


def test_a_link_out_of_the_config_directory_is_refused_by_name_and_read_by_path(
    world: World,
) -> None:
    """C-059: a bare name never leaves the config directories; a path goes where it says."""
    target = world.file("outside.conf", "ro /outside\n")
    link = world.config / "linked.conf"
    link.symlink_to(target)
    assert "leaves" in world.refuse_request(Request(profiles=("linked",))).message
    assert world.load_file(link).filesystem.grants[0].pattern == "/outside"
    inside = world.config / "again.conf"
    inside.symlink_to(world.user("real.conf", "ro /inside\n"))
    assert world.load(Request(profiles=("again",))).filesystem.grants[0].pattern == "/inside"
