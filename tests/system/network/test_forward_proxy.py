"""The proxy inside, with the same rules."""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clients import ALLOWED, OTHER, Clients, Site, serving_site
from tests.support.features import need_program
from tests.support.network import NetworkRunner, network, serving
from tests.support.sandbox import SandboxRunner, Word

# See test_clients.py.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

PROXY = ("127.255.255.254", 1)
HELLO = "from the host"
READ = """
import sys, urllib.error, urllib.request
try:
    sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=120).read().decode())
except urllib.error.HTTPError as error:
    with error:
        sys.stdout.write(error.read().decode())
"""
# Prints the proxy's answer to each CONNECT. The credentials are its own, or those in the first
# argument.
ASK = """
import base64, os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(sys.argv[1] or os.environ["http_proxy"])
credentials = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
print("started", flush=True)
for target in sys.argv[2:]:
    with socket.create_connection((proxy.hostname, proxy.port), 60) as client:
        client.sendall(f"CONNECT {target} HTTP/1.1\\r\\nProxy-Authorization: Basic \
{credentials}\\r\\n\\r\\n".encode())
        print(client.makefile().readline().split()[1])
"""


def curl(*words: Word) -> list[Word]:
    return [need_program("curl"), "-sSm", "60", *words]


def in_shell(*lines: str) -> Callable[..., list[Word]]:
    """One command line for each client and address, with its error."""
    each = "".join(f'{line}\necho "[$?]"\n' for line in lines)
    need_program("curl")
    return lambda *addresses: [
        "/bin/sh",
        "-c",
        f'for address in "$@"; do\n{each}done',
        "sh",
        *addresses,
    ]


