"""The ``ai-agent`` profile in a real home: secrets, start-up files, temp directory, devices,
/proc.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import outside_targets
from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Tester
from tests.support.tree import SECRET

SECRETS = (
    ".ssh/id_ed25519",
    ".ssh/config",
    ".aws/credentials",
    ".config/gcloud/credentials.db",
    ".kube/config",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".gnupg/private-keys-v1.d/key",
    ".config/gh/hosts.yml",
    ".npmrc",
    ".pypirc",
    ".bash_history",
)
START_UP = (
    ".bashrc",
    ".profile",
    ".gitconfig",
    ".config/fish/config.fish",
    ".local/bin/ls",
    ".vimrc",
)


@pytest.fixture
def home(tester: Tester) -> Iterator[Path]:
    """The tester's home with the files of a developer, if the home is disposable."""
    need(
        "root",
        tester.disposable,
        "the tests do not write keys and start-up files of an ordinary user",
    )
    kept = {
        name: (tester.home / name).read_bytes()
        for name in START_UP
        if (tester.home / name).is_file()
    }
    for name in (*SECRETS, *START_UP):
        (tester.home / name).parent.mkdir(parents=True, exist_ok=True)
        (tester.home / name).write_text(SECRET + "\n")
        (tester.home / name).chmod(0o755 if name.endswith("bin/ls") else 0o600)
        tester.give(tester.home / Path(name).parts[0])
    yield tester.home
    for name in (*SECRETS, *START_UP):
        (tester.home / name).unlink()
    for name in (
        ".ssh",
        ".aws",
        ".kube",
        ".docker",
        ".gnupg",
        ".config/gcloud",
        ".config/gh",
        ".config/fish",
        ".local/bin",
    ):
        shutil.rmtree(tester.home / name)
    for name, content in kept.items():
        (tester.home / name).write_bytes(content)
        tester.give(tester.home / name)


@pytest.mark.parametrize("profile", ["ai-agent", "strict", "dev", "read-only"])
def test_secrets_in_the_home_are_unreadable_by_default(
    sandbox: SandboxRunner, home: Path, profile: str
) -> None:
    """C-024 for every built-in profile. One run reads them all."""
    script = "echo started; for name; do cat ~/$name && echo read $name; done"
    words = ["sh", "-c", script, "sh", *SECRETS]
    denied = sandbox.inside(words, profile=profile)
    control = sandbox.outside(words)
    assert denied.started, str(denied)
    assert denied.stdout == "started\n", str(denied)
    assert denied.stderr.count("Permission denied") == len(SECRETS), str(denied)
    assert control.stdout.count(SECRET) == len(SECRETS)


def test_start_up_files_in_the_home_cannot_be_changed(sandbox: SandboxRunner, home: Path) -> None:
    """C-024: files that a shell, git or an editor runs next time."""
    script = (
        "echo started; for name; do echo evil >> ~/$name; rm -f ~/$name; "
        "mv ~/$name ~/$name.old; "
        "done"
    )
    denied = sandbox.inside(["bash", "-c", script, "bash", *START_UP])
    assert denied.started, str(denied)
    for name in START_UP:
        assert (home / name).read_text() == SECRET + "\n", str(name)
    control = sandbox.outside(["sh", "-c", f"echo evil >> ~/{START_UP[0]}"])
    assert control.exit_code == 0
    assert (home / START_UP[0]).read_text() == SECRET + "\nevil\n"


def test_nothing_new_appears_in_the_home(
    sandbox: SandboxRunner, home: Path, tester: Tester
) -> None:
    before = sorted(path.name for path in tester.home.iterdir())
    script = (
        "echo started; touch ~/.zshenv ~/evil; mkdir ~/.config/autostart; ln -s /tmp ~/link; "
        "mkdir -p ~/.new/deep"
    )
    assert sandbox.inside(["sh", "-c", script]).started
    assert sorted(path.name for path in tester.home.iterdir()) == before
    assert not (home / ".config" / "autostart").exists()


def test_home_comes_from_the_password_file_not_from_the_environment(
    sandbox: SandboxRunner, home: Path
) -> None:
    """C-025: ``HOME=/`` must not widen or move anything."""
    victim = home / ".ssh" / "id_ed25519"
    for value in ("/", str(sandbox.tree.root), "relative", ""):
        denied = sandbox.inside(sandbox.probe("read", victim), env={"HOME": value})
        assert denied.exit_code == 125 or denied.answer == "EACCES", str(denied)
        assert SECRET not in denied.stdout


def test_the_home_itself_is_refused_as_a_workspace(sandbox: SandboxRunner, tester: Tester) -> None:
    refused = sandbox.inside(sandbox.probe("descriptors"), cwd=tester.home)
    assert refused.exit_code == 125, str(refused)
    assert refused.stdout == "", str(refused)
    assert "home" in refused.stderr


# ---- temp


