"""Shims (links with the names of shells): their effect, and calls that bypass them."""

from __future__ import annotations

import os
import re
import shlex
import socket
from pathlib import Path

import pytest

from tests.support.installation import REPOSITORY
from tests.support.network import MESSAGE, serving
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import SEARCH_PATH, Outcome
from tests.system.shells.test_interception import FILTERS, PYTHON, agent, calling


class Shims:
    """Shims installed for the tester, in a directory of the tree."""

    def __init__(self, sandbox: SandboxRunner) -> None:
        self.sandbox = sandbox
        self.dir = sandbox.tree.root / "shims"

    def paddock(self, *words: Word) -> Outcome:
        return self.sandbox.tester.run(
            [self.sandbox.installation.paddock, "shims", *words], cwd=self.sandbox.tree.project
        )

    def run(
        self, *words: Word, env: dict[str, str] | None = None, stdin: str | None = None
    ) -> Outcome:
        """Runs with the shims first on the PATH."""
        path = {"PATH": f"{self.dir}:{SEARCH_PATH}", **(env or {})}
        return self.sandbox.tester.run(words, cwd=self.sandbox.tree.project, env=path, stdin=stdin)


@pytest.fixture
def shims(sandbox: SandboxRunner) -> Shims:
    made = Shims(sandbox)
    done = made.paddock("install", made.dir)
    assert done.exit_code == 0, str(done)
    return made


def test_install_says_that_shims_are_advice(sandbox: SandboxRunner) -> None:
    """C-118, C-119."""
    shims = Shims(sandbox)
    done = shims.paddock("install", shims.dir)
    assert "advice, not a sandbox" in done.stdout, str(done)
    assert {"bash", "sh", "dash"} <= {entry.name for entry in shims.dir.iterdir()}
    assert os.readlink(shims.dir / "bash") == str(sandbox.installation.core)
    status = shims.paddock("status", shims.dir)
    assert (status.exit_code, str(shims.dir) in status.stdout) == (0, True), str(status)
    assert shims.paddock("remove", shims.dir).exit_code == 0
    assert not shims.dir.exists()
    assert shims.paddock("status", shims.dir).exit_code == 1
    assert shims.paddock("remove", shims.dir).exit_code == 125


def test_no_foreign_file_is_replaced(sandbox: SandboxRunner) -> None:
    shims = Shims(sandbox)
    own = sandbox.tree.put(shims.dir / "bash", "mine")
    done = shims.paddock("install", shims.dir)
    assert (done.exit_code, own.read_text()) == (125, "mine"), str(done)
    done = shims.paddock("install", "/bin")
    assert done.exit_code == 125, str(done)


def test_a_shell_found_by_path_has_the_policys_secrets_calls_and_variables_taken_away(
    shims: Shims,
) -> None:
    """C-110, C-118."""
    secret = shims.sandbox.tester.home / ".ssh" / "id_test"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("secret\n")
    shims.sandbox.tester.give(secret.parent)
    script = (
        f"grep Seccomp: /proc/self/status; cat {secret}; echo ${{GITHUB_TOKEN-none}}; "
        f"unshare -r true || echo refused"
    )
    env = {"GITHUB_TOKEN": "t"}
    try:
        control = shims.run("/bin/bash", "-c", script, env=env)
        assert control.stdout.splitlines()[:3] == ["Seccomp:\t0", "secret", "t"], str(control)
        for name in ("bash", "sh", "dash"):
            outcome = shims.run(name, "-c", script, env=env)
            assert outcome.stdout.splitlines() == ["Seccomp:\t2", "none", "refused"], str(outcome)
    finally:
        secret.unlink()


def test_command_cannot_change_the_shims_or_their_plan(shims: Shims) -> None:
    plan = shims.dir / "plan.json"
    before = plan.read_bytes()
    script = f"echo > {plan}; rm -f {plan} {shims.dir}/bash; mv {shims.dir} {shims.dir}.old; true"
    outcome = shims.run("bash", "-c", script)
    assert outcome.stderr.count("Permission denied") >= 3, str(outcome)
    assert (plan.read_bytes(), (shims.dir / "bash").is_symlink()) == (before, True)


