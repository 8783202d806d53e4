"""Rules over several files, and the links that they name."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy import Policy, Request
from tests.unit.policy.user_dirs import UserDirs


def rule(name: str, keys: str = "uid = 0") -> str:
    return f"[[rule]]\nid = '{name}'\naction = 'deny'\n{keys}\n"


def load(dirs: UserDirs, over: str) -> Policy:
    return dirs.load(Request(policies=(str(dirs.file("over.toml", over)),), trust_required=False))


def test_the_rules_of_the_inheriting_file_come_first_and_its_default_wins(dirs: UserDirs) -> None:
    """F-051"""
    dirs.write(
        dirs.config / "under.toml",
        "[meta]\ninherit = 'base'\ndefault_action = 'allow'\n" + rule("u"),
    )
    policy = load(
        dirs, "[meta]\ninherit = 'under'\ndefault_action = 'ask'\n" + rule("a") + rule("b")
    )
    assert [one.id for one in policy.rules] == ["a", "b", "u"]
    assert policy.meta.default_action is not None
    assert policy.meta.default_action.value.value == "ask"
    inherited = load(dirs, "[meta]\ninherit = 'under'\n")
    assert inherited.meta.default_action is not None
    assert inherited.meta.default_action.value.value == "allow"


def test_an_id_stands_once_over_all_files(dirs: UserDirs) -> None:
    dirs.write(dirs.config / "under.toml", "[meta]\ninherit = 'base'\n" + rule("same"))
    with pytest.raises(
        PolicyError,
        match=r"over\.toml:3: rule\[0\]: the rule 'same' is already in .*under\.toml:3",
    ):
        load(dirs, "[meta]\ninherit = 'under'\n" + rule("same"))


def test_a_rule_means_the_file_that_its_path_leads_to(dirs: UserDirs) -> None:
    real = dirs.work / "real"
    real.mkdir()
    (real / "tool").write_text("")
    (dirs.work / "link").symlink_to(real)
    keys = "exe = '<cwd>/link/tool'\nexe_glob = '<cwd>/link/*'\nparent_exe_not = '<cwd>/link/tool'"
    policy = load(
        dirs, rule("a", keys) + rule("b", "exe = '<cwd>/real/tool'\nexe_basename = 'link'")
    )
    led = {match.key: match.values for match in policy.rules[0].matches}
    assert led == {
        "exe": (f"{dirs.work}/link/tool", f"{real}/tool"),
        "exe_glob": (f"{dirs.work}/link/*", f"{real}/*"),
        "parent_exe": (f"{dirs.work}/link/tool", f"{real}/tool"),
    }
    assert [match.values for match in policy.rules[1].matches] == [(f"{real}/tool",), ("link",)]
