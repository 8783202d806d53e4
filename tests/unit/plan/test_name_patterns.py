"""Names become patterns that begin at directories of the user's files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.host.grant_targets import Terrain, TrustedPath
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import Files, Level
from paddock.policy.glob import Glob
from paddock.policy.model import Access, Filesystem, Grant, PolicyFile, Sourced
from paddock.policy.protected import protected

from .plan_inputs import FULL, builtin, builtin_grant, deny, files, grant, policy, source

WS = "/home/ada/project"
WORK = grant(Access.ALLOW, f"{WS}/**", workspace=True)
TOOLS = builtin_grant(Access.READ, "/home/ada/.nvm/**")
HOME_NAMES = [name for group in protected().groups for name in group.home]
CACHE = builtin_grant(Access.ALLOW, "/home/ada/.cargo/registry/**")


def laid(asked: Filesystem, terrain: Terrain | None = None, **more: object) -> Files:
    plan = compile_plan(replace(policy(asked), **more), FULL, terrain or Terrain())  # type: ignore[arg-type]
    assert plan.files
    return plan.files


def protects(held: Files, path: str) -> bool:
    """Whether the core would protect the path."""
    matched = any(Glob.parse(pattern).matches(path) for pattern in held.protected)
    return matched and not any(Glob.parse(pattern).matches(path) for pattern in held.excepted)


def warnings(plan: Plan) -> list[str]:
    return [notice.text for notice in plan.notices if notice.level is Level.WARNING]


def test_a_deny_of_a_profile_is_searched_in_projects_and_not_in_tools() -> None:
    env = builtin("**/.env", optional=True)
    asked = files(
        WORK,
        TOOLS,
        grant(Access.READ, "/srv/app/**"),
        grant(Access.READ, "/etc/ssl/**"),
        denies=(env,),
    )
    assert laid(asked).denied == (f"{WS}/**/.env", "/srv/app/**/.env")


def test_profile_grants_in_the_home_are_searched_except_toolchains_and_caches() -> None:
    read = [
        builtin_grant(Access.READ, f"/home/ada/{name}")
        for name in (".config/nvim/**", ".bashrc", ".pyenv/**")
    ]
    held = laid(files(*read, denies=(builtin("**/.env", optional=True),)))
    assert held.denied == ("/home/ada/.config/nvim/**/.env",)


@pytest.mark.parametrize("tree", ["/opt", "/home/ada/.local/share/pipx"])
def test_installed_programs_are_searched_three_levels_deep(tree: str) -> None:
    held = laid(
        files(builtin_grant(Access.READ, f"{tree}/**"), denies=(builtin("**/.env", optional=True),))
    )
    assert held.denied == (f"{tree}/*/*/.env", f"{tree}/*/.env", f"{tree}/.env")


def test_a_users_deny_is_searched_everywhere() -> None:
    asked = files(WORK, TOOLS, denies=(deny("**/.env"), deny("/srv/*/key")))
    assert laid(asked).deny == ("**/.env", "/srv/*/key")


def test_a_place_behind_a_link_counts_by_both_its_names() -> None:
    asked = files(
        grant(Access.ALLOW, "/home/ada/link/**"), denies=(builtin("**/.env", optional=True),)
    )
    held = laid(asked, Terrain(resolved_paths={"/home/ada/link": "/data/real"}))
    assert held.denied == ("/data/real/**/.env", "/home/ada/link/**/.env")
    for top in ("/home/ada/link", "/data/real"):
        assert protects(held, f"{top}/a/.vscode")
        assert protects(held, f"{top}/.bashrc")


@pytest.mark.parametrize(
    "path", [".vscode", "a/b/c/.envrc", ".git/hooks", "sub/.git/config", "x/.mcp.json", ".zshrc"]
)
def test_a_protected_name_in_the_workspace_is_protected(path: str) -> None:
    assert protects(laid(files(WORK)), f"{WS}/{path}")


@pytest.mark.parametrize(
    "path", ["src/main.py", ".git/index", "a/.bashrc", "bin/run", ".claude/worktrees", ".local/bin"]
)
def test_ordinary_workspace_files_are_not_protected(path: str) -> None:
    assert not protects(laid(files(WORK)), f"{WS}/{path}")


def test_where_nothing_can_be_written_nothing_has_to_be_protected() -> None:
    held = laid(files(grant(Access.READ, "/srv/**")))
    assert (held.protect, held.opened) == ((), ())


def test_in_the_caches_of_tools_only_git_matters() -> None:
    held = laid(files(WORK, CACHE))
    cache = "/home/ada/.cargo/registry/src/crate"
    assert protects(held, f"{cache}/.git/hooks")
    assert not protects(held, f"{cache}/.github/workflows")
    assert not protects(held, f"{cache}/.cargo/config.toml")


def test_packages_may_bring_their_files_along_but_no_repository() -> None:
    held = laid(files(WORK))
    package = f"{WS}/node_modules/left-pad"
    for name in (".travis.yml", ".github/workflows", ".vscode", ".npmrc"):
        assert not protects(held, f"{package}/{name}")
        assert protects(held, f"{WS}/packages/left-pad/{name}")
    assert protects(held, f"{package}/.git/config")
    assert protects(held, f"{package}/.envrc")


def test_a_workspace_inside_a_package_is_a_workspace() -> None:
    inside = grant(Access.ALLOW, "/home/ada/x/node_modules/left-pad/**", workspace=True)
    assert protects(laid(files(inside)), "/home/ada/x/node_modules/left-pad/.vscode")


def test_protected_names_of_the_home_are_in_the_plan_also_without_a_write_grant() -> None:
    """A link among these files may lead to a writable file. The core follows it."""
    assert protects(laid(files(WORK)), "/home/ada/.bashrc")
    held = laid(files(grant(Access.ALLOW, "/home/ada/**")))
    for path in (
        ".bashrc",
        ".local/bin",
        "bin",
        ".config/systemd/user",
        ".zcompdump-x",
        ".config/nvim",
    ):
        assert protects(held, f"/home/ada/{path}"), path
    part = laid(files(grant(Access.ALLOW, "/home/ada/.config/**")))
    assert protects(part, "/home/ada/.config/autostart")
    assert protects(part, "/home/ada/.config/git")
    part = laid(files(grant(Access.ALLOW, "/home/ada/.config/nvim/lua/**")))
    assert not protects(part, "/home/ada/.config/nvim"), "a part of it was granted"


@pytest.mark.parametrize(
    "part", sorted({name.rpartition("/")[0] for name in HOME_NAMES if "/" in name})
)
def test_a_name_of_the_home_is_protected_wherever_the_workspace_begins(part: str) -> None:
    tree = f"/home/ada/{part}"
    held = laid(files(grant(Access.ALLOW, f"{tree}/**", workspace=True)))
    inside = [name for name in HOME_NAMES if name.startswith(f"{part}/")]
    assert inside
    for name in inside:
        assert protects(held, f"/home/ada/{name}".replace("*", "x")), name
    assert not protects(held, f"{tree}/nothing"), "the control"


def test_a_grant_inside_a_protected_place_opens_only_itself_where_more_can_be_written() -> None:
    config, lua = (
        grant(Access.ALLOW, "/home/ada/.config/**"),
        grant(Access.ALLOW, "/home/ada/.config/nvim/lua/**"),
    )
    held = laid(files(config, lua))
    assert protects(held, "/home/ada/.config/nvim")
    assert "/home/ada/.config/nvim/lua" in held.excepted
    itself = laid(files(config, grant(Access.ALLOW, "/home/ada/.config/nvim/**")))
    assert not protects(itself, "/home/ada/.config/nvim"), "a person's word"


def test_a_workspace_of_settings_gives_a_warning() -> None:
    plan = compile_plan(
        policy(files(grant(Access.ALLOW, "/home/ada/.config/**", workspace=True))), FULL
    )
    output = (
        "/home/ada/.config is writable: known names in it stay read-only, but programs may "
        "run other names in it"
    )
    assert output in warnings(plan)


def test_an_agent_that_is_given_its_own_directory_keeps_its_sessions_and_not_its_settings() -> None:
    held = laid(
        files(
            WORK,
            grant(Access.ALLOW, "/home/ada/.codex/**"),
            grant(Access.ALLOW, "/home/ada/.claude/**"),
        )
    )
    for path in (
        ".codex/sessions/1",
        ".codex/auth.json",
        ".claude/projects",
        ".claude/history.jsonl",
        ".codex",
    ):
        assert not protects(held, f"/home/ada/{path}"), path
    for path in (
        ".codex/config.toml",
        ".codex/AGENTS.md",
        ".claude/settings.json",
        ".claude/hooks",
    ):
        assert protects(held, f"/home/ada/{path}"), path
    assert protects(held, f"{WS}/.codex")
    assert protects(held, f"{WS}/.claude/settings.json")


def test_a_grant_of_a_protected_path_opens_it_with_a_notice() -> None:
    plan = compile_plan(policy(files(WORK, grant(Access.ALLOW, "/home/ada/.local/bin/**"))), FULL)
    assert warnings(plan) == [
        (
            "/home/ada/.local/bin is writable, although it is a protected directory: the shell "
            "searches it for commands"
        )
    ]
    assert plan.files
    assert not protects(plan.files, "/home/ada/.local/bin")
    agent = compile_plan(policy(files(WORK, grant(Access.ALLOW, "/home/ada/.codex/**"))), FULL)
    assert warnings(agent) == [], "what matters in it stays read-only"


def test_a_worktree_of_an_agent_is_a_plain_workspace() -> None:
    inside: Grant = grant(Access.ALLOW, f"{WS}/.claude/worktrees/one/**", workspace=True)
    plan = compile_plan(policy(files(inside)), FULL)
    assert warnings(plan) == []


def test_names_of_the_policy_are_protected_at_their_paths_and_below() -> None:
    asked = replace(
        files(WORK),
        protects=tuple(Sourced(one, source(5)) for one in ("**/*.tfvars", f"{WS}/deploy")),
    )
    held = laid(asked)
    assert protects(held, f"{WS}/a/live.tfvars")
    assert protects(held, f"{WS}/deploy")
    assert not protects(held, f"{WS}/a/deploy")


def opening(*patterns: str) -> Filesystem:
    return replace(
        files(WORK), open_protected=tuple(Sourced(pattern, source(5)) for pattern in patterns)
    )


def test_a_name_opened_by_a_policy_is_reported_with_the_reason() -> None:
    asked = opening("**/.github/workflows/**", f"{WS}/.vscode")
    held = laid(asked)
    assert not protects(held, f"{WS}/.github/workflows")
    assert not protects(held, f"{WS}/.vscode")
    assert protects(held, f"{WS}/sub/.vscode")
    assert protects(held, f"{WS}/.github/actions")
    assert warnings(compile_plan(policy(asked), FULL)) == [
        (
            "p.toml:5: **/.github/workflows/** is writable: a server runs it with secrets after "
            "the next push"
        ),
        (f"p.toml:5: {WS}/.vscode is writable: an editor runs it when a person opens the project"),
    ]


def test_a_deny_of_the_profiles_is_opened_by_the_same_key_and_a_persons_is_not() -> None:
    ours = replace(
        opening("**/.env"),
        denies=(builtin("**/.env", optional=True), builtin("**/id_rsa", optional=True)),
    )
    assert laid(ours).denied == (f"{WS}/**/id_rsa",)
    assert warnings(compile_plan(policy(ours), FULL)) == [
        "p.toml:5: **/.env is no longer denied, although it may contain secrets"
    ]
    theirs = replace(opening("**/.env"), denies=(deny("**/.env", optional=True),))
    assert laid(theirs).deny == ("**/.env",)


def test_git_files_and_policies_are_protected_by_their_paths() -> None:
    place = TrustedPath(path=f"{WS}/node_modules/x/.husky", why="git obeys it")
    policy_file = PolicyFile(path=f"{WS}/conf/agent.toml", sha256="")
    elsewhere = PolicyFile(path="/etc/agent.toml", sha256="")
    held = laid(files(WORK), Terrain(trusted=(place,)), files=(policy_file, elsewhere))
    assert protects(held, place.path), "though packages may bring such a name along"
    assert protects(held, policy_file.path)
    assert elsewhere.path not in held.protected


def test_a_relative_path_of_the_persons_git_is_protected_in_every_directory() -> None:
    held = laid(files(WORK), Terrain(trusted_anywhere=frozenset({"tools/hooks"})))
    for directory in ("", "/nested", "/a/b"):
        assert protects(held, f"{WS}{directory}/tools/hooks")
    assert not protects(held, f"{WS}/tools/other")


def test_a_grant_of_everything_is_searched_except_system_directories() -> None:
    held = laid(files(grant(Access.ALLOW, "/**"), denies=(builtin("**/.env", optional=True),)))
    assert held.denied == ("**/.env",), (
        "a pattern without a beginning leaves the system's own trees out"
    )
    assert protects(held, "/srv/a/.vscode")


def test_a_plan_stays_small() -> None:
    plan = compile_plan(policy(files(WORK)), FULL)
    assert len(plan.canonical()) < 64 * 1024
