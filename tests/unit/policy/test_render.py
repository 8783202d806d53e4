"""Canonical TOML: the same policy in any spelling gives the same bytes, and the bytes load back."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy import GrantFlag, Request
from paddock.policy.model import Access
from paddock.policy.render import to_toml
from tests.unit.policy.user_dirs import UserDirs

EXAMPLES = Path(__file__).parents[3] / "examples"

CONF = """\
block mincore
inherit base
rw $HOME/p
ro /opt/my dir?
exec /opt/bin
env-deny FOO_*
audit on
audit-log /var/tmp/j
workdir /srv
rootdir /srv/root
uid 1000
loopback on
cgroup /sys/fs/cgroup/b
cgroup /sys/fs/cgroup/a
cap-allow cap_chown
mount-mask /proc/timer_list
"""
TOML = """\
[container]
mount_mask = ["/proc/timer_list"]
cap_allow = ["CAP_CHOWN"]
cgroup = ["/sys/fs/cgroup/a", "/sys/fs/cgroup/b"]
loopback = true
uid = 1000
rootdir = "/srv/root"
[audit]
enabled = true
dir = "/var/tmp//j/"
[env]
deny = ["FOO_*"]
[filesystem]
exec_globs = ["/opt/./bin"]
read_globs = ["/opt/my dir?"]
allow_globs = ["~/p"]
[syscalls]
block = ["mincore", "ptrace"]
[meta]
inherit = "base"
workdir = "/srv"
"""


def test_lines_and_toml_give_the_same_bytes(dirs: UserDirs) -> None:
    """C-073."""
    assert to_toml(dirs.load_text(CONF, "p.conf")) == to_toml(dirs.load_text(TOML, "p.toml"))


def again(dirs: UserDirs, text: str) -> str:
    path = dirs.file("again.toml", text)
    return to_toml(dirs.load(Request(policies=(str(path),), trust_required=False)))


@pytest.mark.parametrize("name", ["base", "read-only", "ai-agent", "strict", "dev"])
def test_a_profile_loads_back_to_the_same_bytes(dirs: UserDirs, name: str) -> None:
    text = to_toml(dirs.load(Request(profiles=(name,))))
    assert again(dirs, text) == text


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_a_sample_loads_back_to_the_same_bytes(dirs: UserDirs, name: str) -> None:
    path = dirs.file(name, (EXAMPLES / name).read_bytes())
    text = to_toml(dirs.load(Request(policies=(str(path),), trust_required=False)))
    assert again(dirs, text) == text


def test_strange_text_survives(dirs: UserDirs) -> None:
    odd = "/srv/a \"b\" \\c\\ $d 'e' \x07\n\u00e9\u2028"
    grants = (GrantFlag(access=Access.READ, pattern=odd.replace("$", "$$"), flag="-r"),)
    policy = dirs.load(Request(grants=grants, env_set=(("A", "$x\\\n\x7f"),)))
    text = to_toml(policy)
    assert again(dirs, text) == text
    reloaded = dirs.load_text(text)
    assert odd in [grant.pattern for grant in reloaded.filesystem.grants]
    assert dict(reloaded.env.set)["A"].value == "$x\\\n\x7f"


def test_a_grant_with_more_to_say_keeps_it(dirs: UserDirs) -> None:
    text = to_toml(
        dirs.load_text(
            "[filesystem]\nallow_globs = [{ path = '/a/$$b?', execute = false }, '/a/c',"
            " { path = '/d/**', execute = false, create = true }]\n"
        )
    )
    assert '{ path = "/d/**", execute = false, create = true }' in text
    assert '{ path = "/a/$$b?", execute = false }' in text
    assert again(dirs, text) == text


def test_the_workspace_stays_the_workspace(dirs: UserDirs) -> None:
    text = to_toml(dirs.load())
    assert '"<cwd>/**"' in text
    assert str(dirs.work) not in text


def test_a_path_that_is_not_utf8_is_an_error(dirs: UserDirs) -> None:
    policy = dirs.load(
        Request(grants=(GrantFlag(access=Access.READ, pattern="/\udcff", flag="-r"),))
    )
    with pytest.raises(PolicyError, match="not UTF-8"):
        to_toml(policy)


def test_absent_and_empty_lists_stay_different_in_toml(dirs: UserDirs) -> None:
    absent = to_toml(dirs.load_text("[network]\n"))
    empty = to_toml(dirs.load_text("[network]\nallowed_hosts = []\n"))
    assert "[network]\n" in absent
    assert "allowed_hosts" not in absent
    assert "allowed_hosts = []" in empty
    assert again(dirs, absent) == absent
    assert again(dirs, empty) == empty


def test_an_optional_deny_keeps_its_mark_and_a_required_one_wins(
    dirs: UserDirs,
) -> None:
    text = to_toml(
        dirs.load_text(
            '[filesystem]\ndeny_globs = ["**/.env", "**/x?"]\nopen_protected = ["**/.husky"]\n'
            'protect_globs = ["**/*.tfvars", "/srv/keep/**"]\n'
        )
    )
    assert '"**/.env",' in text
    assert '"**/.env?",' not in text
    assert '"**/x?",' in text
    assert 'open_protected = ["**/.husky"]' in text
    assert text.count('"**/*.tfvars",') == text.count('"/srv/keep",') == 1
    assert text.count('"shmget"') == 1
