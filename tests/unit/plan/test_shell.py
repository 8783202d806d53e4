"""[shell] becomes a plan that the shell layer applies. Rules that it cannot enforce are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paddock.errors import HostError, PolicyError
from paddock.explain.read_plan import plan_of
from paddock.plan import compile_plan
from paddock.plan.shell import outside
from paddock.policy.model import (
    Access,
    Grant,
    NetworkMode,
    OnFailure,
    Policy,
    ShellSettings,
    Sourced,
    Switch,
    Syscalls,
)

from .plan_inputs import FULL, HOST, deny, files, grant, policy, source

SCHEMA = json.loads((Path(__file__).parents[3] / "schema" / "plan.schema.json").read_text())
SIMPLE = policy(files(grant(Access.READ, "/usr/**")))
NO_NETWORK = Sourced(NetworkMode.NONE, source(7))


def shell(**values: Any) -> ShellSettings:
    return ShellSettings(source=source(6), **values)


def with_shell(**values: Any) -> Policy:
    return replace(SIMPLE, shell=shell(**values))


def layer(whole: Policy) -> dict[str, Any]:
    """The shell layer of the plan, as in the schema."""
    plan = compile_plan(whole, FULL)
    assert plan.shell is not None
    jsonschema.validate(plan.as_json(), SCHEMA)
    written: dict[str, Any] = json.loads(plan.shell.plan)
    jsonschema.validate(written, SCHEMA)
    assert plan_of(plan.shell.plan.encode()).canonical() == plan.shell.plan.encode()
    return written


def grants(*own: Grant, **values: Any) -> list[tuple[str, str, list[str]]]:
    written = layer(with_shell(grants=own, **values))["files"]["grants"]
    return sorted(
        (path, one["access"], one["except"]) for one in written for path, _ in one["paths"]
    )


def test_shells_are_ordinary_programs_without_a_shell_section() -> None:
    assert compile_plan(SIMPLE, FULL).shell is None
    assert compile_plan(SIMPLE, HOST).shell is None


def test_writes_are_judged_with_intercepted_shells() -> None:
    denying = policy(files(grant(Access.ALLOW, "/home/ada/project/**"), denies=(deny("**/.env"),)))
    for whole in (denying, replace(denying, intercept=True), replace(denying, shell=shell())):
        assert compile_plan(whole, replace(FULL, listener=True)).judges_writes
        assert not compile_plan(whole, replace(FULL, listener=False)).judges_writes


def test_intercept_flag_alone_removes_the_network() -> None:
    whole = replace(SIMPLE, intercept=True)
    assert layer(whole) == layer(with_shell(network=NO_NETWORK))
    assert layer(whole)["network"]["mode"] == "none"
    assert layer(whole)["landlock"]["scoped"] == ["abstract_unix_socket"]
    notice_text = compile_plan(whole, FULL).notices[0].text
    assert "shells intercepted (no network)" in notice_text


def test_intercept_flag_does_not_change_a_shell_section() -> None:
    empty = with_shell()
    assert layer(replace(empty, intercept=True)) == layer(empty)
    assert layer(empty)["network"] is None
    assert layer(empty)["landlock"]["scoped"] == []


EVERYWHERE: list[tuple[str, str, list[str]]] = [("/dev", "device", []), ("/dev/shm", "allow", [])]


def test_settings_without_a_key_stay_as_the_sandbox_has_them() -> None:
    assert grants() == sorted([("/", "read", []), ("/", "write", []), *EVERYWHERE])
    written = grants(grant(Access.WRITE, "<tmp>/**"), grant(Access.ALLOW, "/w/**"))
    assert written == sorted(
        [("/", "read", []), ("/tmp", "write", []), ("/w", "allow", []), *EVERYWHERE]
    )
    read = [
        one
        for one in grants(grant(Access.READ, "/r/**"))
        if not one[0].startswith(("/dev", "/lib"))
    ]
    assert ("/", "write", []) in read
    assert {path for path, access, _ in read if access == "read"} >= {"/r", "/usr"}
    assert ("/", "read", []) not in read


def test_a_deny_is_carved_out_of_every_grant() -> None:
    closed = "/home/ada/.token"
    found = grants(grant(Access.ALLOW, "/home/ada/.token/x"), denies=(deny(f"{closed}/**"),))
    assert ("/", "read", [closed]) in found
    assert not any(path == f"{closed}/x" for path, *_ in found)


@pytest.mark.parametrize(
    ("values", "where", "text"),
    [
        ({"denies": (deny("**/.env", line=4),)}, "p.toml:4", "no deny by name"),
        ({"block": (Sourced("prctl", source(5)),)}, "p.toml:5", "cannot be blocked"),
        ({"block": (Sourced("execve", source(5)),)}, "p.toml:5", "cannot be blocked"),
        (
            {"grants": (grant(Access.READ, "/etc/*.conf", line=8),)},
            "p.toml:8",
            "only as all of /etc",
        ),
        (
            {"grants": (grant(Access.WRITE, "/w/*.log", line=8),)},
            "p.toml:8",
            "only as all of /w",
        ),
    ],
)
def test_a_rule_that_no_shell_can_enforce_is_an_error_with_its_line(
    values: dict[str, Any], where: str, text: str
) -> None:
    with pytest.raises(PolicyError) as error:
        compile_plan(with_shell(**values), FULL)
    assert str(error.value).startswith(f"{where}: "), error.value
    assert text in str(error.value)


def test_an_optional_deny_by_name_is_left_out() -> None:
    assert layer(with_shell(denies=(deny("**/.env", optional=True),)))["files"]["closed"] == []


def test_shells_cannot_be_intercepted_without_namespaces_or_layers() -> None:
    for whole, where in (
        (with_shell(), "p.toml:6"),
        (replace(SIMPLE, intercept=True), "--intercept-shells"),
    ):
        with pytest.raises(PolicyError, match="landlock tier") as error:
            compile_plan(whole, HOST)
        assert str(error.value).startswith(f"{where}: ")
    with pytest.raises(HostError, match="without seccomp"):
        compile_plan(replace(with_shell(), off=(Switch.SECCOMP,)), FULL)
    with pytest.raises(HostError, match="without Landlock"):
        compile_plan(with_shell(), replace(FULL, landlock_abi=0))


@pytest.mark.parametrize(
    "syscalls",
    [
        Syscalls(block=(Sourced("seccomp", source()),)),
        Syscalls(
            allow=tuple(
                Sourced(name, source()) for name in ("execve", "exit_group", "prctl", "seccomp")
            )
        ),
    ],
)
def test_a_syscall_list_without_the_calls_of_a_shell_layer_is_refused(
    syscalls: Syscalls,
) -> None:
    with pytest.raises(PolicyError, match="which a shell needs"):
        compile_plan(replace(with_shell(), syscalls=syscalls), FULL)


def test_blocked_calls_variables_and_the_failure_mode_are_in_the_layer() -> None:
    whole = with_shell(
        block=(Sourced("ptrace", source()),),
        env_deny=(Sourced("A_*", source()),),
        on_failure=Sourced(OnFailure.OPEN, source()),
    )
    written = layer(whole)
    assert written["seccomp"]["syscalls"] == ["ptrace"]
    assert written["environment"] == {"pass": ["*"], "deny": ["A_*"], "keep": [], "set": {}}
    planned = compile_plan(whole, FULL).shell
    assert planned is not None
    assert planned.on_failure is OnFailure.OPEN


def test_shells_of_shims_get_the_denies_of_the_whole_policy() -> None:
    whole = policy(
        files(
            grant(Access.READ, "/srv/**"),
            denies=(deny("/home/ada/.ssh/**"), deny("**/.env", optional=True)),
        ),
        shell=shell(network=NO_NETWORK),
    )
    plan = outside(whole, HOST, own=("/links",), journals=("/var/tmp/journal",))
    jsonschema.validate(plan.as_json(), SCHEMA)
    assert plan.files is not None
    assert plan.seccomp is not None
    assert plan.files.closed == ("/home/ada/.ssh", "/var/tmp/journal")
    assert {*HOST.own_paths, "/links"} == {*plan.files.unwritable}
    assert "/srv" not in {one.path for one in plan.files.grants}
    assert plan.seccomp.syscalls == ("ptrace",)
    assert plan.network is not None
