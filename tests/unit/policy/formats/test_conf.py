"""The line format: every directive, and the message for each mistake."""

from __future__ import annotations

import pytest

from paddock.policy.formats.conf import DIRECTIVES
from paddock.policy.model import Access
from tests.unit.policy.user_dirs import UserDirs

EVERY_DIRECTIVE = """\
# a comment

   # an indented one
inherit base
ro /usr
ro /opt/my dir
\trw   $HOME/p
rw ${HOME}/q?
exec /opt/bin
block ptrace
env-deny FOO_*
landlock on
seccomp on
no-new-privs on
env-sanitize on
audit on
audit-log /var/tmp/j-$UID
workdir $HOME
rootdir /srv/root
uid 1000
gid 100
username $USER
netns blue
loopback on
cgroup /sys/fs/cgroup/a b
cgroup /sys/fs/cgroup/c
cap-allow CAP_NET_RAW
cap-allow cap_chown
mount-mask /proc/timer_list
hostname box
id-map identity
limit memory_mb 512
limit processes 64
"""


def test_every_directive_reaches_the_model(dirs: UserDirs) -> None:
    assert all(f"\n{directive} " in EVERY_DIRECTIVE.replace("\t", "") for directive in DIRECTIVES)
    policy = dirs.load_text(EVERY_DIRECTIVE, "p.conf")
    assert [(g.access, g.pattern, g.optional) for g in policy.filesystem.grants] == [
        (Access.READ, "/usr", False),
        (Access.READ, "/opt/my dir", False),
        (Access.ALLOW, f"{dirs.home}/p", False),
        (Access.ALLOW, f"{dirs.home}/q", True),
        (Access.EXEC, "/opt/bin", False),
    ]
    assert policy.audit.enabled is not None
    assert policy.audit.dir is not None
    assert policy.audit.dir.value == f"/var/tmp/j-{dirs.origin.uid}"
    assert policy.workdir is not None
    assert policy.workdir.value == str(dirs.home)
    assert policy.env.deny[-1].value == "FOO_*"
    assert {limit.name: limit.value for limit in policy.limits} == {
        "memory_mb": 512,
        "processes": 64,
    }
    assert {setting.key: setting.value for setting in policy.container} == {
        "rootdir": "/srv/root",
        "uid": 1000,
        "gid": 100,
        "username": "ada",
        "netns": "blue",
        "loopback": True,
        "hostname": "box",
        "id-map": "identity",
        "cgroup": ("/sys/fs/cgroup/a b", "/sys/fs/cgroup/c"),
        "cap-allow": ("CAP_NET_RAW", "CAP_CHOWN"),
        "mount-mask": ("/proc/timer_list",),
    }


def test_comments_and_blanks_around_one_line_give_one_grant(dirs: UserDirs) -> None:
    policy = dirs.load_text("# x\n\n   \n#ro /no\nro /yes\n# z\n", "p.conf")
    assert [grant.pattern for grant in policy.filesystem.grants] == ["/yes"]
    assert str(policy.filesystem.grants[0].source).endswith("p.conf:5")


MISTAKES = [
    ("rx /usr\n", 1, "unknown directive 'rx'", None),
    ("limit memory 5\n", 1, "unknown limit 'memory'", "'memory_mb'"),
    ("limit memory_mb\n", 1, "a name and a whole number above 0", None),
    ("limit memory_mb 0\n", 1, "a name and a whole number above 0", None),
    ("limit memory_mb 5 MB\n", 1, "a name and a whole number above 0", None),
    ("limit memory_mb 5\nlimit memory_mb 6\n", 2, "memory_mb is already in line 1", None),
    ("blok ptrace\n", 1, "unknown directive 'blok'", "'block'"),
    ("\x1b[2K x\n", 1, "'\\x1b[2K'", None),
    ("# x\nro\n", 2, "ro: the value is missing", None),
    ("ro \n", 1, "the value is missing", None),
    ("landlock yes\n", 1, "'on' or 'off'", None),
    ("landlock ON\n", 1, "'on' or 'off'", None),
    ("landlock off\n", 1, "cannot turn landlock off", "--off landlock"),
    ("audit off\n", 1, "cannot turn audit off", "--off audit"),
    ("env-sanitize off\n", 1, "cannot turn env-sanitize off", "--off env-sanitize"),
    ("seccomp on off\n", 1, "'on' or 'off'", None),
    ("block ptrce\n", 1, "unknown system call", "'ptrace'"),
    ("block ptrace mount\n", 1, "'mount' is too much", None),
    ("env-deny A B\n", 1, "'B' is too much", None),
    ("env-deny A=B\n", 1, "not the name", None),
    ("inherit a b\n", 1, "'b' is too much", None),
    ("rw $NOPE/x\n", 1, "NOPE is not set", None),
    ("rw relative\n", 1, "not an absolute", "<cwd>"),
    ("rw /a/../b\n", 1, "'..'", None),
    ("uid root\n", 1, "not a number", None),
    ("uid 4294967295\n", 1, "not a number", None),
    ("gid -1\n", 1, "not a number", None),
    ("uid \N{ARABIC-INDIC DIGIT ONE}\n", 1, "not a number", None),
    ("loopback 1\n", 1, "'on' or 'off'", None),
    ("cap-allow CAP_NOPE\n", 1, "unknown capability", None),
    ("username a b\n", 1, "'b' is too much", None),
    ("workdir /a\nworkdir /b\n", 2, "is already in line 1", None),
    ("audit-log *\n", 1, "not an absolute", None),
    ("ro /a\nro " + "x" * 5000 + "\n", 2, "longer than 4096 bytes", None),
    ("ro /a\nro /b", 2, "the last line of the file has no line break", "line break"),
    ("ro /a\nro", 2, "the last line of the file has no line break", None),
]


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"), MISTAKES, ids=[m[0][:40] for m in MISTAKES]
)
def test_an_invalid_profile_line_is_an_error_with_its_line(
    dirs: UserDirs, text: str, line: int, words: str, hint: str | None
) -> None:
    error = dirs.refuse(text, "p.conf")
    assert error.where == f"{dirs.root}/policies/p.conf:{line}"
    assert words in error.message
    if hint is not None:
        assert hint in (error.hint or "")


def test_a_line_of_just_the_limit_is_read(dirs: UserDirs) -> None:
    line = "ro /" + "x" * (4096 - len("ro /"))
    assert len(dirs.load_text(line + "\n", "p.conf").filesystem.grants) == 1


@pytest.mark.parametrize("data", [b"ro /a\0\n", b"ro /a\n\xff\n"])
def test_bytes_that_are_no_text_are_refused(dirs: UserDirs, data: bytes) -> None:
    dirs.refuse(data, "p.conf")


def test_windows_line_ends_are_read(dirs: UserDirs) -> None:
    assert dirs.load_text("ro /a\r\nro /b\r\n", "p.conf").filesystem.grants[1].pattern == "/b"
