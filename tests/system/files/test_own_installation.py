"""Every kind of installation: files that start Paddock next time, outside the sandbox, stay
unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.installation import for_one_user, on_an_interpreter_at_home
from tests.support.sandbox import SandboxRunner, Word
from tests.system.files.test_self_protection import harm


@pytest.fixture(autouse=True)
def _disposable(sandbox: SandboxRunner) -> None:
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not risk the installation of an ordinary user",
    )


@contextmanager
def unharmed(victims: list[Path], absent: list[Path]) -> Iterator[None]:
    before = [(path.lstat().st_ino, path.read_bytes()) for path in victims]
    yield
    assert [(path.lstat().st_ino, path.read_bytes()) for path in victims] == before
    assert not [path for path in absent if path.exists()]


def attack(victims: list[Path], absent: list[Path]) -> list[str]:
    script = harm(victims)
    script[-1] += "".join(f"\necho evil > '{path}'" for path in absent)
    return script


def test_installation_of_one_user_stays_unchanged(sandbox: SandboxRunner) -> None:
    with for_one_user(sandbox.tester) as installed:
        local = sandbox.tester.home / ".local"
        victims = [
            installed.paddock,
            installed.core,
            installed.paddock.with_name("paddock-python"),
            installed.package / "__init__.py",
        ]
        absent = [
            installed.package.parent / "usercustomize.py",
            installed.package.parent / "evil.pth",
        ]
        beside = local / "share" / "mine" / "other"  # all of ~/.local/bin is protected
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("old")
        sandbox.tester.give(local)
        with unharmed(victims, absent):
            script = attack(victims, absent)
            script[-1] += f"\necho new > {beside}"
            denied = replace(sandbox, installation=installed).inside(
                script, "-a", f"{local}/**", journal=False
            )
        assert denied.started, denied
        assert beside.read_text() == "new\n", "the rest of the grant is writable"
        control = sandbox.outside(["sh", "-c", f"echo '# seen' >> {victims[2]}"])
        assert control.exit_code == 0
        assert victims[2].read_text().endswith("# seen\n"), (
            "the control: the tester may do it without the sandbox"
        )


def test_installation_of_one_user_starts_in_any_environment(
    sandbox: SandboxRunner,
) -> None:
    """A variable of the caller sets the directory of user packages for Python, but not for
    Paddock.
    """
    with for_one_user(sandbox.tester) as installed:
        for number, env in enumerate(({}, {"PYTHONUSERBASE": str(sandbox.tree.project)})):
            words: list[Word] = [
                installed.paddock,
                "run",
                "--env",
                f"N={number}",
                "--",
                "echo",
                "ran",
            ]
            run = sandbox.tester.run(words, env=env, cwd=sandbox.tree.project)
            assert run.stdout == "ran\n", run


def test_interpreter_in_the_home_stays_unchanged(sandbox: SandboxRunner) -> None:
    with on_an_interpreter_at_home(sandbox.tester) as (installed, base):
        (library,) = (base / "lib").glob("python*")
        victims = [
            library / "contextlib.py",
            next((base / "bin").iterdir()),
            installed.root / "pyvenv.cfg",
        ]
        absent = [
            base / "pyvenv.cfg",
            base / "lib" / "python311.zip",
            library / "sitecustomize-evil.py",
        ]
        with unharmed(victims, absent):
            denied = replace(sandbox, installation=installed).inside(
                attack(victims, absent), "-a", f"{base}/**", journal=False
            )
        assert denied.started, denied
        control = sandbox.outside(["sh", "-c", f"echo '# seen' >> {victims[0]}"])
        assert control.exit_code == 0
        assert victims[0].read_text().endswith("# seen\n"), (
            "the control: the tester may do it without the sandbox"
        )


def test_start_up_files_of_the_user_are_not_run(sandbox: SandboxRunner) -> None:
    """If Python can see the user's packages, it runs start-up files there on every start."""
    marker = sandbox.tree.outside / "ran"
    python = sandbox.installation.root / "bin" / "python3"
    config = sandbox.installation.root / "pyvenv.cfg"
    text = config.read_text()
    site = Path(
        sandbox.tester.run(
            [python, "-c", "import site; print(site.getusersitepackages())"]
        ).stdout.strip()
    )
    library = site.parents[1]
    assert not library.exists(), f"{library} is left over"
    library.mkdir(parents=True)
    sandbox.tester.give(library)
    try:
        config.write_text(
            text.replace(
                "include-system-site-packages = false", "include-system-site-packages = true"
            )
        )
        plant = f'mkdir -p {site}; echo \'open("{marker}", "w")\' > {site}/usercustomize.py'
        planted = sandbox.inside(["sh", "-c", plant], "--allow", f"{library}/**", journal=False)
        assert planted.exit_code == 0, planted
        assert sandbox.outside([python, "-c", "pass"]).exit_code == 0
        assert marker.exists(), "plain Python does run it"
        marker.unlink()
        for words in (["profiles"], ["run", "--block", "mlock", "--", "true"]):
            started = sandbox.tester.run(
                [sandbox.installation.paddock, *words], cwd=sandbox.tree.project
            )
            assert started.exit_code == 0, started
            assert not marker.exists(), words
    finally:
        config.write_text(text)
        for path in sorted(library.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        library.rmdir()


@contextmanager
def entry(sandbox: SandboxRunner, directory: Path) -> Iterator[Path]:
    """A link to Paddock on the user's PATH, as pipx and uv make it."""
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "paddock"
    link.symlink_to(sandbox.installation.paddock)
    (directory / "other").write_text("old")
    sandbox.tester.give(directory)
    try:
        yield link
    finally:
        link.unlink()
        (directory / "other").unlink()
        if made:
            directory.rmdir()


def test_link_that_starts_paddock_stays_unchanged(sandbox: SandboxRunner) -> None:
    with entry(sandbox, sandbox.tester.home / ".local" / "bin") as link:
        env = {"PATH": f"{link.parent}:/usr/bin:/bin"}
        script = (
            f"echo started; ln -sf /bin/true {link}; rm -f {link}; mv {link} {link}-old; "
            f"echo evil > {link}"
        )
        script += f"; mv {link.parent} {link.parent}-old; echo new > {link.parent}/other"
        words: list[Word] = [
            "run",
            "--profile",
            "ai-agent",
            "-a",
            f"{link.parent}/**",
            "--",
            "sh",
            "-c",
            script,
        ]
        denied = sandbox.tester.run([link, *words], env=env, cwd=sandbox.tree.project)
        assert denied.started, denied
        assert os.readlink(link) == str(sandbox.installation.paddock)
        assert (link.parent / "other").read_text() == "new\n", "the rest of the grant is writable"
        control = sandbox.outside(["sh", "-c", f"ln -sf /bin/true {link}"])
        assert control.exit_code == 0
        assert os.readlink(link) == "/bin/true", (
            "the control: the tester may do it without the sandbox"
        )


def test_a_program_of_its_name_in_the_workspace_stops_the_run(sandbox: SandboxRunner) -> None:
    """With such a PATH the next `paddock` would be a program of the agent."""
    sandbox.tree.put(sandbox.tree.project / "bin" / "paddock", "#!/bin/sh\n", mode=0o755)
    words: list[Word] = [sandbox.installation.paddock, "run", "--tier", "landlock", "--", "true"]
    path = f"{sandbox.tree.project}/bin:/usr/bin:/bin"
    rewrite: list[Word] = [
        sandbox.installation.paddock,
        "run",
        "--tier",
        "full",
        "--",
        "sh",
        "-c",
        "echo > bin/paddock",
    ]
    locked = sandbox.tester.run(rewrite, env={"PATH": path}, cwd=sandbox.tree.project)
    assert "Read-only file system" in locked.stderr, locked
    refused = sandbox.tester.run(words, env={"PATH": path}, cwd=sandbox.tree.project)
    assert refused.exit_code == 125, refused
    assert "which Paddock itself needs" in refused.stderr
    assert sandbox.tester.run(words, cwd=sandbox.tree.project).exit_code == 0


@pytest.mark.parametrize(
    ("entry", "plant"),
    [
        ("{project}/bin", "cp evil/paddock bin/paddock"),
        ("bin", "cp evil/paddock bin/paddock"),
        ("made/bin", "mkdir made; cp -r evil made/bin"),
        ("moved/bin", "mkdir moved; cp -r evil tree; mv tree moved/bin"),
        ("linked/bin", "mkdir linked; ln -s ../evil linked/bin"),
        ("linked/bin", "mkdir -p tree; ln -s ../evil tree/bin; ln -s tree linked"),
    ],
)
def test_a_missing_name_of_paddock_on_the_search_path_stays_missing(
    sandbox: SandboxRunner, entry: str, plant: str
) -> None:
    """An activated environment in the workspace comes before the directory of Paddock."""
    project, marker = sandbox.tree.project, sandbox.tree.outside / "started"
    sandbox.tree.make(project / "bin")
    sandbox.tree.put(project / "evil" / "paddock", f"#!/bin/sh\ntouch {marker}\n", mode=0o755)
    path = f"{entry.format(project=project)}:{sandbox.installation.paddock.parent}:/usr/bin:/bin"
    words: list[Word] = [sandbox.installation.paddock, "run", "--tier", "full", "--off", "audit"]
    words += ["--", "sh", "-c", f"echo started; {plant}; touch bin/other"]
    run = sandbox.tester.run(words, env={"PATH": path}, cwd=project)
    assert run.stdout.startswith("started"), run
    assert (project / "bin" / "other").exists(), "control: another name stays"
    host = ["sh", "-c", "paddock profiles"]
    assert "ai-agent" in sandbox.tester.run(host, env={"PATH": path}, cwd=project).stdout, run
    assert not marker.exists()
    sandbox.outside(["rm", "-rf", "made", "moved", "linked", "tree"])
    sandbox.tester.run(words, cwd=project)
    sandbox.tester.run(host, env={"PATH": path}, cwd=project)
    assert marker.exists(), "control: without that PATH the run can leave the name"


def test_the_landlock_tier_refuses_a_search_path_with_a_free_name_of_paddock(
    sandbox: SandboxRunner,
) -> None:
    project = sandbox.tree.project
    own = sandbox.installation.paddock.parent
    words: list[Word] = [sandbox.installation.paddock, "run", "--tier", "landlock", "--", "true"]
    for path in (f"{project}/bin:{own}:/usr/bin", f"bin:{own}:/usr/bin", f":{own}:/usr/bin"):
        refused = sandbox.tester.run(words, env={"PATH": path}, cwd=project)
        assert refused.exit_code == 125, refused
        assert "which your PATH finds before paddock" in refused.stderr
    path = f"{own}:{project}/bin:bin:/usr/bin"
    control = sandbox.tester.run(words, env={"PATH": path}, cwd=project)
    assert control.exit_code == 0, control


def test_programs_on_the_search_path_that_a_run_changes_are_listed_at_its_end(
    sandbox: SandboxRunner,
) -> None:
    project = sandbox.tree.project
    sandbox.tree.put(project / "bin" / "old", "#!/bin/sh\n", mode=0o755)
    sandbox.tree.put(project / "bin" / "same", "#!/bin/sh\n", mode=0o755)
    path = f"{sandbox.installation.paddock.parent}:{project}/bin:/usr/bin:/bin"
    plant = ["sh", "-c", "mkdir lib; echo x >> bin/old; cp /bin/true bin/git; touch lib/other"]
    words: list[Word] = [sandbox.installation.paddock, "run", "--tier", "full", "--off", "audit"]
    run = sandbox.tester.run([*words, "--", *plant], env={"PATH": path}, cwd=project)
    assert "bin/old" in run.stderr, run
    assert "bin/git" in run.stderr, run
    assert "bin/same" not in run.stderr, run
    assert "lib/other" not in run.stderr, run
    (project / "lib" / "other").unlink()
    (project / "lib").rmdir()
    control = sandbox.tester.run([*words, "--", *plant], cwd=project)
    assert "bin/git" not in control.stderr, control


def test_a_first_line_too_long_for_the_kernel_still_shuts_the_environment_out(
    sandbox: SandboxRunner,
) -> None:
    """For a long path installers make a shell start Python. The shell would not pass the
    options.
    """
    marker = sandbox.tree.outside / "ran"
    plant = f'echo \'open("{marker}", "w")\' > sitecustomize.py'
    assert sandbox.inside(["sh", "-c", plant]).exit_code == 0
    script = sandbox.installation.paddock.with_name("paddock-python")
    before = script.read_text()
    first, _, rest = before.partition("\n")
    python = first.removeprefix("#!")
    try:
        for header, code in (
            (f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n", 0),
            (f'#!/bin/sh\nexec {python} "$0" "$@"\n', 125),
            ("#!/bin/bash\n", 125),
        ):
            script.write_text(header + rest)
            env = {"PYTHONPATH": str(sandbox.tree.project)}
            started = sandbox.tester.run(
                [sandbox.installation.paddock, "profiles"], env=env, cwd=sandbox.tree.project
            )
            assert started.exit_code == code, started
            assert not marker.exists(), header
    finally:
        script.write_text(before)
    control = sandbox.outside([python, "-c", "pass"], env={"PYTHONPATH": str(sandbox.tree.project)})
    assert control.exit_code == 0
    assert marker.exists(), "plain Python does run it"
