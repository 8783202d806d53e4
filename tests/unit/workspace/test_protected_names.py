"""Protected names, by the patterns of a plan."""

from __future__ import annotations

import pytest

from paddock.workspace.protected_names import Protection

WORKSPACE = "/home/ada/.config/project"
PROTECTION = Protection.of(
    WORKSPACE,
    [
        "**/.git",
        "**/.git/config",
        "**/.git/hooks",
        "**/.git/modules/**/config",
        f"{WORKSPACE}/**/.vscode",
        f"{WORKSPACE}/.bashrc",
        f"{WORKSPACE}/**/*.code-workspace",
        "/home/ada/.config",
    ],
    [
        "**/.git/modules/**/refs/heads/**",
        f"{WORKSPACE}/**/node_modules/**/.vscode",
        "**/opened/.vscode/mine",
    ],
)


@pytest.mark.parametrize(
    ("path", "directory", "protected"),
    [
        (".", True, False),  # directories around the workspace do not count
        ("file", False, False),
        (".git", True, False),
        (".git", False, True),
        ("a/b/.git", False, True),
        (".git/HEAD", False, False),
        (".git/config", False, True),
        (".git/hooks", True, True),
        (".git/hooks/pre-commit", False, True),
        ("a/.git/hooks/x/y", False, True),
        ("hooks/x", False, False),
        (".git/modules/m/config", False, True),
        (".git/modules/m/refs/heads/config", False, False),
        (".vscode/tasks.json", False, True),
        ("a/.vscode", True, True),
        ("a/node_modules/b/.vscode/x", False, False),
        ("opened/.vscode/mine/deep", False, False),
        ("opened/.vscode/other", False, True),
        (".bashrc", False, True),
        ("a/.bashrc", False, False),
        ("x.code-workspace", False, True),
        ("x.code-workspaces", False, False),
        ("name\udcff/.git/config", False, True),
    ],
)
def test_a_path_is_protected_by_itself_or_by_a_directory_it_is_in(
    path: str, directory: bool, protected: bool
) -> None:
    assert PROTECTION(path, directory=directory) is protected


def test_a_plan_without_file_rules_protects_nothing() -> None:
    assert not Protection.of("/", [], [])(".git/config", directory=False)


def test_root_directory_can_be_a_workspace() -> None:
    assert Protection.of("/", ["**/.envrc"], [])("a/.envrc", directory=False)
