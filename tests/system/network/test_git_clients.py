"""git over each of its protocols, without proxy variables."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import ALLOWED, OTHER, Clients
from tests.support.clients import serving_site as serve
from tests.support.features import need, need_program
from tests.support.sandbox import Word
from tests.support.tester import Tester
from tests.support.tree import ProjectTree

# If a client closes while Python wraps the socket, ssl.py does not close it. The garbage collector
# does.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

_AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def _repository(directory: Path) -> Path:
    """A bare repository with one commit, which dumb HTTP clients can read too."""
    git = need_program("git")
    for words in (
        ["init", "-q", "-b", "main", "work"],
        ["-C", "work", *_AUTHOR, "commit", "-q", "--allow-empty", "-m", "first"],
        ["clone", "-q", "--bare", "work", "served.git"],
        ["-C", "served.git", "update-server-info"],
    ):
        subprocess.run([git, *words], cwd=directory, check=True)
    return directory / "served.git"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_git_clones_from_an_allowed_host(
    clients: Clients, certified: tuple[Path, ssl.SSLContext], tmp_path: Path, scheme: str
) -> None:
    certificate, context = certified
    trusted = clients.sandbox.tree.put(
        clients.sandbox.tree.project / "ca.pem", certificate.read_text()
    )
    clone: list[Word] = [
        "/usr/bin/env",
        f"GIT_SSL_CAINFO={trusted}",
        need_program("git"),
        "clone",
        "-q",
    ]
    _repository(tmp_path)
    with serve(tmp_path, context=context if scheme == "https" else None) as site:
        control = clients.outside([*clone, site.at(OTHER, "served.git"), "control"])
        assert (control.exit_code, set(site.seen)) == (0, {OTHER}), str(control)
        site.seen.clear()
        for name, reached in ((ALLOWED, True), (OTHER, False)):
            outcome = clients.inside(
                [*clone, site.at(name, "served.git"), f"from-{name}"], site.port
            )
            assert (outcome.exit_code == 0) == reached, str(outcome)
            assert (clients.sandbox.tree.project / f"from-{name}" / ".git").exists() == reached
        assert set(site.seen) == {ALLOWED}
        assert {("connect", "allow", ALLOWED), ("name", "deny", OTHER)} <= set(clients.decided())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """An ssh server on the host. Each connection gets its own process, as with inetd, so no port is
    guessed.
    """

    port: int
    log: Path
    ssh: str  # the ssh command without the host

    def let_in(self) -> int:
        return self.log.read_text().count("Accepted publickey")


@contextmanager
def _shell(tester: Tester, tree: ProjectTree) -> Iterator[Shell]:
    need("sshd", Path("/usr/sbin/sshd").exists(), "no sshd on this machine")
    kept, project = tree.make(tree.root / "sshd"), tree.project
    for key in (kept / "host", project / "login"):
        words = [need_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(words, check=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host_key = (kept / "host.pub").read_text()
        known = "".join(f"[{name}]:{port} {host_key}" for name in (ALLOWED, OTHER))
        tree.put(project / "known", known)
        tree.put(kept / "allowed", (project / "login.pub").read_text())
        lines = (
            f"HostKey {kept}/host\nAuthorizedKeysFile {kept}/allowed\nStrictModes no\n"
            f"UsePAM no\n"
            f"UseDNS no\n"
        )
        config, log = tree.put(kept / "config", lines), tree.put(kept / "log")
        for place in (kept, project):
            tester.give(place)
        command = ["/usr/sbin/sshd", "-i", "-f", str(config), "-E", str(log)]

        def answer(client: socket.socket) -> None:
            with client:
                subprocess.run(
                    command, stdin=client.fileno(), stdout=client.fileno(),
                    stderr=subprocess.DEVNULL, cwd="/", user=tester.uid, group=tester.gid,
                    extra_groups=[], check=False,
                )  # fmt: skip

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:  # the test has ended
                    return
                answering.append(threading.Thread(target=answer, args=(client,)))
                answering[-1].start()

        answering: list[threading.Thread] = []
        accepting = threading.Thread(target=accept)
        accepting.start()
        options = (
            f"-F none -i {project}/login -p {port} -o UserKnownHostsFile={project}/known -o "
            f"BatchMode=yes"
        )
        try:
            yield Shell(port=port, log=log, ssh=f"{need_program('ssh')} {options}")
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in answering:
                thread.join()


def test_git_clones_and_pushes_over_ssh(clients: Clients) -> None:
    """The filter knows the host only by its DNS name. The first bytes of ssh have no name."""
    sandbox, git = clients.sandbox, need_program("git")
    repository = _repository(sandbox.tree.make(sandbox.tree.root / "repositories"))
    author = " ".join(_AUTHOR)
    script = (
        f'set -e; {git} clone -q "$1" "$2"; cd "$2"; '
        f'{git} {author} commit -q --allow-empty -m "$2"; {git} push -q origin main'
    )

    def subjects() -> list[str]:
        words = [git, "-c", "safe.directory=*", "-C", str(repository), "log", "--format=%s", "main"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()

    with _shell(sandbox.tester, sandbox.tree) as shell:
        sandbox.tester.give(repository.parent)

        def pushing(name: str, directory: str) -> list[Word]:
            address = f"ssh://{sandbox.tester.name}@{name}{repository}"
            ssh = f"GIT_SSH_COMMAND={shell.ssh}"
            return ["/usr/bin/env", ssh, "/bin/sh", "-c", script, "sh", address, directory]

        control = clients.outside(pushing(OTHER, "control"))
        assert (control.exit_code, subjects()) == (0, ["control", "first"]), (
            f"{control}{shell.log.read_text()}"
        )
        let_in = shell.let_in()
        outcome = clients.inside(pushing(ALLOWED, "inside"), shell.port)
        assert (outcome.exit_code, subjects()) == (0, ["inside", "control", "first"]), str(outcome)
        assert shell.let_in() == let_in + 2
        refused = clients.inside(pushing(OTHER, "refused"), shell.port)
        assert refused.exit_code != 0
        assert f"denied: {OTHER}" in refused.stderr, str(refused)
        assert (subjects(), shell.let_in()) == (["inside", "control", "first"], let_in + 2)
        # Another port of the same name is denied.
        elsewhere = clients.inside(pushing(ALLOWED, "elsewhere"), 1)
        assert f"denied: {ALLOWED}:{shell.port} (" in elsewhere.stderr, str(elsewhere)
        assert shell.let_in() == let_in + 2
    assert clients.decided().count(("connect", "allow", ALLOWED)) == 2
