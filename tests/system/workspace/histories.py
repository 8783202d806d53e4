"""Random histories on real overlay mounts. It runs as the tester, with the package under test.

    histories.py WAY BASE FIRST COUNT

Each seed from FIRST on makes a random workspace and a random history on an overlay over it. WAY is
the kind of apply:

    whole    everything is applied at once
    parts    random selections first, each of which must leave everything else alone; then the rest
    steps    the same as whole, on a file system without exchange and without rename that keeps the
             target
    killed   the apply is killed at a random point, again and again; after each time every file must
             be the old or the new one, and in the end all of it must be applied

At the end the workspace is what the command saw, nothing is left to apply, the upper directory is
unchanged, and no temporary file is left. Prints one JSON object. ``wrong`` lists the differences
with their seed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import random
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from paddock.workspace import system_calls
from paddock.workspace.apply import ApplyOutcome, apply
from paddock.workspace.apply_record import TEMPORARY, Record
from paddock.workspace.change import Change, Obstacle, inside
from paddock.workspace.conflicts import Selection, Terms, judge
from paddock.workspace.renames import with_renames
from paddock.workspace.replace_file import Roots, recover
from paddock.workspace.scan import scan
from tests.support import overlay

STEPS = 60
ACTS = ("os.", "shutil.", "open", "renameat2")
Tree = dict[str, tuple[Any, ...]]


class History:
    """Random acts below one directory. An act that fails is skipped."""

    def __init__(self, seed: int, root: str) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.done: Counter[str] = Counter()

    def go(self, steps: int) -> None:
        acts = [
            self.write, self.write, self.append, self.truncate, self.save, self.directory,
            self.directory, self.remove, self.move, self.move, self.link, self.hard_link, self.mode,
            self.become_file, self.become_directory, self.fifo,
        ]  # fmt: skip
        for _ in range(steps):
            act = self.random.choice(acts)
            try:
                act(self.path(), self.path())
                self.done[act.__name__] += 1
            except OSError as error:
                if error.errno == errno.EIO:
                    raise

    def path(self) -> str:
        return os.path.join(
            self.root, *(self.random.choice("abc") for _ in range(self.random.randint(1, 3)))
        )

    def text(self) -> str:
        return "".join(f"{self.random.randint(0, 3)}\n" for _ in range(self.random.randint(0, 5)))

    def write(self, path: str, _: str) -> None:
        with open(path, "w", opener=_at_once) as file:
            file.write(self.text())

    def append(self, path: str, _: str) -> None:
        with open(path, "a", opener=_at_once) as file:
            file.write(self.text())

    def truncate(self, path: str, _: str) -> None:
        os.truncate(path, self.random.randint(0, 6))

    def save(self, path: str, _: str) -> None:
        """Replaces a file as an editor does."""
        os.stat(path)
        self.write(f"{path}.new", "")
        os.rename(f"{path}.new", path)

    def directory(self, path: str, _: str) -> None:
        os.makedirs(path)

    def remove(self, path: str, _: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def move(self, path: str, to: str) -> None:
        """Moves as ``mv`` does: a directory of the lower layer can only be copied."""
        if inside(to, path) or inside(path, to):
            return
        try:
            os.rename(path, to)
        except OSError as error:
            if error.errno != errno.EXDEV or os.path.lexists(to):
                raise
            shutil.copytree(path, to, symlinks=True, copy_function=_copy)
            shutil.rmtree(path)

    def link(self, path: str, _: str) -> None:
        os.symlink(self.random.choice(["a", "b/c", "/etc/passwd", "nowhere"]), path)

    def hard_link(self, path: str, to: str) -> None:
        os.link(path, to, follow_symlinks=False)

    def mode(self, path: str, _: str) -> None:
        facts = os.lstat(path)
        if stat.S_ISDIR(facts.st_mode):
            os.chmod(path, self.random.choice([0o755, 0o700, 0o555, 0o500, 0o2755, 0o000]))
        elif stat.S_ISREG(facts.st_mode):
            os.chmod(path, self.random.choice([0o644, 0o600, 0o755, 0o444, 0o000, 0o4755]))

    def become_file(self, path: str, _: str) -> None:
        self.remove(path, "")
        self.write(path, "")

    def become_directory(self, path: str, _: str) -> None:
        self.remove(path, "")
        os.mkdir(path)
        self.write(f"{path}/a", "")

    def fifo(self, path: str, _: str) -> None:
        if self.random.random() < 0.2:
            os.mkfifo(path)


def _at_once(path: str, flags: int) -> int:
    """Opening a fifo without a reader is an error and does not block."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _copy(source: str, target: str) -> None:
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def tree_of(root: str) -> Tree:
    """Permissions without the special bits, which are never applied."""
    found: Tree = {}
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            facts = os.lstat(path)
            kind = stat.S_IFMT(facts.st_mode)
            entry: tuple[Any, ...] = ("special",)
            if kind == stat.S_IFLNK:
                entry = ("link", os.readlink(path))
            elif kind == stat.S_IFDIR:
                entry = ("directory", facts.st_mode & 0o777)
            elif kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    entry = ("file", facts.st_mode & 0o777, facts.st_mtime_ns, file.read())
            found[os.path.relpath(path, root)] = entry
    return found


