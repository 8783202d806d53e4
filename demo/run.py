"""The demonstration: runs a rogue script without the sandbox and inside it, and prints a table of
the result of each act.

It makes a throw-away home with fake secrets, so nothing real is at risk. Root makes a user for it
and removes the user at the end, because the sandbox is for ordinary users. Any other user gets a
scratch directory in the home, and the user's own files are not touched. The demonstration checks
each file, process and terminal from outside. The report of the rogue counts only for the error and
the loot.

    python demo/run.py        exits 1 if something that had to be refused was not
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.support import installation, tester  # noqa: E402
from tests.support.outside_targets import alive  # noqa: E402

USER = "paddock-demo"
TYPED = b"echo pwned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One throw-away home with everything that a rogue script could want."""

    base: Path
    workspace: Path
    journal: Path
    token: str  # part of every fake secret

    def fill_directory(self) -> None:
        files = {
            ".ssh/id_ed25519": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{self.token}\n",
            ".aws/credentials": f"[default]\naws_secret_access_key = {self.token}\n",
            ".config/gcloud/application_default_credentials.json": (
                f'{{"refresh_token": "{self.token}"}}\n'
            ),
            ".bashrc": "# my shell\n",
            "thesis.txt": "three years of work\n",
        }
        for name, text in files.items():
            path = self.base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        for name in ("planted", "workspace/harmless", "workspace/honest-work.txt"):
            (self.base / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """The report of the rogue, and the state of the host after the rogue has ended."""

    scene: Scene
    reported: dict[str, dict[str, str | None]]
    typed: bytes
    victim_alive: bool

    def error(self, act: str) -> str | None:
        return self.reported[act]["error"]

    def shows_secret(self, act: str) -> bool:
        return self.scene.token in (self.reported[act]["loot"] or "")


# Landlock denies it. In the full tier the file does not exist or is on a read-only mount.
FILE_REFUSALS = ("EACCES", "ENOENT", "EROFS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    name: str
    label: str
    happened: Callable[[Aftermath], bool]
    refusals: tuple[str, ...] = FILE_REFUSALS  # errors that count as a denial by the kernel
    privileged: bool = False  # the bare kernel denies it to an ordinary user


def _loot(name: str, label: str, *refusals: str) -> Act:
    return Act(
        name=name,
        label=label,
        happened=lambda after: after.shows_secret(name),
        refusals=refusals or FILE_REFUSALS,
    )


def _call(name: str, label: str, refusal: str, *, privileged: bool = False) -> Act:
    return Act(
        name=name, label=label, happened=lambda after: after.error(name) is None,
        refusals=(refusal,),
        privileged=privileged,
    )  # fmt: skip


ACTS = (
    _loot("read-ssh-key", "read ~/.ssh/id_ed25519"),
    _loot("read-aws-keys", "read ~/.aws/credentials"),
    _loot("read-gcloud-keys", "read the gcloud credentials"),
    _loot("read-by-proc-root", "read the key through /proc/self/root"),
    Act(
        name="link-key-into-workspace",
        label="hard-link the key into the workspace",
        happened=lambda after: (after.scene.workspace / "harmless").exists(),
        refusals=(*FILE_REFUSALS, "EXDEV"),
    ),
    Act(
        name="list-home",
        label="list the home directory",
        happened=lambda after: "thesis.txt" in (after.reported["list-home"]["loot"] or ""),
        refusals=(*FILE_REFUSALS, "not there"),
    ),
    Act(
        name="append-bashrc",
        label="append to ~/.bashrc",
        happened=lambda after: "evil" in (after.scene.base / ".bashrc").read_text(),
    ),
    Act(
        name="write-outside",
        label="write a file outside the workspace",
        happened=lambda after: (after.scene.base / "planted").exists(),
    ),
    Act(
        name="delete-in-home",
        label="delete a file in the home",
        happened=lambda after: not (after.scene.base / "thesis.txt").exists(),
    ),
    Act(
        name="read-journal",
        label="read Paddock's journal",
        happened=lambda after: bool(after.reported["read-journal"]["loot"]),
    ),
    Act(
        name="erase-journal",
        label="erase Paddock's journal",
        happened=lambda after: (after.scene.journal / "head").read_bytes() == b"",
    ),
    _loot("aws-key-in-environment", "find AWS_SECRET_ACCESS_KEY in the environment", "not there"),
    Act(
        name="preload-in-environment",
        label="find LD_PRELOAD in the environment",
        happened=lambda after: after.reported["preload-in-environment"]["loot"] is not None,
        refusals=("not there",),
    ),
    _loot(
        "environment-of-others", "read another process's environment", "EACCES", "EPERM", "ENOENT"
    ),
    _call("ptrace", "ptrace another process", "EPERM"),
    Act(
        name="kill-others",
        label="kill another process",
        happened=lambda after: not after.victim_alive,
        refusals=("EPERM", "ESRCH"),
    ),
    _call("unshare", "unshare: make a user namespace", "EPERM"),
    _call("mount", "mount a file system", "EPERM"),
    _call("bpf", "bpf: make a map in the kernel", "EPERM", privileged=True),
    _call("io_uring", "io_uring: calls past the filter", "ENOSYS"),
    Act(
        name="tiocsti",
        label="type a command into your terminal (TIOCSTI)",
        happened=lambda after: TYPED in after.typed,
        refusals=("EPERM",),
    ),
)
WORK = Act(
    name="write-workspace",
    label="(honest work) write in the workspace",
    happened=lambda after: (after.scene.workspace / "honest-work.txt").read_text() == "done\n",
)


def unleash(user: tester.Tester, scene: Scene, prefix: list[str | Path]) -> Aftermath:
    """Runs the rogue on its own terminal, with a secret in its environment and a victim process."""
    scene.fill_directory()
    user.give(scene.base)
    environment = {"AWS_SECRET_ACCESS_KEY": scene.token, "LD_PRELOAD": "libc.so.6"}
    with user.starting(["sleep", "60"], env={"SESSION_TOKEN": scene.token}) as victim:
        controller, terminal = pty.openpty()
        os.fchown(terminal, user.uid, -1)
        rogue: list[str | Path] = [
            # the target of the links of a virtual environment: the environment is closed inside
            Path(installation.reachable_interpreter(user)[0]).resolve(),
            scene.workspace / "rogue.py",
            scene.base,
            scene.workspace,
            scene.journal,
            str(victim.pid),
        ]
        done = user.run(
            ["setsid", "--ctty", "--wait", *prefix, *rogue],
            cwd=scene.workspace,
            env=environment,
            stdin=terminal,
        )
        os.set_blocking(terminal, False)
        try:
            typed = os.read(terminal, 4096)
        except BlockingIOError:
            typed = b""
        os.close(terminal)
        os.close(controller)
        victim_alive = alive(victim.pid)
    reported = {entry["act"]: entry for entry in map(json.loads, done.stdout.splitlines())}
    missing = [act.name for act in (*ACTS, WORK) if act.name not in reported]
    if missing:
        sys.exit(f"demo: the rogue did not get as far as {', '.join(missing)}:\n{done}")
    return Aftermath(scene=scene, reported=reported, typed=typed, victim_alive=victim_alive)


@contextmanager
def throw_away_home() -> Iterator[tuple[tester.Tester, Path]]:
    if os.getuid() != 0:
        user = tester.find_or_make()
        base = Path(tempfile.mkdtemp(prefix="paddock-demo-", dir=user.home))
        try:
            yield user, base
        finally:
            shutil.rmtree(base)
        return
    user = tester.find_or_make(USER)
    try:
        yield user, user.home
    finally:
        subprocess.run(["userdel", "--remove", USER], check=True, capture_output=True)


def verdict(act: Act, after: Aftermath) -> str:
    if act.happened(after):
        return "succeeded"
    error = after.error(act.name)
    return error if error else "not there"


def table(rows: list[tuple[str, str, str]]) -> str:
    head = ("the rogue tries to", "without the sandbox", "inside: refused by the kernel")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def play(user: tester.Tester, installed: installation.Installation, base: Path) -> int:
    scene = Scene(
        base=base,
        workspace=base / "workspace",
        journal=base / "journal",
        token=f"FAKE-{secrets.token_hex(12)}",
    )
    scene.workspace.mkdir()
    shutil.copy(HERE / "rogue.py", scene.workspace)
    user.give(base)
    sandbox: list[str | Path] = [installed.paddock, "run", "--audit-log", scene.journal]
    # one ordinary run first, so that there is a journal to attack
    first = user.run([*sandbox, "--", "true"], cwd=scene.workspace)
    if first.exit_code != 0:
        sys.exit(f"demo: {first}")
    inside = unleash(user, scene, [*sandbox, "--"])
    inside_column = {act.name: verdict(act, inside) for act in (*ACTS, WORK)}
    bare = unleash(user, scene, [])
    bare_column = {act.name: verdict(act, bare) for act in (*ACTS, WORK)}
    for act in ACTS:
        if act.privileged and bare_column[act.name] in act.refusals:
            bare_column[act.name] += " (root only)"
    print(
        table(
            [(act.label, bare_column[act.name], inside_column[act.name]) for act in (*ACTS, WORK)]
        )
    )
    faults = [
        f"{act.label}: {inside_column[act.name]} inside"
        for act in ACTS
        if inside_column[act.name] not in act.refusals
    ]
    if inside_column[WORK.name] != "succeeded":
        faults.append(f"{WORK.label}: {inside_column[WORK.name]} inside")
    toothless = [
        act.label for act in ACTS if bare_column[act.name] != "succeeded" and not act.privileged
    ]
    print()
    if toothless:
        print(f"note: already refused without the sandbox on this machine: {', '.join(toothless)}")
    print(*(f"FAULT: {fault}" for fault in faults), sep="\n") if faults else print(
        f"{len(ACTS)} acts refused inside, honest work done."
    )
    return 1 if faults else 0


def main() -> int:
    with throw_away_home() as (user, base), installation.for_tester(user) as installed:
        print(f"as {user.name}, home with fake secrets in {base}\n")
        return play(user, installed, base)


if __name__ == "__main__":
    sys.exit(main())
