"""``approved.toml`` needs the same trust as a policy, holds only allow rules, and is read if a rule
can ask.
"""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy.command_line import Request
from paddock.policy.trust.approved import load_approved
from tests.unit.policy.user_dirs import UserDirs

ASKS = '[meta]\ndefault_action = "ask"\n'
RULE = '[[rule]]\nid = "git-1"\naction = "allow"\nexe = "/usr/bin/git"\n'


def test_approved_rules_are_read_if_a_rule_asks(dirs: UserDirs) -> None:
    assert dirs.load_text(ASKS).approved == ()
    kept = dirs.user("approved.toml", RULE)
    policy = dirs.load_text(ASKS)
    assert [(rule.id, str(rule.source)) for rule in policy.approved] == [("git-1", f"{kept}:1")]
    assert policy.rules == ()
    assert str(kept) in [file.path for file in policy.files]
    without = dirs.load_text("")
    assert (without.approved, [file for file in without.files if file.path == str(kept)]) == (
        (),
        [],
    )
    kept.write_text("nonsense")
    assert dirs.load_text("").approved == ()


def test_approved_hosts_are_read_if_hosts_are_asked_about(dirs: UserDirs) -> None:
    kept = dirs.user("approved.toml", f'{RULE}\n[[host]]\nname = "A.example:443"\n')
    policy = dirs.load_text('[network]\ndefault = "ask"\n')
    assert [(str(host.value), str(host.source)) for host in policy.approved_hosts] == [
        ("a.example:443", f"{kept}:7")
    ]
    assert str(kept) in [file.path for file in policy.files]
    for text in ('[network]\ndefault = "deny"\n', "[network]\nallowed_hosts = []\n"):
        assert dirs.load_text(text).approved_hosts == ()


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
def test_an_error_in_the_file_names_its_line(dirs: UserDirs, text: str, message: str) -> None:
    dirs.user("approved.toml", text)
    with pytest.raises(PolicyError, match=message):
        dirs.load_text(ASKS)


def test_an_approved_file_that_others_can_write_is_refused(dirs: UserDirs) -> None:
    kept = dirs.user("approved.toml", RULE)
    kept.chmod(0o666)
    with pytest.raises(PolicyError, match="writable by others"):
        dirs.load_text(ASKS)
    kept.unlink()
    kept.symlink_to(dirs.file("elsewhere.toml", RULE))
    with pytest.raises(PolicyError, match="symbolic link that leaves"):
        load_approved(dirs.origin)


def test_approved_file_is_not_a_profile(dirs: UserDirs) -> None:
    dirs.user("approved.toml", RULE)
    with pytest.raises(PolicyError, match="the profile 'approved' does not exist"):
        dirs.load(Request(profiles=("approved",)))


def test_approved_file_is_not_read_through_a_link(dirs: UserDirs) -> None:
    """In other files a rule also matches the target of a link. Here that would approve a program
    without a question.
    """
    link = dirs.root / "link"
    link.symlink_to(dirs.work)
    dirs.user("approved.toml", f'{RULE}cwd_glob = "{link}"\n')
    (rule,) = dirs.load_text(ASKS).approved
    assert rule.matches[1].values == (str(link),)
