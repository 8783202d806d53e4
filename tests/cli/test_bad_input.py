"""Bad input gives a clear line with its position, a hint and exit code 125. It gives no traceback,
and no command runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

MARKER = "ran"


def refused(
    sandbox: SandboxRunner,
    *flags: Word,
    command: tuple[Word, ...] | None = None,
    cwd: Path | None = None,
) -> Outcome:
    """Runs a command that would leave a marker, and checks that there is no marker."""
    marker = sandbox.tree.project / MARKER
    words: tuple[Word, ...] = command if command is not None else ("/bin/touch", marker)
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, "run", *flags, "--", *words], cwd=cwd or sandbox.tree.project
    )
    assert not marker.exists(), outcome
    assert outcome.exit_code == 125, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("paddock: "), outcome
    assert "Traceback" not in outcome.stderr
    return outcome


def policy(sandbox: SandboxRunner, text: str, name: str = "p.toml") -> Path:
    path = sandbox.tree.root / name
    path.write_text(text)
    sandbox.tester.give(path)
    return path


def test_the_marker_is_left_when_the_input_is_good(sandbox: SandboxRunner) -> None:
    """The control for every refused input below."""
    marker = sandbox.tree.project / MARKER
    file = policy(sandbox, '[meta]\ninherit = "ai-agent"\n')
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, "run", "--policy", file, "--", "/bin/touch", marker],
        cwd=sandbox.tree.project,
    )
    assert outcome.exit_code == 0, outcome
    assert marker.exists()


def test_a_command_needs_no_dashes(sandbox: SandboxRunner) -> None:
    """The command begins at the first word that belongs to no option."""
    run: list[Word] = [sandbox.installation.paddock, "run", "--quiet"]
    words: list[Word] = [
        "--read",
        "/srv",
        "-r/srv",
        "--env=A=b",
        "sh",
        "-c",
        "echo $A $*",
        "sh",
        "--only",
        "--debug",
    ]
    outcome = sandbox.tester.run([*run, *words], cwd=sandbox.tree.project)
    assert (outcome.stdout, outcome.exit_code) == ("b --only --debug\n", 0), outcome


def test_flags_add_to_the_default_profile(sandbox: SandboxRunner) -> None:
    """C-015: with a grant on the command line the command still sees its directory."""
    sandbox.tree.put(sandbox.tree.project / "mine.txt")
    run: list[Word] = [sandbox.installation.paddock, "run", "--read", sandbox.tree.outside]
    seen = sandbox.tester.run(
        [*run, "--", "ls", ".", sandbox.tree.outside], cwd=sandbox.tree.project
    )
    assert {"mine.txt", "secret.txt"} <= set(seen.stdout.split()), seen
    alone = sandbox.tester.run(
        [*run[:2], "--only", *run[2:], "-r", "/usr", "--", "ls", sandbox.tree.project],
        cwd=sandbox.tree.outside,
    )
    assert "mine.txt" not in alone.stdout
    assert "ls: cannot" in alone.stderr, alone


def test_a_variable_that_is_not_set_gets_a_warning(sandbox: SandboxRunner) -> None:
    run: list[Word] = [sandbox.installation.paddock, "run", "--env-pass"]
    for _ in range(2):  # the second run uses the stored plan
        outcome = sandbox.tester.run([*run, "HOMEE", "--", "true"], cwd=sandbox.tree.project)
        assert outcome.exit_code == 0, outcome
        assert "--env-pass HOMEE: this variable is not set; did you mean HOME?" in outcome.stderr
    outcome = sandbox.tester.run([*run, "HOME", "--", "true"], cwd=sandbox.tree.project)
    assert "not set" not in outcome.stderr


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[meta\n", 1, ""),
        ("[filesystem]\nread_glob = []\n", 2, "read_globs"),
        ('[filesystem]\nread_globs = ["/usr"]\nread_globs = ["/etc"]\n', 3, ""),
        ('[filesystem]\nread_globs = "/usr"\n', 2, "filesystem.read_globs"),
        ('[filesystem]\nread_globs = [\n  "/usr",\n  "/srv/../etc",\n]\n', 4, ".."),
        ('[filesystem]\nread_globs = ["${NOPE}/x"]\n', 2, "NOPE"),
        ('[syscalls]\nblock = ["ptrce"]\n', 2, "ptrace"),
        ("[meta]\nversion = 2\n", 2, "version"),
        ("[audit]\nenabled = false\n", 2, "--off audit"),
        ('[meta]\ndefault_action = "maybe"\n', 2, "default_action"),
    ],
)
def test_a_wrong_policy_is_refused_with_file_and_line(
    sandbox: SandboxRunner, text: str, line: int, message: str
) -> None:
    """F-024, F-052, F-053, F-056, F-101, C-014, C-062"""
    outcome = refused(sandbox, "--policy", policy(sandbox, text))
    assert f"p.toml:{line}" in outcome.stderr
    assert message in outcome.stderr


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("rx /usr\n", 1, "rx"),
        ("ro\n", 1, "ro"),
        ("# fine\n\nlandlock yes\n", 3, "yes"),
        ("landlock off\n", 1, "--off landlock"),
        (f"ro /{'x' * 5000}\n", 1, ""),
        ("ro /usr\nro /et", 2, ""),
        ("rw $NOPE/x\n", 1, "NOPE"),
    ],
)
def test_a_wrong_profile_line_is_refused_with_file_and_line(
    sandbox: SandboxRunner, text: str, line: int, message: str
) -> None:
    """C-053, C-062, C-063"""
    outcome = refused(sandbox, "--profile", policy(sandbox, text, "p.conf"))
    assert f"p.conf:{line}" in outcome.stderr
    assert message in outcome.stderr


def test_a_missing_policy_file_is_an_error(sandbox: SandboxRunner) -> None:
    assert "nowhere.toml" in refused(sandbox, "--policy", "nowhere.toml").stderr


def test_an_unknown_profile_is_refused_with_the_searched_directories(
    sandbox: SandboxRunner,
) -> None:
    """C-058"""
    outcome = refused(sandbox, "--profile", "ai-agnet")
    assert ".config/paddock" in outcome.stderr
    assert "/etc/paddock" in outcome.stderr
    assert "ai-agent" in outcome.stderr


def test_a_policy_that_others_can_write_is_refused(sandbox: SandboxRunner) -> None:
    """C-060"""
    file = policy(sandbox, '[meta]\ninherit = "ai-agent"\n')
    file.chmod(0o666)
    assert "p.toml" in refused(sandbox, "--policy", file).stderr


def test_a_missing_grant_path_is_an_error_with_its_source_and_optional_with_a_question_mark(
    sandbox: SandboxRunner,
) -> None:
    file = policy(
        sandbox,
        '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = [\n  "/usr/**",\n'
        '  "/srv/nowhere/**",\n]\n',
    )
    outcome = refused(sandbox, "--policy", file)
    assert "/srv/nowhere" in outcome.stderr
    assert "p.toml:6" in outcome.stderr
    optional = policy(
        sandbox, '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["/srv/nowhere/**?"]\n'
    )
    ran = sandbox.tester.run(
        [sandbox.installation.paddock, "run", "--policy", optional, "--", "true"],
        cwd=sandbox.tree.project,
    )
    assert ran.exit_code == 0, ran


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            '[filesystem]\nworkspace = "cow"\n',
            "p.toml:4: a copy-on-write workspace needs the full tier",
        ),
        ("[limits]\ntmp_mb = 64\n", "p.toml:4) needs the full tier"),
        ('[filesystem]\ndeny_globs = ["**/.env"]\n', "p.toml:4: deny **/.env cannot be enforced"),
        (
            '[filesystem]\nwrite_globs = ["/**"]\n',
            "p.toml:4: a grant of / would open the whole machine",
        ),
        (
            "[network.routes.x]\nupstream = 'https://x'\nendpoint_rules = []\n",
            "p.toml:3: routes and inspected",
        ),
    ],
)
def test_a_rule_that_the_landlock_tier_cannot_enforce_names_its_line(
    sandbox: SandboxRunner, part: str, message: str
) -> None:
    file = policy(sandbox, f'[meta]\ninherit = "ai-agent"\n{part}')
    assert (
        sandbox.tester.run(
            [sandbox.installation.paddock, "trust", file], cwd=sandbox.tree.project
        ).exit_code
        == 0
    )
    assert message in refused(sandbox, "--tier", "landlock", "--policy", file).stderr


def test_container_directives_are_refused_in_a_rootless_run(sandbox: SandboxRunner) -> None:
    """C-153"""
    outcome = refused(
        sandbox, "--profile", policy(sandbox, "inherit ai-agent\nrootdir /srv/root\n", "c.conf")
    )
    assert "rootdir applies to containers" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "put -- before the command"),
        (["run", "--audit", "ls"], "put -- before the command"),
        (["run", "--only", "--profile", "dev", "true"], "leave out --only or --profile"),
        (["run", "--"], "the command is empty"),
        (["run", "--", ""], "the command is empty"),
        (["run", "--nonsense", "--", "true"], "unknown option --nonsense"),
        (["run", "--alow", "/srv", "--", "true"], "did you mean --allow?"),
        (["run", "--block", "ptrce", "--", "true"], "ptrace"),
        (["run", "--off", "everything", "--", "true"], "everything"),
        (["run", "--env", "X", "--", "true"], "NAME=VALUE"),
        (
            ["run", "--allow-domain", "github.com, example.com", "--", "true"],
            "--allow-domain github.com --allow-domain example.com",
        ),
        (["run", "--workdir", "/nope", "--", "true"], "the working directory /nope does not exist"),
        (["run", "--workdir", "/srv", "--", "true"], "add --allow '/srv/**'"),
        (["rnu"], "did you mean `paddock run`?"),
        (["claude"], "paddock -- claude"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_hint(
    sandbox: SandboxRunner, words: list[str], message: str
) -> None:
    outcome = sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)
    assert outcome.exit_code == 125, outcome
    assert outcome.stdout == ""
    assert message in outcome.stderr
    assert "hint: " in outcome.stderr or message in ("NAME=VALUE",)


def test_a_command_that_does_not_exist_is_127_and_one_that_is_no_program_126(
    sandbox: SandboxRunner,
) -> None:
    gone = sandbox.inside(["no-such-command-here"])
    assert gone.exit_code == 127, gone
    assert gone.stderr.startswith("paddock: ")
    plain = sandbox.tree.project / "plain"
    plain.write_text("not a program")
    plain.chmod(0o644)
    assert sandbox.inside([plain]).exit_code == 126
    outside_every_grant = sandbox.tree.outside / "tool"
    outside_every_grant.write_text("#!/bin/sh\necho escaped\n")
    outside_every_grant.chmod(0o755)
    assert sandbox.outside([outside_every_grant]).stdout == "escaped\n"
    denied = sandbox.inside([outside_every_grant])
    assert (denied.exit_code, denied.stdout) == (126, "")


def test_a_megabyte_of_arguments_arrives_whole(sandbox: SandboxRunner) -> None:
    words = ["x" * 100_000] * 10
    outcome = sandbox.inside(["sh", "-c", 'echo $#; echo "$*" | wc -c', "sh", *words])
    assert outcome.stdout.split() == ["10", str(10 * 100_001)]


def test_arguments_and_paths_that_are_not_utf8_arrive_as_they_are(sandbox: SandboxRunner) -> None:
    shown = sandbox.inside([b"/usr/bin/printf", b"%s", b"caf\xe9"])
    assert shown.stdout == "caf\udce9"
    odd = Path(str(sandbox.tree.root) + "/caf\udce9")
    odd.mkdir()
    sandbox.tester.give(odd)
    inside = sandbox.inside(["sh", "-c", "echo here > file; cat file"], cwd=odd)
    assert inside.stdout == "here\n", inside


def test_too_low_a_limit_of_open_files_is_refused_at_the_start(
    sandbox: SandboxRunner,
) -> None:
    marker = sandbox.tree.project / MARKER
    words: tuple[Word, ...] = (sandbox.installation.paddock, "run", "--", "/bin/touch", marker)
    for most in (4, 8, 31):
        outcome = sandbox.tester.run(
            ["prlimit", f"--nofile={most}", *words], cwd=sandbox.tree.project
        )
        assert outcome.exit_code == 125, outcome
        assert outcome.stderr == (
            f"paddock: only {most} files may be open at once\nhint: raise the limit: "
            f"ulimit -n 1024\n"
        )
        assert not marker.exists()
    enough = sandbox.tester.run(["prlimit", "--nofile=64", *words], cwd=sandbox.tree.project)
    assert enough.exit_code == 0, enough
    assert marker.exists()


def test_a_deleted_current_directory_is_refused(sandbox: SandboxRunner) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" run -- touch ../ran'
    outcome = sandbox.tester.run(
        ["sh", "-c", script, sandbox.installation.paddock], cwd=sandbox.tree.project
    )
    assert outcome.exit_code == 125, outcome
    assert "the current directory no longer exists" in outcome.stderr
    assert not (sandbox.tree.project / "ran").exists()


def test_the_home_directory_is_refused_as_a_workspace(sandbox: SandboxRunner) -> None:
    """C-024"""
    outcome = refused(
        sandbox, cwd=sandbox.tester.home, command=("touch", sandbox.tester.home / "ran-at-home")
    )
    assert "the workspace would be your home directory" in outcome.stderr
    assert not (sandbox.tester.home / "ran-at-home").exists()


def test_home_variable_does_not_change_the_home_directory(sandbox: SandboxRunner) -> None:
    """C-025"""
    profile = policy(sandbox, "rw $HOME\n", "homerw.conf")
    target = sandbox.tree.outside / "x"
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, "run", "--profile", profile, "--", "touch", target],
        cwd=sandbox.tree.project,
        env={"HOME": "/"},
    )
    assert not target.exists(), outcome
    assert sandbox.outside(["touch", target]).exit_code == 0
    assert target.exists()
