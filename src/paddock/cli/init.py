"""paddock init: looks at a project and writes its first policy. With --tools: the configuration of
tool calls and the built-in profiles of distributions.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.policy import Origin
from paddock.policy.formats.agent_config import INITIAL, config_path
from paddock.policy.formats.executor_modes import BUILTIN_DISTROS
from paddock.policy.load import PROJECT_FILE


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "init",
        "Look at this project and write a first ./paddock.toml, with comments. An existing file "
        "stays.",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--tools",
        action="store_true",
        help="write ~/.config/paddock/config.json instead, for the tool calls of a Python agent",
    )
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    policy = os.path.join(origin.cwd, PROJECT_FILE)
    files = _files(origin) if options.tools else ((policy, _policy_of(origin.cwd)),)
    for path, text in files:
        say(f"{'wrote' if _write(path, text, force=options.force) else 'kept'} {path}")
    if not options.tools:
        say(f"read it, then type `paddock check {PROJECT_FILE} && paddock trust {PROJECT_FILE}`")
    return 0


# What a project has, and the host group of its packages.
_PACKAGES = (
    ("@npm", ("package-lock.json", "pnpm-lock.yaml", "yarn.lock", "package.json")),
    ("@pypi", ("uv.lock", "poetry.lock", "requirements.txt", "pyproject.toml")),
    ("@crates", ("Cargo.lock", "Cargo.toml")),
    ("@go", ("go.sum", "go.mod")),
)
_AGENT_DIRS = (".claude-paddock", ".codex-paddock")  # as the manual sets them up


def _policy_of(project: str) -> str:
    """Only the rules that a new project needs are active; the rest is for a person to choose."""
    here = set(os.listdir(project))
    groups = {group: [name for name in names if name in here] for group, names in _PACKAGES}
    used = {group: names[0] for group, names in groups.items() if names}
    agents = [f'"~/{name}/**?"' for name in _AGENT_DIRS]
    secrets = sorted(name for name in here if name.startswith(".env") and name != ".envrc")
    lines = [
        "# The rules of `paddock run` in this project. After each change type",
        f"# `paddock check {PROJECT_FILE} && paddock trust {PROJECT_FILE}`.",
        "",
        "[meta]",
        'inherit = "ai-agent"  # the default rules; this file adds to them',
        "",
        "[filesystem]",
        '# Directories that the command may read and write. "?": it may be missing.',
        f"allow_globs = [{', '.join(agents)}]",
        "# Names that stay unreadable.",
    ]
    if secrets:
        lines.append(f"# Here: {shlex.join(secrets)}. The default rules deny the usual names.")
    lines += [
        '# deny_globs = ["**/customers.csv?"]',
        "",
        "# Without [network] the command reaches every host. With it, only those that you list.",
    ]
    lines += [f"# {group}: the package registry, because of {name}" for group, name in used.items()]
    hosts = ", ".join(f'"{one}"' for one in ("@anthropic", "@openai", "@github", *used))
    return "\n".join([*lines, "# [network]", f"# allowed_hosts = [{hosts}]", ""])


def _files(origin: Origin) -> Iterator[tuple[str, str]]:
    yield config_path(origin), json.dumps(INITIAL, indent=2) + "\n"
    for name in sorted(os.listdir(BUILTIN_DISTROS)):
        with open(os.path.join(BUILTIN_DISTROS, name), encoding="utf-8") as file:
            yield os.path.join(origin.config_dir, "distros", name), file.read()


def _write(path: str, text: str, *, force: bool) -> bool:
    """Follows no link; only the owner may write the file."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if force and os.path.lexists(path):
            os.unlink(path)
        made = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"init: {path}: {error.strerror}") from None
    with os.fdopen(made, "w", encoding="utf-8") as file:
        file.write(text)
    return True
