"""What tests of one run after another need: the command as a person types it, and places of the
tester's home.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.features import need
from tests.support.fence import Fence, Word
from tests.support.tester import Outcome


def paddock(
    fence: Fence, *words: Word, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Outcome:
    tier = ["--tier", fence.tier] if words[0] == "run" and "--tier" not in words else []
    argv = [fence.installation.paddock, words[0], *tier, *words[1:]]
    return fence.tester.run(argv, cwd=cwd or fence.ground.project, env=env)


@contextmanager
def at_home(fence: Fence, name: str, target: Path | None = None) -> Iterator[Path]:
    """A directory of the tester's home, or a link, for as long as the block lasts; what was there
    comes back.
    """
    need("root", fence.tester.disposable, "an ordinary user's own home is not the tests' to change")
    path = fence.tester.home / name
    aside = path.with_name(f"{path.name}-aside")
    for parent in reversed(path.relative_to(fence.tester.home).parents[:-1]):
        if not (fence.tester.home / parent).exists():
            (fence.tester.home / parent).mkdir()
            fence.tester.give(fence.tester.home / parent)
    if path.is_symlink() or path.exists():
        path.rename(aside)
    path.symlink_to(target) if target else path.mkdir()
    fence.tester.give(path)
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
