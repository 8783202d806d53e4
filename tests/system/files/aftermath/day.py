"""The work of the host after a run, as the owner of the workspace, outside of every sandbox.

The argument is JSON: the workspace, the home, other repositories, and the programs of this machine.
The user first restores modes that a command removed. Then the user works in every repository, opens
shells, and starts tools. Nothing here names a file to execute: only the tools decide what runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

MOST_DIRECTORIES = 1500
MOST_REPOSITORIES = 4
LOOK = (
    ["status"],
    ["diff"],
    ["log", "-1"],
    ["worktree", "list"],
)
WORK = (
    ["add", "-f", "host-note"],
    ["commit", "-q", "--no-edit"],
    ["commit", "-q", "--amend", "--no-edit"],
    ["commit", "-q", "--allow-empty", "-m", "host"],
    ["fetch", "-q"],
    ["checkout", "-q", "-b", "host-branch"],
    ["checkout", "-q", "-"],
    ["stash"],
    ["stash", "pop"],
    ["gc", "--auto"],
    ["status"],
)


def call(words: list[str], cwd: str) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run(words, cwd=cwd, stdin=quiet, stdout=quiet, stderr=quiet, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{words} in {cwd}: {error}", file=sys.stderr)


def directories(top: str) -> Iterator[tuple[str, set[str]]]:
    for number, (place, below, files) in enumerate(os.walk(top)):
        if number == MOST_DIRECTORIES:
            return
        names = {*below, *files}
        below[:] = sorted(name for name in below if not (name == "objects" and "refs" in names))
        yield place, names


def is_repository(names: set[str]) -> bool:
    return ".git" in names or ("HEAD" in names and bool(names & {"objects", "commondir"}))


def work_in(repository: str) -> None:
    for words in LOOK:
        call(["git", *words], repository)
    try:
        with open(f"{repository}/host-note", "a") as note:
            note.write("a line of the host's\n")
    except OSError as error:
        print(f"{repository}: {error}", file=sys.stderr)
    for words in WORK:
        call(["git", *words], repository)
    # This shell script starts many programs, so it runs only if an index can have added a
    # submodule.
    if (
        subprocess.run(["git", "ls-files", "-s"], cwd=repository, capture_output=True).stdout.find(
            b"160000 "
        )
        >= 0
    ):
        call(["git", "submodule", "update", "--init"], repository)
        call(["git", "submodule", "status"], repository)
        call(["git", "status"], repository)


def main() -> None:
    task = json.loads(sys.argv[1])
    workspace, tools = task["workspace"], task["tools"]
    call(["chmod", "-R", "u+rwX", workspace], "/")
    found = list(directories(workspace))
    repositories = [place for place, names in found if is_repository(names)]
    for place in dict.fromkeys([workspace, *repositories[:MOST_REPOSITORIES]]):
        work_in(place)
    for place in task["others"]:
        for words in (["status"], ["fetch", "-q"], ["commit", "-q", "--allow-empty", "-m", "host"]):
            call(["git", *words], place)
    for place in repositories[MOST_REPOSITORIES:]:
        call(["git", "status"], place)
    for words in (["bash", "-lic", "true"], ["bash", "-ic", "true"], ["make", "-n"]):
        call(words, workspace)
    for place in [place for place, names in found if ".envrc" in names][:5]:
        call([tools["direnv"], "exec", place, "true"], place)
    # These tools start slowly, so they run only if a file exists that they obey.
    for place in [place for place, names in found if ".npmrc" in names][:1]:
        call([tools["npm"], "run", "build"], place)
        call([tools["npm"], "ls"], place)
    for place in [place for place, names in found if ".cargo" in names][:1]:
        call([tools["cargo"], "metadata", "--offline", "--format-version=1"], place)
    if task["thorough"]:
        call([tools["npm"], "ls"], workspace)
        call([tools["pip"], "config", "list"], workspace)


main()
