"""[network] → plan.network: what may be reached, by which line, and what is not held is refused."""

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
from tests.unit.policy.world import World

from .worlds import FULL, HOST, files, grant, policy

SCHEMA = Path(__file__).parents[3] / "schema"
FILES = files(grant(Access.READ, "/usr/**"), grant(Access.ALLOW, "<tmp>/**"))


def written(world: World, text: str, **flags: tuple[str, ...]) -> Policy:
    """The network of a text and of flags, and little else."""
    file = world.file("p.toml", text)
    loaded = world.load(Request(policies=(str(file),), **flags))  # type: ignore[arg-type]
    return policy(FILES, network=loaded.network, meta=loaded.meta)


def compiled(world: World, text: str, **flags: tuple[str, ...]) -> Plan:
    return compile_plan(written(world, text, **flags), FULL)


def network(world: World, text: str, **flags: tuple[str, ...]) -> NetworkPlan:
    plan = compiled(world, text, **flags)
    assert plan.network is not None
    return plan.network


def rules(network: NetworkPlan) -> tuple[list[str], list[str]]:
    """Denied and allowed, each as a policy writes it with the line it comes from."""

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
    world: World, text: str, default: Action
) -> None:
    """F-125 F-126 F-127"""
    assert network(world, text).default is default


def test_an_empty_list_reaches_nothing_at_all(world: World) -> None:
    """F-125"""
    empty = network(world, "[network]\nallowed_hosts = []\n")
    assert (empty.mode, empty.default, empty.allowed, empty.local_ports) == (
        NetworkReach.FILTERED,
        Action.DENY,
        (),
        (),
    )


def test_without_a_network_section_it_is_open_and_said(world: World) -> None:
    """F-110"""
    plan = compiled(world, "[env]\n")
    assert plan.network is None
    assert plan.notices[0].text.endswith("network open")


def test_a_flag_alone_reaches_that_host_only(world: World) -> None:
    """F-127 F-129"""
    only = network(world, "[env]\n", allow_domains=("a.example",))
    assert (only.default, rules(only)) == (Action.DENY, ([], ["a.example --allow-domain"]))
    but = network(world, "[env]\n", deny_domains=("a.example",))
    assert (but.default, rules(but)) == (Action.ALLOW, (["a.example --deny-domain"], []))


def test_a_denied_host_stays_denied_whatever_a_flag_allows(world: World) -> None:
    """F-124"""
    both = network(world, "[network]\ndenied_hosts = ['a.example']\n", allow_domains=("a.example",))
    assert rules(both) == (["a.example p.toml:2"], ["a.example --allow-domain"]), (
        "the denied ones are looked at first"
    )


def test_rules_keep_their_ports_and_lines_and_stand_once(world: World) -> None:
    """F-117 F-128"""
    text = (
        "[network]\nallowed_hosts = [\n 'A.example',\n 'a.example:22',\n '*.a.example',\n"
        " 'a.example.',\n]\n"
    )
    assert rules(network(world, text))[1] == [
        "a.example p.toml:3",
        "a.example:22 p.toml:4",
        "*.a.example p.toml:5",
    ]


