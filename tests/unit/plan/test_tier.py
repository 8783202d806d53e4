"""The choice of the tier, and the features that each tier needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host, Usable
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import Level
from paddock.policy.model import (
    Access,
    Environment,
    Limit,
    Sourced,
    Switch,
    Syscalls,
    Tier,
    Workspace,
)

from .plan_inputs import FULL, HOST, builtin, deny, files, grant, policy, source

WORK = grant(Access.ALLOW, "/home/ada/project/**", workspace=True)
SIMPLE = policy(files(grant(Access.READ, "/usr/**"), grant(Access.ALLOW, "<tmp>/**"), WORK))


def notice_texts(plan: Plan, level: Level) -> list[str]:
    return [notice.text for notice in plan.notices if notice.level is level]


def test_strongest_available_tier_is_chosen() -> None:
    assert compile_plan(SIMPLE, FULL).tier is Tier.FULL
    assert compile_plan(SIMPLE, HOST).tier is Tier.LANDLOCK


def test_a_person_may_name_a_weaker_one() -> None:
    plan = compile_plan(replace(SIMPLE, tier=Tier.LANDLOCK), FULL)
    assert (plan.tier, plan.namespaces) == (Tier.LANDLOCK, None)
    assert plan == compile_plan(SIMPLE, HOST)


def test_a_tier_that_cannot_be_had_is_an_error_with_the_step_that_failed() -> None:
    with pytest.raises(HostError, match=r"--tier full needs .*\(user namespace: EPERM\)"):
        compile_plan(replace(SIMPLE, tier=Tier.FULL), HOST)


def test_without_a_file_layer_there_is_no_full_tier() -> None:
    open_ = replace(SIMPLE, off=(Switch.LANDLOCK,))
    plan = compile_plan(open_, FULL)
    assert (plan.tier, plan.files, plan.landlock, plan.namespaces) == (
        Tier.LANDLOCK,
        None,
        None,
        None,
    )
    with pytest.raises(PolicyError, match="--tier full"):
        compile_plan(replace(open_, tier=Tier.FULL), FULL)


def test_the_start_line_names_the_tier_and_what_it_does_not_hold() -> None:
    line = compile_plan(SIMPLE, HOST).notices[0].text
    assert "landlock tier" in line
    assert "not enforced" not in line
    open_ = compile_plan(replace(SIMPLE, off=(Switch.SECCOMP,)), HOST)
    assert open_.files
    assert (open_.files.protect, open_.files.opened) == ((), ())
    assert "not enforced in this tier: names that programs outside run later (.git/hooks" in (
        open_.notices[0].text
    )
    full = compile_plan(SIMPLE, FULL).notices[0].text
    assert "full tier, files restricted (mounts, Landlock ABI 7)" in full
    assert "not enforced" not in full


@pytest.mark.parametrize(("host", "names"), [(HOST, "names"), (FULL, "new names")])
def test_a_run_whose_writes_are_not_judged_says_so(host: Host, names: str) -> None:
    judged = compile_plan(SIMPLE, host)
    assert judged.judges_writes
    assert not [text for text in notice_texts(judged, Level.UNENFORCED) if "judged" in text]
    without_listener = compile_plan(SIMPLE, replace(host, listener=False))
    without_seccomp = compile_plan(replace(SIMPLE, off=(Switch.SECCOMP,)), host)
    for plan in (without_listener, without_seccomp):
        assert not plan.judges_writes
        assert f"not enforced in this tier: {names} that programs outside run later" in (
            plan.notices[0].text
        )
        (told,) = notice_texts(plan, Level.UNENFORCED)
        assert told.startswith(f"writes are not judged: {names} that programs outside run later")
        assert told.endswith("changed files that programs outside run are not listed")


def test_an_optional_deny_is_enforced_or_reported() -> None:
    asked = files(WORK, denies=(deny("**/.env", line=7, optional=True),))
    plan = compile_plan(policy(asked), HOST)
    assert plan.files
    assert plan.files.deny == ("**/.env",), "the core judges writes"
    assert plan.notices[0].text.endswith("; not enforced against reading in this tier: .env")
    assert "p.toml:7: deny **/.env is not enforced against reading in the landlock tier" in (
        notice_texts(plan, Level.INFO)
    )
    held = compile_plan(policy(asked), FULL)
    assert held.files
    assert held.files.deny == ("**/.env",)


def test_the_start_line_names_a_few_denied_names_and_counts_the_others() -> None:
    names = [f"**/secret-{number}" for number in range(7)]
    asked = files(WORK, denies=tuple(deny(name, line=7, optional=True) for name in names))
    assert (
        compile_plan(policy(asked), HOST)
        .notices[0]
        .text.endswith("in this tier: secret-0, secret-1, secret-2, secret-3 and 3 more")
    )


def test_a_deny_that_is_needed_still_stops_the_landlock_tier_also_beside_an_optional_one() -> None:
    asked = files(WORK, denies=(builtin("**/.env", optional=True), deny("**/.env", line=7)))
    with pytest.raises(PolicyError, match=r"p\.toml:7: deny \*\*/\.env cannot be enforced"):
        compile_plan(policy(asked), HOST)
    assert compile_plan(policy(asked), FULL).files


@pytest.mark.parametrize("abi", [0, 1, 3, 5])
def test_mounts_enforce_rules_that_an_older_landlock_lacks(abi: int) -> None:
    plan = compile_plan(SIMPLE, replace(FULL, landlock_abi=abi, landlock_errno=None))
    assert plan.files
    assert (plan.landlock is not None) == (abi >= 2), (
        "with ABI 1 nothing could be moved between directories"
    )
    assert notice_texts(plan, Level.UNENFORCED) == []
    assert plan.seccomp
    assert "unix" not in plan.seccomp.sockets, "abstract sockets outside could be reached"


def test_without_landlock_a_write_only_grant_is_refused() -> None:
    asked = policy(files(grant(Access.WRITE, "/srv/out/**", line=4)))
    with pytest.raises(HostError, match=r"/srv/out/\*\* \(p\.toml:4\) can be read too"):
        compile_plan(asked, replace(FULL, landlock_abi=0))
    assert compile_plan(asked, FULL).landlock


def test_the_temporary_directory_is_slash_tmp_in_the_full_tier() -> None:
    env = Environment(
        set=(("TMPDIR", Sourced("<tmp>", source())), ("X", Sourced("<tmp>/x", source())))
    )
    plan = compile_plan(replace(SIMPLE, env=env), FULL)
    assert plan.temp is None
    assert plan.environment
    assert plan.environment.set == {"TMPDIR": "/tmp", "X": "/tmp/x"}
    assert plan.files
    assert ("/tmp", "allow") in [(one.path, one.access) for one in plan.files.grants]
    without = policy(files(grant(Access.READ, "/usr/**")), env=env)
    with pytest.raises(PolicyError, match="no grant covers <tmp>"):
        compile_plan(without, FULL)


def blocks(*names: str, builtin_: bool) -> tuple[Sourced[str], ...]:
    where = source(file="built-in base") if builtin_ else source()
    return tuple(Sourced(name, where) for name in names)


def blocked(plan: Plan) -> set[str]:
    assert plan.seccomp
    return set(plan.seccomp.syscalls)


def test_ipc_calls_are_let_go_where_there_is_an_ipc_namespace_but_not_what_a_person_blocks() -> (
    None
):
    ours = Syscalls(block=blocks("shmget", "mq_open", "ptrace", builtin_=True))
    assert blocked(compile_plan(replace(SIMPLE, syscalls=ours), FULL)) == {"ptrace"}
    assert blocked(compile_plan(replace(SIMPLE, syscalls=ours), HOST)) == {
        "shmget",
        "mq_open",
        "ptrace",
    }
    theirs = Syscalls(block=(*ours.block, *blocks("shmget", builtin_=False)))
    assert blocked(compile_plan(replace(SIMPLE, syscalls=theirs), FULL)) == {"ptrace", "shmget"}


def test_unix_sockets_lead_nowhere_in_the_full_tier() -> None:
    opened = replace(SIMPLE, syscalls=Syscalls(sockets=(Sourced("unix", source()),)))
    plain, full = compile_plan(SIMPLE, HOST), compile_plan(SIMPLE, FULL)
    assert plain.seccomp
    assert full.seccomp
    assert ("unix" in plain.seccomp.sockets, "unix" in full.seccomp.sockets) == (False, True)
    assert any(
        "unix sockets are allowed" in text
        for text in notice_texts(compile_plan(opened, HOST), Level.WARNING)
    )
    assert notice_texts(compile_plan(opened, FULL), Level.WARNING) == []


@pytest.mark.parametrize("host", [HOST, FULL])
def test_one_switch_allows_nested_namespaces_with_a_notice(host: Host) -> None:
    calls = Syscalls(block=blocks("unshare", "setns", "chroot", "mount", builtin_=True))
    closed = compile_plan(replace(SIMPLE, syscalls=calls), host)
    assert closed.seccomp
    assert closed.seccomp.namespaces is False
    switched = replace(calls, namespaces=Sourced(True, source(5)))
    plan = compile_plan(replace(SIMPLE, syscalls=switched), host)
    assert plan.seccomp
    assert (blocked(plan), plan.seccomp.namespaces) == ({"mount"}, True)
    assert plan.namespaces is None or plan.namespaces.nested
    assert any(
        text.startswith("p.toml:5: the command may create user namespaces")
        for text in notice_texts(plan, Level.WARNING)
    )
    kept = replace(switched, block=(*calls.block, *blocks("unshare", builtin_=False)))
    assert "unshare" in blocked(compile_plan(replace(SIMPLE, syscalls=kept), host))


def limit(name: str, value: int, line: int = 3) -> Limit:
    return Limit(name=name, value=value, source=source(line))


def test_limits_go_into_the_plan_and_the_size_of_tmp_to_the_namespaces() -> None:
    limited = replace(
        SIMPLE, limits=(limit("memory_mb", 4096), limit("wall_s", 60), limit("tmp_mb", 512))
    )
    plan = compile_plan(limited, FULL)
    assert (plan.limits.memory_mb, plan.limits.wall_s, plan.limits.processes) == (4096, 60, None)
    assert plan.namespaces
    assert plan.namespaces.tmp_mb == 512
    assert plan.rlimits == {"core": 1}


def test_an_unenforceable_size_of_tmp_is_refused_with_its_line() -> None:
    limited = replace(SIMPLE, limits=(limit("tmp_mb", 512, line=8),))
    with pytest.raises(HostError, match=r"limits\.tmp_mb \(p\.toml:8\)"):
        compile_plan(limited, HOST)
    relaxed = replace(
        limited, filesystem=replace(SIMPLE.filesystem, require_enforced=Sourced(False, source()))
    )
    assert any(
        "limits.tmp_mb" in text
        for text in notice_texts(compile_plan(relaxed, HOST), Level.UNENFORCED)
    )


COW = replace(
    SIMPLE, filesystem=replace(SIMPLE.filesystem, workspace=Sourced(Workspace.COW, source(6)))
)


def test_a_copy_on_write_workspace_lies_on_the_current_directory() -> None:
    plan = compile_plan(COW, FULL)
    assert plan.workspace
    assert (plan.workspace.path, plan.workspace.resume) == ("/home/ada/project", None)
    assert compile_plan(SIMPLE, FULL).workspace is None
    resumed = compile_plan(replace(COW, resume="9f86d081884c7d65"), FULL)
    assert resumed.workspace
    assert resumed.workspace.resume == "9f86d081884c7d65"
    assert plan.sessions == "/home/ada/.local/state/paddock/sessions"


def test_a_copy_needs_the_full_tier_an_overlay_and_something_to_copy() -> None:
    with pytest.raises(
        PolicyError, match=r"p\.toml:6: a copy-on-write workspace needs the full tier"
    ):
        compile_plan(COW, HOST)
    with pytest.raises(PolicyError, match=r"p\.toml:6: .* overlayfs.*\(EINVAL\)"):
        compile_plan(COW, replace(FULL, overlay=Usable(usable=False, errno="EINVAL")))
    reading = replace(
        COW,
        filesystem=replace(COW.filesystem, grants=(grant(Access.READ, "/home/ada/project/**"),)),
    )
    with pytest.raises(PolicyError, match=r"p\.toml:6: --cow needs a writable workspace"):
        compile_plan(reading, FULL)