def test_the_shared_temp_directory_is_closed_and_a_private_one_works(
    sandbox: SandboxRunner, tester: Tester
) -> None:
    """C-023."""
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="paddock-outside-") as shared:
        shared.write(SECRET.encode())
        shared.flush()
        Path(shared.name).chmod(0o666)
        denied = sandbox.inside(sandbox.probe("read", shared.name))
        listing = sandbox.inside(["sh", "-c", "echo started; ls /tmp"])
        control = sandbox.outside(sandbox.probe("read", shared.name))
    made = sandbox.inside(
        ["sh", "-c", "echo started; f=$(mktemp) && echo x > $f && cat $f && echo $f"]
    )
    assert denied.answer == "EACCES", str(denied)
    assert listing.started
    assert Path(shared.name).name not in listing.stdout
    assert control.answer == f"ok {SECRET}"
    assert made.exit_code == 0, str(made)
    assert made.stdout.splitlines()[1] == "x", str(made)
    private = Path(made.answer).parent
    assert private.parent == Path("/tmp")
    assert private.name.startswith(f"paddock-{tester.uid}-")
    assert not private.exists(), "the private temp directory outlived the run"


def test_two_runs_do_not_share_a_temp_directory(sandbox: SandboxRunner) -> None:
    places = {sandbox.inside(["sh", "-c", "echo started; echo $TMPDIR"]).answer for _ in range(2)}
    assert len(places) == 2


def test_a_temp_directory_full_of_traps_is_removed_without_following_them(
    sandbox: SandboxRunner,
) -> None:
    """Links to outside, a closed directory and odd names are removed. The targets of the links
    stay.
    """
    script = (
        "echo started; cd $TMPDIR; ln -s {outside} link; ln {own} hard; "
        "mkdir -p a/b/c locked; touch a/b/c/x locked/y;"
        " chmod 0 locked; touch -- '-rf' 'new\nline'; pwd -P"
    ).format(outside=sandbox.tree.outside, own=sandbox.tree.project / "own.txt")
    outcome = sandbox.inside(["sh", "-c", script])
    assert outcome.started, str(outcome)
    assert not Path(outcome.answer).exists()
    assert sandbox.tree.secret.read_text() == SECRET + "\n"
    assert (sandbox.tree.project / "own.txt").read_text() == "mine\n"


# ---- devices and /proc


@pytest.mark.parametrize(
    "script",
    [
        "echo x > /dev/null",
        "echo x 2> /dev/null >&2",
        "head -c 4 /dev/zero > zeros && test $(wc -c < zeros) = 4",
        "head -c 4 /dev/urandom > noise && test $(wc -c < noise) = 4",
        "! echo x > /dev/full",
        "git init -q repository",
        "python3 -c 'import multiprocessing; multiprocessing.Lock()'",
        (
            "python3 -c 'from multiprocessing.shared_memory import SharedMemory as S; "
            "s=S(create=True,size=9); s.unlink()'"
        ),
    ],
)
def test_devices_are_usable(sandbox: SandboxRunner, script: str) -> None:
    """C-026, F-105."""
    outcome = sandbox.inside(["sh", "-c", f"echo started; {script}"])
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 0, str(outcome)


def test_new_terminals_can_be_made_with_the_profile_that_grants_them(
    sandbox: SandboxRunner,
) -> None:
    words = [
        "python3",
        "-c",
        "import os; print('started', flush=True); os.openpty(); print('made')",
    ]
    assert sandbox.inside(words, profile="dev").answer == "made"
    assert sandbox.inside(words).exit_code != 0


def test_proc_self_is_readable_at_any_depth(sandbox: SandboxRunner) -> None:
    """F-104: a rule on /proc/self would bind to one process."""
    outcome = sandbox.inside(["sh", "-c", "echo started; sh -c 'sh -c \"cat /proc/self/status\"'"])
    assert outcome.exit_code == 0, str(outcome)
    assert "NoNewPrivs:\t1" in outcome.stdout, str(outcome)


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "root/etc/passwd", "cwd/.", "fd/0"])
def test_other_processes_cannot_be_read_through_proc(
    sandbox: SandboxRunner, tester: Tester, name: str
) -> None:
    """C-027."""
    with outside_targets.bystander(tester) as pid:
        denied = sandbox.inside(sandbox.probe("proc", str(pid), name))
        control = sandbox.outside(sandbox.probe("proc", str(pid), name))
    assert denied.answer in ("EACCES", "EPERM"), str(denied)
    assert control.answer in ("ok", "EISDIR"), str(control)


def test_no_environment_of_another_process_leaks(sandbox: SandboxRunner, tester: Tester) -> None:
    script = "echo started; grep -al PADDOCK_VICTIM= /proc/[0-9]*/environ"
    with outside_targets.bystander(tester) as pid:
        denied = sandbox.inside(["sh", "-c", script])
        control = sandbox.outside(["sh", "-c", script])
    assert denied.stdout == "started\n", str(denied)
    assert f"/proc/{pid}/environ" in control.stdout
