"""An answer for good writes one exact rule to the user's file, or none."""

from __future__ import annotations

import os
import stat

import pytest

from paddock.approve.remember_answer import MAX_FILE_BYTES, approval_for, keep, rule_for, written
from paddock.errors import PolicyError
from paddock.policy.model import Action
from paddock.policy.trust.approved import approved_path, load_approved
from tests.unit.approve.questions import host_question, question
from tests.unit.policy.user_dirs import UserDirs


def test_a_rule_names_the_program_the_arguments_and_the_directory(dirs: UserDirs) -> None:
    rule = rule_for(question(argv=("git", "push", "a.b c", "\udcff")), dirs.origin)
    assert (rule.id, rule.action) == ("git-1", Action.ALLOW)
    assert [(match.key, match.values, match.negate) for match in rule.matches] == [
        ("exe", ("/usr/bin/git",), False),
        ("argv_regex", ("^git push a\\.b\\\\x20c \\xff$",), False),
        ("cwd_glob", ("/w",), False),
    ]


def test_a_remembered_rule_is_read_back_and_stored_once(dirs: UserDirs) -> None:
    for argv in (("git", "push"), ("git", "pull"), ("git", "push")):
        keep(rule_for(question(argv=argv), dirs.origin), dirs.origin)
    rules = load_approved(dirs.origin).rules
    assert [rule.id for rule in rules] == ["git-1", "git-2"]
    assert str(rules[1].source) == f"{approved_path(dirs.origin)}:8"
    file = os.stat(approved_path(dirs.origin))
    assert stat.S_IMODE(file.st_mode) == 0o600
    assert os.listdir(dirs.config) == ["approved.toml"]


def test_a_host_is_remembered_once_with_its_port(dirs: UserDirs) -> None:
    keep(rule_for(question(), dirs.origin), dirs.origin)
    for port in (443, 22, 443):
        approval = approval_for(host_question(port=port), dirs.origin)
        assert written(approval) == f'[[host]]\nname = "new.example:{port}"\n'
        keep(approval, dirs.origin)
    approved = load_approved(dirs.origin)
    assert [str(host.value) for host in approved.hosts] == ["new.example:443", "new.example:22"]
    assert [rule.id for rule in approved.rules] == ["git-1"]


def test_an_invalid_host_is_not_remembered(dirs: UserDirs) -> None:
    for host in ("*.example", "a b", "metadata", "169.254.1.1", "0x7f.1", "@github"):
        with pytest.raises(PolicyError):
            keep(approval_for(host_question(host=host), dirs.origin), dirs.origin)
    assert load_approved(dirs.origin).hosts == ()


def test_text_that_a_person_wrote_stays(dirs: UserDirs) -> None:
    text = '# mine\n[[rule]]\nid = "git-1"\naction = "allow"\nexe = "/usr/bin/make"'
    dirs.user("approved.toml", text)
    keep(rule_for(question(), dirs.origin), dirs.origin)
    assert (dirs.config / "approved.toml").read_text().startswith(text + "\n\n[[rule]]\n")
    assert [rule.id for rule in load_approved(dirs.origin).rules] == ["git-1", "git-2"]


@pytest.mark.parametrize(
    "changed",
    [
        {"cwd": "/w/*"},
        {"cwd": "/w/a?"},
        {"cwd": ""},
        {"cwd": "/w\udcff"},
        {"exe": "/b*n"},
        {"argv": ("x" * 40_000,)},
    ],
)
def test_a_call_without_an_exact_rule_is_not_remembered(
    dirs: UserDirs, changed: dict[str, object]
) -> None:
    with pytest.raises(PolicyError):
        rule_for(question(**changed), dirs.origin)
    assert not os.path.exists(approved_path(dirs.origin))


def test_dollars_and_quotes_are_matched_literally(dirs: UserDirs) -> None:
    strange = question(exe='/opt/a"$HOME\\b/git', cwd="/w/$X [1] ~", argv=('"', "$Y", "'", "\n"))
    keep(rule_for(strange, dirs.origin), dirs.origin)
    (rule,) = load_approved(dirs.origin).rules
    assert rule.matches[0].values == ('/opt/a"$HOME\\b/git',)
    assert rule.matches[2].values == ("/w/$X [1] ~",)


def test_a_file_that_is_wrong_is_left_alone(dirs: UserDirs) -> None:
    kept = dirs.user("approved.toml", "[[rule]]\n")
    with pytest.raises(PolicyError, match=r"approved\.toml:1: .*every rule needs an id"):
        rule_for(question(), dirs.origin)
    assert kept.read_text() == "[[rule]]\n"
    rule = rule_for(question(), UserDirs(dirs.root / "elsewhere").origin)
    for text in ("[[rule]]\n", "#" * MAX_FILE_BYTES):
        kept.write_text(text)
        with pytest.raises(PolicyError):
            keep(rule, dirs.origin)
        assert kept.read_text() == text
    kept.unlink()
    kept.symlink_to(dirs.user("other.toml", ""))
    with pytest.raises(PolicyError, match="symbolic link"):
        keep(rule, dirs.origin)