def test_a_group_is_its_hosts_by_the_line_that_names_it(world: World) -> None:
    named = rules(
        network(world, "[network]\nallowed_hosts = ['@github']\ndenied_hosts = ['@openai']\n")
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


def test_a_found_group_is_named_by_the_file_it_was_found_in(world: World) -> None:
    asked = written(world, "[network]\nallowed_hosts = ['@npm']\n")
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
def test_a_group_that_nothing_tells_of_is_an_error(
    world: World, registries: dict[str, Registry], hint: str
) -> None:
    asked = written(world, "[network]\nallowed_hosts = [\n'@npm']\n")
    with pytest.raises(
        PolicyError, match=r"p\.toml:3: @npm: no file on this machine lists"
    ) as refused:
        compile_plan(asked, FULL, Terrain(registries=registries))
    assert hint in (refused.value.hint or "")


def test_no_network_has_nothing_to_reach(world: World) -> None:
    """F-131"""
    text = (
        "[network]\nmode = 'none'\ndefault = 'allow'\nallowed_hosts = ['a.example']\n"
        "allowed_local_ports = [80]\n"
    )
    plan = compiled(world, text)
    assert plan.network is not None
    network = plan.network
    assert (network.mode, network.default) == (NetworkReach.NONE, Action.DENY)
    assert (network.allowed, network.local_ports) == ((), ())
    assert plan.notices[0].text.endswith("no network")


def test_a_flag_does_not_open_what_the_policy_closed_altogether(world: World) -> None:
    with pytest.raises(PolicyError, match=r'--allow-domain: .*mode = "none"'):
        compiled(world, "[network]\nmode = 'none'\n", allow_domains=("a.example",))


def test_the_hosts_network_is_not_fenced_and_said(world: World) -> None:
    plan = compiled(world, "[network]\nmode = 'host'\n")
    assert plan.network is None
    assert any("the network is not restricted" in notice.text for notice in plan.notices)


@pytest.mark.parametrize(
    "more", ["allowed_hosts = ['x']", "denied_hosts = ['x']", "allowed_local_ports = [80]"]
)
def test_a_key_that_an_open_network_does_not_hold_is_refused(world: World, more: str) -> None:
    with pytest.raises(
        PolicyError, match=r'p\.toml:3: network\.mode = "host" does not filter hosts'
    ):
        compiled(world, f"[network]\nmode = 'host'\n{more}\n")


PINNABLE = replace(HOST, user_notification=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode = 'none'", "no network"),
        ("allowed_hosts = ['x']", "network: 1 host, through the proxy only"),
        ("allowed_hosts = ['x']\nkernel_pin = true", "network: 1 host, through the proxy only"),
    ],
)
def test_without_namespaces_a_network_is_pinned_and_said(
    world: World, text: str, said: str
) -> None:
    """F-151"""
    asked = written(world, f"[network]\n{text}\n")
    for plan in (
        compile_plan(asked, PINNABLE),
        compile_plan(replace(asked, tier=Tier.LANDLOCK), FULL),
    ):
        assert plan.network == compile_plan(asked, FULL).network
        assert plan.notices[0].text.partition("; ")[0].endswith(f", {said}")


@pytest.mark.parametrize("switch", [Switch.LANDLOCK, Switch.SECCOMP])
def test_a_network_is_not_pinned_by_a_layer_that_is_off(world: World, switch: Switch) -> None:
    asked = replace(written(world, "[network]\nmode = 'none'\n"), off=(switch,), tier=Tier.LANDLOCK)
    with pytest.raises(PolicyError, match=rf"p\.toml:2: .*--off {switch.value} is given"):
        compile_plan(asked, FULL)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kernel_pin = false", "p.toml:3: without kernel_pin, a program"),
        ("default = 'ask'", "p.toml:3: the landlock tier cannot ask about hosts"),
    ],
)
def test_a_rule_that_supervised_connect_does_not_hold_names_its_line(
    world: World, line: str, said: str
) -> None:
    asked = written(world, f"[network]\nallowed_hosts = ['x']\n{line}\n")
    with pytest.raises(PolicyError) as refused:
        compile_plan(asked, PINNABLE)
    assert said in str(refused.value)
    assert compile_plan(asked, FULL).network is not None, (
        "the full tier has it, or does not need it"
    )


