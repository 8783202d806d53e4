"""The profiles that a request loads, and the additions of the command line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError, UsageError
from paddock.policy import GrantFlag, Request, load
from paddock.policy.model import Access, Switch, Tier, Widen, Workspace
from paddock.policy.render import to_toml
from tests.unit.policy.user_dirs import UserDirs, patterns


def grant(access: Access, pattern: str, flag: str = "--allow") -> GrantFlag:
    return GrantFlag(access=access, pattern=pattern, flag=flag)


def test_default_request_loads_ai_agent(dirs: UserDirs) -> None:
    """C-007."""
    assert dirs.load(Request(command="claude")) == dirs.load(Request(profiles=("ai-agent",)))


def test_only_grants_the_named_paths_alone(dirs: UserDirs) -> None:
    """C-015: --only starts without the default profile and without the file of the project."""
    dirs.write(dirs.work / "paddock.toml", "[filesystem]\nallow_globs = ['/srv/**']\n")
    policy = dirs.load(Request(only=True, grants=(grant(Access.READ, "/usr", "--ro"),)))
    assert (policy.profiles, patterns(policy)) == (("base",), ["/usr"])


def test_paths_and_blocks_add_to_the_default_profile(dirs: UserDirs) -> None:
    """C-015."""
    plain = dirs.load(Request())
    more = dirs.load(Request(grants=(grant(Access.READ, "/srv/x", "--ro"),), blocks=("mkdir",)))
    assert more.profiles == plain.profiles
    assert patterns(more) == [*patterns(plain), "/srv/x"]
    assert more.syscalls.block[-1].value == "mkdir"


def test_a_deny_alone_narrows_the_default(dirs: UserDirs) -> None:
    policy = dirs.load(Request(denies=("**/.env",)))
    assert policy.profiles[0] == "ai-agent"
    assert policy.filesystem.denies[-1].pattern == "**/.env"


def test_other_flags_alone_keep_the_default(dirs: UserDirs) -> None:
    assert dirs.load(Request(env_pass=("X",), off=(Switch.AUDIT,))).profiles[0] == "ai-agent"


def test_flags_add_to_a_named_profile(dirs: UserDirs) -> None:
    plain = dirs.load(Request(profiles=("strict",)))
    more = dirs.load(
        Request(profiles=("strict",), grants=(grant(Access.READ, "/srv/x"),), blocks=("mkdir",))
    )
    assert patterns(more) == [*patterns(plain), "/srv/x"]
    assert [c.value for c in more.syscalls.block] == [
        *(c.value for c in plain.syscalls.block),
        "mkdir",
    ]


def test_profiles_come_before_policies_before_flags(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "inherit base\nworkdir /file\n")
    dirs.user("mine.conf", "inherit base\nworkdir /profile\n")
    both = Request(profiles=("mine",), policies=(str(path),))
    policy = dirs.load(both)
    assert policy.workdir is not None
    assert policy.workdir.value == "/file"
    policy = dirs.load(Request(profiles=("mine",), policies=(str(path),), workdir="/flag"))
    assert policy.workdir is not None
    assert (policy.workdir.value, str(policy.workdir.source)) == ("/flag", "--workdir")


def test_every_grant_names_its_flag(dirs: UserDirs) -> None:
    flags = [
        (Access.READ, "-r"),
        (Access.WRITE, "--write"),
        (Access.ALLOW, "--rw"),
        (Access.EXEC, "-x"),
    ]
    policy = dirs.load(
        Request(
            only=True, grants=tuple(grant(access, f"/g/{flag}", flag) for access, flag in flags)
        )
    )
    assert [(g.access, str(g.source)) for g in policy.filesystem.grants] == flags


def test_at_the_prompt_a_relative_path_means_the_current_directory(dirs: UserDirs) -> None:
    wanted = tuple(
        grant(Access.ALLOW, pattern)
        for pattern in (".", "./a", "b/*", "c?", "~/d", "<cwd>/**", "$HOME/e")
    )
    policy = dirs.load(Request(only=True, grants=wanted))
    work, home = dirs.work, dirs.home
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
        (Request(policies=("nosuch.toml",)), "nosuch.toml"),
    ],
)
def test_a_wrong_flag_is_an_error_with_its_name(
    dirs: UserDirs, request_: Request, where: str
) -> None:
    error = dirs.refuse_request(request_)
    assert error.message.startswith(f"{where}: ")
    assert error.exit_code == 125


def test_names_that_are_not_utf8_go_through(dirs: UserDirs) -> None:
    policy = dirs.load(Request(only=True, grants=(grant(Access.READ, "/srv/\udcff\udc80"),)))
    assert patterns(policy) == ["/srv/\udcff\udc80"]


def test_the_other_flags_reach_the_policy(dirs: UserDirs) -> None:
    policy = dirs.load(
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
    assert policy.audit.dir.value == f"{dirs.work}/j.jsonl"
    assert policy.filesystem.widen is not None
    assert policy.filesystem.widen.value is Widen.NEVER


def test_the_tier_the_copy_and_what_is_opened_reach_the_policy(dirs: UserDirs) -> None:
    policy = dirs.load(
        Request(tier=Tier.LANDLOCK, cow=True, open_protected=(".vscode", "**/.husky/**"))
    )
    assert policy.tier is Tier.LANDLOCK
    assert policy.filesystem.workspace
    assert (policy.filesystem.workspace.value, str(policy.filesystem.workspace.source)) == (
        Workspace.COW,
        "--cow",
    )
    assert [one.value for one in policy.filesystem.open_protected] == [
        f"{dirs.work}/.vscode",
        "**/.husky/**",
    ]


def test_going_on_with_a_session_is_copy_on_write(dirs: UserDirs) -> None:
    policy = dirs.load(Request(resume="9f86d081884c7d65"))
    assert policy.resume == "9f86d081884c7d65"
    assert policy.filesystem.workspace
    assert policy.filesystem.workspace.value is Workspace.COW


@pytest.mark.parametrize("name", ["", "../x", "9f86/..", "ABC", "x"])
def test_a_session_has_a_plain_name(dirs: UserDirs, name: str) -> None:
    with pytest.raises(UsageError, match="--resume"):
        dirs.load(Request(resume=name))


def test_no_file_names_a_tier(dirs: UserDirs) -> None:
    assert "unknown key" in dirs.refuse('[meta]\ntier = "landlock"\n').message


def test_audit_on_and_off_at_once_is_a_contradiction(dirs: UserDirs) -> None:
    with pytest.raises(UsageError, match="contradict"):
        dirs.load(Request(audit=True, off=(Switch.AUDIT,)))


def test_only_a_named_workspace_is_the_workspace(dirs: UserDirs) -> None:
    policy = dirs.load(
        Request(
            only=True,
            grants=tuple(
                grant(Access.ALLOW, p)
                for p in ("<cwd>", "<cwd>/", "<cwd>/**", "<cwd>/a", str(dirs.work))
            ),
        )
    )
    assert [(g.pattern, g.workspace) for g in policy.filesystem.grants] == [
        (str(dirs.work), True),
        (f"{dirs.work}/**", True),
        (f"{dirs.work}/a", False),
        (str(dirs.work), False),
    ]


def test_a_call_that_kernels_dropped_is_named_with_a_note(dirs: UserDirs) -> None:
    """C-044."""
    policy = dirs.load_text("block lookup_dcookie\nblock ptrace\n", "p.conf")
    assert any(
        note.endswith("p.conf:1: Linux dropped lookup_dcookie in 6.7, so this line has no effect")
        for note in policy.notes
    )


def test_the_same_policy_loads_to_the_same_value(dirs: UserDirs) -> None:
    assert dirs.load() == dirs.load()


def test_a_workspace_inside_a_strange_name_is_one_path(dirs: UserDirs) -> None:
    odd = "/srv/a b/[x]{y}/$z\n'\"#"
    policy = load(Request(profiles=("ai-agent",)), replace(dirs.origin, cwd=odd))
    assert policy.filesystem.grants[0].pattern == f"{odd}/**"
    assert to_toml(policy)


def test_the_root_directory_is_no_workspace(dirs: UserDirs) -> None:
    with pytest.raises(PolicyError) as caught:
        load(Request(), replace(dirs.origin, cwd="/"))
    assert caught.value.hint == "start paddock in a project directory"


def test_the_log_level_debug_prints_events(dirs: UserDirs) -> None:
    """F-028."""
    assert not dirs.load().audit.stderr
    dirs.environ["PADDOCK_LOG"] = "info"
    assert not dirs.load().audit.stderr
    dirs.environ["PADDOCK_LOG"] = "debug"
    assert dirs.load().audit.stderr
    with pytest.raises(UsageError, match="PADDOCK_LOG=debug and --off audit"):
        dirs.load(Request(off=(Switch.AUDIT,)))
    dirs.environ["PADDOCK_LOG"] = "verbose"
    with pytest.raises(UsageError, match="not a level"):
        dirs.load()
