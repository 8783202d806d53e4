"""Rules over several files, and the links that they name."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy import Policy, Request
from tests.unit.policy.world import World


def rule(name: str, keys: str = "uid = 0") -> str:
    return f"[[rule]]\nid = '{name}'\naction = 'deny'\n{keys}\n"


def load(world: World, over: str) -> Policy:
    return world.load(Request(policies=(str(world.file("over.toml", over)),), trust_required=False))


def test_the_rules_of_the_inheriting_file_come_first_and_its_default_wins(world: World) -> None:
    """F-051"""
    world.write(
        world.config / "under.toml",
        "[meta]\ninherit = 'base'\ndefault_action = 'allow'\n" + rule("u"),
    )
    policy = load(
        world, "[meta]\ninherit = 'under'\ndefault_action = 'ask'\n" + rule("a") + rule("b")
    )
    assert [one.id for one in policy.rules] == ["a", "b", "u"]
    assert policy.meta.default_action is not None
    assert policy.meta.default_action.value.value == "ask"
    inherited = load(world, "[meta]\ninherit = 'under'\n")
    assert inherited.meta.default_action is not None
    assert inherited.meta.default_action.value.value == "allow"


def test_an_id_stands_once_over_all_files(world: World) -> None:
    world.write(world.config / "under.toml", "[meta]\ninherit = 'base'\n" + rule("same"))
    with pytest.raises(
        PolicyError,
        match=r"over\.toml:3: rule\[0\]: the rule 'same' is already in .*under\.toml:3",
    ):
        load(world, "[meta]\ninherit = 'under'\n" + rule("same"))


def test_a_rule_means_the_file_that_its_path_leads_to(world: World) -> None:
    real = world.work / "real"
    real.mkdir()
    (real / "tool").write_text("")
    (world.work / "link").symlink_to(real)
    keys = "exe = '<cwd>/link/tool'\nexe_glob = '<cwd>/link/*'\nparent_exe_not = '<cwd>/link/tool'"
    policy = load(
        world, rule("a", keys) + rule("b", "exe = '<cwd>/real/tool'\nexe_basename = 'link'")
    )
    led = {match.key: match.values for match in policy.rules[0].matches}
    assert led == {
        "exe": (f"{world.work}/link/tool", f"{real}/tool"),
        "exe_glob": (f"{world.work}/link/*", f"{real}/*"),
        "parent_exe": (f"{world.work}/link/tool", f"{real}/tool"),
    }
    assert [match.values for match in policy.rules[1].matches] == [(f"{real}/tool",), ("link",)]
