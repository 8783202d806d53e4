"""Where user namespaces are closed, each message names the setting and the command that opens them.

A user namespace has its own `user.max_user_namespaces`, so a test can close it there.
"""

from __future__ import annotations

import json

from tests.support.sandbox import SandboxRunner, Word

_SETTING = "user.max_user_namespaces"
_CLOSE = (
    f"echo 0 > /proc/sys/{_SETTING.replace('.', '/')} && "
    'exec setpriv --ambient-caps=-all --inh-caps=-all "$@"'
)


def closed(full: SandboxRunner, *words: Word) -> list[Word]:
    unshare: list[Word] = ["unshare", "--user", "--map-current-user", "--keep-caps"]
    return [*unshare, "sh", "-c", _CLOSE, "sh", full.installation.paddock, *words]


def test_doctor_and_refusal_name_the_setting_that_closes_namespaces(full: SandboxRunner) -> None:
    doctor = full.outside(closed(full, "doctor"))
    assert f"{_SETTING} is 0" in doctor.stdout, str(doctor)
    assert f"to get the full tier, type `sudo sysctl -w {_SETTING}=15000`" in doctor.stdout
    told = json.loads(full.outside(closed(full, "doctor", "--json")).stdout)
    assert told["namespaces"]["opened_by"] == f"type `sudo sysctl -w {_SETTING}=15000`"
    refused = full.outside(closed(full, "run", "--tier", "full", "--", "touch", "ran"))
    assert refused.exit_code == 125, str(refused)
    assert f"{_SETTING} is 0" in refused.stderr
    assert f"sudo sysctl -w {_SETTING}=15000" in refused.stderr.partition("hint:")[2]
    assert not (full.tree.project / "ran").exists()
    control = json.loads(full.outside([full.installation.paddock, "doctor", "--json"]).stdout)
    assert (control["tier"], control["namespaces"]["opened_by"]) == ("full", None)


def test_a_kernel_without_either_tier_says_how_to_open_namespaces(full: SandboxRunner) -> None:
    old: list[Word] = [full.programs.oldkernel, "--landlock-abi", "4", "--"]
    refused = full.outside([*old, *closed(full, "run", "--", "touch", "ran")])
    assert refused.exit_code == 125, str(refused)
    assert f"sudo sysctl -w {_SETTING}=15000" in refused.stderr.partition("hint:")[2], str(refused)
    assert not (full.tree.project / "ran").exists()
    ran = full.outside([*old, full.installation.paddock, "run", "--", "true"])
    assert ran.exit_code == 0, "the control: with namespaces this kernel runs it"
