"""An agent's configuration: every value is read, later values win, and a request may only
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
from tests.unit.policy.user_dirs import UserDirs

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


def read(dirs: UserDirs, values: object) -> Config:
    return read_config(json.dumps(values), "c.json", dirs.origin)


def own(dirs: UserDirs, values: object) -> None:
    place = Path(dirs.origin.config_dir)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(values))
    (place / "config.json").chmod(0o600)


def seen(config: Config) -> dict[str, tuple[Any, str]]:
    return {key: (value, source) for key, value, source in shown(config)}


def test_every_value_of_a_configuration_is_seen(dirs: UserDirs) -> None:
    """A-082, A-083"""
    config = read(dirs, SAMPLE)
    assert config.provider is not None
    assert config.provider.model is not None
    assert (config.provider.name.value, config.provider.model.value) == ("someone", "large-1")
    assert config.max_steps is not None
    assert config.timeout is not None
    assert (config.max_steps.value, config.timeout.value) == (30, 120.0)
    assert config.sandbox is not None
    assert (config.sandbox.mode.value, config.sandbox.linux.max_memory_mb) == ("linux", 256)
    found = {key: value for key, (value, _) in seen(config).items()}
    assert found["allowed_paths"] == [f"{dirs.origin.cwd}/**", "/srv/shared/**"]
    assert found["denied_paths"] == ["**/private/**"]
    assert (found["require_approval_for_writes"], found["require_approval_for_execute"]) == (
        True,
        False,
    )
    limits = limits_of(config)
    assert (limits.calls, limits.timeout_s, limits.own_timeout_s) == (30, 120.0, 120.0)


def test_a_file_is_loaded_by_its_path(dirs: UserDirs, tmp_path: Path) -> None:
    """A-087"""
    file = dirs.file("c.json", json.dumps(SAMPLE))
    config = load_config(Path(file), origin=dirs.origin)
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
def test_an_invalid_configuration_names_its_cause(
    dirs: UserDirs, values: object, words: str
) -> None:
    """A-086"""
    with pytest.raises(PolicyError) as refused:
        read(dirs, values)
    assert words in f"{refused.value.where} {refused.value.message}"


@pytest.mark.parametrize(
    "text", ["", "{", '{"max_steps": NaN}', '{"safety": {}, "safety": {}}', "[" * 100_000]
)
def test_invalid_json_is_an_error(dirs: UserDirs, text: str) -> None:
    with pytest.raises(PolicyError):
        read_config(text, "c.json", dirs.origin)


def test_a_later_layer_replaces_only_the_values_it_sets(dirs: UserDirs) -> None:
    """A-088, A-089"""
    assert seen(configured(dirs.origin))["require_approval_for_writes"] == (
        True,
        "built in",
    )
    own(
        dirs,
        {
            "safety": {"require_approval_for_writes": False, "denied_paths": ["**/a"]},
            "max_steps": 5,
        },
    )
    place = f"{dirs.origin.config_dir}/config.json"
    found = seen(configured(dirs.origin))
    assert found["require_approval_for_writes"] == (False, f"{place}:1")
    named = dirs.file(
        "named.json",
        json.dumps({"safety": {"read_only": True, "denied_paths": ["**/b"]}, "timeout": 9}),
    )
    flags = tool_flags(require_approval=True, denied_paths=["c"])
    found = seen(configured(dirs.origin, named, flags=flags))
    assert found["read_only"] == (True, f"{named}:1")
    assert found["max_steps"] == (5, f"{place}:1")
    assert found["timeout"] == (9.0, f"{named}:1")
    assert found["require_approval_for_writes"] == (True, "--require-approval")
    assert found["denied_paths"][0] == ["**/a", "**/b", "<cwd>/c"]
    assert found["log_all_commands"] == (False, "built in")


def test_paths_of_a_later_layer_stand_for_themselves(dirs: UserDirs) -> None:
    """A-077, A-079"""
    own(dirs, INITIAL)
    assert seen(configured(dirs.origin))["allowed_paths"][0] == [f"{dirs.origin.cwd}/**"]
    flags = tool_flags(restrict_to_cwd=True, allowed_paths=["/srv/x/**"])
    assert seen(configured(dirs.origin, flags=flags))["allowed_paths"] == (
        ["/srv/x/**"],
        "--allowed-paths",
    )


def test_without_a_boundary_the_built_in_list_still_denies(dirs: UserDirs) -> None:
    """A-064"""
    tools = configured(
        dirs.origin, flags=tool_flags(restrict_to_cwd=False, require_approval=False)
    ).tools
    policy = ToolPolicy.of(tools, cwd=dirs.origin.cwd, home=dirs.origin.home)

    def action(path: str) -> str:
        return policy.check(ToolCall(name="read_file", arguments={"path": path})).action.value

    assert (action("/usr/bin/env"), action("/etc/shadow"), action("x/.env")) == (
        "allow",
        "deny",
        "deny",
    )


def test_a_file_of_the_working_directory_is_not_read_by_itself(dirs: UserDirs) -> None:
    """A-090"""
    for name in ("paddock.json", "config.json"):
        (Path(dirs.origin.cwd) / name).write_text(json.dumps({"safety": {"read_only": True}}))
    assert seen(configured(dirs.origin))["read_only"] == (False, "built in")


def test_a_configuration_in_the_workspace_needs_trust(dirs: UserDirs) -> None:
    inside = os.path.join(dirs.origin.cwd, "c.json")
    Path(inside).write_text(json.dumps(SAMPLE))
    with pytest.raises(PolicyError, match="trust"):
        load_config(inside, origin=dirs.origin)


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
    dirs: UserDirs, wanted: dict[str, Any], loosens: str | None
) -> None:
    """A-069, A-070, A-073"""
    server = read_safety_config(json.dumps({"read_only": True}), "server", dirs.origin).tools
    asked = read_safety_config(json.dumps(wanted), "request", dirs.origin).tools
    if loosens is None:
        assert ToolPolicy.of(tightened(server, asked), cwd="/w", home="/h").read_only
        return
    with pytest.raises(PolicyError, match=f"cannot make {loosens} weaker"):
        tightened(server, asked)


def test_alias_names_are_the_same_objects() -> None:
    """A-177, A-178"""
    from paddock import permissions, policy

    assert policy.SafetyPolicy is ToolPolicy
    assert policy.PolicyConfig is type(Config().tools)
    assert permissions.PermissionManager is paddock.Approvals
    assert permissions.ApprovalResult is paddock.Verdict
    with pytest.raises(AttributeError):
        _ = policy.Nothing
