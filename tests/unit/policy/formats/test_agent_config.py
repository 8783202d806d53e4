"""An agent's configuration: every value is seen, what is said later counts, and a request may only
tighten.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import paddock
from paddock import PolicyError, ToolCall, ToolPolicy
from paddock.policy.formats.agent_config import (
    INITIAL,
    Config,
    configured,
    load_config,
    read_config,
    shown,
    tightened,
    tool_flags,
)
from paddock.policy.formats.safety_config import read_safety_config
from paddock.session.tools import limits_of
from tests.unit.policy.world import World

SAMPLE = {
    "provider": {"name": "someone", "model": "large-1"},
    "safety": {
        "read_only": False,
        "require_approval_for_writes": True,
        "require_approval_for_execute": False,
        "denied_paths": ["**/private/**"],
        "allowed_paths": ["<cwd>/**", "/srv/shared/**"],
        "sandbox": {"mode": "linux", "linux": {"max_memory_mb": 256}},
    },
    "max_steps": 30,
    "timeout": 120.0,
}


def read(world: World, values: object) -> Config:
    return read_config(json.dumps(values), "c.json", world.origin)


def own(world: World, values: object) -> None:
    place = Path(world.origin.config_dir)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(values))
    (place / "config.json").chmod(0o600)


def seen(config: Config) -> dict[str, tuple[Any, str]]:
    return {key: (value, source) for key, value, source in shown(config)}


def test_every_value_of_a_configuration_is_seen(world: World) -> None:
    """A-082, A-083"""
    config = read(world, SAMPLE)
    assert config.provider is not None
    assert config.provider.model is not None
    assert (config.provider.name.value, config.provider.model.value) == ("someone", "large-1")
    assert config.max_steps is not None
    assert config.timeout is not None
    assert (config.max_steps.value, config.timeout.value) == (30, 120.0)
    assert config.sandbox is not None
    assert (config.sandbox.mode.value, config.sandbox.linux.max_memory_mb) == ("linux", 256)
    found = {key: value for key, (value, _) in seen(config).items()}
    assert found["allowed_paths"] == [f"{world.origin.cwd}/**", "/srv/shared/**"]
    assert found["denied_paths"] == ["**/private/**"]
    assert (found["require_approval_for_writes"], found["require_approval_for_execute"]) == (
        True,
        False,
    )
    limits = limits_of(config)
    assert (limits.calls, limits.timeout_s, limits.own_timeout_s) == (30, 120.0, 120.0)


def test_a_file_is_loaded_by_its_path(world: World, tmp_path: Path) -> None:
    """A-087"""
    file = world.file("c.json", json.dumps(SAMPLE))
    config = load_config(Path(file), origin=world.origin)
    assert config.max_steps is not None
    assert paddock.load_config is load_config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"safety": {"allowed_path": []}}, "allowed_path"),
        ({"safty": {}}, "safty"),
        ({"max_step": 1}, "max_step"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "120"}, "timeout"),
        ({"provider": {"model": "x"}}, "has no name"),
        ({"provider": {"name": "x", "key": "y"}}, "key"),
        ([], "expected an object"),
    ],
)
def test_an_error_names_its_cause(world: World, values: object, words: str) -> None:
    """A-086"""
    with pytest.raises(PolicyError) as refused:
        read(world, values)
    assert words in f"{refused.value.where} {refused.value.message}"


@pytest.mark.parametrize(
    "text", ["", "{", '{"max_steps": NaN}', '{"safety": {}, "safety": {}}', "[" * 100_000]
)
def test_invalid_json_is_an_error(world: World, text: str) -> None:
    with pytest.raises(PolicyError):
        read_config(text, "c.json", world.origin)


def test_what_is_said_later_counts_and_what_is_not_said_does_not(world: World) -> None:
    """A-088, A-089"""
    assert seen(configured(world.origin))["require_approval_for_writes"] == (
        True,
        "built in",
    )
    own(
        world,
        {
            "safety": {"require_approval_for_writes": False, "denied_paths": ["**/a"]},
            "max_steps": 5,
        },
    )
    place = f"{world.origin.config_dir}/config.json"
    found = seen(configured(world.origin))
    assert found["require_approval_for_writes"] == (False, f"{place}:1")
    named = world.file(
        "named.json",
        json.dumps({"safety": {"read_only": True, "denied_paths": ["**/b"]}, "timeout": 9}),
    )
    flags = tool_flags(require_approval=True, denied_paths=["c"])
    found = seen(configured(world.origin, named, flags=flags))
    assert found["read_only"] == (True, f"{named}:1")
    assert found["max_steps"] == (5, f"{place}:1")
    assert found["timeout"] == (9.0, f"{named}:1")
    assert found["require_approval_for_writes"] == (True, "--require-approval")
    assert found["denied_paths"][0] == ["**/a", "**/b", "<cwd>/c"]
    assert found["log_all_commands"] == (False, "built in")


def test_paths_of_a_later_layer_stand_for_themselves(world: World) -> None:
    """A-077, A-079"""
    own(world, INITIAL)
    assert seen(configured(world.origin))["allowed_paths"][0] == [f"{world.origin.cwd}/**"]
    flags = tool_flags(restrict_to_cwd=True, allowed_paths=["/srv/x/**"])
    assert seen(configured(world.origin, flags=flags))["allowed_paths"] == (
        ["/srv/x/**"],
        "--allowed-paths",
    )


def test_without_a_boundary_the_built_in_list_still_denies(world: World) -> None:
    """A-064"""
    tools = configured(
        world.origin, flags=tool_flags(restrict_to_cwd=False, require_approval=False)
    ).tools
    policy = ToolPolicy.of(tools, cwd=world.origin.cwd, home=world.origin.home)

    def action(path: str) -> str:
        return policy.check(ToolCall(name="read_file", arguments={"path": path})).action.value

    assert (action("/usr/bin/env"), action("/etc/shadow"), action("x/.env")) == (
        "allow",
        "deny",
        "deny",
    )


def test_a_file_of_the_working_directory_is_not_read_by_itself(world: World) -> None:
    """A-090"""
    for name in ("paddock.json", "config.json"):
        (Path(world.origin.cwd) / name).write_text(json.dumps({"safety": {"read_only": True}}))
    assert seen(configured(world.origin))["read_only"] == (False, "built in")


def test_one_that_an_agent_could_have_written_counts_only_as_trusted(world: World) -> None:
    inside = os.path.join(world.origin.cwd, "c.json")
    Path(inside).write_text(json.dumps(SAMPLE))
    with pytest.raises(PolicyError, match="trust"):
        load_config(inside, origin=world.origin)


@pytest.mark.parametrize(
    ("wanted", "loosens"),
    [
        ({"read_only": True}, None),
        ({"require_approval_for_writes": True, "denied_paths": ["**/x"]}, None),
        ({"read_only": False}, "read_only"),
        ({"require_approval_for_execute": False}, "require_approval_for_execute"),
        ({"allowed_paths": ["/**"]}, "allowed_paths"),
        ({"unknown_tools": "allow"}, "unknown_tools"),
        ({"command_rules": [{"action": "allow", "exe": "ls"}]}, "command_rules"),
    ],
)
def test_a_request_may_only_tighten(
    world: World, wanted: dict[str, Any], loosens: str | None
) -> None:
    """A-069, A-070, A-073"""
    server = read_safety_config(json.dumps({"read_only": True}), "server", world.origin).tools
    asked = read_safety_config(json.dumps(wanted), "request", world.origin).tools
    if loosens is None:
        assert ToolPolicy.of(tightened(server, asked), cwd="/w", home="/h").read_only
        return
    with pytest.raises(PolicyError, match=f"cannot make {loosens} weaker"):
        tightened(server, asked)


def test_the_names_of_others_are_these_things() -> None:
    """A-177, A-178"""
    from paddock import permissions, policy

    assert policy.SafetyPolicy is ToolPolicy
    assert policy.PolicyConfig is type(Config().tools)
    assert permissions.PermissionManager is paddock.Approvals
    assert permissions.ApprovalResult is paddock.Verdict
    with pytest.raises(AttributeError):
        _ = policy.Nothing