def test_shells_below_add_nothing(shims: Shims) -> None:
    once = shims.run("bash", "-c", FILTERS).stdout
    deeper = (
        'n() { if [ $1 -gt 0 ]; then bash -c "$(declare -f n); n $(($1-1))"; else '
        + FILTERS
        + "; fi; }; n 40"
    )
    assert once == "Seccomp_filters:\t2\n"
    assert shims.run("bash", "-c", deeper).stdout == once


def test_shims_find_the_real_shells(shims: Shims) -> None:
    """C-101, C-103, C-106, C-107."""
    tree, mark = shims.sandbox.tree, shims.sandbox.tree.project / "mark"
    other = tree.make(tree.root / "other")
    (other / "bash").symlink_to("/bin/bash")

    def chosen(place: Path, *words: str) -> Outcome:
        return shims.run(*words, env={"PADDOCK_SHELL_DIR": str(place)})

    assert chosen(other, "bash", "-c", "echo up").stdout == "up\n"
    missing = chosen(other, "sh", "-c", f"echo > {mark}")
    assert (missing.exit_code, str(other / "sh") in missing.stderr) == (127, True), str(missing)
    circle = chosen(shims.dir, "sh", "-c", f"echo > {mark}")
    assert (circle.exit_code, "leads to paddock instead of a shell" in circle.stderr) == (
        126,
        True,
    ), str(circle)
    evil = tree.put(tree.root / "evil" / "bash", f"#!/bin/sh\necho > {mark}\n", mode=0o755)
    inside = shims.run("bash", "-c", f"PADDOCK_SHELL_DIR={evil.parent} bash -c 'echo real'")
    assert inside.stdout == "real\n", str(inside)
    assert not mark.exists()
    core = shims.sandbox.installation.core
    assert (
        shims.run(core, "--version", "--verbose").stdout.splitlines()[1]
        == "real shells: /bin/shells"
    )


@pytest.mark.parametrize("broken", ["missing", "not JSON", "another user's"])
def test_no_shell_starts_without_a_valid_plan(shims: Shims, broken: str) -> None:
    """C-105."""
    plan, mark = shims.dir / "plan.json", shims.sandbox.tree.project / "mark"
    text = plan.read_text()
    match broken:
        case "missing":
            plan.unlink()
        case "not JSON":
            plan.write_text(text[:-1])
        case _:
            uid = f'\\"uid\\":{shims.sandbox.tester.uid}'
            assert uid in text
            plan.write_text(text.replace(uid, '\\"uid\\":4242'))
    for name in ("bash", "sh"):
        outcome = shims.run(name, "-c", f"echo > {mark}")
        assert (outcome.exit_code, mark.exists(), outcome.stdout) == (126, False, ""), str(outcome)
        assert outcome.stderr.startswith("paddock: ")


@pytest.mark.parametrize("lacking", [["--no-landlock", "38"], ["--no-seccomp", "1"]])
def test_no_shell_starts_on_a_kernel_without_the_layers(shims: Shims, lacking: list[str]) -> None:
    """C-105."""
    mark = shims.sandbox.tree.project / "mark"
    words: list[Word] = [shims.dir / "bash", "-c", f"echo > {mark}"]
    outcome = shims.run(shims.sandbox.programs.oldkernel, *lacking, "--", *words)
    assert (outcome.exit_code, mark.exists()) == (126, False), str(outcome)
    assert shims.run(*words).exit_code == 0


def test_in_a_run_without_namespaces_the_agent_reaches_the_network_and_its_shells_do_not(
    sandbox: SandboxRunner,
) -> None:
    """C-110: the outer sandbox holds, and the shims add to it."""
    shims = Shims(sandbox)
    assert shims.paddock("install", shims.dir, "--in-run").exit_code == 0
    places = (f"{shims.dir}/**", f"{sandbox.installation.core.parent}/**")
    flags = ("-r", places[0], "-r", places[1], "--env", f"PATH={shims.dir}:{SEARCH_PATH}")
    outcome = sandbox.inside(agent("bash", "-c", f"{FILTERS}; cat {sandbox.tree.secret}"), *flags)
    assert outcome.stdout == "Seccomp_filters:\t4\n", str(outcome)
    assert "Permission denied" in outcome.stderr
    with serving("127.0.0.1", socket.SOCK_STREAM) as server:
        called = calling(server)
        for words in (agent(*called), agent("/bin/bash", "-c", shlex.join(called))):
            control = sandbox.inside(words, *flags)
            assert (control.exit_code, server.received()) == (0, [MESSAGE]), str(control)
        outcome = sandbox.inside(agent("bash", "-c", shlex.join(called)), *flags)
        assert (outcome.exit_code, server.received()) == (1, []), str(outcome)


