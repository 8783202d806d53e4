"""The warnings of `paddock check`."""

from __future__ import annotations

import pytest

from paddock.policy import weak_points
from tests.unit.policy.user_dirs import UserDirs

ALLOWING = "[meta]\ndefault_action = 'allow'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]]\nid = 'a'\naction = 'allow'\nexe_basename = 'git'\n", "every file of that name"),
        (
            "[[rule]]\nid = 'a'\naction = 'allow'\nuid = 0\n",
            "every program that matches the other keys",
        ),
        (
            (
                "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/git'\n"
                "argv_regex = ['^git', 'log']\n"
            ),
            "anywhere in the arguments: 'log'",
        ),
        (
            "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/git'\nargv_contains = 'log'\n",
            "check the others",
        ),
        (
            (
                "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/curl'\n"
                "argv_host_in = 'a.example'\n"
            ),
            "is not found",
        ),
        (
            "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/cat'\nparent_argv = '^git'\n",
            "can rewrite",
        ),
        (
            "[[rule]]\nid = 'a'\naction = 'deny'\nexe = '/usr/bin/curl'\n",
            "no program can start",
        ),
        (
            f"{ALLOWING}[[rule]]\nid = 'a'\naction = 'deny'\nexe_basename = 'curl'\n",
            "by its name",
        ),
        (
            f"{ALLOWING}[[rule]]\nid = 'a'\naction = 'ask'\nargv_contains = '--force'\n",
            "in another spelling",
        ),
        (
            (
                "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/git'\n"
                "exe_not = ['/usr/bin/git', '/x']\n"
            ),
            "can never match",
        ),
        (
            "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/git'\nexe_basename = 'curl'\n",
            "can never match",
        ),
        (
            "[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/usr/bin/git'\nexe_glob = '/opt/**'\n",
            "can never match",
        ),
        (
            (
                "[tools]\ncommand_rules = [{ action = 'allow', exe = 'git', "
                "argv_regex = '^git (log|diff)( |$)' }]\n"
            ),
            "--output=FILE",
        ),
        (
            "[tools]\ncommand_rules = [{ action = 'allow', command_regex = 'git log$' }]\n",
            "begin it with ^",
        ),
        ("[syscalls]\ntrace = true\n", "trace each other"),
        ("[filesystem]\nwrite_globs = ['/a/**']\n", "is writable but not readable"),
        ("[network.routes.x]\nupstream = 'https://x'\n", "every method and path"),
        ("[env]\npass = ['X_API_KEY']\n", "--env-pass X_API_KEY"),
        (
            "[filesystem]\nopen_protected = ['**/.husky/**']\n",
            "an installed git hook runs it at the next commit",
        ),
        ("[filesystem]\nopen_protected = ['**/README']\n", "is not a protected name"),
        ("[syscalls]\nnamespaces = true\n", "user namespaces"),
        ("[network]\ndenied_hosts = ['x']\n", "every other host open"),
    ],
)
def test_a_weak_line_is_reported_with_its_position(dirs: UserDirs, text: str, words: str) -> None:
    """F-025, F-084, F-149."""
    (point,) = weak_points(dirs.load_text(text))
    assert words in point
    assert "p.toml:" in point


@pytest.mark.parametrize(
    "text",
    [
        "[[rule]]\nid = 'a'\naction = 'allow'\nexe_basename = 'git'\nexe_glob = '/usr/bin/*'\n",
        "[[rule]]\nid = 'a'\naction = 'deny'\nexe_basename = 'git'\n"
        "[[rule]]\nid = 'b'\naction = 'allow'\nexe_glob = '/usr/**'\nargv_regex = '^x'\n",
        "[filesystem]\nallow_globs = ['/a/**']\n",
        "[env]\npass = ['PLAIN']\n",
        "[network]\ndenied_hosts = ['x']\nallowed_hosts = ['y']\n",
        "[network]\ndenied_hosts = ['x']\ndefault = 'allow'\n",
        "[network.routes.x]\nupstream = 'https://x'\nendpoint_rules = []\n",
    ],
)
def test_a_sound_line_gives_no_advice(dirs: UserDirs, text: str) -> None:
    assert list(weak_points(dirs.load_text(text))) == []


GIT = "exe = '/usr/bin/git'\n"


@pytest.mark.parametrize(
    ("first", "second", "shadowed"),
    [
        (("allow", GIT), ("deny", GIT + "argv_contains = 'push'\n"), True),
        (("allow", "exe_glob = '/usr/**'\n"), ("deny", GIT), True),
        (("deny", "exe_basename = 'git'\n"), ("allow", GIT), True),
        (
            ("deny", "exe_basename = ['ls', 'git']\n"),
            ("deny", "exe_basename = 'git'\nuid = 0\n"),
            True,
        ),
        (("deny", "exe_not = '/a'\n"), ("allow", "exe_not = ['/a', '/b']\nexe = '/c'\n"), True),
        # No warning: the second rule matches calls that the first does not.
        (("deny", GIT + "argv_contains = 'push'\n"), ("allow", GIT), False),
        (("deny", "exe_not = ['/a', '/b']\n"), ("allow", "exe_not = '/a'\nexe = '/c'\n"), False),
        (("deny", "exe_basename = 'git'\n"), ("allow", "exe_glob = '/usr/**'\n"), False),
        # A program that a command could have written needs a rule that names its path.
        (
            ("allow", "exe_basename = 'git'\nargv_regex = '^git'\n"),
            ("allow", GIT + "argv_regex = '^git'\n"),
            False,
        ),
    ],
)
def test_a_rule_that_an_earlier_one_covers_is_shadowed(
    dirs: UserDirs, first: tuple[str, str], second: tuple[str, str], shadowed: bool
) -> None:
    text = "".join(
        f"[[rule]]\nid = '{name}'\naction = '{action}'\n{keys}"
        for name, (action, keys) in zip(("one", "two"), (first, second), strict=True)
    )
    points = [point for point in weak_points(dirs.load_text(text)) if "has no effect" in point]
    assert [
        ("rule 'two' has no effect: 'one' (" in point and "p.toml:1)" in point) for point in points
    ] == [True] * shadowed
