"""A hostile program: an interpreter of a list of steps. It runs in the sandbox, and without one for
the control.

Its one argument is JSON: the workspace and the steps. A step that the sandbox refuses is skipped,
because a hostile program goes on. Every path is absolute, or relative to the held descriptor that
the step names with ``at``. It imports nothing of the project, because its whole text is passed to
``python3 -c``.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from typing import Any

TOKEN = re.compile(rb"SECRET-[0-9a-f]{16}")
EXCHANGE = 2
MOST_FILES = 500
held: dict[str, int] = {}
looted: set[bytes] = set()


def directory_of(step: dict[str, Any]) -> int | None:
    return held[step["at"]] if "at" in step else None


def make_parent(step: dict[str, Any], path: str) -> None:
    if "at" not in step:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return
    for end in [match.start() for match in re.finditer("/", path)]:
        try:
            os.mkdir(path[:end], dir_fd=directory_of(step))
        except FileExistsError:
            continue


def mkdir(step: dict[str, Any]) -> None:
    make_parent(step, step["path"] + "/")


def write(step: dict[str, Any]) -> None:
    make_parent(step, step["path"])
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if step.get("append") else os.O_TRUNC)
    file = os.open(step["path"], flags, step.get("mode", 0o644), dir_fd=directory_of(step))
    try:
        os.write(file, step["text"].encode())
        if "mode" in step:
            os.fchmod(file, step["mode"])
    finally:
        os.close(file)


def chmod(step: dict[str, Any]) -> None:
    if step["path"]:
        os.chmod(step["path"], step["mode"], dir_fd=directory_of(step))
    else:
        os.fchmod(held[step["at"]], step["mode"])


def rename(step: dict[str, Any]) -> None:
    where = directory_of(step)
    make_parent(step, step["to"])
    os.rename(step["path"], step["to"], src_dir_fd=where, dst_dir_fd=where)


def exchange(step: dict[str, Any]) -> None:
    where = directory_of(step)
    number = -100 if where is None else where
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(number, step["path"].encode(), number, step["to"].encode(), EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), step["path"])


def remove(step: dict[str, Any]) -> None:
    if "at" in step:
        os.unlink(step["path"], dir_fd=directory_of(step))
    elif os.path.isdir(step["path"]) and not os.path.islink(step["path"]):
        shutil.rmtree(step["path"])
    else:
        os.unlink(step["path"])


def symlink(step: dict[str, Any]) -> None:
    make_parent(step, step["path"])
    os.symlink(step["target"], step["path"], dir_fd=directory_of(step))


def link(step: dict[str, Any]) -> None:
    make_parent(step, step["to"])
    where = directory_of(step)
    os.link(step["path"], step["to"], src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)


def copy(step: dict[str, Any]) -> None:
    """Copies a file or a tree. The list is complete before the first copy, because a tree may be
    copied into itself.
    """
    files = [step["path"]] if os.path.isfile(step["path"]) else []
    os.makedirs(step["to"] if not files else os.path.dirname(step["to"]), exist_ok=True)
    for place, below, names in os.walk(step["path"]):
        files += [f"{place}/{name}" for name in (*below, *names)]
    for file in files[:MOST_FILES]:
        target = step["to"] + file.removeprefix(step["path"])
        if os.path.isdir(file):
            os.makedirs(target, exist_ok=True)
        else:
            shutil.copy(file, target, follow_symlinks=False)


def hold(step: dict[str, Any]) -> None:
    held[step["slot"]] = os.open(step["path"], os.O_RDONLY | os.O_DIRECTORY)


def git(step: dict[str, Any]) -> None:
    subprocess.run(
        ["git", "-C", step["path"], *step["words"]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )


def gitlink(step: dict[str, Any]) -> None:
    """Adds a submodule to the index of a repository. Writes .gitmodules if the step has a text for
    it.
    """

    def ask(*words: str, text: str | None = None) -> str:
        done = subprocess.run(
            ["git", "-C", step["path"], *words], input=text or "", capture_output=True, text=True
        )
        return done.stdout.strip()

    entries = [f"160000,{ask('rev-parse', 'HEAD')},{step['name']}"]
    if "text" in step:
        entries.append(
            f"100644,{ask('hash-object', '-w', '--stdin', text=step['text'])},.gitmodules"
        )
    for entry in entries:
        ask("update-index", "--add", "--cacheinfo", entry)


def deep(step: dict[str, Any]) -> None:
    path = os.open(step["path"], os.O_RDONLY)
    for _ in range(step["levels"]):
        os.mkdir("d" * 120, dir_fd=path)
        below = os.open("d" * 120, os.O_RDONLY, dir_fd=path)
        os.close(path)
        path = below
    os.close(path)


def wide(step: dict[str, Any]) -> None:
    for number in range(step["count"]):
        os.mkdir(f"{step['path']}/w{number}")


def wait(step: dict[str, Any]) -> None:
    time.sleep(step["ms"] / 1000)


def keep(content: bytes) -> None:
    """Sends read text out twice: on standard output, and in a file of the workspace."""
    for token in set(TOKEN.findall(content)) - looted:
        looted.add(token)
        print("looted", token.decode(), flush=True)
        try:
            with open(workspace + "/loot", "ab") as file:
                file.write(token + b"\n")
        except OSError:
            continue


def read_at(name: str, where: int | None = None) -> None:
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=where)
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            keep(os.read(file, 1 << 16))
    finally:
        os.close(file)


def loot(step: dict[str, Any]) -> None:
    """Reads one secret by one method."""
    path, how = step["path"], step["how"]
    parent, name = os.path.split(path)
    aside = f"{workspace}/aside-{step['number']}"
    if how == "path":
        read_at(path)
    elif how == "opened":
        for end in [match.start() for match in re.finditer("/", path)][1:]:
            try:
                os.chmod(path[:end], 0o700)
            except OSError:
                continue
        read_at(path)
    elif how == "mode":
        os.chmod(path, 0o600)
        read_at(path)
    elif how == "symlink":
        os.symlink(path, aside)
        read_at(aside)
    elif how == "link":
        os.link(path, aside)
        read_at(aside)
    elif how == "renamed":
        os.rename(path, aside)
        read_at(aside)
    elif how == "parent":
        os.rename(parent, aside)
        read_at(f"{aside}/{name}")
    elif how == "exchange":
        os.mkdir(aside)
        exchange({"path": parent, "to": aside})
        read_at(f"{aside}/{name}")
    elif how == "descriptor":
        read_at(name, held[step["slot"]])


def sweep(step: dict[str, Any]) -> None:
    """Reads every file of the workspace. With ``force`` it first opens each directory that was
    shut.
    """
    left, waiting = MOST_FILES, [workspace]
    while waiting and left > 0:
        place = waiting.pop()
        try:
            if step["force"]:
                os.chmod(place, 0o700)
            entries = list(os.scandir(place))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "objects":
                        waiting.append(entry.path)
                else:
                    left -= 1
                    read_at(entry.path)
            except OSError:
                continue


STEPS = (
    mkdir,
    write,
    chmod,
    rename,
    exchange,
    remove,
    symlink,
    link,
    copy,
    hold,
    git,
    gitlink,
    deep,
    wide,
    wait,
    loot,
    sweep,
)
BY_NAME = {step.__name__: step for step in STEPS}

if __name__ == "__main__":
    program = json.loads(sys.argv[1])
    workspace = program["workspace"]
    print("started", flush=True)
    for number, step in enumerate(program["steps"]):
        try:
            BY_NAME[step["do"]](step)
            step_result = "done"
        except (OSError, KeyError, shutil.Error, subprocess.SubprocessError) as error:
            step_result = repr(error)
        if program.get("tell"):
            print(number, step, step_result, flush=True)
