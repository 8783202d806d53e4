"""Protected or denied directories of the home with symlinks in them, as dotfile tools make them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome, Tester
from tests.support.tree import SECRET

# Names in the home, and the target of each in the workspace.
OBEYED = {
    ".ssh/config": "ssh/config",
    ".bashrc.d/10.sh": "bash/10.sh",
    ".config/nvim/lua/user/plugins.lua": "nvim/plugins.lua",
    ".config/systemd/user/x.service": "systemd/x.service",
    ".claude/skills/mine": "skills/mine",  # a directory
}
SECRETS = {
    ".aws/credentials": "aws/credentials",
    ".kube/config": "kube.yaml",
    ".config/gh/hosts.yml": "gh/hosts.yml",
    ".docker/contexts/meta/x/meta.json": "docker/meta.json",
}
PLUGIN = ".docker/cli-plugins/docker-x"


@pytest.fixture
def linked(sandbox: SandboxRunner, tester: Tester) -> Iterator[Path]:
    """The workspace with the targets of links in the home."""
    need(
        "root",
        tester.disposable,
        "the tests do not write keys and start-up files of an ordinary user",
    )
    project, home = sandbox.tree.project, tester.home
    names = {**OBEYED, **SECRETS, PLUGIN: "plugin"}
    tops = {name.split("/")[0] for name in names}
    kept = {top: home / f"{top}.kept" for top in tops if (home / top).exists()}
    for top, place in kept.items():
        (home / top).rename(place)
    for name, target in names.items():
        path = project / target / "run.sh" if target == "skills/mine" else project / target
        sandbox.tree.put(path, SECRET + "\n", mode=0o755 if name == PLUGIN else 0o644)
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(project / target)
    for top in tops:
        tester.give(home / top)
    yield project
    for top in tops:
        shutil.rmtree(home / top)
    for top, place in kept.items():
        place.rename(home / top)


def writing(sandbox: SandboxRunner) -> list[str]:
    script = (
        "echo started; for name; do echo evil >> $name && echo wrote $name; done; "
        "echo new > skills/mine/new.sh"
    )
    places = [
        target if target != "skills/mine" else "skills/mine/run.sh" for target in OBEYED.values()
    ]
    return ["sh", "-c", script, "sh", *places, "free"]


def why(sandbox: SandboxRunner, path: Path, operation: str) -> Outcome:
    words: list[Word] = [
        sandbox.installation.paddock,
        "why",
        "--tier",
        sandbox.tier,
        "--path",
        path,
        "--op",
        operation,
    ]
    return sandbox.outside(words)


def test_targets_of_links_in_protected_directories_are_read_only(
    full: SandboxRunner, linked: Path
) -> None:
    done = full.inside(writing(full))
    assert done.started, str(done)
    assert done.stdout.splitlines() == ["started", "wrote free"], str(done)
    assert "evil" not in "".join(
        path.read_text() for path in linked.rglob("*") if path.is_file() and path.name != "free"
    )
    assert not (linked / "skills" / "mine" / "new.sh").exists()
    assert "denied" in why(full, linked / "ssh" / "config", "write").stdout
    assert "allowed" in why(full, linked / "free", "write").stdout
    control = full.outside(writing(full))
    assert control.stdout.count("wrote") == len(OBEYED) + 1, str(control)
    assert (linked / "skills" / "mine" / "new.sh").exists()


def test_a_copy_holds_back_targets_of_links_in_protected_directories(
    full: SandboxRunner, linked: Path
) -> None:
    """Not the target of ~/.ssh: it is denied as well, and so not in the copy."""
    done = full.inside(writing(full), "--cow")
    assert done.started, str(done)
    assert "wrote bash/10.sh" in done.stdout, str(done)
    applied = full.outside([full.installation.paddock, "apply"])
    full.outside([full.installation.paddock, "discard"])
    assert applied.exit_code == 1, str(applied)
    for name in ("bash/10.sh", "nvim/plugins.lua", "systemd/x.service", "skills/mine/run.sh"):
        assert (linked / name).read_text() == SECRET + "\n", str(applied)
    assert (linked / "free").read_text() == "evil\n", "the control: the rest is applied"


@pytest.mark.parametrize("tier", ["full", "landlock"])
@pytest.mark.parametrize("flags", [[], ["--cow"]])
def test_targets_of_links_in_denied_directories_are_closed(
    request: pytest.FixtureRequest, linked: Path, tier: str, flags: list[str]
) -> None:
    sandbox: SandboxRunner = request.getfixturevalue("full" if tier == "full" else "sandbox")
    if flags and tier == "landlock":
        return  # this tier has no copies
    words = [
        "sh",
        "-c",
        "echo started; cat own.txt plugin; cat $@",
        "sh",
        *SECRETS.values(),
        "ssh/config",
    ]
    denied = sandbox.inside(words, *flags)
    sandbox.outside([sandbox.installation.paddock, "discard"])
    assert denied.started, str(denied)
    assert denied.stdout == f"started\nmine\n{SECRET}\n", str(denied)
    assert denied.stderr.count("Permission denied") == len(SECRETS) + 1, str(denied)
    for name in SECRETS.values():
        reported = why(sandbox, linked / name, "read")
        assert "denied" in reported.stdout, str(reported)
    control = sandbox.outside(words)
    assert control.stdout.count(SECRET) == len(SECRETS) + 2, str(control)


def test_a_link_that_is_made_between_two_runs_counts(full: SandboxRunner, linked: Path) -> None:
    """Plans are cached, and no cached plan knows the new link."""
    place = full.tree.put(linked / "token", SECRET + "\n")
    assert full.inside(["cat", place]).stdout == SECRET + "\n", "the control"
    link = full.tester.home / ".aws" / "sso" / "token"
    link.parent.mkdir()
    link.symlink_to(place)
    assert full.inside(["cat", place]).stdout == ""


def test_a_directory_that_cannot_be_listed_stops_the_run(full: SandboxRunner, linked: Path) -> None:
    shut = full.tester.home / ".aws" / "shut"
    shut.mkdir(mode=0)
    full.tester.give(shut)
    refused = full.inside(["true"])
    os.chmod(shut, 0o700)
    assert refused.exit_code == 125, str(refused)
    assert f"cannot list {shut}" in refused.stderr, str(refused)
    assert full.inside(["true"]).exit_code == 0, "the control"
