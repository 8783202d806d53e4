"""The lists of names, compared with the files that installed tools read.

Each tool runs in an empty project, under strace. Every name in the project that it opens or looks
up, existing or not, is protected, denied, flagged, or one of the few harmless names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from paddock.policy.glob import component_matches
from paddock.policy.protected import bears, is_flagged, protected
from tests.support.features import need

NPM = (
    "lefthook",
    "lint-staged",
    "@commitlint/cli",
    "simple-git-hooks",
    "nano-staged",
    "mocha",
    "@jdxcode/mise",
)
PYPI = ("pre-commit", "prek", "nox")

# Each with the reason why a command may write it.
HARMLESS = {
    ".gitignore": "git leaves out what it names",
    ".mailmap": "git shows other names for authors",
    ".config": "a directory; what is executed in it is listed",
    "mise": "a directory; what is executed in it is listed",
    "test": "mocha: the tests, which are the work",
    "node_modules": "packages",
    "RCS": "make: where it looks for old versions",
    "SCCS": "make: where it looks for old versions",
    ".gdb_history": "gdb: a history",
    "usr": "mise: entries of PATH without their slash",
}


BASE = Path(__file__).parents[3] / "src" / "paddock" / "policy" / "profiles" / "base.toml"
DENIED = [
    pattern.removeprefix("**/").removesuffix("?")
    for pattern in tomllib.loads(BASE.read_text())["filesystem"]["deny_globs"]
    if pattern.startswith("**/")
]


@dataclass(frozen=True, slots=True)
class Tool:
    words: tuple[str, ...]
    reads: str  # the control: a name that the tool looks for


TOOLS = (
    Tool(("npm:lefthook", "run", "pre-commit"), "lefthook-local.jsonc"),
    Tool(("npm:lint-staged",), ".lintstagedrc.json"),
    Tool(("npm:commitlint", "--edit", "message"), ".commitlintrc.js"),
    Tool(("npm:simple-git-hooks",), "simple-git-hooks.cjs"),
    Tool(("npm:nano-staged",), ".nano-staged.mjs"),
    Tool(("npm:mocha",), ".mocharc.cjs"),
    Tool(("npm:mise", "hook-env", "-s", "bash"), ".config/mise/config.toml"),
    Tool(("pip:pre-commit", "run"), ".pre-commit-config.yaml"),
    Tool(("pip:prek", "run"), "prek.toml"),
    Tool(("pip:nox", "-l"), "noxfile.py"),
    Tool(("direnv", "exec", ".", "true"), ".envrc"),
    Tool(("make", "-n"), "GNUmakefile"),
    Tool(("npm", "test"), ".npmrc"),
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both at once, because most of the time is spent waiting for the registries."""
    need("npm", shutil.which("npm") is not None, "npm is missing")
    root = tmp_path_factory.mktemp("tools")
    npm = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--prefix",
        str(root / "npm"),
        *NPM,
    ]
    with subprocess.Popen(npm, cwd=root) as process:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "pip"], check=True)
        # The pip of the tests: to install one of its own takes longer than these packages.
        pip = [sys.executable, "-m", "pip", "--python", f"{root}/pip/bin/python"]
        subprocess.run([*pip, "install", "-q", "--no-compile", *PYPI], check=True)
    assert process.returncode == 0
    return {"npm": root / "npm" / "node_modules" / ".bin", "pip": root / "pip" / "bin"}


def names_read(words: list[str], project: Path, home: Path) -> set[str]:
    trace = home / "trace"
    strace = ["strace", "-f", "-qq", "-s", "4096", "-e", "trace=%file", "-o", str(trace)]
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    subprocess.run(
        [*strace, *words],
        cwd=project,
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    names = set()
    for line in trace.read_text(errors="replace").splitlines():
        if "execve(" in line or "readlink" in line:
            continue
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            relative = text.removeprefix(f"{project}/").removeprefix("./")
            # A name without a slash is relative to the project, which is the working directory of
            # the tool.
            if (
                relative
                and not relative.startswith(("/", "..", "file:"))
                and relative not in (".", str(project))
            ):
                names.add(relative)
    return {name for name in names if name.split("/")[0] not in (".git", "node_modules", "message")}


def list_of(name: str) -> str | None:
    place = f"/project/{name}"
    parents = [
        place.rsplit("/", depth)[0] if depth else place for depth in range(name.count("/") + 1)
    ]
    for group in protected().groups:
        if any(
            bears(parent, pattern) for parent in parents for pattern in (*group.any, *group.top)
        ):
            return "protected"
        # A directory above protected names, which is not protected itself.
        if any(f"/{pattern}".startswith(f"/{name}/") for pattern in (*group.any, *group.top)):
            return "above a protected name"
    last = name.rpartition("/")[2]
    if any(component_matches(pattern, last) for pattern in DENIED):
        return "denied"
    return "flagged" if is_flagged(place) else None


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.words[0].rpartition(":")[2])
def test_every_name_that_a_tool_reads_in_a_project_is_on_a_list(
    tool: Tool, installed: dict[str, Path], tmp_path: Path
) -> None:
    need("strace", shutil.which("strace") is not None, "strace is missing")
    place, _, program = tool.words[0].rpartition(":")
    if not place:
        need(program, shutil.which(program) is not None, f"{program} is missing")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / "message").write_text("feat: something\n")
    words = [str(installed[place] / program) if place else program, *tool.words[1:]]
    read = names_read(words, project, home)
    assert tool.reads in read, f"{words} did not look for {tool.reads}: {sorted(read)}"
    programs = {path.name for path in Path("/usr/bin").iterdir()} | {Path(sys.executable).name}
    unknown = {
        name for name in read if list_of(name) is None and name.split("/")[0] not in HARMLESS
    }
    assert unknown - programs == set()
