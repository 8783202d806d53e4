"""The search for the file of a profile name."""

from __future__ import annotations

import pytest

from paddock.policy import Request
from tests.unit.policy.user_dirs import UserDirs


def workdir(dirs: UserDirs, name: str) -> str | None:
    policy = dirs.load(Request(profiles=(name,)))
    return None if policy.workdir is None else policy.workdir.value


def test_order_is_path_then_user_then_system_then_built_in(dirs: UserDirs) -> None:
    """C-055, C-011: the same name in every directory. The test removes one after the other."""
    path = dirs.file("ai-agent.conf", "workdir /at-path\n")
    user = dirs.user("ai-agent.conf", "workdir /at-user\n")
    system = dirs.etc("ai-agent.toml", "[meta]\nworkdir = '/at-system'\n")
    assert workdir(dirs, str(path)) == "/at-path"
    assert workdir(dirs, "ai-agent") == "/at-user"
    user.unlink()
    assert workdir(dirs, "ai-agent") == "/at-system"
    system.unlink()
    assert workdir(dirs, "ai-agent") is None


def test_a_user_file_replaces_the_built_in_and_a_note_says_so(dirs: UserDirs) -> None:
    """C-056."""
    dirs.user("ai-agent.conf", "ro /only\n")
    policy = dirs.load(Request(profiles=("ai-agent",)))
    assert [grant.pattern for grant in policy.filesystem.grants] == ["/only"]
    assert (
        f"ai-agent comes from {dirs.config}/ai-agent.conf, which replaces the built-in profile"
        in policy.notes
    )


def test_a_file_of_another_name_replaces_nothing(dirs: UserDirs) -> None:
    dirs.user("mine.conf", "inherit ai-agent\n")
    assert dirs.load(Request(profiles=("mine",))).notes == ()


def test_an_inherited_name_goes_through_the_search_too(dirs: UserDirs) -> None:
    """C-079: the user's ai-agent changes what strict gets, and the policy says so."""
    dirs.user("ai-agent.conf", "ro /only\n")
    policy = dirs.load(Request(profiles=("strict",)))
    assert [grant.pattern for grant in policy.filesystem.grants] == ["/only"]
    assert any("replaces the built-in" in note for note in policy.notes)
    assert "mbind" in [call.value for call in policy.syscalls.block]


def test_inheriting_the_own_name_means_the_next_search_level(dirs: UserDirs) -> None:
    """C-078, over all three search levels."""
    dirs.user("ai-agent.conf", "inherit ai-agent\nro /user\n")
    dirs.etc("ai-agent.conf", "inherit ai-agent\nro /system\n")
    policy = dirs.load(Request(profiles=("ai-agent",)))
    patterns = [grant.pattern for grant in policy.filesystem.grants]
    assert patterns[-2:] == ["/system", "/user"]
    assert "/usr/**" in patterns


def test_a_file_named_by_path_inherits_from_the_next_search_level(dirs: UserDirs) -> None:
    path = dirs.user("ai-agent.conf", "inherit ai-agent\nro /user\n")
    patterns = [
        grant.pattern for grant in dirs.load(Request(profiles=(str(path),))).filesystem.grants
    ]
    assert patterns[-1] == "/user"
    assert "/usr/**" in patterns


def test_a_file_elsewhere_may_inherit_its_own_name(dirs: UserDirs) -> None:
    path = dirs.file("ai-agent.conf", "inherit ai-agent\nro /mine\n")
    assert dirs.load_file(path).filesystem.grants[-1].pattern == "/mine"


def test_inheriting_the_own_name_on_the_last_search_level_is_an_error(dirs: UserDirs) -> None:
    dirs.user("lonely.conf", "inherit lonely\n")
    error = dirs.refuse_request(Request(profiles=("lonely",)))
    assert "the profile 'lonely' does not exist" in error.message
    assert str(dirs.config) not in error.message.partition("looked in")[2]


def test_an_unknown_name_is_an_error_with_the_searched_paths_and_a_suggestion(
    dirs: UserDirs,
) -> None:
    """C-058."""
    error = dirs.refuse_request(Request(profiles=("ai-agnet",)))
    assert f"looked in {dirs.config}, {dirs.system}, built in" in error.message
    assert error.hint == "did you mean 'ai-agent'?"


@pytest.mark.parametrize("name", ["", ".", ".hidden", "a b", "a\nb", "ai-agent\0"])
def test_an_invalid_name_is_refused(dirs: UserDirs, name: str) -> None:
    assert "not the name of a profile" in dirs.refuse_request(Request(profiles=(name,))).message


@pytest.mark.parametrize("name", ["../x", "./x", "x/y"])
def test_a_name_with_a_slash_is_a_path(dirs: UserDirs, name: str) -> None:
    """C-059."""
    dirs.user("x.conf", "ro /a\n")
    assert "ends in .toml or .conf" in dirs.refuse_request(Request(profiles=(name,))).message


def test_a_name_with_a_suffix_is_a_path_beside_the_person(dirs: UserDirs) -> None:
    dirs.trust(dirs.write(dirs.work / "f.conf", "ro /here\n"))
    dirs.user("f.conf", "ro /user\n")
    assert dirs.load(Request(profiles=("f.conf",))).filesystem.grants[0].pattern == "/here"
    assert dirs.load(Request(profiles=("f",))).filesystem.grants[0].pattern == "/user"


def test_an_inherited_path_is_relative_to_the_file(dirs: UserDirs) -> None:
    dirs.file("sub/parent.conf", "ro /parent\n")
    child = dirs.file("child.toml", "[meta]\ninherit = './sub/parent.conf'\n")
    assert dirs.load_file(child).filesystem.grants[0].pattern == "/parent"


def test_a_missing_path_is_an_error(dirs: UserDirs) -> None:
    assert "does not exist" in dirs.refuse_request(Request(policies=("./nope.toml",))).message


def test_one_name_in_two_formats_is_an_error(dirs: UserDirs) -> None:
    dirs.user("x.conf", "ro /a\n")
    dirs.user("x.toml", "")
    assert ".toml and as .conf" in dirs.refuse_request(Request(profiles=("x",))).message


def test_a_found_but_wrong_file_is_never_skipped(dirs: UserDirs) -> None:
    dirs.user("strict.conf", "nonsense\n")
    assert "strict.conf:1" in (dirs.refuse_request(Request(profiles=("strict",))).where or "")


def test_a_dangling_link_is_found_and_wrong(dirs: UserDirs) -> None:
    (dirs.config / "strict.toml").symlink_to(dirs.config / "gone.toml")
    assert "cannot be read" in dirs.refuse_request(Request(profiles=("strict",))).message


def test_a_link_out_of_the_config_directory_is_refused_by_name_and_read_by_path(
    dirs: UserDirs,
) -> None:
    """C-059: a bare name is searched only in the config directories. A path is used as it is."""
    target = dirs.file("outside.conf", "ro /outside\n")
    link = dirs.config / "linked.conf"
    link.symlink_to(target)
    assert "leaves" in dirs.refuse_request(Request(profiles=("linked",))).message
    assert dirs.load_file(link).filesystem.grants[0].pattern == "/outside"
    inside = dirs.config / "again.conf"
    inside.symlink_to(dirs.user("real.conf", "ro /inside\n"))
    assert dirs.load(Request(profiles=("again",))).filesystem.grants[0].pattern == "/inside"
