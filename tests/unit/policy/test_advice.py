"""What check warns about."""

from __future__ import annotations

import pytest

from paddock.policy import weak_points
from tests.unit.policy.world import World


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rule]]\nid = 'a'\naction = 'allow'\nexe_basename = 'git'\n", "any file of that name"),
        ("[[rule]]\nid = 'a'\naction = 'allow'\n", "allows every program"),
        ("[filesystem]\nwrite_globs = ['/a/**']\n", "can be written but not read"),
        ("[network.routes.x]\nupstream = 'https://x'\n", "every method and path"),
        ("[env]\npass = ['X_API_KEY']\n", "--env-pass X_API_KEY"),
        ("[filesystem]\nopen_protected = ['**/.husky/**']\n", "an installed git hook runs it at the next commit"),
        ("[filesystem]\nopen_protected = ['**/README']\n", "matches no protected name"),
        ("[syscalls]\nnamespaces = true\n", "user namespaces"),
    ],
)
def test_a_weak_line_is_pointed_out_with_its_place(world: World, text: str, words: str) -> None:
    """F-025, F-084, F-149."""
    (point,) = weak_points(world.load_text(text))
    assert words in point
    assert "p.toml:" in point


@pytest.mark.parametrize(
    "text",
    [
        "[[rule]]\nid = 'a'\naction = 'allow'\nexe_basename = 'git'\nexe_glob = '/usr/bin/*'\n",
        "[[rule]]\nid = 'a'\naction = 'deny'\nexe_basename = 'git'\n",
        "[[rule]]\nid = 'a'\naction = 'deny'\n",
        "[filesystem]\nallow_globs = ['/a/**']\n",
        "[env]\npass = ['PLAIN']\n",
        "[network.routes.x]\nupstream = 'https://x'\nendpoint_rules = []\n",
    ],
)
def test_a_sound_line_is_not(world: World, text: str) -> None:
    assert list(weak_points(world.load_text(text))) == []
