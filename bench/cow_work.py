"""Times a copy-on-write session: diff and apply of about 745 changes, and git status.

    cow_work.py WORKSPACE STATE ROUNDS

Runs as the tester in the tree of ``tree.py``. Each round ends with the tree as it was. Prints
milliseconds as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from paddock.workspace.apply import apply
from paddock.workspace.apply_record import Record
from paddock.workspace.conflicts import Terms, judge
from paddock.workspace.renames import with_renames
from paddock.workspace.replace_file import Roots
from paddock.workspace.scan import scan
from tests.support import overlay

STATUS = ["git", "status", "--porcelain"]
HIDDEN = [".env", ".env.local", ".env.production", "id_rsa"]


def work(workspace: str) -> None:
    """358 appended to, 150 deleted, 37 renamed, 200 new."""
    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(workspace)
        for name in names
        if "/.git/" not in f"{parent}/" and "/sources" not in parent
    )
    for path in files[: 358 * 5 : 5]:
        with open(path, "a") as file:
            file.write("one line more\n")
    for path in files[1 : 150 * 5 : 5]:
        os.unlink(path)
    for path in files[2 : 37 * 5 : 5]:
        os.rename(path, f"{path}.moved")
    os.mkdir(f"{workspace}/new")
    for number in range(199):
        with open(f"{workspace}/new/{number}", "w") as file:
            file.write(f"{number}\n" * 50)


@contextmanager
def roots(place: str, workspace: str) -> Iterator[Roots]:
    fds = [os.open(path, os.O_RDONLY) for path in (f"{place}/upper", workspace, place)]
    yield Roots(upper=fds[0], lower=fds[1], state=fds[2])
    for fd in fds:
        os.close(fd)


def timed_status(workspace: str) -> float:
    begin = time.perf_counter()
    subprocess.run(STATUS, cwd=workspace, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1000


@contextmanager
def serving(place: str, workspace: str, hidden: Sequence[str]) -> Iterator[Callable[[], float]]:
    """Times git status on an overlay that stays mounted and hides these names, as a run does."""
    (asking, ask), (answering, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ask)

        def serve() -> None:
            while os.read(asking, 1):
                os.write(answer, f"{timed_status(workspace)}\n".encode())

        os._exit(overlay.on_overlay(place, workspace, serve, hidden))
    os.close(asking)
    os.close(answer)
    with open(answering) as answers:

        def timed() -> float:
            os.write(ask, b"x")
            return float(answers.readline())

        yield timed
        os.close(ask)
        assert os.waitpid(pid, 0)[1] == 0


def side_by_side(store: str, workspace: str, rounds: int) -> dict[str, list[float]]:
    """Times git status in turn: native, on an overlay that hides nothing (the minimum), and on the
    overlay of a run.
    """
    taken: dict[str, list[float]] = {"native": [], "plain": [], "overlay": []}
    places = [
        overlay.make_session(store, name, workspace, plan={"files": None})
        for name in ("plain", "overlay")
    ]
    with (
        serving(places[0], workspace, ()) as plain,
        serving(places[1], workspace, HIDDEN) as hiding,
    ):
        for _ in range(rounds + 2):
            taken["native"].append(timed_status(workspace))
            taken["plain"].append(plain())
            taken["overlay"].append(hiding())
    for place in places:
        release(place)
    return {name: samples[2:] for name, samples in taken.items()}


def session(state: str, workspace: str) -> str:
    shutil.rmtree(state, ignore_errors=True)
    return overlay.make_session(state, "bench", workspace, plan={"files": None})


def release(place: str) -> None:
    os.chmod(f"{place}/work/work", 0o700)
    shutil.rmtree(place)


def main() -> int:
    workspace, state, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    taken: dict[str, list[float]] = {"diff": [], "apply": [], "changes": []}
    for _ in range(rounds):
        place = session(state, workspace)
        started_ns = time.time_ns()
        assert overlay.on_overlay(place, workspace, lambda: work(workspace)) == 0
        with roots(place, workspace) as opened:
            terms = Terms(
                started_ns=started_ns, is_protected=lambda path, *, directory, link=False: False
            )
            record = Record.read(opened.state)
            begin = time.perf_counter()
            changes = judge(
                with_renames(scan(opened.upper, opened.lower), opened.upper, opened.lower),
                terms,
                record,
            )
            looked = time.perf_counter()
            outcome = apply(opened, changes, terms, record)
            applied = time.perf_counter()
            assert not outcome.left, outcome.left[:3]
            assert not scan(opened.upper, opened.lower)
        taken["diff"].append((looked - begin) * 1000)
        taken["apply"].append((applied - looked) * 1000)
        taken["changes"].append(len(changes))
        release(place)
        for words in (["checkout", "-q", "."], ["clean", "-fdq"]):
            subprocess.run(["git", *words], cwd=workspace, check=True)
    taken |= side_by_side(state, workspace, 3 * rounds)
    print(json.dumps(taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
