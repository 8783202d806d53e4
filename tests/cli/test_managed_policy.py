"""``/etc/paddock/managed.toml`` holds in a real run, also with a stored plan and with flags."""

from __future__ import annotations

import os

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

# An /etc of this mount namespace, with the managed policy. Then the command, as the tester.
_MANAGED = """
mount -t tmpfs managed /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay managed -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
mkdir -p -m 755 /etc/paddock && printf %s "$1" > /etc/paddock/managed.toml
shift && cd "$PWD" && exec {setpriv} "$@"
"""
TEXT = '[filesystem]\nprotect_globs = ["**/kept"]\n'


@pytest.fixture(autouse=True)
def _as_root() -> None:
    need("root", os.getuid() == 0, "only root can mount over /etc")


def run(sandbox: SandboxRunner, words: list[Word], *flags: Word, text: str = TEXT) -> Outcome:
    tester = sandbox.tester
    setpriv = f"setpriv --reuid={tester.uid} --regid={tester.gid} --clear-groups"
    script = _MANAGED.format(setpriv=setpriv)
    prefix = ["unshare", "--mount", "sh", "-euc", script, "sh", text]
    return sandbox.inside(words, *flags, prefix=prefix, as_root=True)


def test_the_managed_policy_holds_in_each_run(sandbox: SandboxRunner) -> None:
    kept = sandbox.tree.project / "kept"
    command: list[Word] = ["sh", "-c", "echo x > kept; echo x > other"]
    for _ in range(2):  # the second run uses the stored plan
        outcome = run(sandbox, command)
        assert not kept.exists(), str(outcome)
        assert (sandbox.tree.project / "other").read_text() == "x\n", str(outcome)
    control = sandbox.inside(command)
    assert kept.read_text() == "x\n", str(control)


def test_a_flag_does_not_open_what_it_protects(sandbox: SandboxRunner) -> None:
    kept = sandbox.tree.project / "kept"
    command: list[Word] = ["sh", "-c", "echo x > kept"]
    refused = run(sandbox, command, "--open-protected", "**/kept")
    assert refused.exit_code == 125
    assert "/etc/paddock/managed.toml:2" in refused.stderr
    assert not kept.exists()
    control = sandbox.inside(command, "--open-protected", "**/kept")
    assert control.exit_code == 0, str(control)
    assert kept.exists()


def test_a_managed_policy_with_an_error_stops_the_run(sandbox: SandboxRunner) -> None:
    refused = run(sandbox, ["touch", "ran"], text="[filesystem]\nread_globs = ['/srv']\n")
    assert refused.exit_code == 125
    assert "can only restrict" in refused.stderr
    assert not (sandbox.tree.project / "ran").exists()
