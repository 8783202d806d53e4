"""paddock init: writes an initial configuration and the built-in profiles of distributions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import UsageError
from paddock.policy import Origin
from paddock.policy.formats.agent_config import INITIAL, config_path
from paddock.policy.formats.executor_modes import BUILTIN_DISTROS


def execute(arguments: list[str]) -> int:
    parser = Parser("init", "Write ~/.config/paddock/config.json, unless the file exists.")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    for path, text in _files(origin):
        say(f"{'wrote' if _write(path, text, force=options.force) else 'kept'} {path}")
    return 0


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