CURL = "curl -sSm 10"
# Each client with its message for a denied name. The proxy variables stay as they are.
WAYS = {
    "curl, by the variables": (f'{CURL} "$address"', "paddock: denied: "),
    "curl, told": (f'{CURL} -x "$ALL_PROXY" "$address"', "paddock: denied: "),
    "curl, who asks without first": (f'{CURL} --proxy-anyauth "$address"', "paddock: denied: "),
    "curl, a tunnel": (f'{CURL} --proxytunnel "$address"', "[56]"),
    "curl, socks by name": (
        f'{CURL} --socks5-hostname "${{HTTP_PROXY#http://}}" "$address"',
        "[97]",
    ),
    "python": (f'python3 -c {shlex.quote(READ)} "$address"', "paddock: denied: "),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_client_of_the_proxy_reaches_the_name_that_is_allowed_and_no_other(
    clients: Clients, tmp_path: Path, way: str
) -> None:
    """F-112 F-114 F-115"""
    line, refusal = WAYS[way]
    with serving_site(tmp_path) as site:
        assert clients.outside(curl(site.at(OTHER))).stdout == HELLO, "the control"
        site.seen.clear()
        outcome = clients.proxied(in_shell(line)(site.at(ALLOWED), site.at(OTHER)), site.port)
        reached, _, refused = outcome.stdout.partition("[0]\n")
        assert reached == HELLO, str(outcome)
        assert refused.startswith(refusal), str(outcome)
        assert (
            f"paddock: denied: {OTHER}:{site.port} (no rule allows it; --allow-domain {OTHER}"
            in outcome.stderr
        )
        assert site.seen == [ALLOWED]
        # Without the proxy the DNS stub would have no such name.
        assert sorted(clients.decided()) == [
            ("connect", "allow", ALLOWED),
            ("connect", "deny", OTHER),
        ]


def test_a_403_names_the_flag_and_the_next_request_keeps_its_host(
    clients: Clients, tmp_path: Path
) -> None:
    addresses = (ALLOWED, OTHER, ALLOWED)
    with serving_site(tmp_path) as site:
        outcome = clients.proxied(
            curl("-w", " %{http_code} ", *(site.at(name) for name in addresses)), site.port
        )
        denied = (
            f"paddock: denied: {OTHER}:{site.port} (no rule allows it; "
            f"--allow-domain {OTHER}:{site.port})\n"
        )
        assert outcome.stdout == f"{HELLO} 200 {denied} 403 {HELLO} 200 ", str(outcome)
        assert site.seen == [ALLOWED, ALLOWED]


def test_a_body_goes_through_and_nothing_of_the_proxys_own(
    clients: Clients, tmp_path: Path
) -> None:
    with serving_site(tmp_path) as site:
        outcome = clients.proxied(curl("-d", "x" * 100_000, site.at(ALLOWED, "taken")), site.port)
        assert (outcome.exit_code, outcome.stdout) == (0, "100000"), str(outcome)
        assert site.fields[-1]["Proxy-Authorization"] is None
        assert site.fields[-1]["Connection"] == "close"


def test_a_client_that_asks_for_addresses_itself_is_led_by_the_name(
    clients: Clients, tmp_path: Path
) -> None:
    """The DNS stub gave the address, which maps to the name."""
    ask = in_shell(f'{CURL} -x "socks5://${{ALL_PROXY#http://}}" "$address"')
    with serving_site(tmp_path) as site:
        outcome = clients.proxied(ask(site.at(ALLOWED), site.at(OTHER)), site.port)
        assert outcome.stdout.startswith(f"{HELLO}[0]\n["), str(outcome)
        assert (outcome.stdout.endswith("[0]\n"), site.seen) == (False, [ALLOWED]), str(outcome)


def test_without_the_token_the_proxy_does_nothing(clients: Clients, tmp_path: Path) -> None:
    """F-113"""
    quiet = f'{CURL} -o /dev/null -w "%{{http_code}} %{{http_connect}} "'
    ask = in_shell(
        f'{quiet} -x http://127.255.255.254:1 "$address"',
        f'{quiet} -x http://paddock:x@127.255.255.254:1 "$address"',
        f'{quiet} -px http://paddock:x@127.255.255.254:1 "$address"',
        f'{quiet} -x socks5h://127.255.255.254:1 "$address"',
        f'{quiet} -x socks5h://paddock:x@127.255.255.254:1 "$address"',
        f'{quiet} "$address"',
    )
    with serving_site(tmp_path) as site:
        outcome = clients.proxied(ask(site.at(ALLOWED)), site.port)
        refused = ["407 000 [0]", "407 000 [0]", "000 407 [56]", "000 000 [97]", "000 000 [97]"]
        assert outcome.stdout.splitlines() == [*refused, "200 000 [0]"], str(outcome)
        assert site.seen == [ALLOWED]


def test_addresses_are_reached_by_a_tunnel_only_where_they_are_listed(
    clients: Clients, tmp_path: Path
) -> None:
    """F-117 F-133 F-137. Loopback is listed here, but it is the loopback of the sandbox."""
    with serving_site(tmp_path) as site, serving("127.0.0.1") as other:
        refused = [
            "169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[fd00:ec2::254]:80",
            "metadata.google.internal:80", f"127.0.0.1:{site.port}", f"[::1]:{site.port}",
            f"[::ffff:127.0.0.1]:{site.port}", "192.0.2.1:443", f"{ALLOWED}:{other.port}",
            "198.18.0.77:80", "10.255.255.1:1", "127.255.255.254:1",
        ]  # fmt: skip
        odd = ["2130706433:80", "0x7f.1:80", f"{ALLOWED}%00.example:80", ALLOWED]
        words = [need_program("python3"), "-c", ASK, "", f"{ALLOWED}:{site.port}", *refused, *odd]
        outcome = clients.proxied(words, site.port)
        answers = outcome.stdout.split()
        assert answers == ["started", "200", *["403"] * len(refused), *["400"] * len(odd)], str(
            outcome
        )
        assert other.received() == []


def test_a_request_in_a_tunnel_has_to_name_the_same_host(
    clients: Clients, certified: tuple[Path, ssl.SSLContext], tmp_path: Path
) -> None:
    """F-116"""
    certificate, context = certified
    trusted = clients.sandbox.tree.put(
        clients.sandbox.tree.project / "ca.pem", certificate.read_text()
    )
    secure = curl("--cacert", trusted)

    def fronting(site: Site) -> list[Word]:
        return ["--connect-to", f"{OTHER}:{site.port}:{ALLOWED}:{site.port}", site.at(OTHER)]

    with serving_site(tmp_path, context=context) as site:
        assert clients.proxied([*secure, site.at(ALLOWED)], site.port).stdout == HELLO
        assert clients.outside([*secure, *fronting(site)]).stdout == HELLO, "the control"
        site.seen.clear()
        outcome = clients.proxied([*secure, *fronting(site)], site.port)
        assert (outcome.stdout, outcome.exit_code != 0, site.seen) == ("", True, []), str(outcome)
        assert f"its TLS handshake is for {OTHER}" in str(clients.sandbox.events())
    with serving_site(tmp_path) as site:
        outcome = clients.proxied(curl("-p", "-H", f"Host: {OTHER}", site.at(ALLOWED)), site.port)
        assert outcome.stdout.startswith(f"paddock: denied: {OTHER}:"), str(outcome)
        outcome = clients.proxied(
            curl("-w", "%{http_code}", "-H", f"Host: {OTHER}", site.at(ALLOWED)), site.port
        )
        assert outcome.stdout.endswith("400"), str(outcome)
        assert site.seen == []


def test_git_clones_through_the_proxy(clients: Clients, tmp_path: Path) -> None:
    git = need_program("git")
    for words in (
        ["init", "-q", "work"],
        [
            "-C",
            "work",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "first",
        ],
        ["clone", "-q", "--bare", "work", "served.git"],
        ["-C", "served.git", "update-server-info"],
    ):
        subprocess.run([git, *words], cwd=tmp_path, check=True)
    with serving_site(tmp_path) as site:
        for name, reached in ((ALLOWED, True), (OTHER, False)):
            outcome = clients.proxied(
                [git, "clone", "-q", site.at(name, "served.git"), f"from-{name}"], site.port
            )
            assert (outcome.exit_code == 0) == reached, str(outcome)
        assert set(site.seen) == {ALLOWED}
    assert ("name", "deny", OTHER) not in clients.decided()


def test_no_other_process_reaches_the_proxy_and_each_run_has_its_own(
    full_network: NetworkRunner,
) -> None:
    """F-113"""
    script = "import os; print(os.environ['http_proxy'], flush=True); input()"
    filtered = network("filtered")
    with full_network.running(filtered, script) as (process, _):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        own = full_network.run(filtered, [full_network.python, "-c", ASK, "", "a.example:443"])
        assert own.answer == "403", str(own)
        borrowed = full_network.run(
            filtered, [full_network.python, "-c", ASK, address, "a.example:443"]
        )
        assert borrowed.answer == "407", str(borrowed)
        outside = full_network.outside(full_network.calling(f"SOCK_STREAM/{PROXY[0]}/{PROXY[1]}"))
        assert outside.answer == "ECONNREFUSED", str(outside)


def test_without_a_network_there_is_no_proxy(full_network: NetworkRunner) -> None:
    """F-131"""
    shown = full_network.run(network("none"), [need_program("env")])
    assert (shown.exit_code, "_proxy" in shown.stdout.lower()) == (0, False), str(shown)
    outcome = full_network.run(
        network("none"), full_network.calling(f"SOCK_STREAM/{PROXY[0]}/{PROXY[1]}")
    )
    assert outcome.answer == "ECONNREFUSED", str(outcome)


@pytest.mark.parametrize("flags", [(), ("--off", "env-sanitize")])
def test_the_variables_are_the_runs_own_and_a_policys_win(
    full: SandboxRunner, flags: tuple[str, ...]
) -> None:
    """F-112"""
    mine = {
        "http_proxy": "http://corp.example",
        "NO_PROXY": "corp.example",
        "ftp_proxy": "http://corp.example",
    }
    words = [need_program("env")]
    shown = full.inside(words, "--allow-domain", "a.example", *flags, env=mine)
    found = dict(
        line.split("=", 1) for line in shown.stdout.splitlines() if "_proxy=" in line.lower()
    )
    assert set(found) == {
        spelt
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
        for spelt in (name, name.upper())
    }, str(shown)
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1,.paddock.internal"
    assert found["http_proxy"] == found["ALL_PROXY"]
    again = full.inside(words, "--allow-domain", "a.example", *flags)
    assert found["http_proxy"] not in again.stdout, "each run has a token of its own"
    assert found["http_proxy"].split("@")[0].split(":")[-1] not in json.dumps(full.events())
    if not flags:
        own = full.inside(words, "--allow-domain", "a.example", "--env", "HTTPS_PROXY=http://mine")
        assert "HTTPS_PROXY=http://mine\n" in own.stdout
        assert "https_proxy=" not in own.stdout
    bare = full.inside(words, env=mine)
    assert "@127.255" not in bare.stdout, "an open network has none"
