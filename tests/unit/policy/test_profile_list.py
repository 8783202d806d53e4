"""The list of profiles as the search finds them, with invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy.profile_list import listed, text_of
from tests.unit.policy.user_dirs import UserDirs

BUILT_IN = {"ai-agent", "base", "dev", "read-only", "strict"}


def test_profiles_are_listed_as_the_search_would_find_them(dirs: UserDirs) -> None:
    dirs.user("strict.conf", "# strict: mine. And more.\nro /a\n")
    dirs.user("other.toml", "")
    dirs.user("not-a-policy.txt", "")
    found = {profile.name: profile for profile in listed(dirs.origin)}
    assert set(found) == BUILT_IN | {"other"}
    assert found["strict"].path == f"{dirs.config}/strict.conf"
    assert found["strict"].about == "mine"
    assert found["dev"].shown == "built-in dev"
    assert not any(profile.error for profile in found.values())


def test_a_profile_is_shown_as_it_is_written(dirs: UserDirs) -> None:
    assert text_of("dev", dirs.origin).startswith("# dev:")
    with pytest.raises(PolicyError):
        text_of("nope", dirs.origin)


def writable_by_others(dirs: UserDirs) -> Path:
    path = dirs.user("bad.toml", "")
    path.chmod(0o666)
    return path


def not_toml(dirs: UserDirs) -> Path:
    return dirs.user("bad.toml", "[meta\n")


def an_unknown_key(dirs: UserDirs) -> Path:
    return dirs.user("bad.conf", "rx /usr\n")


def a_parent_that_is_nowhere(dirs: UserDirs) -> Path:
    return dirs.user("bad.toml", '[meta]\ninherit = "nowhere"\n')


def there_twice(dirs: UserDirs) -> Path:
    dirs.user("bad.toml", "")
    return dirs.user("bad.conf", "")


def a_name_that_can_not_be_given(dirs: UserDirs) -> Path:
    return dirs.user("bad name.toml", "")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (writable_by_others, "is writable by others"),
        (not_toml, "bad.toml:1: not valid TOML"),
        (an_unknown_key, "bad.conf:1: unknown directive 'rx'"),
        (a_parent_that_is_nowhere, "the profile 'nowhere' does not exist"),
        (there_twice, "exists as .toml and as .conf"),
        (a_name_that_can_not_be_given, "not the name of a profile: 'bad name'"),
    ],
)
def test_a_wrong_file_is_one_row_with_its_error(
    dirs: UserDirs, make: Callable[[UserDirs], Path], expected: str
) -> None:
    path = make(dirs)
    dirs.user("good.conf", "# good: all right\nro /usr\n")
    found = {profile.name: profile for profile in listed(dirs.origin)}
    assert set(found) == BUILT_IN | {"good", path.stem}
    assert [name for name, profile in found.items() if profile.error] == [path.stem]
    bad = found[path.stem]
    assert bad.error is not None
    assert expected in bad.error.message
    assert bad.path == str(path)


def test_a_directory_that_is_no_workspace_makes_no_profile_wrong(dirs: UserDirs) -> None:
    assert not any(profile.error for profile in listed(replace(dirs.origin, cwd="/")))
