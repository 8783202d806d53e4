"""Output about a restricted network without a run: flags, `why --host`, `explain`, `check`,
`trust`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

POLICY = """\
[meta]
inherit = "ai-agent"

[network]
allowed_hosts = ["api.example.com", "*.example.org", "ssh.example.com:22", "10.0.0.0/8:5432"]
denied_hosts = ["secret.example.org"]
"""


@pytest.fixture
def policy(full: SandboxRunner) -> Path:
    return full.tree.put(full.tree.root / "p.toml", POLICY)


def paddock(sandbox: SandboxRunner, *words: Word) -> Outcome:
    outcome = sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def why(sandbox: SandboxRunner, host: str, *words: Word) -> dict[str, Any]:
    outcome = paddock(sandbox, "why", *words, "--host", host, "--json")
    answer: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == (0 if answer["allowed"] else 1), outcome
    return answer


@pytest.mark.parametrize(
    ("asked", "allowed", "rule"),
    [
        ("API.Example.com.", True, "api.example.com"),
        ("api.example.com:80", True, "api.example.com"),
        ("api.example.com:22", False, None),
        ("x.api.example.com", False, None),
        ("a.b.example.org", True, "*.example.org"),
        ("example.org", False, None),
        ("evilexample.org", False, None),
        ("secret.example.org", False, "secret.example.org"),
        ("secret.example.org:22", False, "secret.example.org"),
        ("ssh.example.com:22", True, "ssh.example.com"),
        ("ssh.example.com", False, None),
        ("10.1.2.3:5432", True, "10.0.0.0/8"),
        ("10.1.2.3", False, None),
        ("[2001:db8::1]:443", False, None),
        ("169.254.169.254", False, None),
        ("0x7f.1", False, None),
        ("a b", False, None),
    ],
)
def test_a_host_is_judged_by_the_table_that_filters(
    full: SandboxRunner, policy: Path, asked: str, allowed: bool, rule: str | None
) -> None:
    """F-117 F-120 F-121 F-122 F-123"""
    answer = why(full, asked, "--policy", policy)
    assert answer["allowed"] is allowed, answer
    assert (answer["rule"] or {}).get("host") == rule
    assert rule is None or answer["rule"]["source"].startswith(f"{policy}:")


def test_deny_wins_whatever_its_origin(full: SandboxRunner, policy: Path) -> None:
    """F-124"""
    lifted = why(
        full, "secret.example.org", "--policy", policy, "--allow-domain", "secret.example.org"
    )
    assert (lifted["allowed"], lifted["rule"]["source"]) == (False, f"{policy}:6")
    denied = why(full, "api.example.com", "--policy", policy, "--deny-domain", "*.example.com")
    assert (denied["allowed"], denied["rule"]["source"]) == (False, "--deny-domain")
    added = why(full, "new.example.com", "--policy", policy, "--allow-domain", "new.example.com")
    assert (added["allowed"], added["rule"]["source"]) == (True, "--allow-domain")


@pytest.mark.parametrize(
    "asked",
    ["169.254.169.254", "metadata.google.internal", "[fd00:ec2::254]", "[::ffff:a9fe:a9fe]"],
)
def test_metadata_is_never_reached_and_no_flag_is_offered(full: SandboxRunner, asked: str) -> None:
    """F-133 F-134"""
    shown = paddock(
        full, "why", "--allow-domain", "*", "--allow-domain", "0.0.0.0/0", "--host", f"{asked}:80"
    )
    assert shown.exit_code == 1
    assert "always denied" in shown.stdout
    assert "to allow it" not in shown.stdout
    refused = paddock(full, "run", "--allow-domain", asked, "--", "true")
    assert (refused.exit_code, refused.stdout) == (125, "")


def test_why_names_the_rule_or_the_flag_that_would_allow_the_host(
    full: SandboxRunner, policy: Path
) -> None:
    allowed = paddock(full, "why", "--policy", policy, "--host", "api.example.com")
    assert (
        allowed.stdout == f"allowed: api.example.com:443\n  because: api.example.com ({policy}:5)\n"
    )
    denied = paddock(full, "why", "--policy", policy, "--host", "bücher.example:8443")
    assert denied.stdout.splitlines() == [
        "denied: xn--bcher-kva.example:8443",
        "  because: no rule allows it",
        "  to allow it: paddock run --allow-domain xn--bcher-kva.example:8443 …",
    ]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("93.184.216.34:8443", ["denied: 93.184.216.34:8443", "--allow-domain 93.184.216.34:8443"]),
        (
            "[2001:db8::1]:8443",
            ["denied: [2001:db8::1]:8443", "--allow-domain '[2001:db8::1]:8443'"],
        ),
        ("2001:db8::1", ["denied: [2001:db8::1]:443", "--allow-domain 2001:db8::1 "]),
        ("127.0.0.1:5432", ["allowed: 127.0.0.1:5432", "allowed_local_ports lists it"]),
        ("[::1]:5432", ["allowed: [::1]:5432", "allowed_local_ports lists it"]),
        (
            "localhost:5433",
            ["denied: localhost:5433", "to allow it: allowed_local_ports = [5433], in [network]"],
        ),
    ],
)
def test_why_knows_addresses_and_the_ports_of_this_machine(
    full: SandboxRunner, asked: str, message: list[str]
) -> None:
    text = "[meta]\ninherit='ai-agent'\n[network]\nallowed_hosts=[]\nallowed_local_ports=[5432]\n"
    local = full.tree.put(full.tree.root / "local.toml", text)
    answer = paddock(full, "why", "--policy", local, "--host", asked)
    assert all(part in answer.stdout for part in message), str(answer)
    assert answer.exit_code == (0 if message[0].startswith("allowed") else 1)


@pytest.mark.parametrize("asked", ["[::1", "[::1:80", "[::1]x:80", "::1]"])
def test_an_unclosed_bracket_is_not_a_host(full: SandboxRunner, asked: str) -> None:
    refused = paddock(full, "why", "--allow-domain", "a.example", "--host", asked)
    assert (refused.exit_code, refused.stdout) == (125, ""), str(refused)
    assert "not a host" in refused.stderr


def test_a_local_port_that_is_used_inside_is_refused_with_its_line(full: SandboxRunner) -> None:
    text = "[meta]\ninherit='ai-agent'\n[network]\nallowed_local_ports=[5432, 1]\n"
    local = full.tree.put(full.tree.root / "local.toml", text)
    refused = paddock(full, "run", "--policy", local, "--", "true")
    assert refused.exit_code == 125, str(refused)
    assert refused.stderr.startswith(
        f"paddock: {local}:4: the command cannot reach port 1 of this machine"
    ), str(refused)


def test_absent_open_empty_and_disabled_networks_differ(full: SandboxRunner) -> None:
    """F-110 F-125 F-131"""
    empty = full.tree.put(
        full.tree.root / "empty.toml", "[meta]\ninherit='ai-agent'\n[network]\nallowed_hosts=[]\n"
    )
    assert why(full, "example.com")["reason"] == "the network is not restricted"
    assert why(full, "example.com", "--policy", empty)["allowed"] is False
    assert why(full, "example.com:9", "--deny-domain", "example.org")["allowed"] is True
    assert why(full, "example.com", "--block-net")["reason"] == "the command has no network"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--block-net", "--allow-domain", "a.example"],
            "--block-net and --allow-domain contradict each other",
        ),
        (
            ["--publish", "3000"],
            "the command uses this machine's network, so its ports need no --publish",
        ),
        (
            ["--block-net", "--publish", "3000:80", "--publish", "3000:81"],
            "port 3000 of this machine is published twice",
        ),
        (["--block-net", "--publish", "65536"], "--publish: not a port: 65536"),
        (["--block-net", "--publish", "127.0.0.1:80:80"], "--publish: not a port"),
        (["--block-net", "--publish", "80:"], "--publish: not a port"),
        (["--allow-domain", "https://a.example/"], "--allow-domain: not a host"),
        (["--allow-domain", "@nobody"], "unknown group '@nobody'"),
        (
            ["--tier", "landlock", "--block-net", "--publish", "3000"],
            "--publish: the landlock tier cannot publish ports",
        ),
        (
            ["--tier", "landlock", "--block-net", "--off", "seccomp"],
            "--block-net: without namespaces, Landlock and seccomp",
        ),
    ],
)
def test_contradicting_or_unenforceable_network_options_are_refused(
    full: SandboxRunner, words: list[str], message: str
) -> None:
    """F-132"""
    refused = paddock(full, "run", *words, "--", "true")
    assert (refused.exit_code, refused.stdout) == (125, "")
    assert message in refused.stderr


def test_the_plan_keeps_every_host_with_its_line(full: SandboxRunner, policy: Path) -> None:
    shown = paddock(full, "explain", "--policy", policy, "--json")
    assert shown.exit_code == 0, shown
    network = json.loads(shown.stdout)["plan"]["network"]
    assert (network["mode"], network["default"]) == ("filtered", "deny")
    assert network["denied"] == [
        {"source": str(policy), "hosts": [["secret.example.org", None, 6]]}
    ]
    assert ["10.0.0.0/8", 5432, 5] in network["allowed"][0]["hosts"]


def test_a_lock_file_of_the_workspace_counts_after_paddock_trust(full: SandboxRunner) -> None:
    lock = full.tree.put(
        full.tree.project / "package-lock.json", '"resolved": "https://lock.example/a.tgz"\n'
    )
    mirror = {"npm_config_registry": "https://mirror.example/"}

    def answer(host: str) -> dict[str, Any]:
        words: list[Word] = [
            full.installation.paddock,
            "why",
            "--allow-domain",
            "@npm",
            "--host",
            host,
            "--json",
        ]
        found: dict[str, Any] = json.loads(
            full.tester.run(words, cwd=full.tree.project, env=mirror).stdout
        )
        return found

    configured, before = answer("mirror.example"), answer("lock.example")
    trusted, after = paddock(full, "trust", lock), answer("lock.example")
    paddock(full, "trust", "--forget", lock)
    assert (configured["allowed"], configured["rule"]["source"]) == (True, "$npm_config_registry")
    assert (before["allowed"], before["rule"]) == (False, None)
    assert trusted.stdout == f"trusted: lock.example ({lock}:1)\n"
    assert (after["allowed"], after["rule"]["source"]) == (True, f"{lock}:1")
