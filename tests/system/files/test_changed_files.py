"""Changed files that programs outside run later (`Makefile`, `package.json`) are listed at the end
of a run, in both tiers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import UNJUDGED, SandboxRunner


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


FLAGGED = "paddock: changed during the run, and programs outside the sandbox run them: "


def test_a_changed_file_that_runs_outside_later_is_listed(sandbox: SandboxRunner) -> None:
    """These names are ordinary work and not protected: changed in place, replaced or new, at any
    depth. Files of packages are not listed.
    """
    project = sandbox.tree.project
    for name in ("Makefile", "old/package.json", "kept/setup.py", "node_modules/x/package.json"):
        sandbox.tree.put(project / name, "as it was\n")
    acts = [
        "echo new >> Makefile",
        "echo new > old/p.tmp && mv old/p.tmp old/package.json",
        "mkdir -p a/b && echo new > a/b/build.rs",
        "echo new > node_modules/x/package.json",
        "echo new > plain.txt",
    ]
    done = sandbox.inside(["sh", "-c", "; ".join(acts)])
    changed = [str(project / name) for name in ("Makefile", "old/package.json", "a/b/build.rs")]
    assert f"{FLAGGED}{', '.join(changed)}\n" in done.stderr, str(done)
    assert [
        event["path"] for event in sandbox.events() if event["event"] == "name.flagged"
    ] == changed


def test_a_changed_file_that_a_script_of_the_user_calls_is_listed(sandbox: SandboxRunner) -> None:
    """`.envrc` sources it, or a hook starts it. Files that only a comment names are not listed."""
    project = sandbox.tree.project
    hook = "#!/bin/sh\n# see notes.txt\n./scripts/lint.sh --fix\n"
    scripts = {
        ".envrc": "watch_file data.lock\nsource ./env/x.sh\nsource_env sub\n",
        ".git/hooks/pre-commit": hook,
        ".git/hooks/commit-msg.sample": "./scripts/sample.sh\n",
        ".husky/pre-push": '. "$(dirname "$0")/../scripts/push.sh"\nnpm test\n',
        "lefthook.yml": "pre-commit:\n  commands:\n    a:\n      run: sh 'tools/check'\n",
    }
    called = ["env/x.sh", "scripts/lint.sh", "scripts/push.sh", "tools/check"]
    others = ["data.lock", "notes.txt", "scripts/sample.sh", "sub/x.sh"]
    for name in (*called, *others):
        sandbox.tree.put(project / name, "as it was\n")
    acts = "; ".join(f"echo new >> {name}" for name in (*called, *others))
    assert "changed during" not in sandbox.inside(["sh", "-c", acts]).stderr, "the control"
    for name, text in scripts.items():
        sandbox.tree.put(project / name, text)
    done = sandbox.inside(["sh", "-c", acts])
    listed = {event["path"] for event in sandbox.events() if event["event"] == "name.flagged"}
    assert listed == {str(project / name) for name in called}, str(done)
    assert FLAGGED in done.stderr, str(done)


def test_a_directory_that_became_a_link_to_packages_is_listed(sandbox: SandboxRunner) -> None:
    """Files of packages are not listed and stay. So they must not appear at other paths without a
    message.
    """
    project = sandbox.tree.project
    sandbox.tree.put(project / "node_modules" / "old" / "index.js")
    (project / "linked").symlink_to("node_modules/old")
    sandbox.tree.put(project / "parts" / "a" / "Makefile", "as it was\n")
    assert "changed during" not in sandbox.inside(["ls"]).stderr, "the control: the link was there"
    acts = (
        "mv parts/a node_modules/a; ln -s ../node_modules/a parts/a; ln -s parts free; "
        "echo new > parts/a/Makefile"
    )
    done = sandbox.inside(["sh", "-c", acts])
    listed = f"{project / 'parts' / 'a' / 'Makefile'}, {project / 'parts' / 'a'}"
    assert f"{FLAGGED}{listed}\n" in done.stderr, str(done)


_TASKS = ".vscode/tasks.json"
LINKS = {
    "a new link": f"ln -s node_modules/x l; mkdir l/.vscode; echo evil > l/{_TASKS}",
    "a link to a file that becomes a directory": "echo 1 > node_modules/y; ln -s node_modules/y l;"
    f" rm node_modules/y; mkdir -p node_modules/y/.vscode; echo evil > l/{_TASKS}",
    "a link that is moved": "ln -s ../node_modules/x node_modules/l; mv node_modules/l .;"
    f" mkdir node_modules/x/.vscode; echo evil > node_modules/x/{_TASKS}; rm l;"
    f" ln -s node_modules/x node_modules/l; mv node_modules/l l; test -e l/{_TASKS}",
    "a link in a directory that is moved": "mkdir node_modules/d; mkdir d;"
    " ln -s ../node_modules/x node_modules/d/l; mv -T node_modules/d d;"
    f" mkdir d/l/.vscode; echo evil > d/l/{_TASKS}",
}


@pytest.mark.parametrize("way", LINKS)
def test_a_link_that_leads_into_packages_is_listed(sandbox: SandboxRunner, way: str) -> None:
    """Names are not protected there, and the link gives them another path."""
    project = sandbox.tree.project
    link = project / ("d/l" if "directory that is moved" in way else "l")
    sandbox.tree.put(project / "node_modules" / "x" / "index.js")
    done = sandbox.inside(["sh", "-ec", LINKS[way]])
    assert (link / _TASKS).read_text() == "evil\n", str(done)
    listed = [event["path"] for event in sandbox.events() if event["event"] == "name.flagged"]
    assert str(link) in listed, str(done)


@pytest.mark.parametrize("name", [".husky", ".vscode", ".claude", ".github", "d/.cargo"])
@pytest.mark.parametrize(
    "act",
    [
        "ln -s $P/node_modules/x $N",
        "ln -s $P/node_modules/x l; mv -T l $N",
        "mkdir node_modules/d; ln -s $P/node_modules/x node_modules/d/$(basename $N);"
        " mv node_modules/d e; mv -T e/$(basename $N) $N",
    ],
)
def test_a_protected_name_does_not_lead_into_packages(
    sandbox: SandboxRunner, act: str, name: str
) -> None:
    for run, project in (
        (sandbox.inside, sandbox.tree.project),
        (sandbox.outside, sandbox.tree.outside),
    ):
        sandbox.tree.put(project / "node_modules" / "x" / "index.js")
        sandbox.tree.make(project / "d")
        script = f"echo started; P={project}; N={name}; {act}"
        done = run(["sh", "-c", script], cwd=project)
        assert done.started, str(done)
        assert (project / name).exists() == (run == sandbox.outside), str(done)


def test_a_change_in_place_is_reported_and_an_unchanged_file_is_not(sandbox: SandboxRunner) -> None:
    place = sandbox.tree.put(sandbox.tree.project / "deep" / "Makefile", "as it was\n")
    assert "changed during" not in sandbox.inside(["cat", place]).stderr
    assert f"{FLAGGED}{place}\n" in sandbox.inside(["sh", "-c", f"echo new >> {place}"]).stderr
    assert (
        "changed during"
        not in sandbox.inside(["sh", "-c", f"echo new >> {place}"], "--quiet").stderr
    )


def test_the_target_of_a_symlink_is_listed(sandbox: SandboxRunner) -> None:
    project = sandbox.tree.project
    rules = sandbox.tree.put(project / "build" / "rules", "as it was\n")
    sandbox.tree.put(project / "other" / "rules", "as it was\n")
    (project / "Makefile").symlink_to("build/rules")
    assert "changed during" not in sandbox.inside(["cat", "Makefile"]).stderr, "the control"
    for act in ("echo new >> build/rules", "echo new > Makefile", "mv other/rules build/rules"):
        done = sandbox.inside(["sh", "-c", act])
        assert f"{FLAGGED}{rules}\n" in done.stderr, f"{act}: {done}"
    assert "changed during" not in sandbox.inside(["rm", rules]).stderr, "nothing is left to run"


@pytest.mark.parametrize(
    "act",
    [
        "ln plain Makefile",
        "ln -s plain Makefile",
        "mv plain Makefile",
        "mkdir d; mv plain d/Makefile; mv d e; mv e/Makefile .",
        "python3 -c 'import os; os.mknod(\"Makefile\")'",
        'python3 -c \'import os; os.rename("plain", "x"); os.link("x", "Makefile")\'',
    ],
)
def test_every_way_to_make_a_name_is_listed(sandbox: SandboxRunner, act: str) -> None:
    place = sandbox.tree.project / "Makefile"
    sandbox.tree.put(sandbox.tree.project / "plain", "new\n")
    done = sandbox.inside(["sh", "-c", act])
    assert done.exit_code == 0, str(done)
    assert f"{FLAGGED}{place}\n" in done.stderr, str(done)


@pytest.mark.parametrize(
    "act",
    [
        "truncate -s 0 Makefile",
        "chmod +x Makefile",
        "rm Makefile; echo new > Makefile",
        "mv Makefile x; echo new > x; mv x Makefile",
        "ln Makefile x; echo new > x",
        "exec 3< Makefile; echo new > /proc/self/fd/3",
        "python3 -c 'import os; os.truncate(\"Makefile\", 1)'",
    ],
)
def test_every_way_to_change_a_name_is_listed_before_new_names(
    sandbox: SandboxRunner, act: str
) -> None:
    place = sandbox.tree.put(sandbox.tree.project / "Makefile", "as it was\n")
    done = sandbox.inside(["sh", "-c", f"echo new > package.json; {act}"])
    assert done.exit_code == 0, str(done)
    listed = f"{place}, {sandbox.tree.project / 'package.json'}"
    assert f"{FLAGGED}{listed}\n" in done.stderr, str(done)


def test_more_names_than_the_limit_are_said_to_be_missing(sandbox: SandboxRunner) -> None:
    place = sandbox.tree.put(sandbox.tree.project / "zz" / "Makefile", "as it was\n")
    program = (
        "import os\n"
        "for i in range(8200): os.mkdir(f'{i}'); open(f'{i}/Makefile', 'w').close()\n"
        "open('zz/Makefile', 'a').write('new')\n"
    )
    done = sandbox.inside(["python3", "-c", program])
    assert f"{FLAGGED}{place}, " in done.stderr, str(done)
    assert "more than 8192 files that programs outside the sandbox run were changed" in done.stderr


def test_without_judged_writes_the_run_says_that_it_lists_nothing(sandbox: SandboxRunner) -> None:
    sandbox.tree.put(sandbox.tree.project / "Makefile", "as it was\n")
    done = sandbox.inside(["sh", "-c", "echo new > Makefile"], *UNJUDGED)
    assert done.exit_code == 0, str(done)
    assert "changed during" not in done.stderr
    assert "changed files that programs outside run are not listed" in done.stderr


def test_decoys_do_not_hide_a_changed_name_that_was_there(sandbox: SandboxRunner) -> None:
    """Old names come first, then the others by depth. The journal has all of them."""
    place = sandbox.tree.put(sandbox.tree.project / "zz" / "Makefile", "as it was\n")
    script = (
        "for i in $(seq 300); do mkdir A$i && echo x > A$i/Makefile; done; echo new >> zz/Makefile"
    )
    done = sandbox.inside(["sh", "-c", script])
    assert f"{FLAGGED}{place}, " in done.stderr, str(done)
    assert " and 296 more: type `paddock audit query --kind name` to list all\n" in done.stderr, (
        str(done)
    )
    flagged = [str(event["path"]) for event in sandbox.events() if event["event"] == "name.flagged"]
    assert flagged[0] == str(place)
    assert len(flagged) == len(set(flagged)) == 301


def test_a_directory_that_is_moved_from_among_packages_is_listed_with_what_it_brings(
    sandbox: SandboxRunner,
) -> None:
    """Over two runs: a rename of its directory does not change the change time of a file."""
    project = sandbox.tree.project
    place = sandbox.tree.put(project / "build" / "Makefile", "as it was\n")
    made = sandbox.inside(
        ["sh", "-c", "mkdir -p node_modules/x && echo evil > node_modules/x/Makefile"]
    )
    assert "changed during" not in made.stderr, str(made)
    moved = sandbox.inside(["sh", "-c", "mv build node_modules/old && mv node_modules/x build"])
    assert place.read_text() == "evil\n"
    assert f"{FLAGGED}{place}\n" in moved.stderr, str(moved)
    assert "changed during" not in sandbox.inside(["true"]).stderr
