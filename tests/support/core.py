"""Handwritten plans, and the core that runs them without Python."""

from __future__ import annotations

import copy
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tester import Outcome, Tester

Plan = dict[str, Any]

ALL_RIGHTS = (
    "execute", "ioctl_dev", "make_block", "make_char", "make_dir", "make_fifo", "make_reg",
    "make_sock", "make_sym", "read_dir", "read_file", "refer", "remove_dir", "remove_file",
    "truncate", "write_file",
)  # fmt: skip
_ACCESS = {
    "allow": sorted(set(ALL_RIGHTS) - {"ioctl_dev", "make_block", "make_char"}),
    "device": ["ioctl_dev", "read_dir", "read_file", "truncate", "write_file"],
    "read": ["execute", "read_dir", "read_file"],
}
SOCKETS = ("inet", "inet6", "netlink")
SYSTEM_READS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc")
DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
)


def grant(
    path: Path | str, access: str, *, optional: bool = False, kept_out: Iterable[Path | str] = ()
) -> dict[str, Any]:
    return {
        "access": access,
        "except": sorted(map(str, kept_out)),
        "optional": optional,
        "paths": [[str(path), None]],
        "source": "test",
    }


def plan_for(
    tester: Tester,
    workdir: Path,
    *,
    landlock_abi: int,
    read: Iterable[Path | str] = (),
    allow: Iterable[Path | str] = (),
    block: Iterable[str] = (),
) -> Plan:
    """A small but complete plan: system paths readable, devices usable, nothing to supervise. The
    arguments set the rest.
    """
    grants = [grant(path, "read", optional=True) for path in (*SYSTEM_READS, *read)]
    grants += [grant(path, "device", optional=True) for path in DEVICES]
    grants += [grant(path, "allow") for path in allow]
    return {
        "version": 1,
        "profiles": ["test"],
        "tier": "landlock",
        "user": {"uid": tester.uid, "name": tester.name, "home": str(tester.home)},
        "journal": None,
        "no_new_privs": True,
        "rlimits": {},
        "environment": {
            "pass": ["HOME", "PATH", "TERM", "LANG"],
            "deny": [],
            "keep": [],
            "set": {},
        },
        "temp": None,
        "files": {
            "grants": grants,
            **{key: [] for key in ("closed", "unwritable", "reached")},
            **{
                key: []
                for key in ("deny", "deny_names", "protect", "opened", "flagged", "packages")
            },
            "git_remotes": [],
        },
        "landlock": {
            "abi": landlock_abi,
            "handled": list(ALL_RIGHTS),
            "scoped": ["abstract_unix_socket", "signal"],
            "access": _ACCESS,
        },
        "namespaces": None,
        "workspace": None,
        "container": None,
        "limits": dict.fromkeys(
            ("memory_mb", "processes", "cpu_s", "open_files", "file_size_mb", "wall_s")
        ),
        "sessions": str(tester.home / ".local" / "state" / "paddock" / "sessions"),
        "gate": None,
        "network": None,
        "shell": None,
        "observe": False,
        "judges_writes": False,
        "seccomp": {
            "default": "allow",
            "syscalls": sorted(block),
            "namespaces": False,
            "sockets": list(SOCKETS),
        },
        "cwd": str(workdir),
        "workdir": str(workdir),
        "require_enforced": True,
        "notices": [],
    }


def changed(plan: Plan, **values: Any) -> Plan:
    return {**copy.deepcopy(plan), **values}


def canonical(plan: Plan) -> bytes:
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode(
        "ascii"
    )


@contextmanager
def sealed(content: bytes, *, seals: int | None = None) -> Iterator[int]:
    """A memfd with the plan. The core refuses it if ``seals`` is not the full set."""
    full = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fd = os.memfd_create("plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, full if seals is None else seals)
        yield fd
    finally:
        os.close(fd)


def run_core(
    tester: Tester,
    core: Path,
    plan: Plan,
    words: Sequence[str | bytes | Path],
    *,
    verb: str = "run",
    stdin: str | int | None = None,
    as_root: bool = False,
) -> Outcome:
    with sealed(canonical(plan)) as fd:
        return tester.run(
            [core, verb, "--plan-fd", str(fd), *(["--", *words] if words else [])],
            cwd=plan["workdir"], pass_fds=[fd], stdin=stdin, as_root=as_root,
        )  # fmt: skip


def host_facts(tester: Tester, core: Path) -> dict[str, Any]:
    asked = tester.run([core, "host"])
    assert asked.exit_code == 0, str(asked)
    facts: dict[str, Any] = json.loads(asked.stdout)
    return facts
