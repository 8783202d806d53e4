"""Runs with routes and inspected hosts, as a user starts them. The upstream on the host records the
requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.system.network.certificates import TestAuthority
from tests.system.network.served import KEY, SECRET, policy, route
from tests.system.network.upstreams import Asked, answer, upstream, websocket_echo

OURS = TestAuthority()
HOST, OTHER, NEAR = "api.served.example", "other.served.example", "near.served.example"
# As root: mount our own list of names, then become the tester again.
_AS = (
    'mount --bind "$1" /etc/hosts && shift && exec setpriv --reuid "$1" --regid "$2" '
    '--clear-groups "${@:3}"'
)
_CURL = ("curl", "-sS", "--max-time", "30")


def requests(sandbox: SandboxRunner) -> list[tuple[object, ...]]:
    return [
        (one["action"], one["route"], one["method"], one["path"], one["status"])
        for one in sandbox.events()
        if one["event"] == "network" and one["layer"] == "request"
    ]


def test_every_inject_mode_sends_the_secret_and_hides_it_from_the_sandbox(
    full: SandboxRunner,
) -> None:
    """F-139 F-140 F-141"""
    file = full.tree.put(
        full.tree.root / "key", f"{SECRET}\n"
    )  # not in a directory that a command can write
    file.chmod(0o600)
    full.tester.give(file)
    python = need_program("python3")
    # All readable files of processes and of the policy, and the answer of the upstream.
    look = """
