"""[network] → plan.network: allowed hosts with their lines. Rules that cannot be enforced are
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from paddock.cli.show_plan import _network as shown
from paddock.errors import HostError, PolicyError
from paddock.host.grant_targets import Terrain
from paddock.host.registries import Registry
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import NetworkPlan, NetworkReach
from paddock.policy import Policy, Request
from paddock.policy.model import Access, Action, Destination, Source, Sourced, Switch, Tier
from tests.unit.policy.user_dirs import UserDirs

from .plan_inputs import FULL, HOST, files, grant, policy

SCHEMA = Path(__file__).parents[3] / "schema"
FILES = files(grant(Access.READ, "/usr/**"), grant(Access.ALLOW, "<tmp>/**"))


def written(dirs: UserDirs, text: str, **flags: tuple[str, ...]) -> Policy:
    """The network of a policy text and of flags."""
    file = dirs.file("p.toml", text)
    loaded = dirs.load(Request(policies=(str(file),), **flags))  # type: ignore[arg-type]
    return policy(FILES, network=loaded.network, meta=loaded.meta)


def compiled(dirs: UserDirs, text: str, **flags: tuple[str, ...]) -> Plan:
    return compile_plan(written(dirs, text, **flags), FULL)


def network(dirs: UserDirs, text: str, **flags: tuple[str, ...]) -> NetworkPlan:
    plan = compiled(dirs, text, **flags)
    assert plan.network is not None
    return plan.network


def rules(network: NetworkPlan) -> tuple[list[str], list[str]]:
    """Denied and allowed hosts, each as a policy writes it, with its line."""

    def each(group: str) -> list[str]:
        return [
            f"{Destination(host=one.host, port=one.port)} {one.source.rpartition('/')[2]}"
            for one in getattr(network, group)
        ]

    return each("denied"), each("allowed")


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("[network]\n", Action.ALLOW),
        ("[network]\nmode = 'filtered'\ndenied_hosts = ['x.example']\n", Action.ALLOW),
        ("[network]\nallowed_hosts = []\n", Action.DENY),
        ("[network]\nallowed_hosts = ['x.example']\n", Action.DENY),
        ("[network]\ndefault = 'deny'\n", Action.DENY),
        ("[network]\ndefault = 'ask'\nallowed_hosts = ['x.example']\n", Action.ASK),
        ("[network]\ndefault = 'allow'\nallowed_hosts = ['10.0.0.1']\n", Action.ALLOW),
    ],
)
def test_a_list_of_hosts_means_no_others_unless_the_default_says_so(
    dirs: UserDirs, text: str, default: Action
) -> None:
    """F-125 F-126 F-127"""
    assert network(dirs, text).default is default


def test_an_empty_list_reaches_nothing_at_all(dirs: UserDirs) -> None:
    """F-125"""
    empty = network(dirs, "[network]\nallowed_hosts = []\n")
    assert (empty.mode, empty.default, empty.allowed, empty.local_ports) == (
        NetworkReach.FILTERED,
        Action.DENY,
        (),
        (),
    )


def test_without_a_network_section_the_network_is_open_with_a_notice(dirs: UserDirs) -> None:
    """F-110"""
    plan = compiled(dirs, "[env]\n")
    assert plan.network is None
    assert plan.notices[0].text.endswith("network open")


def test_a_flag_alone_reaches_that_host_only(dirs: UserDirs) -> None:
    """F-127 F-129"""
    only = network(dirs, "[env]\n", allow_domains=("a.example",))
    assert (only.default, rules(only)) == (Action.DENY, ([], ["a.example --allow-domain"]))
    but = network(dirs, "[env]\n", deny_domains=("a.example",))
    assert (but.default, rules(but)) == (Action.ALLOW, (["a.example --deny-domain"], []))


def test_a_denied_host_stays_denied_whatever_a_flag_allows(dirs: UserDirs) -> None:
    """F-124"""
    both = network(dirs, "[network]\ndenied_hosts = ['a.example']\n", allow_domains=("a.example",))
    assert rules(both) == (["a.example p.toml:2"], ["a.example --allow-domain"]), (
        "the denied ones are looked at first"
    )


def test_rules_keep_their_ports_and_lines_and_stand_once(dirs: UserDirs) -> None:
    """F-117 F-128"""
    text = (
        "[network]\nallowed_hosts = [\n 'A.example',\n 'a.example:22',\n '*.a.example',\n"
        " 'a.example.',\n]\n"
    )
    assert rules(network(dirs, text))[1] == [
        "a.example p.toml:3",
        "a.example:22 p.toml:4",
        "*.a.example p.toml:5",
    ]


def test_a_group_is_its_hosts_by_the_line_that_names_it(dirs: UserDirs) -> None:
    named = rules(
        network(dirs, "[network]\nallowed_hosts = ['@github']\ndenied_hosts = ['@openai']\n")
    )
    assert "github.com:22 p.toml:2" in named[1]
    assert "*.openai.com p.toml:3" in named[0]
    assert not any("@" in rule for rule in (*named[0], *named[1]))


MIRROR = Sourced(
    Destination(host="mirror.example", port=8443), Source(file="/home/ada/.npmrc", line=2)
)
PLANTED = Sourced(
    Destination(host="evil.example"), Source(file="/home/ada/project/package-lock.json", line=7)
)


def test_a_found_group_is_named_by_the_file_it_was_found_in(dirs: UserDirs) -> None:
    asked = written(dirs, "[network]\nallowed_hosts = ['@npm']\n")
    found = Terrain(registries={"npm": Registry(hosts=(MIRROR,), untrusted=(PLANTED,))})
    plan = compile_plan(asked, FULL, found)
    assert plan.network is not None
    assert rules(plan.network)[1] == ["mirror.example:8443 .npmrc:2"]
    (notice,) = [one.text for one in plan.notices if "evil.example" in one.text]
    assert "paddock trust /home/ada/project/package-lock.json" in notice


@pytest.mark.parametrize(
    ("registries", "hint"),
    [
        ({}, "one by one"),
        ({"npm": Registry(hosts=(), remedy="install npm")}, "install npm"),
        (
            {"npm": Registry(hosts=(), untrusted=(PLANTED,))},
            "paddock trust /home/ada/project/package-lock.json",
        ),
    ],
)
def test_a_host_group_without_a_source_is_an_error(
    dirs: UserDirs, registries: dict[str, Registry], hint: str
) -> None:
    asked = written(dirs, "[network]\nallowed_hosts = [\n'@npm']\n")
    with pytest.raises(
        PolicyError, match=r"p\.toml:3: @npm: no file on this machine lists"
    ) as refused:
        compile_plan(asked, FULL, Terrain(registries=registries))
    assert hint in (refused.value.hint or "")


def test_no_network_has_nothing_to_reach(dirs: UserDirs) -> None:
    """F-131"""
    text = (
        "[network]\nmode = 'none'\ndefault = 'allow'\nallowed_hosts = ['a.example']\n"
        "allowed_local_ports = [80]\n"
    )
    plan = compiled(dirs, text)
    assert plan.network is not None
    network = plan.network
    assert (network.mode, network.default) == (NetworkReach.NONE, Action.DENY)
    assert (network.allowed, network.local_ports) == ((), ())
    assert plan.notices[0].text.endswith("no network")


def test_a_flag_does_not_open_what_the_policy_closed_altogether(dirs: UserDirs) -> None:
    with pytest.raises(PolicyError, match=r'--allow-domain: .*mode = "none"'):
        compiled(dirs, "[network]\nmode = 'none'\n", allow_domains=("a.example",))


def test_host_network_is_unrestricted_with_a_notice(dirs: UserDirs) -> None:
    plan = compiled(dirs, "[network]\nmode = 'host'\n")
    assert plan.network is None
    assert any("the network is not restricted" in notice.text for notice in plan.notices)


@pytest.mark.parametrize(
    "more", ["allowed_hosts = ['x']", "denied_hosts = ['x']", "allowed_local_ports = [80]"]
)
def test_a_key_that_an_open_network_does_not_enforce_is_refused(dirs: UserDirs, more: str) -> None:
    with pytest.raises(
        PolicyError, match=r'p\.toml:3: network\.mode = "host" does not filter hosts'
    ):
        compiled(dirs, f"[network]\nmode = 'host'\n{more}\n")


SUPERVISABLE = replace(HOST, user_notification=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode = 'none'", "no network"),
        ("allowed_hosts = ['x']", "network: 1 host, through the proxy only"),
        ("allowed_hosts = ['x']\nkernel_pin = true", "network: 1 host, through the proxy only"),
    ],
)
def test_without_namespaces_connections_are_supervised_with_a_notice(
    dirs: UserDirs, text: str, message: str
) -> None:
    """F-151"""
    asked = written(dirs, f"[network]\n{text}\n")
    for plan in (
        compile_plan(asked, SUPERVISABLE),
        compile_plan(replace(asked, tier=Tier.LANDLOCK), FULL),
    ):
        assert plan.network == compile_plan(asked, FULL).network
        assert plan.notices[0].text.partition("; ")[0].endswith(f", {message}")


@pytest.mark.parametrize("switch", [Switch.LANDLOCK, Switch.SECCOMP])
def test_supervised_connect_is_refused_if_its_layer_is_off(dirs: UserDirs, switch: Switch) -> None:
    asked = replace(written(dirs, "[network]\nmode = 'none'\n"), off=(switch,), tier=Tier.LANDLOCK)
    with pytest.raises(PolicyError, match=rf"p\.toml:2: .*--off {switch.value} is given"):
        compile_plan(asked, FULL)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kernel_pin = false", "p.toml:3: without kernel_pin, a program"),
        ("default = 'ask'", "p.toml:3: the landlock tier cannot ask about hosts"),
    ],
)
def test_a_rule_that_supervised_connect_does_not_enforce_names_its_line(
    dirs: UserDirs, line: str, message: str
) -> None:
    asked = written(dirs, f"[network]\nallowed_hosts = ['x']\n{line}\n")
    with pytest.raises(PolicyError) as refused:
        compile_plan(asked, SUPERVISABLE)
    assert message in str(refused.value)
    assert compile_plan(asked, FULL).network is not None, (
        "the full tier has it, or does not need it"
    )


def test_without_notifications_there_is_only_no_network_at_all(dirs: UserDirs) -> None:
    """F-160"""
    poor = replace(HOST, user_notification=False)
    assert compile_plan(written(dirs, "[network]\nmode = 'none'\n"), poor).network is not None
    with pytest.raises(HostError, match="this machine cannot filter hosts"):
        compile_plan(written(dirs, "[network]\n"), poor)
    loose = replace(FILES, require_enforced=Sourced(False, Source(file="test")))
    asked = replace(written(dirs, "[network]\n"), filesystem=loose)
    with pytest.raises(HostError, match="no seccomp filters") as refused:
        compile_plan(asked, replace(HOST, seccomp=False))
    assert refused.value.exit_code == 125


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allowed_hosts = ['a.x', 'a.x:22', 'b.x']", "network: 2 hosts"),
        ("allowed_hosts = ['a.x']\nallowed_local_ports = [5432]", "network: 1 host, 1 local port"),
        ("allowed_hosts = []", "network: no hosts"),
        ("allowed_hosts = ['a.x']\ndefault = 'ask'", "network: 1 host, else ask"),
        ("denied_hosts = ['a.x']", "network: all but 1 host"),
        ("", "network: every host"),
    ],
)
def test_the_start_line_counts_the_hosts(dirs: UserDirs, text: str, message: str) -> None:
    assert compiled(dirs, f"[network]\n{text}\n").notices[0].text.endswith(f", {message}")


def test_proxy_variables_do_not_pass_into_a_restricted_network(dirs: UserDirs) -> None:
    """F-112"""
    file = dirs.file(
        "e.toml", "[env]\npass = ['*_proxy', 'HTTP_PROXY']\n[network]\nallowed_hosts = []\n"
    )
    loaded = dirs.load(Request(policies=(str(file),), env_pass=("NO_PROXY",)))
    plan = compile_plan(policy(FILES, env=loaded.env, network=loaded.network), FULL)
    rules, bare = plan.environment, compile_plan(policy(FILES, env=loaded.env), FULL).environment
    assert rules is not None
    assert bare is not None
    assert {"http_proxy", "HTTPS_PROXY", "no_proxy", "ALL_PROXY"} <= set(rules.deny)
    assert not {"HTTP_PROXY", "NO_PROXY"} & {*rules.pass_, *rules.keep}
    assert {"HTTP_PROXY", "NO_PROXY"} <= set(bare.pass_), "an open network leaves them"
    assert (
        sum("is not passed: its proxy cannot be reached" in notice.text for notice in plan.notices)
        == 2
    )


def test_explain_shows_each_rule_with_its_source_in_the_order_of_judgement(dirs: UserDirs) -> None:
    text = (
        "[network]\nallowed_hosts = ['a.example', 'b.example:22']\ndenied_hosts = ['*.a.example']\n"
        "allowed_local_ports = [5432]\n"
    )
    lines = [
        line.replace(f"{dirs.root}/policies/", "") for line in shown(network(dirs, text), Tier.FULL)
    ]
    assert lines == [
        "deny  *.a.example, every port  p.toml:3",
        "allow a.example, ports 80 and 443  p.toml:2",
        "allow b.example, port 22  p.toml:2",
        "deny  every other host",
        "ports of this machine's 127.0.0.1: 5432",
        "never: cloud metadata, link-local addresses",
    ]
    landlock_network = shown(network(dirs, text), Tier.LANDLOCK)
    assert landlock_network[-2].startswith("only through the proxy in HTTP_PROXY and ALL_PROXY")
    assert shown(None, Tier.FULL)[0].startswith("NOT RESTRICTED")
    nobody = network(dirs, "[network]\nmode = 'none'\n")
    assert shown(nobody, Tier.FULL)[0].startswith("none: an empty network namespace")
    assert shown(nobody, Tier.LANDLOCK) == ["none: the command cannot create network sockets"]


def test_the_golden_network_is_what_is_compiled(dirs: UserDirs) -> None:
    text = (SCHEMA / "examples" / "network.toml").read_text()
    asked = written(dirs, text)
    found = Terrain(registries={"npm": Registry(hosts=(MIRROR,))})
    plan = compile_plan(asked, FULL, found).as_json()
    jsonschema.validate(plan, json.loads((SCHEMA / "plan.schema.json").read_text()))
    golden = json.loads((SCHEMA / "examples" / "network.json").read_text())
    assert (
        json.loads(
            json.dumps(plan["network"]).replace(f"{dirs.root}/policies/p.toml", "network.toml")
        )
        == golden
    )


def test_sample_compiles_if_npm_and_pip_name_their_hosts(dirs: UserDirs) -> None:
    sample = (Path(__file__).parents[3] / "examples" / "filtered.toml").read_text()
    index = Sourced(Destination(host="index.example"), Source(file="/etc/pip.conf", line=2))
    found = Terrain(registries={"npm": Registry(hosts=(MIRROR,)), "pypi": Registry(hosts=(index,))})
    plan = compile_plan(written(dirs, sample), FULL, found)
    assert plan.network is not None
    assert {"mirror.example:8443 .npmrc:2", "index.example pip.conf:2"} < set(
        rules(plan.network)[1]
    )
    assert (plan.network.default, plan.network.local_ports) == (Action.DENY, (5432,))
