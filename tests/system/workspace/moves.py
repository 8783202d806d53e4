"""Random histories with many renamed directories. It runs in a plain copy or in the sandbox, with
the standard library only.

    moves.py grow ROOT FIRST COUNT    what the workspace has before
    moves.py act ROOT FIRST COUNT     what the command does; prints the answer to each of its acts

Each history has its own directory below ROOT. The same seed makes the same history, so an overlay
has to give the same results as a plain file system.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import sys
from collections.abc import Callable

_AT_FDCWD, _NOREPLACE = -100, 1
_libc = ctypes.CDLL(None, use_errno=True)


def rename_flags(old: str, new: str, flags: int) -> None:
    if _libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class History:
    def __init__(self, seed: int, root: str) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.report: list[str] = []

    def go(self, steps: int, *, moving: bool) -> list[str]:
        acts: list[Callable[[], None]] = [
            self.write,
            self.write,
            self.directory,
            self.directory,
            self.link,
            self.mode,
        ]
        if moving:
            acts += [self.move] * 8 + [self.move_without_replacing, self.move_relative, self.remove]
        return [self.answer(self.random.choice(acts)) for _ in range(steps)]

    def answer(self, act: Callable[[], None]) -> str:
        self.report = [act.__name__]
        try:
            act()
        except OSError as error:
            # both are valid for a directory that is not empty (rename(2)), and file systems differ
            number = errno.ENOTEMPTY if error.errno == errno.EEXIST else error.errno or 0
            return " ".join([*self.report, errno.errorcode[number]])
        return " ".join([*self.report, "done"])

    def path(self, *ends: str) -> str:
        path = "/".join(self.random.choice("abc") for _ in range(self.random.randint(1, 4)))
        path += self.random.choice(ends or ("",))
        self.report.append(path)
        return f"{self.root}/{path}"

    def write(self) -> None:
        path, text = self.path(), str(self.random.randint(0, 99)) * self.random.randint(1, 3)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(fd, "w") as file:
            file.write(text)

    def directory(self) -> None:
        os.makedirs(self.path())

    def link(self) -> None:
        os.symlink(self.random.choice(["a", "b/c", "nowhere"]), self.path())

    def mode(self) -> None:
        path, mode = self.path(), self.random.choice([0o755, 0o750, 0o555])
        if not os.path.islink(path):
            os.chmod(path, mode if os.path.isdir(path) else mode & 0o666)

    def move(self) -> None:
        os.rename(self.path("", "", "/"), self.path("", "", "/", "/.", "/.."))

    def move_without_replacing(self) -> None:
        rename_flags(self.path(), self.path(), _NOREPLACE)

    def move_relative(self) -> None:
        """With a directory descriptor on one side, and with `..` on the other."""
        old, new = self.path(), self.path()
        fd = os.open(os.path.dirname(old), os.O_RDONLY)
        try:
            os.rename(
                os.path.basename(old),
                os.path.relpath(new, os.path.dirname(old)),
                src_dir_fd=fd,
                dst_dir_fd=fd,
            )
        finally:
            os.close(fd)

    def remove(self) -> None:
        path = self.path()
        if os.path.isdir(path) and not os.path.islink(path):
            with contextlib.suppress(
                PermissionError
            ):  # the number of removed names depends on their order
                shutil.rmtree(path) if self.writable(path) else None
        else:
            os.unlink(path)

    def writable(self, path: str) -> bool:
        return all(os.access(parent, os.W_OK) for parent, _, _ in os.walk(path))


def main() -> int:
    what, root, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    answers = []
    for number in range(count):
        place = f"{root}/{number}"
        if what == "grow":
            os.mkdir(place)
            History(first + number, place).go(40, moving=False)
        else:
            answers.append(History(first + number + 10**6, place).go(60, moving=True))
    print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
