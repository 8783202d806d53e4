"""What is chosen, and what the command line adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError, UsageError
from paddock.policy import GrantFlag, Request, load
from paddock.policy.model import Access, Switch, Tier, Widen, Workspace
from paddock.policy.render import to_toml
from tests.unit.policy.world import World, patterns


def grant(access: Access, pattern: str, flag: str = "--allow") -> GrantFlag:
    return GrantFlag(access=access, pattern=pattern, flag=flag)


def test_default_request_loads_ai_agent(world: World) -> None:
    """C-007."""
    assert world.load(Request(command="claude")) == world.load(Request(profiles=("ai-agent",)))


def test_paths_or_blocks_alone_stand_on_the_floor(world: World) -> None:
    """C-015: no profile named means only what is named."""
    policy = world.load(Request(grants=(grant(Access.READ, "/usr", "--ro"),)))
    assert (policy.profiles, patterns(policy)) == (("base",), ["/usr"])
    assert world.load(Request(blocks=("mkdir",))).profiles == ("base",)


def test_a_deny_alone_narrows_the_default(world: World) -> None:
    policy = world.load(Request(denies=("**/.env",)))
    assert policy.profiles[0] == "ai-agent"
    assert policy.filesystem.denies[-1].pattern == "**/.env"


def test_other_flags_alone_keep_the_default(world: World) -> None:
    assert world.load(Request(env_pass=("X",), off=(Switch.AUDIT,))).profiles[0] == "ai-agent"


def test_flags_add_to_a_named_profile(world: World) -> None:
    plain = world.load(Request(profiles=("strict",)))
    more = world.load(
        Request(profiles=("strict",), grants=(grant(Access.READ, "/srv/x"),), blocks=("mkdir",))
    )
    assert patterns(more) == [*patterns(plain), "/srv/x"]
    assert [c.value for c in more.syscalls.block] == [
        *(c.value for c in plain.syscalls.block),
        "mkdir",
    ]


def test_profiles_come_before_policies_before_flags(world: World) -> None:
    path = world.file("p.conf", "inherit base\nworkdir /file\n")
    world.user("mine.conf", "inherit base\nworkdir /profile\n")
    both = Request(profiles=("mine",), policies=(str(path),))
    policy = world.load(both)
    assert policy.workdir is not None
    assert policy.workdir.value == "/file"
    policy = world.load(Request(profiles=("mine",), policies=(str(path),), workdir="/flag"))
    assert policy.workdir is not None
    assert (policy.workdir.value, str(policy.workdir.source)) == ("/flag", "--workdir")


def test_every_grant_names_its_flag(world: World) -> None:
    flags = [
        (Access.READ, "-r"),
        (Access.WRITE, "--write"),
        (Access.ALLOW, "--rw"),
        (Access.EXEC, "-x"),
    ]
    policy = world.load(
        Request(grants=tuple(grant(access, f"/g/{flag}", flag) for access, flag in flags))
    )
    assert [(g.access, str(g.source)) for g in policy.filesystem.grants] == flags


def test_at_the_prompt_a_relative_path_means_the_current_directory(world: World) -> None:
    wanted = tuple(
        grant(Access.ALLOW, pattern)
        for pattern in (".", "./a", "b/*", "c?", "~/d", "<cwd>/**", "$HOME/e")
    )
    policy = world.load(Request(grants=wanted))
    work, home = world.work, world.home
    expected = [
        f"{work}",
        f"{work}/a",
        f"{work}/b/*",
        f"{work}/c",
        f"{home}/d",
        f"{work}/**",
        f"{home}/e",
    ]
    assert patterns(policy) == expected
    assert [g.optional for g in policy.filesystem.grants].index(True) == 3
    assert [g.workspace for g in policy.filesystem.grants].index(True) == 5


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (Request(grants=(grant(Access.READ, "../x", "--read"),)), "--read"),
        (Request(grants=(grant(Access.READ, "", "--read"),)), "--read"),
        (Request(grants=(grant(Access.READ, "/*", "-r"),)), "-r"),
        (Request(open_protected=("**/*",)), "--open-protected"),
        (Request(denies=("/a/../b",)), "--deny"),
        (Request(blocks=("nosuch",)), "--block"),
        (Request(workdir="/a/*"), "--workdir"),
        (Request(audit_dir="/a/**"), "--audit-log"),
        (Request(env_set=(("A B", "x"),)), "--env"),
        (Request(env_set=(("A", "x\0"),)), "--env"),
        (Request(profiles=("nosuch",)), "--profile"),
        (Request(policies=("nosuch.toml",)), "--policy"),
    ],
)
def test_a_wrong_flag_is_an_error_with_its_name(
    world: World, request_: Request, where: str
) -> None:
    error = world.refuse_request(request_)
    assert error.message.startswith(f"{where}: ")
    assert error.exit_code == 125


def test_names_that_are_not_utf8_go_through(world: World) -> None:
    policy = world.load(Request(grants=(grant(Access.READ, "/srv/\udcff\udc80"),)))
    assert patterns(policy) == ["/srv/\udcff\udc80"]


def test_the_other_flags_reach_the_policy(world: World) -> None:
    policy = world.load(
        Request(
            env_set=(("A", "$x <tmp>"),),
            off=(Switch.SECCOMP, Switch.SECCOMP),
            audit=True,
            audit_stderr=True,
            audit_dir="j.jsonl",
            strict_globs=True,
        )
    )
    assert dict(policy.env.set)["A"].value == "$x <tmp>"
    assert policy.off == (Switch.SECCOMP,)
    assert policy.audit.enabled is not None
    assert policy.audit.stderr
    assert policy.audit.dir is not None
    assert policy.audit.dir.value == f"{world.work}/j.jsonl"
    assert policy.filesystem.widen is not None
    assert policy.filesystem.widen.value is Widen.NEVER


def test_the_tier_the_copy_and_what_is_opened_reach_the_policy(world: World) -> None:
    policy = world.load(
        Request(tier=Tier.LANDLOCK, cow=True, open_protected=(".vscode", "**/.husky/**"))
    )
    assert policy.tier is Tier.LANDLOCK
    assert policy.filesystem.workspace
    assert (policy.filesystem.workspace.value, str(policy.filesystem.workspace.source)) == (
        Workspace.COW,
        "--cow",
    )
    assert [one.value for one in policy.filesystem.open_protected] == [
        f"{world.work}/.vscode",
        "**/.husky/**",
    ]


def test_going_on_with_a_session_is_copy_on_write(world: World) -> None:
    policy = world.load(Request(resume="9f86d081884c7d65"))
    assert policy.resume == "9f86d081884c7d65"
    assert policy.filesystem.workspace
    assert policy.filesystem.workspace.value is Workspace.COW


@pytest.mark.parametrize("name", ["", "../x", "9f86/..", "ABC", "x"])
def test_a_session_has_a_plain_name(world: World, name: str) -> None:
    with pytest.raises(UsageError, match="--resume"):
        world.load(Request(resume=name))


def test_no_file_names_a_tier(world: World) -> None:
    assert "unknown key" in world.refuse('[meta]\ntier = "landlock"\n').message


def test_audit_on_and_off_at_once_is_a_contradiction(world: World) -> None:
    with pytest.raises(UsageError, match="contradict"):
        world.load(Request(audit=True, off=(Switch.AUDIT,)))


def test_only_a_named_workspace_is_the_workspace(world: World) -> None:
    policy = world.load(
        Request(
            grants=tuple(
                grant(Access.ALLOW, p)
                for p in ("<cwd>", "<cwd>/", "<cwd>/**", "<cwd>/a", str(world.work))
            )
        )
    )
    assert [(g.pattern, g.workspace) for g in policy.filesystem.grants] == [
        (str(world.work), True),
        (f"{world.work}/**", True),
        (f"{world.work}/a", False),
        (str(world.work), False),
    ]


def test_a_call_that_kernels_dropped_is_named_with_a_note(world: World) -> None:
    """C-044."""
    policy = world.load_text("block lookup_dcookie\nblock ptrace\n", "p.conf")
    assert any(
        note.endswith("p.conf:1: Linux dropped lookup_dcookie in 6.7, so this line has no effect")
        for note in policy.notes
    )


def test_the_same_policy_loads_to_the_same_value(world: World) -> None:
    assert world.load() == world.load()


def test_a_workspace_inside_a_strange_name_is_one_path(world: World) -> None:
    odd = "/srv/a b/[x]{y}/$z\n'\"#"
    policy = load(Request(profiles=("ai-agent",)), replace(world.origin, cwd=odd))
    assert policy.filesystem.grants[0].pattern == f"{odd}/**"
    assert to_toml(policy)


def test_the_root_directory_is_no_workspace(world: World) -> None:
    with pytest.raises(PolicyError) as caught:
        load(Request(), replace(world.origin, cwd="/"))
    assert caught.value.hint == "start paddock in a project directory"
