"""``approved.toml`` is believed like a policy, holds nothing but what allows, and is read when
something can ask.
"""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy.command_line import Request
from paddock.policy.trust.approved import load_approved
from tests.unit.policy.world import World

ASKS = '[meta]\ndefault_action = "ask"\n'
RULE = '[[rule]]\nid = "git-1"\naction = "allow"\nexe = "/usr/bin/git"\n'


def test_it_is_read_where_something_can_be_asked(world: World) -> None:
    assert world.load_text(ASKS).approved == ()
    kept = world.user("approved.toml", RULE)
    policy = world.load_text(ASKS)
    assert [(rule.id, str(rule.source)) for rule in policy.approved] == [("git-1", f"{kept}:1")]
    assert policy.rules == ()
    assert str(kept) in [file.path for file in policy.files]
    without = world.load_text("")
    assert (without.approved, [file for file in without.files if file.path == str(kept)]) == (
        (),
        [],
    )
    kept.write_text("nonsense")
    assert world.load_text("").approved == ()


def test_hosts_are_read_where_hosts_are_asked_about(world: World) -> None:
    kept = world.user("approved.toml", f'{RULE}\n[[host]]\nname = "A.example:443"\n')
    policy = world.load_text('[network]\ndefault = "ask"\n')
    assert [(str(host.value), str(host.source)) for host in policy.approved_hosts] == [
        ("a.example:443", f"{kept}:7")
    ]
    assert str(kept) in [file.path for file in policy.files]
    for text in ('[network]\ndefault = "deny"\n', "[network]\nallowed_hosts = []\n"):
        assert world.load_text(text).approved_hosts == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULE.replace("allow", "deny"), r"approved\.toml:3: .*is not an allow rule"),
        (
            RULE + RULE.replace("git-1", "b").replace("allow", "ask"),
            r"approved\.toml:7: .*is not an allow rule",
        ),
        (RULE + RULE, r"approved\.toml:6: .*is already in line 1"),
        ("[meta]\nversion = 1\n" + RULE, r"approved\.toml:1: meta: unknown section"),
        ("[filesystem]\nallow_globs = []\n", r"approved\.toml:1: filesystem: unknown section"),
        (RULE + 'argv_regex = "("\n', r"approved\.toml:5: .*not a regular expression"),
        (RULE + "exf = 1\n", r"approved\.toml:5: .*unknown key"),
        ('[[host]]\nname = "a.example"\n', r"approved\.toml:2: .*not one host at one port"),
        ('[[host]]\nname = "*.a.example:443"\n', r"approved\.toml:2: .*not one host at one port"),
        ('[[host]]\nname = "169.254.169.254:80"\n', r"approved\.toml:2: .*always denied"),
        ("[[host]]\n", r"approved\.toml:1: .*has no name"),
        ('[[host]]\nname = "a.example:443"\naction = "deny"\n', r"approved\.toml:3: .*unknown key"),
        ("[[rule\n", r"approved\.toml:1: not valid TOML"),
    ],
)
def test_an_error_in_the_file_names_its_line(world: World, text: str, message: str) -> None:
    world.user("approved.toml", text)
    with pytest.raises(PolicyError, match=message):
        world.load_text(ASKS)


def test_a_file_that_others_can_write_or_that_lies_elsewhere_is_not_believed(world: World) -> None:
    kept = world.user("approved.toml", RULE)
    kept.chmod(0o666)
    with pytest.raises(PolicyError, match="writable by others"):
        world.load_text(ASKS)
    kept.unlink()
    kept.symlink_to(world.file("elsewhere.toml", RULE))
    with pytest.raises(PolicyError, match="symbolic link that leaves"):
        load_approved(world.origin)


def test_it_is_no_profile(world: World) -> None:
    world.user("approved.toml", RULE)
    with pytest.raises(PolicyError, match="the profile 'approved' does not exist"):
        world.load(Request(profiles=("approved",)))


def test_links_are_not_followed_in_it(world: World) -> None:
    """Elsewhere a rule means what a link leads to as well. Here that would approve what nobody was
    asked about.
    """
    link = world.root / "link"
    link.symlink_to(world.work)
    world.user("approved.toml", f'{RULE}cwd_glob = "{link}"\n')
    (rule,) = world.load_text(ASKS).approved
    assert rule.matches[1].values == (str(link),)
