"""`explain --toml` writes a file that compiles to the same plan as the flags.

The first line names the flags that have no policy key. The file with those flags gives the same
plan again.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import Any

import pytest

from paddock.cli.options import Parser, add_policy_options, request_of
from paddock.host.facts import Host
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import ungrouped
from paddock.policy.model import Tier
from paddock.policy.render import FLAGS_NOTE, to_toml
from tests.unit.plan.plan_inputs import FULL, HOST
from tests.unit.policy.user_dirs import UserDirs

# One line for each flag, by its argparse name. A flag without a line fails the first test.
CASES: dict[str, list[str]] = {
    "profile": ["--profile strict", "--profile read-only --profile dev"],
    "policy": ["--policy {policy}"],
    "only": ["--only -r /srv/a -a /srv/b --block mlock"],
    "grants": [
        "-r /srv/a --read '/srv/b c/**?' --ro rel/x",
        "-w /srv/out/** --write /srv/$$odd",
        "-a /srv/a/** --allow ~/p --rw '<tmp>/**'",
        "-x /opt/tool --exec /opt/tools/**",
        "--profile ai-agent -a /dev/shm/x? -r '/etc/*.conf'",
    ],
    "deny": ["--deny '~/private/**' --deny /srv/a/key", "-r /srv/** --deny /srv/a/**"],
    "block": ["--block mlock --block mincore"],
    "socket": ["--socket unix"],
    "allow_domain": [
        (
            "--allow-domain A.example --allow-domain '*.b.example:8443' --allow-domain "
            "'[2001:db8::1]:443'"
        )
    ],
    "deny_domain": [
        "--deny-domain a.example",
        "--deny-domain '*.a.example' --allow-domain a.example",
    ],
    "allow_endpoint": [
        "--policy {policy} --allow-endpoint 'api:get:/v1/*' --allow-endpoint api:POST:/a:b"
    ],
    "block_net": ["--block-net"],
    "env_pass": [
        "--env-pass GITHUB_TOKEN --env-pass FOO",
        "--env-pass PLAIN",
        "--env-pass PATH",
        "--env-pass 'MY_*'",
        "--policy {policy} --env-pass PLAIN_TOKEN",
    ],
    "env": ["--env A=1 --env 'B=$x <tmp>\" \\'", "--env PATH=/bin"],
    "workdir": ["--workdir /usr/share"],
    "strict_globs": ["--strict-globs"],
    "audit": ["--audit", "--audit=/var/log/mine.jsonl"],
    "audit_log": ["--audit-log /var/log/mine", "--audit --audit-log /var/log/mine"],
    "open_protected": ["--open-protected .vscode", "--open-protected '**/.env'"],
    "cow": ["--profile ai-agent --cow"],
    "resume": ["--profile ai-agent --resume 9f86d081884c7d65"],
    "tier": ["--tier full", "--tier landlock"],
    "off": [
        "--off landlock",
        "--off seccomp --off env-sanitize",
        "--off audit",
        "--off no-new-privs --off landlock --off seccomp",
    ],
}
NEED_FULL = ("--cow", "--resume", "--tier full", "-domain", "-endpoint", "--block-net")
POLICY = """\
[meta]
inherit = "read-only"
[filesystem]
allow_globs = ["<cwd>/**"]
[env]
deny = ["PLAIN*"]
set = { X = "$$HOME" }
"""
ROUTE = """\
[network.routes.api]
upstream = "https://api.example.com"
endpoint_rules = []
"""


def parser() -> Parser:
    made = Parser("explain", "")
    add_policy_options(made)
    return made


def plan_of(dirs: UserDirs, arguments: list[str], machine: Host = HOST) -> tuple[Plan, str]:
    options: argparse.Namespace = parser().parse_args(arguments)
    policy = dirs.load(replace(request_of(options, command=None), trust_required=False))
    host = replace(machine, cwd=str(dirs.work), home=str(dirs.home))
    return compile_plan(policy, host), to_toml(policy)


def essence(plan: Plan) -> dict[str, Any]:
    """The part of a plan that the core enforces: without the sources of lines and without
    notices.
    """
    values = plan.as_json()
    for key in ("profiles", "notices"):
        del values[key]
    if values["files"]:
        values["files"]["grants"] = [
            grant | {"source": ""} for grant in ungrouped(values["files"]["grants"])
        ]
        # Names are protected, denied and flagged below the grants of a person. A written line is
        # one.
        for key in ("deny", "deny_names", "opened", "protect", "flagged", "packages"):
            del values["files"][key]
    return values


def network(plan: Plan) -> object:
    """A written table sorts its hosts. Their order has no meaning."""
    if plan.network is None:
        return None
    hosts = [
        sorted((one.host, one.port or 0) for one in rules)
        for rules in (plan.network.denied, plan.network.allowed)
    ]
    routes = plan.network.http.routes if plan.network.http else ()
    endpoints = [
        (route.name, [(one.method, one.path) for one in route.endpoints or ()]) for route in routes
    ]
    return plan.network.mode, plan.network.default, plan.network.local_ports, hosts, endpoints


def test_every_flag_has_its_line() -> None:
    assert {action.dest for action in parser()._actions} - {"help"} == set(CASES)


@pytest.mark.parametrize("line", [line for lines in CASES.values() for line in lines])
def test_the_toml_of_flags_compiles_to_the_same_plan(dirs: UserDirs, line: str) -> None:
    machine = FULL if any(flag in line for flag in NEED_FULL) else HOST
    policy = dirs.file("given.toml", POLICY + ROUTE if "-endpoint" in line else POLICY)
    plan, text = plan_of(dirs, shlex.split(line.format(policy=policy)), machine)
    written = dirs.file("written.toml", text)
    first = text.partition("\n")[0]
    flags = shlex.split(first.removeprefix(FLAGS_NOTE)) if first.startswith("#") else []
    again, text_again = plan_of(dirs, ["--policy", str(written), *flags], machine)
    if plan.tier is Tier.LANDLOCK:
        assert essence(again) == essence(plan)
    else:
        # The full tier drops built-in lines that it holds in another way. A written line is a
        # person's.
        assert (again.tier, again.workspace, network(again)) == (
            plan.tier,
            plan.workspace,
            network(plan),
        )
    assert text_again == text


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("--env-pass PLAIN", ""),
        ("--env-pass GITHUB_TOKEN --env-pass FOO", "--env-pass GITHUB_TOKEN"),
        ("--off seccomp --off audit", "--off seccomp --off audit"),
        ("--audit", "--audit"),
        ("--audit-log /var/log/x", ""),
    ],
)
def test_flags_without_a_policy_key_are_named_in_a_comment(
    dirs: UserDirs, line: str, flags: str
) -> None:
    _, text = plan_of(dirs, line.split())
    assert text.startswith(f"{FLAGS_NOTE} {flags}\n" if flags else "[meta]\n")
