"""A host in a policy is normalised, or refused with its line and the correct spelling."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError, UsageError
from paddock.policy import Request
from paddock.policy.hosts import DISCOVERED, allowed_host, groups, read_host
from paddock.policy.model import NetworkMode, Source

from .user_dirs import UserDirs

LINE = Source(file="p.toml", line=3, key="network.allowed_hosts[0]")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("API.OpenAI.com.", "api.openai.com"),
        ("*.GitHub.com", "*.github.com"),
        ("*", "*"),
        ("*:8443", "*:8443"),
        ("localhost", "localhost"),
        ("db_1.example:5432", "db_1.example:5432"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3:5432", "10.1.2.3:5432"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("@github", "@github"),
        ("@npm", "@npm"),
    ],
)
def test_a_host_has_one_spelling_and_reads_back(written: str, meant: str) -> None:
    """F-120 F-121 F-122"""
    read = allowed_host(written, LINE)
    assert str(read.value) == meant
    assert allowed_host(meant, LINE) == read


ODD = [
    ("", "not a host", "write a name"),
    (" example.com", "not a host", "write 'example.com'"),
    ("exa mple.com", "not a host", None),
    ("example.com\n", "not a host", "write 'example.com'"),
    ("a\0.com", "not a host", None),
    ("a\r\nb.com", "not a host", None),
    ("https://example.com/x", "not a host but a URL", "write 'example.com'"),
    (
        "http://me:pw@example.com:8080/x",
        "not a host but a URL",
        "write 'example.com:8080'",
    ),
    ("example.com/x", "a host has no path", "write 'example.com'"),
    ("example.com:443/x", "not a port", "a host has no path"),
    ("me@example.com", "a host has no user", "write 'example.com'"),
    ("example.com:", "not a port", "from 1 to 65535"),
    ("example.com:0", "not a port", None),
    ("example.com:0443", "not a port", None),
    ("example.com:65536", "not a port", None),
    ("example.com:https", "not a port", None),
    ("a..b", "an empty part", None),
    (".example.com", "an empty part", None),
    ("example.com..", "an empty part", None),
    (".", "an empty part", None),
    ("*.", "not a host", None),
    ("*x.com", "a '*' must be alone or at the start", None),
    ("a.*.com", "a '*' must be alone or at the start", None),
    ("**.com", "a '*' must be alone or at the start", None),
    ("ex%61mple.com", "not a host", None),
    ("example.com?x", "not a host", None),
    ("a" * 64 + ".com", "more than 63", None),
    ("x." * 130 + "com", "more than 253", None),
    ("straße.example", "as different hosts", "xn--"),
    ("\uff45xample.com", "as different hosts", "xn--"),
    ("example\u3002com", "as different hosts", "xn--"),
    ("2130706433", "not an address", "four decimal numbers"),
    ("127.1", "not an address", "four decimal numbers"),
    ("0177.0.0.1", "not an address", "four decimal numbers"),
    ("0x7f.1", "some programs read", "four decimal numbers"),
    ("0x7f000001", "some programs read", None),
    ("example.0xg", "some programs read", None),
    ("256.1.1.1", "not an address", None),
    ("1.2.3.٤", "not an address", None),
    ("10.1.2.3/8", "not an address", "write '10.0.0.0/8'"),
    ("10.0.0.0/33", "not an address", "after the '/'"),
    ("fe80::1%eth0", "with an interface", "write 'fe80::1'"),
    ("::ffff:10.0.0.1", "written as IPv6", "as IPv4"),
    ("[example.com]:443", "not an address in brackets", None),
    ("[::1", "not an address in brackets", None),
    ("@githb", "unknown group '@githb'", "did you mean '@github'?"),
    ("@", "unknown group '@'", "@crates"),
    ("@github:22", "unknown group", None),
]


@pytest.mark.parametrize(("written", "expected", "hint"), ODD)
def test_an_odd_host_is_refused_with_its_line_and_what_to_write(
    written: str, expected: str, hint: str | None
) -> None:
    with pytest.raises(PolicyError) as refused:
        read_host(written, LINE)
    assert refused.value.message.startswith("p.toml:3: network.allowed_hosts[0]: ")
    assert expected in refused.value.message
    assert hint is None or hint in (refused.value.hint or "")


METADATA = (
    "169.254.169.254", "169.254.1.1:80", "169.254.0.0/16", "169.254.169.0/24", "fe80::1",
    "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "metadata.google.internal",
    "Metadata.Azure.Internal.", "metadata", "instance-data:80",
)  # fmt: skip


@pytest.mark.parametrize("written", METADATA)
def test_metadata_cannot_be_allowed_and_may_be_denied(written: str) -> None:
    """F-133 F-134"""
    with pytest.raises(PolicyError, match="always denied"):
        allowed_host(written, LINE)
    assert read_host(written, LINE)


def test_a_block_that_holds_more_than_metadata_may_be_allowed() -> None:
    assert allowed_host("0.0.0.0/0", LINE).value.host == "0.0.0.0/0"


def test_every_host_of_a_group_reads_as_it_is_written() -> None:
    for name, hosts in groups().items():
        assert name not in DISCOVERED
        assert [str(allowed_host(host, LINE).value) for host in hosts] == list(hosts)


def written(dirs: UserDirs, request: Request) -> tuple[list[str] | None, list[str]]:
    network = dirs.load(request).network
    assert network is not None
    allowed = network.allowed_hosts
    return (
        None if allowed is None else [f"{one.value} {one.source}" for one in allowed],
        [f"{one.value} {one.source}" for one in network.denied_hosts],
    )


def test_flags_are_laid_over_the_file_and_keep_their_names(dirs: UserDirs) -> None:
    """F-129 F-130"""
    file = dirs.file(
        "n.toml", "[network]\nallowed_hosts = ['a.example']\ndenied_hosts = ['b.example']\n"
    )
    request = Request(
        policies=(str(file),),
        allow_domains=("C.example", "a.example"),
        deny_domains=("*.c.example",),
    )
    assert written(dirs, request) == (
        [f"a.example {file}:2", "c.example --allow-domain"],
        [f"b.example {file}:3", "*.c.example --deny-domain"],
    )


def test_flags_alone_are_a_network(dirs: UserDirs) -> None:
    """F-109 F-110"""
    assert dirs.load(Request()).network is None
    assert written(dirs, Request(allow_domains=("a.example",))) == (
        ["a.example --allow-domain"],
        [],
    )
    assert written(dirs, Request(deny_domains=("a.example",))) == (
        None,
        ["a.example --deny-domain"],
    )


def test_no_network_at_all_beats_what_the_file_says(dirs: UserDirs) -> None:
    """F-131"""
    file = dirs.file("n.toml", "[network]\nmode = 'host'\n")
    network = dirs.load(Request(policies=(str(file),), block_net=True)).network
    assert network is not None
    assert network.mode is not None
    assert (network.mode.value, str(network.mode.source)) == (NetworkMode.NONE, "--block-net")


@pytest.mark.parametrize(
    "more", [{"allow_domains": ("a.example",)}, {"deny_domains": ("a.example",)}]
)
def test_no_network_and_hosts_contradict_each_other(
    dirs: UserDirs, more: dict[str, tuple[str, ...]]
) -> None:
    """F-132"""
    with pytest.raises(UsageError, match=r"--block-net and --(allow|deny)-domain contradict"):
        dirs.load(Request(block_net=True, **more))  # type: ignore[arg-type]


def test_an_odd_host_in_a_flag_names_the_flag(dirs: UserDirs) -> None:
    refusal = dirs.refuse_request(Request(allow_domains=("https://a.example/",)))
    assert refusal.message.startswith("--allow-domain: not a host")
    assert (
        "169.254.169.254"
        in dirs.refuse_request(Request(allow_domains=("169.254.169.254",))).message
    )
