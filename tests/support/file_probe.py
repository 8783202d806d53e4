"""A program that tries acts on paths and prints the kernel's answer to each.

It runs inside the sandbox, and outside as the control. It imports nothing of the tests. stdin is
one JSON list [[path, act], …]. stdout is a start marker, then one errno per line (0: success).
"""

from __future__ import annotations

import errno
import json
import os
import sys

MARK = b"# written\n"


def read(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if os.path.isdir(path):
            os.listdir(fd)
        else:
            os.read(fd, 1)
    finally:
        os.close(fd)


def write(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    try:
        os.write(fd, MARK)
    finally:
        os.close(fd)


def make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def execute(path: str) -> None:
    os.waitpid(os.posix_spawn(path, [path], {}), 0)


def change(path: str) -> None:
    os.utime(path, (1, 1))


ACTS = {
    "read": read,
    "write": write,
    "exec": execute,
    "make": make,
    "make-directory": os.mkdir,
    "remove": os.unlink,
    "change": change,
}


def main() -> None:
    cases = json.load(sys.stdin)
    print("started", flush=True)
    for path, act in cases:
        try:
            ACTS[act](path)
            print(0)
        except OSError as error:
            # The error of a shell about a file that has no program format is not a
            # denial.
            print(0 if error.errno == errno.ENOEXEC else error.errno)


if __name__ == "__main__":
    main()