def in_run(sandbox: SandboxRunner, *words: Word) -> tuple[Shims, list[Word]]:
    """Shims for an agent in a run, and the flags of that run."""
    shims = Shims(sandbox)
    done = shims.paddock("install", shims.dir, "--in-run", *words)
    assert done.exit_code == 0, str(done)
    flags: list[Word] = ["-r", f"{shims.dir}/**", "-r", f"{sandbox.installation.core.parent}/**"]
    return shims, [*flags, "--env", f"PATH={shims.dir}:{SEARCH_PATH}"]


def test_a_shell_in_a_run_without_namespaces_reaches_no_abstract_socket(
    sandbox: SandboxRunner,
) -> None:
    """The run does the writes of the shell, and lets it have Landlock rules with scopes alone."""
    _, flags = in_run(sandbox)
    serve = (
        "import socket, subprocess, sys; s = socket.socket(socket.AF_UNIX); "
        "s.bind('\\0paddock-x'); s.listen(); sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    )
    call = f"{PYTHON} -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0paddock-x\")'"
    script = f"echo started; echo x > file; {call} && echo connected; true"
    for shell, connects in (("/bin/bash", True), ("bash", False)):
        words = [PYTHON, "-c", serve, shell, "-c", script]
        outcome = sandbox.inside(words, *flags, "--socket", "unix")
        assert outcome.started, str(outcome)
        assert ("connected" in outcome.stdout) == connects, str(outcome)
        assert (sandbox.tree.project / "file").read_text() == "x\n", str(outcome)


def test_no_shell_with_fewer_files_starts_in_a_run_without_namespaces(
    sandbox: SandboxRunner,
) -> None:
    """The run does the writes of the shell, and no rule of the shell would bind it."""
    text = '[meta]\ninherit = "ai-agent"\n[shell]\ndeny_globs = ["/opt/**"]\n'
    policy = sandbox.tree.put(sandbox.tree.root / "shell.toml", text)
    _, flags = in_run(sandbox, "--policy", policy)
    outcome = sandbox.inside(agent("bash", "-c", "echo started"), *flags)
    assert (outcome.exit_code, outcome.stdout) == (126, ""), str(outcome)
    assert "inside, no second sandbox can restrict files" in outcome.stderr, str(outcome)
    control = sandbox.inside(agent("/bin/bash", "-c", "echo started"), *flags)
    assert control.started, str(control)


def test_the_table_of_the_documents_is_true(shims: Shims, host: dict[str, object]) -> None:
    """C-120."""
    table = (REPOSITORY / "docs" / "keep-shells-offline.md").read_text()
    rows = re.findall(r"^\| holds for (`.*?`.*?) \| (yes|no) \| (yes|no) \|$", table, re.M)
    script = shims.sandbox.tree.put(
        shims.sandbox.tree.project / "script.sh",
        "#!/bin/bash\ngrep Seccomp_filters: /proc/self/status\n",
        mode=0o755,
    )
    ways: dict[str, list[Word]] = {
        "`bash`, found by `PATH`": ["bash", "-c", FILTERS],
        "`/bin/bash`": ["/bin/bash", "-c", FILTERS],
        "`#!/bin/bash`": [script],
        "`system()`": [PYTHON, "-c", f"import os; os.system({FILTERS!r})"],
    }
    assert [row[0] for row in rows] == list(ways)
    flags = ("--tier", "full")
    plain = {way: shims.sandbox.inside(agent(*words), *flags).stdout for way, words in ways.items()}
    for way, by_mounts, by_path in rows:
        mounted = shims.sandbox.inside(agent(*ways[way]), *flags, "--intercept-shells").stdout
        linked = shims.run(*agent(*ways[way])).stdout
        found = (mounted != plain[way], linked != "Seccomp_filters:\t0\n")
        assert found == (by_mounts == "yes", by_path == "yes"), (way, mounted, linked)
