"""A program that makes a copy-on-write session as the core does.

It runs as the tester and imports the standard library only.

    overlay.py STORE ID WORKSPACE PLAN MASKED -- COMMAND …
        run the command on an overlay over WORKSPACE, in a session
    overlay.py --tmpfs SIZE AT -- COMMAND …
        run the command where a file system of that size is at AT

PLAN and MASKED are JSON. The session is locked while the command runs, and complete on the disk
before it starts.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence

_NEWUSER, _NEWNS, _REC, _PRIVATE = 0x10000000, 0x20000, 0x4000, 0x40000
_COARSE = 5  # CLOCK_REALTIME_COARSE: the clock of file times
_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def enter_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    check(_libc.unshare(_NEWUSER | _NEWNS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    check(_libc.mount(None, b"/", None, _REC | _PRIVATE, None), "make private")


def mount_tmpfs(at: str, size: str) -> None:
    check(_libc.mount(b"tmpfs", os.fsencode(at), b"tmpfs", 0, f"size={size}".encode()), "tmpfs")


def mount_overlay(lowers: Sequence[str], upper: str, work: str, at: str) -> None:
    options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},userxattr"
    check(_libc.mount(b"overlay", os.fsencode(at), b"overlay", 0, os.fsencode(options)), "overlay")


def make_session(
    store: str,
    name: str,
    workspace: str,
    *,
    plan: object,
    masked: Sequence[str] = (),
    command: Sequence[str] = (),
) -> str:
    place = f"{store}/{name}"
    os.makedirs(place, mode=0o700)
    for part in ("upper", "work"):
        os.mkdir(f"{place}/{part}", 0o700)
    facts = os.stat(workspace)
    os.chmod(f"{place}/upper", stat.S_IMODE(facts.st_mode))
    fields = {
        "version": 1,
        "id": name,
        "workspace": workspace,
        "device": facts.st_dev,
        "inode": facts.st_ino,
        "started_ns": time.time_ns(),
        "command": list(command),
        "plan": plan,
    }
    with open(f"{place}/session.json", "w") as file:
        json.dump(fields, file)
    with open(f"{place}/hidden.jsonl", "w") as file:
        json.dump({"masked": list(masked), "deny": []}, file)
    with open(f"{place}/directories", "wb") as list_:
        for above, names, _ in os.walk(os.fsencode(workspace)):
            for path in (os.path.join(above, name) for name in names):
                if not os.path.islink(path):
                    below = os.path.relpath(path, os.fsencode(workspace))
                    list_.write(b"%d %s\0" % (os.lstat(path).st_ino, below))
    return place


def tick() -> None:
    """Waits until a new file gets a later time than all files before. The kernel's clock for file
    times is coarse.
    """
    now = time.time_ns()
    while time.clock_gettime_ns(_COARSE) <= now:
        pass


def on_overlay(
    place: str, workspace: str, act: Callable[[], None], masks: Sequence[str] = ()
) -> int:
    """Calls ``act`` in a child that has the session's overlay at the workspace. Masks are whiteouts
    in a middle layer.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            enter_namespaces()
            lowers = [workspace]
            if masks:
                lowers.insert(0, _mask_layer(f"{place}/masks", workspace, masks))
            mount_overlay(lowers, f"{place}/upper", f"{place}/work", workspace)
            os.chdir("/")
            os.chdir(workspace)
            act()
            status = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _mask_layer(layer: str, workspace: str, masks: Sequence[str]) -> str:
    os.makedirs(layer, exist_ok=True)
    for path in masks:
        parent = os.path.dirname(path)
        if parent:
            os.makedirs(f"{layer}/{parent}", exist_ok=True)
            os.chmod(f"{layer}/{parent}", stat.S_IMODE(os.stat(f"{workspace}/{parent}").st_mode))
        if not os.path.lexists(f"{layer}/{path}"):
            os.mknod(f"{layer}/{path}", stat.S_IFCHR | 0o600, 0)
    return layer


def on_tmpfs(size: str, at: str, command: list[str]) -> None:
    enter_namespaces()
    mount_tmpfs(at, size)
    os.chdir("/")
    os.chdir(at)
    os.execvp(command[0], command)


def main() -> int:
    if sys.argv[1] == "--tmpfs":
        on_tmpfs(sys.argv[2], sys.argv[3], sys.argv[5:])
    store, name, workspace, plan, masked, dashes, *command = sys.argv[1:]
    assert dashes == "--"
    os.makedirs(store, mode=0o700, exist_ok=True)
    masks = json.loads(masked)
    if os.path.isdir(f"{store}/{name}"):
        place = f"{store}/{name}"  # a resumed session keeps its start time
    else:
        place = make_session(
            store, name, workspace, plan=json.loads(plan), masked=masks, command=command
        )
    lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    status = on_overlay(place, workspace, lambda: os.execvp(command[0], command), masks)
    tick()
    return status


if __name__ == "__main__":
    sys.exit(main())
