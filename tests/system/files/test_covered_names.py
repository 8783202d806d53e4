"""Names in the full tier are closed or read-only, at any depth of a writable tree."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from tests.support.cow import tree_entries
from tests.support.outside_targets import listening
from tests.support.sandbox import UNJUDGED, SandboxRunner, Word
from tests.support.waiting import wait_for


@pytest.mark.parametrize("name", [".env", "app/.env", "a/b/c/.env.local", "deploy/id_ed25519"])
def test_a_secret_of_the_project_is_closed_by_its_name(full: SandboxRunner, name: str) -> None:
    place = full.tree.put(full.tree.project / name, "secret\n")
    for way in (place, f"/proc/self/root{place}"):
        assert full.inside(full.probe("read", way)).answer == "EACCES"
    assert full.outside(full.probe("read", place)).answer == "ok secret"
    example = full.tree.put(place.with_name(".env.example"), "documentation\n")
    assert full.inside(full.probe("read", example)).answer == "ok documentation"


def test_a_policy_may_open_what_the_profile_closes(full: SandboxRunner) -> None:
    place = full.tree.put(full.tree.project / ".env", "needed\n")
    assert (
        full.inside(full.probe("read", place), "--open-protected", "**/.env").answer == "ok needed"
    )


def test_a_deny_of_a_person_cannot_be_opened(full: SandboxRunner) -> None:
    place = full.tree.put(full.tree.project / ".env", "secret\n")
    flags = ("--deny", "**/.env", "--open-protected", "**/.env")
    assert full.inside(full.probe("read", place), *flags).answer == "EACCES"


@pytest.mark.parametrize(
    "name",
    [".envrc", ".vscode/tasks.json", "a/b/.mcp.json", ".github/workflows/ci.yml", "x/.idea/a"],
)
def test_a_protected_name_that_is_there_stays_as_it_is(full: SandboxRunner, name: str) -> None:
    place = full.tree.put(full.tree.project / name, "as it was\n")
    script = (
        f"echo started\necho evil > {place}\nrm -f {place}\nmv {place} {place}.old\n"
        f"chmod 777 {place}"
    )
    assert full.inside(["sh", "-c", script]).started
    assert place.read_text() == "as it was\n"
    assert place.stat().st_mode & 0o777 == 0o644
    assert full.outside(["sh", "-c", f"echo evil > {place}"]).exit_code == 0


@pytest.mark.parametrize("flag", ["--read", "-x"])
def test_a_narrower_grant_does_not_remove_protection(full: SandboxRunner, flag: str) -> None:
    """Grants add up: a name that the workspace grant makes writable stays writable, so it has to be
    protected.
    """
    inner = full.tree.make(full.tree.project / "inner")
    there = full.tree.put(inner / ".envrc", "as it was\n")
    script = (
        f"echo started\necho evil > {there}\necho evil > {inner}/.mcp.json\n"
        f"echo fine > {inner}/work"
    )
    assert full.inside(["sh", "-c", script], flag, f"{inner}/**").started
    assert (inner / "work").read_text() == "fine\n", "it can be written there"
    assert there.read_text() == "as it was\n"
    assert not (inner / ".mcp.json").exists()
    assert full.outside(["sh", "-c", script]).exit_code == 0
    assert (there.read_text(), (inner / ".mcp.json").exists()) == ("evil\n", True)


def test_a_protected_name_cannot_be_made(full: SandboxRunner) -> None:
    project = full.tree.project
    script = (
        f"echo started\nmkdir -p {project}/new/.vscode\n"
        f"echo evil > {project}/new/.vscode/tasks.json"
    )
    assert full.inside(["sh", "-c", script]).started
    assert not (project / "new" / ".vscode").exists()


@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGTERM])
def test_no_stub_is_left_in_the_workspace(
    full: SandboxRunner, number: signal.Signals | None
) -> None:
    """Masks, locks and pins are mounts inside the sandbox. The host never sees them."""
    project = full.tree.project
    for name in (".env", "a/.env", ".vscode/tasks.json", "a/.git/config", "shut/x"):
        full.tree.put(project / name, "1\n")
    before = tree_entries(project)
    with full.starting(
        ["sh", "-c", "echo started; read -r end"], "--deny", f"{project}/b/none", stdin=None
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert tree_entries(project) == before
        process.send_signal(number or signal.SIGINT)
        process.wait(timeout=120)
    wait_for(lambda: tree_entries(project) == before, "the workspace is as it was")


def test_an_opened_name_can_be_written(full: SandboxRunner) -> None:
    place = full.tree.put(full.tree.project / ".github" / "workflows" / "ci.yml", "old\n")
    flags: tuple[Word, ...] = ("--open-protected", "**/.github/workflows/**")
    done = full.inside(["sh", "-c", f"echo started; echo new > {place}"], *flags)
    assert (done.exit_code, place.read_text()) == (0, "new\n"), str(done)
    assert "is writable" in done.stderr


def test_paths_in_the_configuration_of_git_are_protected(full: SandboxRunner) -> None:
    project = full.tree.project
    assert full.outside(["git", "init", "-q", str(project)]).exit_code == 0
    assert (
        full.outside(["git", "-C", project, "config", "core.hooksPath", "tools/hooks"]).exit_code
        == 0
    )
    hook = full.tree.put(project / "tools" / "hooks" / "pre-commit", "#!/bin/sh\n", mode=0o755)
    free = full.tree.put(project / "tools" / "build", "#!/bin/sh\n", mode=0o755)
    full.inside(
        [
            "sh",
            "-c",
            f"echo evil >> {hook}; echo evil > {hook.parent}/post-commit; echo fine >> {free}",
        ]
    )
    assert hook.read_text() == "#!/bin/sh\n"
    assert not (hook.parent / "post-commit").exists()
    assert "fine" in free.read_text()


def test_a_repository_above_the_workspace_counts_as_well(full: SandboxRunner) -> None:
    project = full.tree.project
    assert full.outside(["git", "init", "-q", full.tree.root]).exit_code == 0
    assert full.outside(["git", "config", "core.hooksPath", "project/tools"]).exit_code == 0
    hook = project / "tools" / "pre-commit"
    planting = f"mkdir -p {hook.parent}; printf '#!/bin/sh\\n' > {hook}; chmod +x {hook}"
    assert full.inside(["sh", "-c", f"echo started; {planting}"]).started
    assert not hook.exists()
    assert full.outside(["sh", "-c", planting]).exit_code == 0
    assert hook.exists()


@pytest.mark.parametrize("mode", [0o000, 0o300])
def test_a_directory_that_cannot_be_listed_is_closed_as_a_whole(
    full: SandboxRunner, mode: int
) -> None:
    place = full.tree.put(full.tree.project / "shut" / ".env", "secret\n")
    opening = (
        f"chmod 700 {place.parent}; mv {place.parent} {place.parent}-moved; "
        f"cat {place} {place.parent}-moved/.env"
    )
    place.parent.chmod(mode)
    done = full.inside(["sh", "-c", f"echo started; {opening}"])
    assert done.started, str(done)
    assert "secret" not in done.stdout, str(done)
    assert place.parent.stat().st_mode & 0o777 == mode, (
        "nor does the end of a run give rights to it"
    )
    assert "secret" in full.outside(["sh", "-c", opening]).stdout


DEEPER = """
import os, socket, sys
print("started", flush=True)
for _ in range(30):
    if sys.argv[1] == "make":
        os.makedirs("a" * 200, exist_ok=True)
    os.chdir("a" * 200)