def test_without_notifications_there_is_only_no_network_at_all(world: World) -> None:
    """F-160"""
    poor = replace(HOST, user_notification=False)
    assert compile_plan(written(world, "[network]\nmode = 'none'\n"), poor).network is not None
    with pytest.raises(HostError, match="this machine cannot filter hosts"):
        compile_plan(written(world, "[network]\n"), poor)
    loose = replace(FILES, require_enforced=Sourced(False, Source(file="test")))
    asked = replace(written(world, "[network]\n"), filesystem=loose)
    with pytest.raises(HostError, match="no seccomp filters") as refused:
        compile_plan(asked, replace(HOST, seccomp=False))
    assert refused.value.exit_code == 125


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("allowed_hosts = ['a.x', 'a.x:22', 'b.x']", "network: 2 hosts"),
        ("allowed_hosts = ['a.x']\nallowed_local_ports = [5432]", "network: 1 host, 1 local port"),
        ("allowed_hosts = []", "network: no hosts"),
        ("allowed_hosts = ['a.x']\ndefault = 'ask'", "network: 1 host, else ask"),
        ("denied_hosts = ['a.x']", "network: all but 1 host"),
        ("", "network: every host"),
    ],
)
def test_the_start_line_counts_the_hosts(world: World, text: str, said: str) -> None:
    assert compiled(world, f"[network]\n{text}\n").notices[0].text.endswith(f", {said}")


def test_the_persons_proxies_do_not_pass_into_a_fenced_network(world: World) -> None:
    """F-112"""
    file = world.file(
        "e.toml", "[env]\npass = ['*_proxy', 'HTTP_PROXY']\n[network]\nallowed_hosts = []\n"
    )
    loaded = world.load(Request(policies=(str(file),), env_pass=("NO_PROXY",)))
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


def test_explain_shows_each_rule_with_its_source_in_the_order_of_judgement(world: World) -> None:
    text = (
        "[network]\nallowed_hosts = ['a.example', 'b.example:22']\ndenied_hosts = ['*.a.example']\n"
        "allowed_local_ports = [5432]\n"
    )
    lines = [
        line.replace(f"{world.root}/policies/", "")
        for line in shown(network(world, text), Tier.FULL)
    ]
    assert lines == [
        "deny  *.a.example, every port  p.toml:3",
        "allow a.example, ports 80 and 443  p.toml:2",
        "allow b.example, port 22  p.toml:2",
        "deny  every other host",
        "ports of this machine's 127.0.0.1: 5432",
        "never: cloud metadata, link-local addresses",
    ]
    pinned = shown(network(world, text), Tier.LANDLOCK)
    assert pinned[-2].startswith("only through the proxy in HTTP_PROXY and ALL_PROXY")
    assert shown(None, Tier.FULL)[0].startswith("NOT RESTRICTED")
    nobody = network(world, "[network]\nmode = 'none'\n")
    assert shown(nobody, Tier.FULL)[0].startswith("none: an empty network namespace")
    assert shown(nobody, Tier.LANDLOCK) == ["none: the command cannot create network sockets"]


def test_the_golden_network_is_what_is_compiled(world: World) -> None:
    text = (SCHEMA / "examples" / "network.toml").read_text()
    asked = written(world, text)
    found = Terrain(registries={"npm": Registry(hosts=(MIRROR,))})
    plan = compile_plan(asked, FULL, found).as_json()
    jsonschema.validate(plan, json.loads((SCHEMA / "plan.schema.json").read_text()))
    golden = json.loads((SCHEMA / "examples" / "network.json").read_text())
    assert (
        json.loads(
            json.dumps(plan["network"]).replace(f"{world.root}/policies/p.toml", "network.toml")
        )
        == golden
    )


def test_the_sample_compiles_where_npm_and_pip_tell_their_hosts(world: World) -> None:
    sample = (Path(__file__).parents[3] / "examples" / "filtered.toml").read_text()
    index = Sourced(Destination(host="index.example"), Source(file="/etc/pip.conf", line=2))
    found = Terrain(registries={"npm": Registry(hosts=(MIRROR,)), "pypi": Registry(hosts=(index,))})
    plan = compile_plan(written(world, sample), FULL, found)
    assert plan.network is not None
    assert {"mirror.example:8443 .npmrc:2", "index.example pip.conf:2"} < set(
        rules(plan.network)[1]
    )
    assert (plan.network.default, plan.network.local_ports) == (Action.DENY, (5432,))
