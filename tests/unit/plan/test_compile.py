"""compile(Policy, Host) → Plan: pure, canonical, and without a rule that the kernel does not
enforce.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from paddock.errors import HostError, PolicyError
from paddock.host.facts import Host
from paddock.plan import compile_plan
from paddock.plan.plan import Level
from paddock.policy.model import (
    Access,
    Action,
    Environment,
    Meta,
    Network,
    NetworkMode,
    Setting,
    Sourced,
    Switch,
    Syscalls,
)

from .plan_inputs import FULL, HOST, files, grant, policy, source

SCHEMA = Path(__file__).parents[3] / "schema"
SIMPLE = policy(files(grant(Access.READ, "/usr/**"), grant(Access.ALLOW, "<tmp>/**")))


def test_the_golden_plan_and_a_compiled_one_fit_the_schema() -> None:
    schema = json.loads((SCHEMA / "plan.schema.json").read_text())
    for name in ("plan.json", "plan-landlock.json", "plan-container.json"):
        jsonschema.validate(json.loads((SCHEMA / "examples" / name).read_text()), schema)
    for host in (HOST, FULL):
        jsonschema.validate(json.loads(compile_plan(SIMPLE, host).canonical()), schema)


def test_the_same_policy_and_host_give_the_same_bytes() -> None:
    one, other = compile_plan(SIMPLE, HOST), compile_plan(SIMPLE, HOST)
    assert one.canonical() == other.canonical()
    assert len(one.sha256()) == 64


def test_a_path_that_is_not_utf8_survives_in_ascii() -> None:
    odd = "/srv/caf\udce9"
    plan = compile_plan(policy(files(grant(Access.READ, odd))), HOST)
    assert b"caf\\udce9" in plan.canonical()


@pytest.mark.parametrize(
    ("abi", "right", "kernel"),
    [(1, "refer", "5.19"), (2, "truncate", "6.2"), (4, "ioctl_dev", "6.10"), (5, "signal", "6.12")],
)
def test_an_older_landlock_is_refused_and_the_missing_right_named(
    abi: int, right: str, kernel: str
) -> None:
    """F-107"""
    with pytest.raises(HostError, match=f"lacks .*{right}.*Linux {kernel}"):
        compile_plan(SIMPLE, replace(HOST, landlock_abi=abi))


def test_no_landlock_at_all_is_refused_with_the_kernels_answer() -> None:
    """C-054"""
    with pytest.raises(HostError, match=r"no Landlock \(ENOSYS\)"):
        compile_plan(SIMPLE, replace(HOST, landlock_abi=0, landlock_errno="ENOSYS"))


def test_no_seccomp_is_refused() -> None:
    with pytest.raises(HostError, match="no seccomp"):
        compile_plan(SIMPLE, replace(HOST, seccomp=False))


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        (
            replace(HOST, filtered=True, landlock_abi=0, landlock_errno="EPERM"),
            "--security-opt seccomp=",
        ),
        (replace(HOST, filtered=True, seccomp=False), "--security-opt seccomp="),
        (replace(HOST, filtered=False, landlock_abi=0, landlock_errno="ENOSYS"), "paddock doctor"),
        (
            replace(HOST, filtered=True, landlock_abi=0, landlock_errno="EOPNOTSUPP"),
            "paddock doctor",
        ),
        (replace(HOST, filtered=True, landlock_abi=5), "paddock doctor"),
    ],
)
def test_a_container_is_blamed_only_where_its_filter_can_be_the_reason(
    host: Host, remedy: str
) -> None:
    """F-019"""
    with pytest.raises(HostError) as refusal:
        compile_plan(SIMPLE, host)
    assert refusal.value.hint is not None
    assert remedy in refusal.value.hint


def test_without_require_enforced_a_missing_layer_is_named_and_others_apply() -> None:
    """F-108"""
    relaxed = replace(
        SIMPLE, filesystem=replace(SIMPLE.filesystem, require_enforced=Sourced(False, source()))
    )
    plan = compile_plan(relaxed, replace(HOST, landlock_abi=3))
    assert plan.landlock
    assert plan.landlock.scoped == ()
    assert "ioctl_dev" not in plan.landlock.handled
    unenforced = [notice.text for notice in plan.notices if notice.level is Level.UNENFORCED]
    assert len(unenforced) == 3
    assert any("the command can signal processes outside" in text for text in unenforced)


def test_a_newer_landlock_than_we_know_is_used_as_far_as_we_know_it() -> None:
    plan = compile_plan(SIMPLE, replace(HOST, landlock_abi=99))
    assert plan.landlock
    assert plan.landlock.abi == 7


def test_a_container_key_is_refused_by_run_and_named() -> None:
    """C-153"""
    setting = Setting(key="rootdir", value="/srv/root", source=source(3))
    with pytest.raises(PolicyError, match=r"p\.toml:3: rootdir applies to containers"):
        compile_plan(replace(SIMPLE, container=(setting,)), HOST)


def test_default_values_need_no_enforcement() -> None:
    asked = replace(
        SIMPLE,
        meta=Meta(default_action=Sourced(Action.ALLOW, source())),
        network=Network(mode=Sourced(NetworkMode.HOST, source())),
    )
    plan = compile_plan(asked, HOST)
    assert any("the network is not restricted" in notice.text for notice in plan.notices)


def test_no_new_privs_cannot_be_off_alone() -> None:
    """C-051"""
    with pytest.raises(PolicyError, match="no-new-privs cannot be off while landlock is on"):
        compile_plan(replace(SIMPLE, off=(Switch.NO_NEW_PRIVS,)), HOST)
    with pytest.raises(PolicyError, match="while seccomp is on"):
        compile_plan(replace(SIMPLE, off=(Switch.NO_NEW_PRIVS, Switch.LANDLOCK)), HOST)
    assert (
        compile_plan(
            replace(SIMPLE, off=(Switch.NO_NEW_PRIVS,)), replace(HOST, uid=0, home="/root")
        ).no_new_privs
        is False
    )


def test_each_disabled_layer_is_reported() -> None:
    plan = compile_plan(
        replace(SIMPLE, off=(Switch.LANDLOCK, Switch.SECCOMP, Switch.ENV_SANITIZE, Switch.AUDIT)),
        HOST,
    )
    assert (plan.landlock, plan.seccomp, plan.environment, plan.journal) == (None, None, None, None)
    notice_texts = [notice.text for notice in plan.notices if notice.level is Level.WARNING]
    assert [text.split(" ")[0] for text in notice_texts] == [
        "landlock",
        "seccomp",
        "env-sanitize",
        "audit",
    ]


def test_the_layers_are_independent() -> None:
    """F-161: each of the eight combinations keeps the layers that are on."""
    for landlock in (False, True):
        for seccomp in (False, True):
            for audit in (False, True):
                off = tuple(
                    switch
                    for switch, keep in (
                        (Switch.LANDLOCK, landlock),
                        (Switch.SECCOMP, seccomp),
                        (Switch.AUDIT, audit),
                    )
                    if not keep
                )
                plan = compile_plan(replace(SIMPLE, off=off), HOST)
                assert (
                    plan.landlock is not None,
                    plan.seccomp is not None,
                    plan.journal is not None,
                ) == (
                    landlock,
                    seccomp,
                    audit,
                )


def test_blocking_unshare_closes_namespaces_by_every_call() -> None:
    """C-034"""
    blocked = Syscalls(block=(Sourced("unshare", source()),))
    plan = compile_plan(replace(SIMPLE, syscalls=blocked), HOST)
    assert plan.seccomp
    assert plan.seccomp.namespaces is False
    assert compile_plan(SIMPLE, HOST).seccomp.namespaces is True  # type: ignore[union-attr]


def test_a_policy_lets_debuggers_trace_but_a_call_that_a_person_blocks_stays_blocked() -> None:
    def blocked(file: str, *, trace: bool) -> set[str]:
        calls = tuple(
            Sourced(name, source(file=file)) for name in ("ptrace", "process_vm_readv", "mount")
        )
        syscalls = Syscalls(block=calls, trace=Sourced(trace, source()))
        plan = compile_plan(replace(SIMPLE, syscalls=syscalls), HOST)
        assert plan.seccomp
        return set(plan.seccomp.syscalls)

    assert blocked("built-in base", trace=True) == {"mount"}
    assert blocked("built-in base", trace=False) == {"mount", "ptrace", "process_vm_readv"}
    assert blocked("p.toml", trace=True) == {"mount", "ptrace", "process_vm_readv"}


def test_an_allow_list_loses_what_is_also_blocked() -> None:
    names = tuple(Sourced(name, source()) for name in ("execve", "exit_group", "read"))
    plan = compile_plan(replace(SIMPLE, syscalls=Syscalls(allow=names, block=names[2:])), HOST)
    assert plan.seccomp
    assert (plan.seccomp.default, plan.seccomp.syscalls) == ("deny", ("execve", "exit_group"))


def test_a_variable_in_the_private_temp_needs_the_private_temp() -> None:
    env = Environment(set=(("TMPDIR", Sourced("<tmp>", source(5))),))
    assert compile_plan(replace(SIMPLE, env=env), HOST).environment
    without = policy(files(grant(Access.READ, "/usr/**")), env=env)
    with pytest.raises(PolicyError, match=r"p\.toml:5: env\.set\.TMPDIR"):
        compile_plan(without, HOST)


def test_a_chosen_working_directory_has_to_be_granted() -> None:
    """C-071"""
    assert (
        compile_plan(replace(SIMPLE, workdir=Sourced("/usr/share", source())), HOST).workdir
        == "/usr/share"
    )
    with pytest.raises(PolicyError, match="no grant covers the working directory /srv"):
        compile_plan(replace(SIMPLE, workdir=Sourced("/srv", source())), HOST)


def test_a_journal_file_is_split_from_its_directory() -> None:
    """F-027"""
    from paddock.policy.model import Audit

    plan = compile_plan(
        replace(SIMPLE, audit=Audit(dir=Sourced("/srv/log/a.jsonl", source()))), HOST
    )
    assert plan.journal
    assert (plan.journal.dir, plan.journal.file) == ("/srv/log", "a.jsonl")