import glob, os, sys, urllib.request
print("started", dict(os.environ))
for path in [*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"), sys.argv[1]]:
    try:
        print(path, open(path, "rb").read())
    except OSError as error:
        print(path, error)
for name in ("bearer", "header", "basic", "query"):
    key = os.environ["STAND_IN"]
    headers = {"Authorization": key, "X-Key": key}
    asked = urllib.request.Request(f"http://{name}.paddock.internal/a?x=1", headers=headers)
    print(urllib.request.urlopen(asked, timeout=120).read())
"""
    control = full.outside(
        [
            python,
            "-c",
            'import os,sys;print(os.environ["ROUTE_KEY"], open(sys.argv[1]).read())',
            file,
        ],
        env=KEY,
    )
    assert control.stdout.count(SECRET) == 2, control
    with upstream() as server:
        text = policy(
            full,
            route(
                "bearer",
                server,
                'credential = "env:ROUTE_KEY"',
                'env = { STAND_IN = "<placeholder>", BASE = "<route>" }',
            )
            + route(
                "header",
                server,
                f'credential = "file:{file}"',
                'inject_mode = "header"',
                'inject_name = "X-Key"',
            )
            + route(
                "basic",
                server,
                'credential = "env:ROUTE_KEY"',
                'inject_mode = "basic"',
                'inject_name = "me"',
            )
            + route(
                "query",
                server,
                f'credential = "command:cat {file}"',
                'inject_mode = "query"',
                'inject_name = "key"',
            ),
        )
        outcome = full.inside(
            [python, "-c", look, file], "--policy", text, "--env-pass", "ROUTE_KEY", env=KEY
        )
    assert outcome.exit_code == 0, outcome
    assert "'BASE': 'http://bearer.paddock.internal'" in outcome.stdout
    assert "'STAND_IN': 'paddock-placeholder-" in outcome.stdout
    for spelling in (SECRET, SECRET[4:-4], base64.b64encode(f"me:{SECRET}".encode()).decode()):
        assert spelling not in outcome.stdout + outcome.stderr, "the secret is nowhere inside"
        assert spelling not in json.dumps(full.events()), "the secret is not in the journal"
    bearer, header, basic, query = server.asked
    assert bearer.header("authorization") == f"Bearer {SECRET}"
    assert header.header("x-key") == SECRET
    assert (
        basic.header("authorization")
        == "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
    )
    assert query.target == "/a?x=1&key=sk-secret%2F0123456789%2Babcdef"
    assert requests(full) == [
        ("allow", name, "GET", "/a", 200) for name in ("bearer", "header", "basic", "query")
    ]


def test_an_endpoint_is_open_if_a_rule_or_the_flag_says_so(full: SandboxRunner) -> None:
    """F-142 F-143 F-144 F-147 F-149"""
    with upstream() as server:
        file = policy(
            full,
            "[network]\nallowed_hosts = ['127.0.0.1']\n"
            + route("api", server, 'endpoint_rules = [{ method = "get", path = "/v1/*" }]'),
        )
        at = "http://api.paddock.internal"
        direct = f"http://127.0.0.1:{server.port}/around"
        asks = [f"{at}/v1/a", f"-X DELETE {at}/v1/b:c", f"--path-as-is {at}/v1/../x", direct]
        script = "; ".join(f"curl -s -m 30 {one}" for one in asks)
        outcome = full.inside(["sh", "-c", script], "--policy", file)
        assert [(one.method, one.target) for one in server.asked] == [("GET", "/v1/a")], outcome
        assert "to allow it: --allow-endpoint api:DELETE:/v1/b:c\n" in outcome.stdout
        assert outcome.stderr.count("--allow-endpoint api:DELETE:/v1/b:c)\n") == 1, outcome
        flags = ("--allow-endpoint", "api:delete:/v1/b:c")
        assert full.inside(["sh", "-c", script], "--policy", file, *flags).exit_code != 0
        assert [(one.method, one.target) for one in server.asked[1:]] == [
            ("GET", "/v1/a"),
            ("DELETE", "/v1/b:c"),
        ]
    for wrong in ("api", "api:GET", "api:G T:/x", "api:GET:x"):
        refused = full.inside(["true"], "--policy", file, "--allow-endpoint", wrong)
        assert (refused.exit_code, refused.stderr.startswith("paddock: --allow-endpoint")) == (
            125,
            True,
        ), refused
    refused = full.inside(["true"], "--policy", file, "--allow-endpoint", "other:GET:/x")
    assert (refused.exit_code, "no route has the name 'other'" in refused.stderr) == (125, True)


def test_a_client_of_the_proxy_is_served_under_the_same_rules(full: SandboxRunner) -> None:
    """By every protocol of the proxy. By default clients do not use the proxy for routes."""
    need_program("curl")
    ways = (
        "",
        "--noproxy ''",
        "--noproxy '' --proxytunnel",
        "--noproxy '' --socks5-hostname ${HTTP_PROXY#http://}",
    )
    at = "http://api.paddock.internal"
    body = full.tree.put(full.tree.project / "body", "x" * 100_000)
    script = "".join(
        f"for one in '-d @{body} {at}/v1/{number}' '{at}/other'; do\n"
        f"curl -s -m 30 {way} -o /dev/null -w '%{{http_code}} ' $one || echo \"[$?]\"\ndone\n"
        for number, way in enumerate(ways)
    )
    with upstream() as server:
        rules = 'endpoint_rules = [{ method = "POST", path = "/v1/*" }]'
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"', rules))
        outcome = full.inside(["sh", "-c", script], "--policy", file, env=KEY)
    assert outcome.stdout.split() == ["200", "403"] * len(ways), outcome
    assert [one.target for one in server.asked] == [f"/v1/{number}" for number in range(len(ways))]
    assert {one.header("authorization") for one in server.asked} == {f"Bearer {SECRET}"}
    assert {len(one.body) for one in server.asked} == {100_000}
    assert {one.header("proxy-authorization") for one in server.asked} == {None}
    denied = [("deny", "api", "GET", "/other", 403)] * len(ways)
    assert [one for one in requests(full) if one[0] == "deny"] == denied


def test_event_streams_and_websockets_pass_a_route(full: SandboxRunner) -> None:
    """An event arrives before the next one is sent. A WebSocket is a stream in both directions."""
    seen = threading.Event()

    async def events(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.target == "/seen":
            seen.set()
            writer.write(answer(b""))
        elif asked.target == "/socket":
            await websocket_echo(asked, reader, writer)
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
                b"chunked\r\n\r\n"
            )
            for text in (b"data: one\n\n", b"data: two\n\n"):
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))
                await writer.drain()
                await asyncio.get_running_loop().run_in_executor(None, seen.wait, 30)
            writer.write(b"0\r\n\r\n")

    script = """
import socket, urllib.request
stream = urllib.request.urlopen("http://api.paddock.internal/events", timeout=120)
print(stream.readline(), flush=True)
urllib.request.urlopen("http://api.paddock.internal/seen", timeout=120).read()
print(stream.read())
with socket.create_connection(("api.paddock.internal", 80), 30) as end:
    end.sendall(b"GET /socket HTTP/1.1\\r\\nHost: api.paddock.internal\\r\\nConnection: \
Upgrade\\r\\n"
                b"Upgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n")
    end.sendall(b"\\x81\\x82\\0\\0\\0\\0hi")
    received = b""
    while not received.endswith(b"\\x81\\x02hi"):
        more = end.recv(65536)
        assert more, received
        received += more
print(received)
"""
    with upstream(events) as server:
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        outcome = full.inside([need_program("python3"), "-c", script], "--policy", file, env=KEY)
    assert outcome.exit_code == 0, outcome
    lines = outcome.stdout.splitlines()
    assert lines[0] == repr(b"data: one\n")
    assert "data: two" in lines[1]
    assert "101 Switching" in lines[2]
    assert f"auth=Bearer {'*' * len(SECRET)}" in lines[2]


def test_a_secret_is_not_guessed_letter_by_letter(full: SandboxRunner) -> None:
    """The upstream echoes the request and never sends the secret. Two chunks instead of one, or an
    asterisk, would reveal a right guess.
    """
    secret = "ghp_Ur8eHK5j"

    async def quote(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        text = f"no such item: {asked.target.partition('=')[2]}".encode()
        writer.write(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text))

    script = """
import socket
host = "api.paddock.internal"
end = socket.create_connection((host, 80), 60)
def body(guess):
    end.sendall(f"GET /items?q={guess} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
    data = b""
    while not data.endswith(b"0\\r\\n\\r\\n"):
        more = end.recv(65536)
        assert more, data
        data += more
    return data.split(b"\\r\\n\\r\\n", 1)[1]
known = b"ghp_".hex()
print("started", flush=True)
while True:
    bodies = {letter: body(known + letter) for letter in "0123456789abcdef"}
    hits = [letter for letter, found in bodies.items() if b"*" in found or found.count(b"\\r\\n") \
> 4]
    if len(hits) != 1:
        break
    known += hits[0]
print("recovered", bytes.fromhex(known[: len(known) // 2 * 2]).decode(), len({len(one) for one in \
bodies.values()}))
"""
    with upstream(quote) as server:
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        outcome = full.inside(
            [need_program("python3"), "-c", script], "--policy", file, env={"ROUTE_KEY": secret}
        )
    assert outcome.stdout.splitlines() == ["started", "recovered ghp_ 1"], outcome
    assert {one.header("authorization") for one in server.asked} == {f"Bearer {secret}"}


def test_a_placeholder_means_nothing_to_another_host(full: SandboxRunner) -> None:
    with upstream() as server, upstream() as other:
        file = policy(
            full,
            route(
                "api",
                server,
                'credential = "env:ROUTE_KEY"',
                'env = { STAND_IN = "<placeholder>" }',
            )
            + route("other", other),
        )
        ask = 'curl -s -m 30 -H "Authorization: Bearer $STAND_IN" http://other.paddock.internal/'
        outcome = full.inside(["sh", "-c", ask], "--policy", file, env=KEY)
    assert outcome.exit_code == 0, outcome
    assert server.asked == []
    assert str(other.asked[0].header("authorization")).startswith("Bearer paddock-placeholder-")


@pytest.mark.parametrize(
    ("credential", "why"),
    [
        ("env:NOT_SET", "the variable NOT_SET is not set"),
        ("file:/nowhere/key", "/nowhere/key: No such file or directory"),
        ("command:false", "/bin/false failed (exit code 1)"),
        ("command:{project}/show-key", "a command could have written {project}/show-key"),
        (
            "command:/bin/sh {project}/show-key",
            "a command could have written {project}/show-key",
        ),
        ("command:env --chdir={project} true", "a command could have written {project}"),
        ("file:{project}/show-key", "a command could have written {project}/show-key"),
    ],
)
def test_a_run_is_refused_without_its_secret(
    full: SandboxRunner, credential: str, why: str
) -> None:
    show = full.tree.put(full.tree.project / "show-key", "#!/bin/sh\necho 0123456789\n")
    show.chmod(0o755)
    credential, why = (
        text.replace("{project}", str(full.tree.project)) for text in (credential, why)
    )
    with upstream() as server:
        file = policy(full, route("api", server, f'credential = "{credential}"'))
        outcome = full.inside(["touch", "ran"], "--policy", file)
    assert outcome.exit_code == 125, outcome
    assert f"paddock: {file}:5: credential: {why}" in outcome.stderr.replace("/usr/bin/", "/bin/")
    hints = [line for line in outcome.stderr.splitlines() if line.startswith("hint:")]
    assert hints
    assert all(line.removeprefix("hint:").strip() for line in hints), outcome
    assert not (full.tree.project / "ran").exists()
    assert [one["event"] for one in full.events()] == ["session.refused"]


def test_a_credential_command_is_not_one_that_a_sandboxed_command_wrote(
    full: SandboxRunner,
) -> None:
    """One run writes a script, and the start of the next would execute it outside."""
    script, mark = full.tree.project / "token.sh", full.tree.root / "escaped"
    write = (
        f"echo 'touch {mark}; echo ghp_0123456789' > {script} && echo written; "
        f"touch {mark} 2>/dev/null || echo held"
    )
    control = full.outside(["/bin/sh", "-c", f"{write}; sh {script}"])
    assert (control.exit_code, mark.exists()) == (0, True), control
    mark.unlink()
    script.unlink()
    with upstream() as server:
        file = policy(full, route("api", server, f'credential = "command:/bin/sh {script}"'))
        assert full.inside(["/bin/sh", "-c", write]).stdout.split() == ["written", "held"]
        outcome = full.inside(["true"], "--policy", file)
    assert not mark.exists()
    assert outcome.exit_code == 125, outcome
    assert f"credential: a command could have written {script}" in outcome.stderr
    assert "hint: give the path of a program that no command can write" in outcome.stderr


def test_a_secret_is_masked_in_the_answers_of_every_route_to_the_same_host(
    full: SandboxRunner,
) -> None:
    """The upstream shows earlier requests, as a request log does."""
    keys = {"ONE_KEY": "ghp_AAAAbbbbCCCCdddd11112222", "TWO_KEY": "ghp_ZZZZyyyyXXXXwwww99998888"}
    log: list[str] = []

    async def shows_its_log(
        asked: Asked, _: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        log.append(str(asked.header("authorization")))
        writer.write(answer("\n".join(log).encode()))

    with upstream(shows_its_log) as server:
        file = policy(
            full,
            route("one", server, 'credential = "env:ONE_KEY"')
            + route("two", server, 'credential = "env:TWO_KEY"')
            + route("plain", server),
        )
        urls = [f"http://{name}.paddock.internal/log" for name in ("one", "two", "one", "plain")]
        outcome = full.inside([*_CURL, *urls], "--policy", file, env=keys)
    assert outcome.exit_code == 0, outcome
    assert [f"Bearer {key}" for key in keys.values()] == log[:2], (
        "the control: the upstream got and sent both"
    )
    assert outcome.stdout.count("Bearer ****") == 1 + 2 + 3 + 3, outcome
    assert not any(key in outcome.stdout for key in keys.values())


# None of these arguments names the script as a path.
_UNNAMED = (
    """/bin/sh -c '"$HOME"/{below}/token.sh'""",
    "/bin/bash -c '~{user}/{below}/token.sh'",
    "/bin/sh -c 'cd && {below}/token.sh'",
    "/bin/sh -c 'cd ~ && exec ./{below}/token.sh'",
    "/bin/sh -c 'cd; . {below}/token.sh'",
    "env -C {home} sh {below}/token.sh",
    "/bin/sh -c '{home}/{below}*/token.sh'",
    "/bin/sh {home}/{root}/outer.sh {below}",
)


def test_a_credential_s_command_never_uses_a_script_that_a_sandboxed_command_wrote(
    full: SandboxRunner,
) -> None:
    """By any kind of reference. The same arguments work for a script in a directory that no command
    can write.
    """
    home, root, mark = full.tester.home, full.tree.root, full.tree.root / "escaped"
    full.tree.put(root / "outer.sh", '#!/bin/sh\ncd && exec "$1/token.sh"\n')
    script = f"#!/bin/sh\ntouch {mark}\necho ghp_0123456789\n"
    full.tree.put(root / "tools/token.sh", script, mode=0o755)

    def words(form: str, place: str) -> str:
        below = str((root / place).relative_to(home))
        return form.format(
            home=home, below=below, root=root.relative_to(home), user=full.tester.name
        )

    wrote = full.inside(
        [
            "/bin/sh",
            "-c",
            f"printf %s '{script}' > token.sh && chmod 755 token.sh; ./token.sh || true",
        ]
    )
    assert "ghp_0123456789" in wrote.stdout, wrote
    assert not mark.exists(), "the sandbox holds the same act"
    for form in _UNNAMED:
        control = full.outside(shlex.split(words(form, "project")))
        assert (control.stdout, mark.exists()) == ("ghp_0123456789\n", True), control
        mark.unlink()
        with upstream() as server:
            file = policy(
                full,
                route(
                    "api", server, f"credential = {json.dumps('command:' + words(form, 'project'))}"
                ),
            )
            outcome = full.inside(["touch", "ran"], "--policy", file)
        assert not mark.exists(), outcome
        assert (outcome.exit_code, (full.tree.project / "ran").exists()) == (125, False), outcome
        assert "could have" in outcome.stderr, outcome
    with upstream() as server:
        texts = [
            f"credential = {json.dumps('command:' + words(form, 'tools'))}" for form in _UNNAMED
        ]
        file = policy(full, "".join(route(f"r{at}", server, text) for at, text in enumerate(texts)))
        outcome = full.inside([*_CURL, "http://r0.paddock.internal/"], "--policy", file)
    assert (outcome.exit_code, mark.exists()) == (0, True), outcome
    assert server.asked[0].header("authorization") == "Bearer ghp_0123456789"


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_a_sandboxed_command_does_not_choose_which_upstreams_are_genuine(
    full: SandboxRunner, variable: str
) -> None:
    inside = full.tree.put(full.tree.project / "ca.pem", OURS.pem.decode())
    outside = full.tree.put(full.tree.root / "ca.pem", OURS.pem.decode())
    with upstream() as server:
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        ask = ["curl", "-s", "-m", "60", "http://api.paddock.internal/x"]
        for place, code in ((outside, 0), (inside, 125)):
            value = str(place if variable == "SSL_CERT_FILE" else place.parent)
            outcome = full.inside(ask, "--policy", file, env=KEY | {variable: value})
            assert outcome.exit_code == code, outcome
    assert f"paddock: {variable}: a command could have written {value}" in outcome.stderr
    assert (
        f"hint: type `unset {variable}`, or set it to a file that no command can write"
        in outcome.stderr
    )
    assert len(server.asked) == 1


def test_a_route_that_would_show_a_secret_is_refused(full: SandboxRunner) -> None:
    with upstream() as server:
        file = policy(full, route("api", server, 'credential = "env:ROUTE_KEY"'))
        outcome = full.inside(["true"], "--policy", file, "--off", "env-sanitize", env=KEY)
        assert outcome.exit_code == 125
        assert "would see the secrets of routes" in outcome.stderr
        landlock = full.inside(["true"], "--policy", file, "--tier", "landlock", env=KEY)
        assert landlock.exit_code == 125, landlock
        assert f"{file}:3" in landlock.stderr


@contextmanager
def named(sandbox: SandboxRunner, directory: Path) -> Iterator[tuple[list[Word], dict[str, str]]]:
    """The command prefix that names the hosts, and the environment that trusts them."""
    need("root", os.getuid() == 0, "only root can mount a list of names for one process")
    hosts = sandbox.tree.put(
        sandbox.tree.root / "hosts", f"127.0.0.1 localhost {HOST} {OTHER} {NEAR}\n"
    )
    trusted = sandbox.tree.put(sandbox.tree.root / "trusted.pem", OURS.pem.decode())
    tester = sandbox.tester
    words: list[Word] = [
        "unshare",
        "-m",
        "bash",
        "-c",
        _AS,
        "as",
        str(hosts),
        str(tester.uid),
        str(tester.gid),
    ]
    yield words, {"SSL_CERT_FILE": str(trusted)}


def in_turn(commands: Sequence[Sequence[str]]) -> list[Word]:
    """One line for each answer, ``-`` for a failed request."""
    import shlex

    return ["sh", "-c", "; ".join(f"{shlex.join(one)} || echo -; echo" for one in commands)]


def test_path_rules_of_inspected_hosts_hold_for_every_client(
    full: SandboxRunner, tmp_path: Path
) -> None:
    """HTTP/1.1 and HTTP/2. Requests to a host that is only inspected are journaled. Other hosts
    pass encrypted.
    """
    python, node = need_program("python3"), need_program("node")
    with (
        upstream(tls=OURS.server(HOST)) as server,
        upstream(tls=OURS.server(OTHER)) as other,
        named(full, tmp_path) as (
            before,
            trusting,
        ),
    ):
        at, there = f"https://{HOST}:{server.port}", f"https://{OTHER}:{other.port}"
        file = policy(
            full,
            f'[network]\nallowed_hosts = ["{OTHER}:{other.port}", "127.0.0.1"]\n'
            f'inspect = ["{OTHER}"]\n'
            + route(
                "api", server, 'credential = "env:ROUTE_KEY"', "inspect = true",
                'endpoint_rules = [{ method = "GET", path = "/ok/*" }]', host=HOST, scheme="https",
            ),
        )  # fmt: skip
        get = "import urllib.request as r;print(r.urlopen('{}',timeout=120).status)"
        fetch = "fetch('{}').then(a=>console.log(a.status))"
        commands = [
            [
                *_CURL,
                "--http1.1",
                "-o",
                "/dev/null",
                "-w",
                "%{http_version} %{http_code}",
                f"{at}/ok/1",
            ],
            [
                *_CURL,
                "--http2",
                "-o",
                "/dev/null",
                "-w",
                "%{http_version} %{http_code}",
                f"{at}/ok/2",
            ],
            [
                *_CURL,
                "--http2",
                "-o",
                "/dev/null",
                "-w",
                "%{http_version} %{http_code}",
                f"{at}/no",
            ],
            [str(python), "-c", get.format(f"{at}/ok/3")],
            [str(node), "-e", fetch.format(f"{at}/ok/4")],
            [*_CURL, "-o", "/dev/null", "-w", "%{http_version} %{http_code}", f"{there}/any/path"],
            # A client that trusts only the authority of the tests sees another certificate.
            [
                *_CURL,
                "--cacert",
                str(full.tree.root / "trusted.pem"),
                "-o",
                "/dev/null",
                f"{at}/ok/5",
            ],
        ]
        control = full.tester.run([*before, *in_turn(commands[:1])], env=trusting, as_root=True)
        assert control.stdout.split() == ["1.1", "200"], control
        server.asked.clear()
        words = full.command(
            in_turn(commands),
            "--policy",
            file,
            "-r",
            f"{full.tree.root}/trusted.pem",
            "-r",
            f"{Path(str(node)).parent}/**",
        )
        outcome = full.tester.run(
            [*before, *words], cwd=full.tree.project, env=KEY | trusting, as_root=True
        )
    answers = [line for line in outcome.stdout.splitlines() if line]
    assert answers == ["1.1 200", "2 200", "2 403", "200", "200", "2 200", "-"], outcome
    assert [one.target for one in server.asked] == ["/ok/1", "/ok/2", "/ok/3", "/ok/4"]
    assert {one.header("authorization") for one in server.asked} == {f"Bearer {SECRET}"}
    assert [one.target for one in other.asked] == ["/any/path"]
    assert ("deny", "api", "GET", "/no", 403) in requests(full)
    assert ("allow", None, "GET", "/any/path", 200) in requests(full)


def test_an_upstream_by_name_is_checked_like_any_host(full: SandboxRunner, tmp_path: Path) -> None:
    """A name that resolves to this machine is not dialled, unless it is a name of this machine. A
    client that dials an upstream directly does not bypass the rules (F-142).
    """
    with upstream() as server, upstream() as other, named(full, tmp_path) as (before, _):
        text = route("name", server, host=NEAR) + route("local", server, host="localhost")
        paths = [f"http://{name}.paddock.internal/{name}" for name in ("name", "local")]

        def asking(text: str) -> Outcome:
            asks = [[*_CURL, "-w", "%{http_code}", "-o", "/dev/null", path] for path in paths]
            words = full.command(in_turn(asks), "--policy", policy(full, text))
            return full.tester.run([*before, *words], cwd=full.tree.project, as_root=True)

        outcome = asking(text)
        assert outcome.stdout.split() == ["403", "200"], outcome
        assert "the name leads to this machine" in outcome.stderr
        assert [one.target for one in server.asked] == ["/local"]

        allowed = (
            f"[network]\nallowed_hosts = ['{HOST}:{other.port}', '{HOST}:{server.port}', "
            f"'127.0.0.1']\n"
        )
        rules = "endpoint_rules = [{ method = 'GET', path = '/by/route' }]"
        paths = [
            f"http://{HOST}:{other.port}/control",
            f"http://{HOST}:{server.port}/x",
            "http://api.paddock.internal/by/route",
        ]
        outcome = asking(allowed + route("api", server, host=HOST))
        assert outcome.stdout.split() == ["200", "200", "200"], outcome
        server.asked.clear()
        outcome = asking(allowed + route("api", server, rules, host=HOST))
        assert outcome.stdout.split()[1:] != ["200", "200"], outcome
        assert [one.target for one in server.asked] == ["/by/route"], outcome
        assert "only a route with endpoint rules leads to this host" in outcome.stderr


def test_dry_run_shows_routes(full: SandboxRunner) -> None:
    with upstream() as server:
        file = policy(
            full,
            route(
                "api",
                server,
                'credential = "env:ROUTE_KEY"',
                'endpoint_rules = [{ method = "GET", path = "/v1/**" }]',
            ),
        )

        def output(*words: Word) -> Outcome:
            return full.tester.run(
                [full.installation.paddock, *words, "--policy", file], cwd=full.tree.project
            )

        shown = output("explain").stdout
        assert f"http://api.paddock.internal → http://127.0.0.1:{server.port}" in shown
        assert "GET /v1/**" in shown
        assert "env:ROUTE_KEY" in shown
        found = output("why", "--host", "api.paddock.internal:80")
        assert (found.exit_code, f"http://127.0.0.1:{server.port}" in found.stdout) == (0, True), (
            found
        )
        absent = output("why", "--host", "none.paddock.internal:80")
        assert (absent.exit_code, "no route has this name" in absent.stdout) == (1, True), absent
        assert "--allow-domain" not in absent.stdout
        direct = output("why", "--host", f"127.0.0.1:{server.port}")
        assert (
            direct.exit_code,
            "only a route with endpoint rules leads to this host" in direct.stdout,
        ) == (
            1,
            True,
        ), direct
