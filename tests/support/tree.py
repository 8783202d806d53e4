"""The directories of a test, owned by the tester, and snapshots of them from outside."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.saved_state import remove
from tests.support.tester import Tester

SECRET = "the-secret-outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectTree:
    """``project`` is the workspace of the run. ``outside`` and ``evil`` are neighbours without a
    grant. The name of ``evil`` begins like that of the project.
    """

    root: Path
    project: Path
    outside: Path
    evil: Path
    secret: Path
    tester: Tester

    def put(self, path: Path, text: str = "", *, mode: int = 0o644) -> Path:
        """Writes a file of the tester. A command that waits for the file may remove it at once."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        self.tester.give(self._top(path))
        return path

    def make(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        self.tester.give(self._top(path))
        return path

    def _top(self, path: Path) -> Path:
        return self.root / path.relative_to(self.root).parts[0] if path != self.root else path


@contextmanager
def project_tree(tester: Tester) -> Iterator[ProjectTree]:
    root = Path(tempfile.mkdtemp(prefix="paddock-tree-", dir=tester.home))
    try:
        tree = ProjectTree(
            root=root,
            project=root / "project",
            outside=root / "outside",
            evil=root / "project-evil",
            secret=root / "outside" / "secret.txt",
            tester=tester,
        )
        tester.give(root)
        for directory in (tree.project, tree.outside, tree.evil):
            tree.make(directory)
        tree.put(tree.secret, SECRET + "\n")
        tree.put(tree.evil / "secret.txt", SECRET + "\n")
        tree.put(tree.project / "own.txt", "mine\n")
        yield tree
    finally:
        remove(root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All entries below a directory, as the host sees them: name, mode, inode, link count,
    content.
    """

    entries: tuple[tuple[str, int, int, int, bytes], ...]

    @classmethod
    def of(cls, root: Path) -> Snapshot:
        found = []
        for parent, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = Path(parent, name)
                facts = path.lstat()
                plain = path.is_file() and not path.is_symlink()
                content = (
                    path.read_bytes()
                    if plain
                    else os.fsencode(os.readlink(path))
                    if path.is_symlink()
                    else b""
                )
                found.append(
                    (
                        str(path.relative_to(root)),
                        facts.st_mode,
                        facts.st_ino,
                        facts.st_nlink,
                        content,
                    )
                )
        return cls(entries=tuple(sorted(found)))


@contextmanager
def small_disk(tree: ProjectTree, *places: Path) -> Iterator[None]:
    """A file system of a few megabytes, with a part of it mounted at each path. It needs root."""
    image, disk = tree.root / "disk.img", tree.root / "disk"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    disk.mkdir()
    mounted: list[Path] = []
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, disk], check=True)
        mounted.append(disk)
        for number, place in enumerate(places):
            part = disk / str(number)
            part.mkdir(mode=0o700)
            tree.tester.give(part)
            tree.tester.run(["mkdir", "-p", place])
            subprocess.run(["mount", "--bind", part, place], check=True)
            mounted.append(place)
        yield
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", place], check=True)
        image.unlink()
