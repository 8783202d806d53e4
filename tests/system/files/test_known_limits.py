"""Limits of the landlock tier, as SECURITY.md lists them. If one of these tests fails, the page is
out of date.

Landlock hides no metadata, and judges names, not contents. The full tier closes these gaps.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.sandbox import SandboxRunner


def test_names_and_sizes_outside_can_be_seen(sandbox: SandboxRunner) -> None:
    """C-030: stat, access, readlink."""
    outcome = sandbox.inside(["sh", "-c", f"echo started; stat -c %s {sandbox.tree.secret}"])
    assert outcome.answer == str(sandbox.tree.secret.stat().st_size), str(outcome)


def test_without_seccomp_modes_of_own_files_outside_can_be_changed(sandbox: SandboxRunner) -> None:
    """C-030: the core judges chmod by its system call. The content stays closed."""
    secret = sandbox.tree.secret
    assert sandbox.inside(sandbox.probe("chmod", secret)).answer == "EROFS"
    assert secret.stat().st_mode & 0o777 == 0o644
    assert sandbox.inside(sandbox.probe("chmod", secret), "--off", "seccomp").answer == "ok"
    assert secret.stat().st_mode & 0o777 == 0o666
    assert sandbox.inside(sandbox.probe("read", secret), "--off", "seccomp").answer == "EACCES"


def test_a_second_name_of_a_denied_file_reads_it(sandbox: SandboxRunner) -> None:
    """A hard link in a grant from before the run: the rule on it is a rule on the file."""
    place = sandbox.tree.make(sandbox.tree.root / "place")
    key = sandbox.tree.put(place / "private" / "key", "secret\n")
    (place / "second").hardlink_to(key)
    flags = ("-r", f"{place}/**", "--deny", f"{key.parent}/**")
    assert sandbox.inside(sandbox.probe("read", place / "second"), *flags).answer == "ok secret"
    (place / "second").unlink()
    assert sandbox.inside(sandbox.probe("read", key), *flags).answer == "EACCES"


def test_a_readable_file_can_be_run_by_the_loader(sandbox: SandboxRunner) -> None:
    """Execute rights are a floor, not a list of programs."""
    place = sandbox.tree.make(sandbox.tree.root / "place")
    copy = sandbox.tree.put(place / "true", "")
    copy.write_bytes(Path("/bin/true").read_bytes())
    loader = "/lib64/ld-linux-x86-64.so.2"
    outcome = sandbox.inside(
        ["sh", "-c", f"echo started; {loader} {copy}; echo $?"], "-r", f"{place}/**"
    )
    assert outcome.answer == "0", str(outcome)
