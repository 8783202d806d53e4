"""The plan of a container."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paddock.errors import HostError, PolicyError
from paddock.plan.container_plan import compile_container
from paddock.plan.plan import Container, Plan
from paddock.policy.model import (
    Access,
    Action,
    Environment,
    Filesystem,
    Limit,
    Network,
    Policy,
    Rule,
    Setting,
    Sourced,
    Switch,
    Workspace,
)

from .plan_inputs import FULL, HOST, builtin, builtin_grant, deny, grant, source
from .test_id_maps import ALONE, GIVEN

NO_FILES = Filesystem()
SCHEMA = Path(__file__).parents[3] / "schema"
ROOT = replace(FULL, uid=0, user="root", home="/root", cwd="/root")


def asked(**settings: Any) -> tuple[Setting, ...]:
    given = {"rootdir": "/srv/jail", "username": "web", **settings}
    return tuple(
        Setting(key=key.replace("_", "-"), value=value, source=source(number))
        for number, (key, value) in enumerate(given.items(), start=1)
        if value is not None
    )


def policy(
    filesystem: Filesystem = NO_FILES, *, settings: dict[str, Any] | None = None, **more: Any
) -> Policy:
    return Policy(
        profiles=("web",), filesystem=filesystem, container=asked(**(settings or {})), **more
    )


def compiled(
    filesystem: Filesystem = NO_FILES, *, settings: dict[str, Any] | None = None, **more: Any
) -> Plan:
    return compile_container(policy(filesystem, settings=settings, **more), ROOT, ALONE)


def container(**settings: Any) -> Container:
    found = compiled(settings=settings).container
    assert found is not None
    return found


def test_container_plan_fits_the_schema() -> None:
    schema = json.loads((SCHEMA / "plan.schema.json").read_text())
    jsonschema.validate(
        json.loads((SCHEMA / "examples" / "plan-container.json").read_text()), schema
    )
    grants = Filesystem(grants=(grant(Access.READ, "/usr/**"),))
    for host, accounts in ((ROOT, ALONE), (FULL, ALONE), (FULL, GIVEN)):
        plan = compile_container(policy(grants), host, accounts)
        jsonschema.validate(json.loads(plan.canonical()), schema)


def test_the_user_comes_from_the_name_and_the_numbers_go_on_top() -> None:
    """C-142, C-143"""
    assert (container().uid, container().gid) == (33, 34)
    found = container(uid=0, gid=7)
    assert (found.uid, found.gid) == (0, 7)


@pytest.mark.parametrize("key", ["rootdir"])
def test_a_container_needs_its_required_keys(key: str) -> None:
    """C-141"""
    with pytest.raises(PolicyError, match=f"a container needs a {key}"):
        compiled(settings={key: None})


def test_without_grants_there_is_no_landlock_and_with_them_nothing_else_is_open() -> None:
    """C-139"""
    assert compiled().files is None
    assert compiled().landlock is None
    plan = compiled(Filesystem(grants=(grant(Access.READ, "/opt/**"),)))
    assert plan.files
    assert plan.landlock
    found = {one.path: one for one in plan.files.grants}
    assert found["/opt"].access == "read"
    assert not found["/opt"].optional
    assert found["/usr"].optional, "not every container has one"
    assert found["/dev"].access == "device"
    assert "/dev/null" not in found
    assert (plan.files.closed, plan.files.deny, plan.files.protect) == ((), (), ())


def test_grants_of_built_in_profiles_are_optional_in_a_container() -> None:
    plan = compiled(
        Filesystem(grants=(builtin_grant(Access.READ, "/etc/**"), grant(Access.READ, "/opt")))
    )
    assert plan.files
    assert {one.path for one in plan.files.grants if not one.optional} == {
        "/opt",
        "/dev",
        "/dev/shm",
    }


def test_denies_of_a_person_are_masks_and_those_of_the_built_in_profiles_are_about_a_home() -> None:
    """C-152"""
    denies = (
        deny("/etc/secret/**"),
        builtin("/root/.ssh/**", optional=False),
        builtin("**/.env", optional=True),
    )
    plan = compiled(
        Filesystem(denies=denies), settings={"mount_mask": ("/proc/cpuinfo", "/etc/secret")}
    )
    assert plan.container
    assert [(mask.path, mask.optional) for mask in plan.container.masks] == [
        ("/etc/secret", False),
        ("/proc/cpuinfo", False),
    ]


UNHELD: list[tuple[dict[str, Any], str]] = [
    ({"filesystem": Filesystem(denies=(deny("**/.env"),))}, "deny .*pattern of names"),
    (
        {"filesystem": Filesystem(workspace=Sourced(Workspace.COW, source(3)))},
        "filesystem.workspace",
    ),
    ({"network": Network()}, "network"),
    (
        {"rules": (Rule(id="r", action=Action.DENY, matches=(), reason=None, source=source(3)),)},
        "rule",
    ),
    ({"limits": (Limit(name="tmp_mb", value=1, source=source(3)),)}, "limits.tmp_mb"),
]


@pytest.mark.parametrize(("part", "named"), UNHELD, ids=[named for _, named in UNHELD])
def test_a_key_that_a_container_does_not_enforce_is_refused_by_name(
    part: dict[str, Any], named: str
) -> None:
    with pytest.raises(PolicyError, match=f"a container does not enforce {named}.*"):
        compiled(**part)


def test_the_network_is_its_own_or_one_that_exists() -> None:
    """C-149"""
    assert container().netns is None
    assert container(netns="blue").netns == "/run/netns/blue"
    assert container(netns="/proc/7/ns/net").netns == "/proc/7/ns/net"
    with pytest.raises(PolicyError, match="loopback needs a new network namespace"):
        container(netns="blue", loopback=True)


def test_unix_sockets_are_allowed_unless_a_foreign_namespace_is_joined() -> None:
    for settings, unix in (({}, True), ({"netns": "blue"}, False)):
        plan = compiled(settings=settings)
        assert plan.seccomp
        assert ("unix" in plan.seccomp.sockets) == unix


def test_an_error_names_the_keys_that_need_root() -> None:
    """C-001"""
    with pytest.raises(PolicyError, match=r"p\.toml:3: netns needs root"):
        compile_container(policy(settings={"netns": "blue"}), FULL, ALONE)


def test_paddocks_own_places_are_never_in_a_container() -> None:
    for rootdir in ("/opt", "/opt/paddock/x", "/var/tmp/paddock-audit-0", "/var/tmp"):
        with pytest.raises(PolicyError, match="which Paddock itself needs"):
            container(rootdir=rootdir)


def test_the_environment_is_the_users_not_the_callers() -> None:
    """C-136"""
    plan = compiled(
        env=Environment(
            set=(("USER", Sourced("me", source())), ("T", Sourced("<tmp>/x", source())))
        )
    )
    assert plan.environment
    assert plan.environment.set["HOME"] == "/var/www"
    assert plan.environment.set["USER"] == "me"
    assert plan.environment.set["T"] == "/tmp/x"
    assert "/sbin" in plan.environment.set["PATH"]
    assert compiled(off=(Switch.ENV_SANITIZE,)).environment is None


def test_a_machine_without_namespaces_makes_no_container() -> None:
    with pytest.raises(HostError, match="a container needs namespaces"):
        compile_container(policy(), HOST, ALONE)


def test_undroppable_groups_and_equal_users_are_reported() -> None:
    grouped = replace(ALONE, caller_groups=(4, 27))
    notice_texts = [notice.text for notice in compile_container(policy(), FULL, grouped).notices]
    assert any("the command keeps your groups (4, 27)" in text for text in notice_texts)
    assert not any(
        "your groups" in notice.text
        for notice in compile_container(policy(), ROOT, grouped).notices
    )
    same = compiled(settings={"id_map": "identity"})
    assert any(
        "users in the container have the same ids outside" in notice.text for notice in same.notices
    )


def test_a_limit_that_needs_a_group_is_refused_beside_a_configured_group() -> None:
    groups = {"cgroup": ("/sys/fs/cgroup/a",)}
    with pytest.raises(PolicyError, match=r"limits\.processes would move the command out"):
        compiled(settings=groups, limits=(Limit(name="processes", value=9, source=source(3)),))
    held = compiled(settings=groups, limits=(Limit(name="open_files", value=9, source=source(3)),))
    assert held.limits.open_files == 9
    assert (
        compiled(limits=(Limit(name="processes", value=9, source=source(3)),)).limits.processes == 9
    )


def test_capabilities_and_control_groups_come_as_they_were_written() -> None:
    """C-150, C-151"""
    found = container(
        cap_allow=("CAP_NET_RAW", "CAP_CHOWN"), cgroup=("/sys/fs/cgroup/b", "/sys/fs/cgroup/a")
    )
    assert found.capabilities == ("CAP_CHOWN", "CAP_NET_RAW")
    assert found.cgroups == ("/sys/fs/cgroup/b", "/sys/fs/cgroup/a")
