"""The table of protected names: complete, well formed, and not broader than needed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from paddock.policy.git_layout import is_branch
from paddock.policy.glob import Glob
from paddock.policy.protected import TABLE, bears, is_flagged, protected
from tests.unit.policy.user_dirs import words

ANY = [name for group in protected().groups for name in group.any]

# Names that are locked in every directory: one of each row.
LOCKED = words("""
.git/config .git/config.worktree .git/hooks .git/commondir .git/gitdir .git/info/attributes
.git/info/grafts .git/objects/info/alternates .git/modules/sub/config
.git/modules/third/party/lib/hooks .git/modules/a/modules/b/config .git/worktrees/w/commondir
.git/worktrees/w/gitdir .git/worktrees/w/config.worktree .gitmodules .envrc .direnv .autoenv
mise.toml .mise.toml .yarnrc.yml .vscode x.code-workspace .idea .run app.iml .fleet .zed .nova .vs
.helix .theia .nvim.lua .exrc .vimrc .dir-locals.el .devcontainer .devcontainer.json .gitpod.yml
.replit .idx pyrightconfig.json .npmrc .pnpmfile.cjs pnpm-workspace.yaml bunfig.toml
.cargo/config.toml .bazelrc tools/bazel .mvn mvnw gradlew gradle/wrapper gradle.properties
.gradle/init.d .pre-commit-config.yaml lefthook.yml .husky .githooks .lintstagedrc.json .gdbinit
.irbrc .Rprofile .psqlrc .jupyter .ripgreprc .curlrc .netrc .aws .github/workflows .github/actions
.gitlab-ci.yml Jenkinsfile .circleci azure-pipelines.yml .drone.yml .woodpecker.yml .buildkite
.travis.yml .claude/settings.json .claude/hooks .claude/agent-memory .mcp.json mcp.json .mcp .codex
.agents AGENTS.override.md .gemini .github/copilot .github/hooks .github/mcp.json .github/prompts
.cursor .cursorignore opencode.json .opencode .aider.conf.yml .pi .omp .windsurf .cline .roo
.roomodes .kilocode .continue .amp .kiro .qwen .trae .junie .factory .augment .ai .worktreeinclude
paddock.toml lefthook.toml lefthook.jsonc .lefthook.json lefthook-local.yaml .lefthook-local.toml
.config/lefthook.json prek.toml .pre-commit-config.yml hk.pkl .commitlintrc.js commitlint.config.mjs
.config/config.js lint-staged.config.ts .trunk simple-git-hooks.cjs nano-staged.json .huskyrc.js
mise.production.toml mise/config.toml .config/mise.toml .miserc.toml flake.nix shell.nix devenv.nix
hie.yaml .factorypath rust-analyzer.toml .bundle/config .bundle/plugin .lfsconfig .github/lsp.json
.github/skills .github/extensions .amazonq .agent .openhands .vibe .hg/sharedpath
.git/sl/config .git/sl/config-git-repo .git/sl/config-git-user .git/sl/sharedpath
.git/sl/store/gitdir .git/worktrees/w/sl/config .git/modules/sub/sl/config .sl/config .sl/sharedpath
.sl/store/gitdir .jj/repo/store/git_target .forgejo/workflows .forgejo/actions .gitea/workflows
.gitea/actions .gitlab-ci.yaml .gitlab-ci .gitlab/ci Jenkinsfile.release azure-pipelines.yaml
azure-pipelines-1.yml .azure-pipelines .azure-pipelines.yml .vsts-ci.yml .drone.yaml .drone.jsonnet
.drone.star buildkite.yml buildkite.yaml buildkite.json buildkite/pipeline.yaml cloudbuild.yaml
cloudbuild.yml cloudbuild.json .cirrus.yml .cirrus.yaml .cirrus.star .semaphore .teamcity
.teamcity.yml appveyor.yml .appveyor.yml buildspec.yml buildspec.yaml .build.yml .build.yaml .builds
.tekton bitrise.yml codemagic.yaml .autoenv_leave.zsh .env.leave flake.lock devenv.lock
devenv.local.yaml devbox.lock .devbox app.ipr app.iws nbproject .gitpod .gitpod.Dockerfile .ona
devfile.yaml .devfile.yaml conductor.json .conductor/settings.toml .conductor/settings.local.toml
.git/lazygit.yml .git/glab-cli .lazygit.yml .gh-dash.yml .shadowenv.d .reviewboardrc .arcconfig
.pochi firebender.json
""")

# Ordinary files, and files that git, package managers and frameworks write all the time.
FREE = words("""
.git/HEAD .git/index .git/index.lock .git/objects/ab/cdef .git/objects/info/packs
.git/objects/info/commit-graph .git/refs/heads/main .git/refs/heads/config
.git/logs/refs/heads/hooks .git/packed-refs .git/packed-refs.lock .git/COMMIT_EDITMSG
.git/rebase-merge/todo .git/config.lock .git/info/exclude .git/lfs/objects/a .git/modules/sub/HEAD
.git/modules/sub/index .git/worktrees/w/HEAD .git/worktrees/w/index .git/modules .git/worktrees
.gitignore .gitattributes Makefile package.json package-lock.json pyproject.toml setup.py
conftest.py Dockerfile CMakeLists.txt AGENTS.md CLAUDE.md GEMINI.md .eslintrc.json .prettierrc
.editorconfig .python-version .nvmrc .tool-versions config config/app.yml hooks hooks/useThing.ts
bin bin/run src/config.ts node_modules/.bin/tsc .venv/bin/python .pnp.cjs .yarn/cache/a.zip
.yarn/install-state.gz .cargo/registry/x .gradle/caches/x .github/CODEOWNERS .github/dependabot.yml
.github/ISSUE_TEMPLATE/bug.md .claude build.gradle settings.gradle tools/build.sh README.md .bashrc
.git/sl/requires .git/sl/dirstate .git/sl/bookmarks.current .git/sl/store/requires .sl/dirstate
.sl/store/metalog/x .jj/repo/store/type .jj/repo/store/extra/x .svn/wc.db .forgejo/ISSUE_TEMPLATE
.gitlab/issue_templates azure-pipelines-tasks buildkite/client.go builds build.yml .devenv/state/a
.conductor/prague/src/main.py conductor action.yml taskfile.yml compose.override.yaml pipeline.yml
""")


def matches(path: str) -> bool:
    return any(Glob.parse(f"**/{name}").matches(f"/ws/{path}") for name in ANY)


@pytest.mark.parametrize("path", LOCKED)
@pytest.mark.parametrize("depth", ["", "a/", "a/b/c/d/e/f/g/"])
def test_a_locked_name_is_matched_at_every_depth(path: str, depth: str) -> None:
    assert matches(depth + path)


@pytest.mark.parametrize("path", FREE)
def test_ordinary_files_are_not_protected_names(path: str) -> None:
    assert not matches(path)


@pytest.mark.parametrize(
    "path", [".git/modules/sub/refs/heads/config", ".git/modules/a/b/logs/refs/heads/hooks"]
)
def test_a_branch_of_a_submodule_may_have_any_name(path: str) -> None:
    assert matches(path)
    assert is_branch(f"/ws/{path}")
    assert not is_branch(f"/ws/{path.rpartition('/')[0]}/.git/config"), (
        "no branch begins with a dot"
    )


def test_worktrees_of_an_agent_stay_writable_and_what_is_in_them_is_protected() -> None:
    opened = [Glob.parse(f"**/{name}") for group in protected().groups for name in group.open]
    assert any(glob.matches("/ws/.claude/worktrees") for glob in opened)
    assert not matches(".claude/worktrees/one/src/main.py")
    assert matches(".claude/worktrees/one/.vscode")
    assert not any(glob.matches("/ws/.claude/worktrees/one/.vscode") for glob in opened)


def test_every_name_is_a_pattern_without_a_beginning_and_stands_once() -> None:
    for place in ("any", "top", "home", "open"):
        names = [name for group in protected().groups for name in getattr(group, place)]
        assert len(names) == len(set(names)), place
        for name in names:
            assert not name.startswith(("/", "~", "**")), name
            assert Glob.parse(f"**/{name}").text == f"**/{name}"


def test_every_key_of_the_table_is_read() -> None:
    table = tomllib.loads(Path(TABLE).read_text())
    assert set(table) == {
        "packages",
        "flagged",
        "flagged_top",
        "variables",
        *(group.title for group in protected().groups),
    }
    for title, entry in table.items():
        if title not in ("packages", "flagged", "flagged_top", "variables"):
            assert set(entry) <= {"why", "any", "top", "home", "open", "shipped"}, title
            assert entry["why"]


def test_names_of_git_have_no_exception() -> None:
    """`git status` above enters a repository in node_modules that the index names."""
    (git,) = [group for group in protected().groups if group.everywhere]
    assert not git.shipped
    assert not git.top


def test_a_flagged_name_is_the_work_and_not_protected() -> None:
    for name in protected().flagged:
        assert "/" not in name, name
        assert not any(bears(f"/w/{name}", other) for other in ANY), name


@pytest.mark.parametrize(
    ("path", "flagged"),
    [
        ("Makefile", True),
        ("a/b/package.json", True),
        ("vite.config.ts", True),
        ("node_modules/x/package.json", False),
        ("a/site-packages/x/setup.py", False),
        ("Makefile.txt", False),
        ("src/main.py", False),
        ("platform.py", True),
        ("src/platform.py", False),
        (".yardopts", True),
    ],
)
def test_a_file_that_is_executed_outside_is_known_by_its_name(path: str, flagged: bool) -> None:
    assert is_flagged(path) is flagged


@pytest.mark.parametrize(
    "name",
    words("""Directory.Build.targets binding.gyp .babelrc.js .mocharc.cjs ansible.cfg
    .tool-versions go.mod package.yaml default.nix tasks.py .coveragerc .gitlint
    .markdownlint.cjs .markdownlint-cli2.mjs .sequelizerc .cz.toml .czrc action.yml action.yaml
    taskfile.yaml Taskfile.dist.yml taskfile.dist.yaml .justfile compose.override.yml
    compose.prod.yaml dependabot.yaml renovate.json5 .renovaterc.json CMakeUserPresets.json
    nx.json PRESUBMIT.py .arclint cog.toml cliff.toml
    .releaserc .releaserc.json release.config.cjs usercustomize.py"""),
)
def test_files_that_a_build_executes_are_flagged_and_writable(name: str) -> None:
    assert is_flagged(f"/ws/a/{name}")
    assert not matches(name)


@pytest.mark.parametrize(
    "name",
    words(""".config/zsh .config/sway .config/i3 .config/hypr .config/starship.toml .config/jj
    .config/hg .hgrc .config/helix .config/kak .config/zed .config/Cursor .gemrc
    .gradle/init.gradle .local/lib .pyenv .config/sapling .subversion"""),
)
def test_startup_files_of_shells_and_editors_in_the_home_are_protected(name: str) -> None:
    assert any(name in group.home for group in protected().groups)