if sys.argv[1] == "make":
    for name in (".env", ".envrc"):
        with open(name, "x") as file:
            file.write("secret")
elif sys.argv[1] == "read":
    print(open(".env").read())
else:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("service")
        client.send(b"from inside")
"""


@pytest.mark.parametrize("flags", [(), ("--cow",)])
def test_a_name_deeper_than_a_path_reaches_is_closed_and_stops_no_run(
    full: SandboxRunner, flags: tuple[str, ...]
) -> None:
    """A command could leave such a name to stop all later runs."""
    full = replace(full, own_flags=UNJUDGED)
    beside = full.tree.put(full.tree.project / "beside", "fine\n")
    made = full.inside(["python3", "-c", DEEPER, "make"])
    assert (made.started, made.exit_code) == (True, 0), str(made)
    deepest = os.open(full.tree.project, os.O_PATH)
    for _ in range(30):
        above, deepest = deepest, os.open("a" * 200, os.O_PATH, dir_fd=deepest)
        os.close(above)
    try:
        with listening(f"/proc/self/fd/{deepest}/service") as service:
            for act in ("read", "call"):
                refused = full.inside(["python3", "-c", DEEPER, act], *flags)
                assert (refused.started, refused.exit_code) == (True, 1), str(refused)
                control = full.outside(["python3", "-c", DEEPER, act])
                assert control.exit_code == 0, str(control)
            wait_for(
                lambda: service.received == [b"from inside"], "only the control message arrived"
            )
            assert full.inside(full.probe("read", beside), *flags).answer == "ok fine"
            os.unlink("service", dir_fd=deepest)
    finally:
        os.close(deepest)


def test_everything_may_be_written_but_files_that_the_sandbox_relies_on(
    full: SandboxRunner,
) -> None:
    """`write_globs = ["/**"]`: configuration, state, journal and installation stay as they are."""
    home = full.tester.home
    places = [
        home / ".config" / "paddock",
        home / ".local" / "state" / "paddock",
        full.installation.package,
    ]
    script = "echo started\n" + "\n".join(f"echo evil > {place}/evil.toml" for place in places)
    script += f"\necho evil > {full.tree.outside}/free"
    done = full.inside_of_everything(
        ["sh", "-c", script], "-a", "/**", profile="base", journal=False
    )
    assert done.started, str(done)
    assert (full.tree.outside / "free").read_text() == "evil\n", "the rest of the grant is writable"
    assert not [place for place in places if (place / "evil.toml").exists()]


def test_a_copy_that_a_person_or_an_editor_makes_of_a_secret_is_closed_too(
    full: SandboxRunner,
) -> None:
    names = [
        ".env~",
        ".env.swp",
        ".env.local.swo",
        ".env.save",
        ".env.orig",
        ".env.1",
        "#.env#",
        "..env.un~",
        ".env.prod.bak",
    ]
    names += [
        ".env.production~",
        ".env.copy",
        ".env.~1~",
        ".env.tmp",
        ".env.new",
        ".env-bak",
        ".env_backup",
    ]
    names += [
        ".env (copy)",
        ".env - Copy",
        ".env (1)",
        "..env.swp",
        ".env.kate-swp",
        ".env.2024-01-01",
    ]
    names += [
        "id_rsa~",
        "id_rsa.bak",
        "id_dsa.old",
        "id_ecdsa-backup",
        "id_ed25519~",
        "id_ed25519 copy",
        ".id_rsa.swp",
    ]
    names += [".netrc", ".netrc~", ".netrc.bak"]
    free = [
        ".env.example",
        ".env.sample",
        ".env.template",
        ".env.tmpl",
        ".env.d.ts",
        "id_rsa.pub",
        "id_ed25519.pub",
    ]
    for name in [*names, *free]:
        full.tree.put(full.tree.project / name, "secret\n")
    words = [
        "sh",
        "-c",
        'echo started; for name; do cat "./$name" >/dev/null 2>&1 && echo "$name"; done',
        "sh",
    ]
    assert full.inside([*words, *names, *free]).stdout.splitlines() == ["started", *free]
    assert full.outside([*words, *names]).stdout.splitlines()[1:] == names, "the control"


def test_settings_that_a_variable_of_the_caller_names_are_protected(full: SandboxRunner) -> None:
    """The settings are in the workspace, and programs outside find them only by variables."""
    project, mark = full.tree.project, full.tree.outside / "mark"
    named = {
        "GIT_CONFIG_GLOBAL": "git/global",
        "BASH_ENV": "sh/env",
        "PYTHONSTARTUP": "sh/start.py",
        "ZDOTDIR": "zsh",
        "XDG_CONFIG_HOME": "config",
    }
    settings = [
        "git/global",
        "sh/env",
        "sh/start.py",
        "zsh/.zshrc",
        "config/nvim/init.lua",
        "config/starship.toml",
    ]
    for name in (*settings, "zsh/notes", "config/notes"):
        full.tree.put(project / name, "# mine\n")
    full.tree.put(project / "included" / "more", "# mine\n")
    full.tree.put(project / "git" / "global", "[include]\n\tpath = ../included/more\n")
    kept = {name: (project / name).read_text() for name in (*settings, "included/more")}
    env = {variable: str(project / name) for variable, name in named.items()}
    act = f"for name; do echo 'touch {mark}' >> $name; done; echo started"
    words: list[Word] = ["sh", "-c", act, "sh", *kept, "zsh/notes", "config/notes"]
    for _ in range(2):  # the second time from the cached plan
        assert full.inside(words, env=env).started
        assert {name: (project / name).read_text() for name in kept} == kept
    full.outside(["bash", "-c", "true"], env=env)
    assert not mark.exists()
    assert "touch" in (project / "zsh" / "notes").read_text(), (
        "beside the settings everything can be written"
    )
    assert "touch" in (project / "config" / "notes").read_text()
    assert full.inside(words).started
    assert all("touch" in (project / name).read_text() for name in kept), (
        "the control: without variables the files are ordinary"
    )
    full.outside(["bash", "-c", "true"], env=env)
    assert mark.exists(), "the control: bash obeys the variable"


def test_a_link_that_a_variable_names_is_followed_anew_by_each_run(full: SandboxRunner) -> None:
    project = full.tree.project
    first, second = (full.tree.put(project / name, "# mine\n") for name in ("first", "second"))
    link = full.tree.outside / "env"
    link.symlink_to(first)
    words: list[Word] = [
        "sh",
        "-c",
        f"echo started; for name in {first} {second}; do echo evil > $name; done",
    ]
    for _ in range(2):
        assert full.inside(words, env={"BASH_ENV": str(link)}).started
        assert (first.read_text(), second.read_text()) == ("# mine\n", "evil\n")
    second.write_text("# mine\n")
    link.unlink()
    link.symlink_to(second)
    assert full.inside(words, env={"BASH_ENV": str(link)}).started
    assert (first.read_text(), second.read_text()) == ("evil\n", "# mine\n")


def test_a_file_that_leads_hg_or_jj_to_another_repository_cannot_be_made(
    full: SandboxRunner,
) -> None:
    project = full.tree.project
    acts = (
        "mkdir -p a/.hg b/.jj c/.jj/repo/store; echo ../x > a/.hg/sharedpath; "
        "echo ../x > b/.jj/repo"
    )
    done = full.inside(["sh", "-c", f"echo started; {acts}; echo x > c/.jj/repo/store/type"])
    assert done.started, str(done)
    assert not (project / "a" / ".hg" / "sharedpath").exists()
    assert not (project / "b" / ".jj" / "repo").exists()
    assert (project / "c" / ".jj" / "repo" / "store" / "type").exists(), (
        "the control: a repository can be made"
    )
    again = full.inside(["sh", "-c", "echo y > c/.jj/repo/store/type"])
    assert again.exit_code == 0, "and written by the next run"


_OBEYED = [
    ".jj/workspace-config.toml",
    ".jj/workspace-config-id",
    ".jj/repo/config-id",
    ".hg/histedit-state",
    ".bsp/x.json",
    "buildServer.json",
    ".lsp/config.edn",
    ".gclient",
    ".repo/repo/main.py",
    ".p4config",
    "_darcs/prefs/defaults",
    ".pants.bootstrap",
    ".west/config",
    ".solargraph.yml",
    ".sl/config",
    ".sl/store/gitdir",
    ".git/sl/config",
    ".git/sl/config-git-repo",
    ".git/sl/store/gitdir",
    ".jj/repo/store/git_target",
    ".forgejo/workflows/x.yml",
    ".gitlab-ci/x.yml",
    "azure-pipelines-1.yaml",
    ".cirrus.star",
    ".builds/x.yml",
    "buildkite/pipeline.yml",
    ".autoenv_leave.zsh",
    ".env.leave",
    "flake.lock",
    ".devbox/gen/scripts/.hooks.sh",
    "app.ipr",
    "nbproject/build-impl.xml",
    ".ona/automations.yaml",
    ".devfile.yaml",
    "conductor.json",
    ".conductor/settings.toml",
    ".git/lazygit.yml",
    ".git/glab-cli/config.yml",
    ".lazygit.yml",
    ".shadowenv.d/500_x.lisp",
    ".reviewboardrc",
    ".pochi/config.jsonc",
    "firebender.json",
]


def test_settings_that_tools_obey_unasked_cannot_be_made(full: SandboxRunner) -> None:
    project = full.tree.project
    flagged = [".luacheckrc", ".releaserc.yml", ".yardopts", "action.yml", "nx.json", "platform.py"]
    free = ["sub/platform.py", "plain.txt", ".git/sl/dirstate", ".jj/repo/store/type"]
    names = [*_OBEYED, *flagged, *free]
    acts = [f"mkdir -p $(dirname {name}); echo new > {name}" for name in names]
    done = full.inside(["sh", "-c", "; ".join(("echo started", *acts))])
    assert done.started, str(done)
    assert [name for name in names if (project / name).exists()] == names[len(_OBEYED) :]
    listed = sorted(event["path"] for event in full.events() if event["event"] == "name.flagged")
    assert listed == [str(project / name) for name in flagged]
    control = full.outside(["sh", "-c", "; ".join(acts)])
    assert control.exit_code == 0, str(control)
    again = full.inside(["sh", "-c", "; ".join(f"echo evil >> {name}" for name in _OBEYED)])
    assert all((project / name).read_text() == "new\n" for name in _OBEYED), str(again)
