"""Names in the full tier: closed, read-only, or taken away, wherever they lie in what can be written."""

from __future__ import annotations

import pytest

from tests.support.fence import Fence, Word


@pytest.mark.parametrize("name", [".env", "app/.env", "a/b/c/.env.local", "deploy/id_ed25519"])
def test_a_secret_of_the_project_is_closed_by_its_name(full: Fence, name: str) -> None:
    place = full.ground.put(full.ground.project / name, "secret\n")
    for way in (place, f"/proc/self/root{place}"):
        assert full.inside(full.probe("read", way)).answer == "EACCES"
    assert full.outside(full.probe("read", place)).answer == "ok secret"
    example = full.ground.put(place.with_name(".env.example"), "documentation\n")
    assert full.inside(full.probe("read", example)).answer == "ok documentation"


def test_a_policy_may_open_what_the_profile_closes(full: Fence) -> None:
    place = full.ground.put(full.ground.project / ".env", "needed\n")
    assert full.inside(full.probe("read", place), "--open-protected", "**/.env").answer == "ok needed"


def test_a_deny_of_a_person_can_not_be_opened(full: Fence) -> None:
    place = full.ground.put(full.ground.project / ".env", "secret\n")
    flags = ("--deny", "**/.env", "--open-protected", "**/.env")
    assert full.inside(full.probe("read", place), *flags).answer == "EACCES"


@pytest.mark.parametrize(
    "name", [".envrc", ".vscode/tasks.json", "a/b/.mcp.json", ".github/workflows/ci.yml", "x/.idea/a"]
)
def test_a_protected_name_that_is_there_stays_as_it_is(full: Fence, name: str) -> None:
    place = full.ground.put(full.ground.project / name, "as it was\n")
    script = f"echo started\necho evil > {place}\nrm -f {place}\nmv {place} {place}.old\nchmod 777 {place}"
    assert full.inside(["sh", "-c", script]).started
    assert place.read_text() == "as it was\n"
    assert place.stat().st_mode & 0o777 == 0o644
    assert full.outside(["sh", "-c", f"echo evil > {place}"]).exit_code == 0


def test_a_protected_name_that_appears_is_taken_away(full: Fence) -> None:
    project = full.ground.project
    script = f"echo started\nmkdir -p {project}/new/.vscode\necho evil > {project}/new/.vscode/tasks.json"
    assert full.inside(["sh", "-c", script]).started
    assert not (project / "new" / ".vscode").exists()


def test_an_opened_name_can_be_written(full: Fence) -> None:
    place = full.ground.put(full.ground.project / ".github" / "workflows" / "ci.yml", "old\n")
    flags: tuple[Word, ...] = ("--open-protected", "**/.github/workflows/**")
    done = full.inside(["sh", "-c", f"echo started; echo new > {place}"], *flags)
    assert (done.exit_code, place.read_text()) == (0, "new\n"), str(done)
    assert "is not kept read-only" in done.stderr


def test_what_the_configuration_of_git_names_is_protected(full: Fence) -> None:
    project = full.ground.project
    assert full.outside(["git", "init", "-q", str(project)]).exit_code == 0
    assert full.outside(["git", "-C", project, "config", "core.hooksPath", "tools/hooks"]).exit_code == 0
    hook = full.ground.put(project / "tools" / "hooks" / "pre-commit", "#!/bin/sh\n", mode=0o755)
    free = full.ground.put(project / "tools" / "build", "#!/bin/sh\n", mode=0o755)
    full.inside(["sh", "-c", f"echo evil >> {hook}; echo evil > {hook.parent}/post-commit; echo fine >> {free}"])
    assert hook.read_text() == "#!/bin/sh\n"
    assert not (hook.parent / "post-commit").exists()
    assert "fine" in free.read_text()


@pytest.mark.parametrize("mode", [0o000, 0o300])
def test_a_directory_that_can_not_be_listed_is_closed_as_a_whole(full: Fence, mode: int) -> None:
    place = full.ground.put(full.ground.project / "shut" / ".env", "secret\n")
    opening = f"chmod 700 {place.parent}; mv {place.parent} {place.parent}-moved; cat {place} {place.parent}-moved/.env"
    place.parent.chmod(mode)
    done = full.inside(["sh", "-c", f"echo started; {opening}"])
    assert done.started, str(done)
    assert "secret" not in done.stdout, str(done)
    assert place.parent.stat().st_mode & 0o777 == mode, "nor does the end of a run give rights to it"
    assert "secret" in full.outside(["sh", "-c", opening]).stdout


def test_everything_may_be_written_but_what_the_fence_rests_on(full: Fence) -> None:
    """`write_globs = ["/**"]`: configuration, state, journal and installation stay as they are."""
    home = full.tester.home
    places = [home / ".config" / "paddock", home / ".local" / "state" / "paddock", full.installation.package]
    script = "echo started\n" + "\n".join(f"echo evil > {place}/evil.toml" for place in places)
    script += f"\necho evil > {full.ground.outside}/free"
    done = full.inside(["sh", "-c", script], "-a", "/**", profile="base", journal=False)
    assert done.started, str(done)
    assert (full.ground.outside / "free").read_text() == "evil\n", "the grant is a grant"
    assert not [place for place in places if (place / "evil.toml").exists()]