def apart(act: Callable[[], Any], *, mounts: bool = False) -> Any:
    """The result of a function in a child process that may read everything and mount."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if mounts:
                overlay.enter_namespaces()
            else:
                system_calls.override_modes()
            with open(writing, "wb") as pipe:
                pickle.dump(act(), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(pid, 0)
    return answer


class Case:
    def __init__(self, base: str, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(~seed)
        self.workspace, self.place = f"{base}/workspace", f"{base}/session"
        self.before: Tree
        self.seen: Tree
        self.upper: Tree
        self.done: Counter[str]
        self.before, self.started_ns = apart(self._prepare)
        self.seen, self.upper, self.done = apart(self._history, mounts=True)

    def _prepare(self) -> tuple[Tree, int]:
        _remove(os.path.dirname(self.place))
        for directory in (self.workspace, f"{self.place}/upper", f"{self.place}/work"):
            os.makedirs(directory)
        History(self.seed, self.workspace).go(STEPS)
        return tree_of(self.workspace), time.time_ns()

    def _history(self) -> tuple[Tree, Tree, Counter[str]]:
        upper = f"{self.place}/upper"
        overlay.mount_overlay([self.workspace], upper, f"{self.place}/work", self.workspace)
        history = History(self.seed + 10**6, self.workspace)
        history.go(STEPS)
        return tree_of(self.workspace), tree_of(upper), history.done

    @contextlib.contextmanager
    def roots(self) -> Any:
        fds = [
            os.open(path, os.O_RDONLY)
            for path in (f"{self.place}/upper", self.workspace, self.place)
        ]
        try:
            yield Roots(upper=fds[0], lower=fds[1], state=fds[2])
        finally:
            for fd in fds:
                os.close(fd)

    def look(
        self, roots: Roots, record: Record, paths: tuple[str, ...] = ()
    ) -> tuple[list[Change], Terms]:
        terms = Terms(
            started_ns=self.started_ns, is_protected=_nothing, selection=Selection(paths=paths)
        )
        changes = with_renames(
            scan(roots.upper, roots.lower, unseen=record.temporaries), roots.upper, roots.lower
        )
        return judge(changes, terms, record), terms

    def apply(self, paths: tuple[str, ...] = ()) -> ApplyOutcome:
        with self.roots() as roots:
            record = Record.read(roots.state)
            problems = recover(roots, record)
            assert not problems, problems
            changes, terms = self.look(roots, record, paths)
            return apply(roots, changes, terms, record)

    def changes(self) -> list[Change]:
        with self.roots() as roots:
            return self.look(roots, Record.read(roots.state))[0]

    def expected(self) -> Tree:
        """The tree that the command saw. Where it made a fifo, the file of the host stays."""
        special = [path for path, entry in self.seen.items() if entry[0] == "special"]
        wanted = {path: entry for path, entry in self.seen.items() if entry[0] != "special"}
        wanted.update(
            {p: e for p, e in self.before.items() if any(inside(p, one) for one in special)}
        )
        return wanted

    def alike(self, path: str, now: tuple[Any, ...] | None, wanted: tuple[Any, ...] | None) -> bool:
        """A file rewritten with the same content is no change: it keeps the time of the host."""
        before = self.before.get(path)
        if (
            now
            and wanted
            and before
            and now[0] == wanted[0] == before[0] == "file"
            and before[3] == wanted[3]
        ):
            return (now[1], now[3]) == (wanted[1], wanted[3]) and now[2] in (before[2], wanted[2])
        return now == wanted

    def differences(self) -> list[str]:
        wrong = []
        now: Tree
        upper: Tree
        now, upper = apart(lambda: (tree_of(self.workspace), tree_of(f"{self.place}/upper")))
        expected = self.expected()
        for path in sorted(now.keys() | expected.keys()):
            if not self.alike(path, now.get(path), expected.get(path)):
                wrong.append(f"{path}: is {now.get(path)}, the command saw {expected.get(path)}")
        left = [change for change in self.changes() if change.obstacle is not Obstacle.SPECIAL]
        wrong += [
            f"still to apply: {change.kind.value} {change.path} {change.reason}" for change in left
        ]
        if upper != self.upper:
            wrong.append("upper has changed")
        return wrong


def _nothing(path: str, *, directory: bool, link: bool = False) -> bool:
    return False


def _remove(base: str) -> None:
    for parent, directories, _ in os.walk(base):
        for name in directories:
            if not os.path.islink(os.path.join(parent, name)):
                os.chmod(os.path.join(parent, name), 0o700)
    shutil.rmtree(base, ignore_errors=True)


def whole(case: Case) -> list[str]:
    outcome = case.apply()
    return [
        f"left: {c.path}: {c.reason}" for c in outcome.left if c.obstacle is not Obstacle.SPECIAL
    ] + case.differences()


def parts(case: Case) -> list[str]:
    wrong = []
    for _ in range(4):
        names = sorted({change.path for change in case.changes() if "…" not in change.path})
        if not names:
            break
        chosen = tuple(case.random.sample(names, min(len(names), 3)))
        before: Tree = apart(lambda: tree_of(case.workspace))
        case.apply(chosen)
        after: Tree = apart(lambda: tree_of(case.workspace))
        for path in before.keys() | after.keys():
            asked = any(inside(path, one) or inside(one, path) for one in chosen)
            if not asked and before.get(path) != after.get(path):
                wrong.append(f"{path} changed, and only {chosen} were named")
    return wrong + whole(case)


def steps(case: Case) -> list[str]:
    system_calls._renameat2 = _no_flags
    return whole(case)


def killed(case: Case) -> list[str]:
    wrong: list[str] = []
    expected = case.expected()
    in_steps = (
        case.random.random() < 0.3
    )  # without exchange a name that changes its type is missing for a moment
    for _ in range(6):
        survived = _killed_after(
            case, case.random.randint(1, 25 if in_steps else 200), in_steps=in_steps
        )
        now: Tree = apart(lambda: tree_of(case.workspace))
        for path in sorted(now.keys() | case.before.keys()):
            old, new, is_now = case.before.get(path), expected.get(path), now.get(path)
            if _own(path) or is_now in (old, new) or (is_now and is_now[0] == "directory"):
                continue
            if (
                is_now
                and old
                and is_now[0] == old[0] == "file"
                and is_now[3] == old[3]
                and new
                and is_now[1] == new[1]
            ):
                continue  # its mode is set first
            if in_steps and is_now is None and old and new and old[0] != new[0]:
                continue
            wrong.append(f"{path}: is {is_now}, was {old}, the command saw {new}")
        if survived:
            break
    return wrong + whole(case)


def _own(path: str) -> bool:
    return any(part.startswith(TEMPORARY) for part in path.split("/"))


def _killed_after(case: Case, acts: int, *, in_steps: bool) -> bool:
    """An apply in a child that is killed at its nth act. True if it ended before."""
    pid = os.fork()
    if pid == 0:
        left = acts

        def count(event: str, _: object = None) -> None:
            nonlocal left
            if (
                event in ("os.rename", "os.link", "os.remove")
                if in_steps
                else event.startswith(ACTS)
            ):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        original = system_calls._renameat2

        def renameat2(old: str, new: str, dir_fd: int, flags: int) -> None:
            count("renameat2")
            original(old, new, dir_fd, flags)

        system_calls._renameat2 = _no_flags if in_steps else renameat2
        sys.addaudithook(count)
        try:
            case.apply()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _no_flags(old: str, new: str, dir_fd: int, flags: int) -> None:
    raise OSError(errno.EINVAL, "no flags here")


WAYS = {"whole": whole, "parts": parts, "steps": steps, "killed": killed}


def main() -> int:
    way, base, first, number = WAYS[sys.argv[1]], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    done: Counter[str] = Counter()
    changes = 0
    wrong = []
    for seed in range(first, first + number):
        reading, writing = os.pipe()
        # Each in its own process, because a process keeps the right to ignore file modes.
        pid = os.fork()
        if pid == 0:
            try:
                case = Case(base, seed)
                answer = (case.done, len(case.changes()), way(case))
            except BaseException as error:
                import traceback

                answer = (Counter(), 0, [f"{error!r}\n{traceback.format_exc()}"])
            with open(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            acts, count, mistakes = pickle.load(pipe)
        os.waitpid(pid, 0)
        done += acts
        changes += count
        wrong += [f"seed {seed}: {text}" for text in mistakes]
    apart(lambda: _remove(base))
    print(
        json.dumps(
            {
                "histories": number,
                "acts": sum(done.values()),
                "changes": changes,
                "wrong": wrong[:20],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
