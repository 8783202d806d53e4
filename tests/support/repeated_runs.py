"""Support for tests of several runs in a row: the command as a person types it, and directories in
the tester's home.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome


def paddock(
    sandbox: SandboxRunner,
    *words: Word,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    tier = ["--tier", sandbox.tier] if words[0] == "run" and "--tier" not in words else []
    argv = [sandbox.installation.paddock, words[0], *tier, *words[1:]]
    return sandbox.tester.run(argv, cwd=cwd or sandbox.tree.project, env=env)


@contextmanager
def at_home(sandbox: SandboxRunner, name: str, target: Path | None = None) -> Iterator[Path]:
    """A directory or a link in the tester's home during the block. An earlier one is put back."""
    need("root", sandbox.tester.disposable, "the tests do not change the home of an ordinary user")
    path = sandbox.tester.home / name
    aside = path.with_name(f"{path.name}-aside")
    for parent in reversed(path.relative_to(sandbox.tester.home).parents[:-1]):
        if not (sandbox.tester.home / parent).exists():
            (sandbox.tester.home / parent).mkdir()
            sandbox.tester.give(sandbox.tester.home / parent)
    if path.is_symlink() or path.exists():
        path.rename(aside)
    path.symlink_to(target) if target else path.mkdir()
    sandbox.tester.give(path)
    try:
        yield path
    finally:
        if path.is_symlink():
            path.unlink()
        else:
            path.chmod(0o755)
            shutil.rmtree(path)
        if aside.is_symlink() or aside.exists():
            aside.rename(path)
