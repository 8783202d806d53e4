"""A command does not lead the user's next push or fetch to another place.

A configuration of git from before the run keeps its remotes. Each attack runs in a repository of
the host, inside and outside of the sandbox. Outside it succeeds. Ordinary work of git succeeds
inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome

HOST = """
git init -qb main .; git config user.name host; git config user.email host@x
mkdir -p .git/hooks; echo 1 > a.txt; git add a.txt; git commit -qm one
git remote add origin https://example.org/x.git; git remote add fork https://example.org/f.git
git config branch.main.remote origin; git config branch.main.merge refs/heads/main
git config alias.l 'log --oneline'; git config submodule.s.url https://example.org/s.git
"""
# A work tree and a repository whose settings come from a file of the command.
OTHER = """
git init -qb main other; git -C other config user.name x; git -C other config user.email x@x
git -C other commit -q --allow-empty -m x; git -C other remote add origin https://evil.example
"""
EXCHANGE = """
import ctypes
libc = ctypes.CDLL(None)
libc.syscall(316, -100, b"new", -100, b".git/config", 2)
"""


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Shell scripts. `shown` prints what must stay as it was, and is run by the host."""

    inside: str
    before: str = "true"
    shown: str = "cat .git/config"


REMOTES = "git config --get-regexp '^remote[.](origin|fork|pushdefault)'"
REDIRECTS = {
    "set-url": Redirect(inside="git remote set-url origin https://evil.example"),
    "set-url of a file path": Redirect(inside="git remote set-url origin $PWD"),
    "set-url --push": Redirect(inside="git remote set-url --push origin https://evil.example"),
    "set-url --add": Redirect(inside="git remote set-url --add origin https://evil.example"),
    "remote remove": Redirect(inside="git remote remove origin"),
    "remote rename": Redirect(inside="git remote rename origin other"),
    "another refspec": Redirect(
        inside="git config remote.origin.fetch '+refs/heads/*:refs/heads/*'"
    ),
    "pushDefault": Redirect(inside="git config remote.pushDefault fork"),
    "the remote of a branch": Redirect(inside="git config branch.main.remote fork"),
    "pushRemote of a branch": Redirect(inside="git config branch.main.pushRemote fork"),
    "a branch that is away for a moment": Redirect(
        before="git config branch.main.remote fork",
        inside="mv .git/refs/heads/main .git/m; git config --remove-section branch.main;"
        "mv .git/m .git/refs/heads/main",
    ),
    "a remote with a vertical tab": Redirect(
        inside="sed \"s/remote = origin/&$(printf '\\v')/\" .git/config > .git/c;"
        " mv .git/c .git/config"
    ),
    "a branch without its remote": Redirect(inside="git config --unset branch.main.remote"),
    "a remote with the name of this repository": Redirect(
        before="git config branch.main.remote .",
        inside="git config remote...url https://evil.example",
        shown="git ls-remote --get-url",
    ),
    "a remote with the name of a path": Redirect(
        inside="git config remote.../other.git.url https://evil.example",
        shown="git ls-remote --get-url ../other.git",
    ),
    "the URL of a submodule": Redirect(
        inside="git config submodule.s.url https://evil.example; git config --unset submodule.s.url"
    ),
    "insteadOf": Redirect(
        inside="git config url.https://evil.example/.insteadOf https://example.org/"
    ),
    "an include": Redirect(inside="echo '[x]' > x; git config include.path ../x"),
    "removed": Redirect(inside="rm .git/config", shown="cat .git/config || echo gone"),
    "renamed": Redirect(inside="mv .git/config x", shown="cat .git/config || echo gone"),
    "the git directory renamed": Redirect(
        inside=f"mv .git x; {OTHER} mv other/.git .", shown="cat .git/config || echo gone"
    ),
    "the work tree renamed": Redirect(
        before="mkdir sub; git init -q sub; git -C sub remote add origin https://example.org/y",
        inside=f"mv sub old; {OTHER} mv other sub",
        shown="cat sub/.git/config",
    ),
    "exchanged": Redirect(
        inside=f"echo '[core]' > new; /usr/bin/python3 -c '{EXCHANGE}'",
    ),
    "exchanged directories": Redirect(
        before="mkdir sub; git init -q sub; git -C sub remote add origin https://example.org/y",
        inside=f"{OTHER} /usr/bin/python3 -c '{EXCHANGE.replace('new', 'other')}'".replace(
            ".git/config", "sub"
        ),
        shown="cat sub/.git/config",
    ),
    "emptied": Redirect(inside=": > .git/config"),
    "truncated": Redirect(inside="truncate -s 40 .git/config"),
    "written in place": Redirect(
        inside="sed s/example.org/evil.example/ .git/config > x; cat x > .git/config"
    ),
    "appended in place": Redirect(
        inside="printf '[Remote.Origin]\\n\\tURL = https://evil.example\\n' >> .git/config"
    ),
    "a renamed lock file": Redirect(
        inside="sed s/example.org/evil.example/ .git/config > .git/config.lock;"
        " mv .git/config.lock .git/config"
    ),
    "a linked file": Redirect(inside="echo '[core]' > x; ln -f x .git/config"),
    "removed and added": Redirect(
        inside="git config --remove-section remote.origin;"
        " git config remote.origin.url https://evil.example"
    ),
    "after a harmless change": Redirect(
        inside="git config user.name x; git remote add new https://new.example;"
        " git remote set-url origin https://evil.example; git config remote.pushDefault new",
        shown=REMOTES,
    ),
    "a new remote for a new branch": Redirect(
        inside="git remote add evil https://evil.example; git checkout -q -b new;"
        " git config branch.new.remote evil; git config branch.new.merge refs/heads/new",
        shown="git config branch.new.remote; true",
    ),
    "a branch that is made again": Redirect(
        inside="git checkout -q -b new; git branch -D main; git checkout -q -b main;"
        " git config branch.main.remote fork",
        shown="git config branch.main.remote | grep fork; true",
    ),
    "the default remote": Redirect(
        before="git remote remove origin",
        inside="git remote add origin https://evil.example",
    ),
    "the settings of a work tree": Redirect(
        before="git config extensions.worktreeConfig true",
        inside="git config --worktree remote.origin.url https://evil.example;"
        " printf '[remote \"origin\"]\\n\\turl = https://evil.example\\n' > .git/config.worktree",
        shown="git config --get-all remote.origin.url",
    ),
    "the settings of a linked work tree": Redirect(
        before="git config extensions.worktreeConfig true; git worktree add -q wt",
        inside="git -C wt config --worktree remote.origin.url https://evil.example",
        shown="git -C wt config --get-all remote.origin.url",
    ),
    "a linked work tree": Redirect(
        before="git worktree add -q wt",
        inside=f"""{OTHER}
        git -C other worktree add -q --detach ../y; e=$(cat y/.git); rm -rf y
        echo $PWD/wt/.git > other/.git/worktrees/y/gitdir; echo "$e" > wt/.git
        """,
        shown="git -C wt config remote.origin.url",
    ),
    "a repository in the place of a linked work tree": Redirect(
        before="git worktree add -q wt",
        inside=f"rm wt/.git; {OTHER} cp -r other/.git wt/.git",
        shown="git -C wt config remote.origin.url",
    ),
    "a renamed linked work tree": Redirect(
        before="git worktree add -q wt",
        inside=f"mv wt old; {OTHER} mv other wt",
        shown="git -C wt config remote.origin.url",
    ),
    "a repository without a work tree": Redirect(
        before="git init -q --bare bare; git -C bare remote add origin https://example.org/b",
        inside="git -C bare remote set-url origin https://evil.example",
        shown="cat bare/config",
    ),
    "a submodule": Redirect(
        before="""
        git init -qb main $PWD.lib; git -C $PWD.lib config user.name h
        git -C $PWD.lib config user.email h@x; git -C $PWD.lib commit -q --allow-empty -m x
        git -c protocol.file.allow=always submodule --quiet add $PWD.lib lib
        """,
        inside="git -C lib remote set-url origin https://evil.example",
        shown="cat .git/modules/lib/config",
    ),
}  # fmt: skip


def host_repository(sandbox: SandboxRunner, place: Path, script: str = "true") -> None:
    sandbox.tree.make(place)
    host_runs(sandbox, place, f"set -e; {HOST} {script}")


def host_runs(sandbox: SandboxRunner, place: Path, script: str) -> str:
    done = sandbox.tester.run(["sh", "-c", script], cwd=place)
    assert done.exit_code == 0, str(done)
    return done.stdout


def agent_runs(sandbox: SandboxRunner, place: Path, script: str, *, inside: bool) -> Outcome:
    run = sandbox.inside if inside else sandbox.outside
    outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
    assert outcome.started, str(outcome)
    return outcome


def places(sandbox: SandboxRunner) -> tuple[tuple[Path, bool], ...]:
    return ((sandbox.tree.project, True), (sandbox.tree.outside, False))


@pytest.mark.parametrize("way", REDIRECTS)
def test_remotes_of_the_user_stay_as_they_are(sandbox: SandboxRunner, way: str) -> None:
    redirect = REDIRECTS[way]
    for place, inside in places(sandbox):
        host_repository(sandbox, place, redirect.before)
        before = host_runs(sandbox, place, redirect.shown)
        outcome = agent_runs(sandbox, place, redirect.inside, inside=inside)
        after = host_runs(sandbox, place, redirect.shown)
        assert (after == before) == inside, f"{outcome}\n{before}\n{after}"


def test_a_remote_of_the_user_s_own_configuration_gets_no_second_address(
    sandbox: SandboxRunner,
) -> None:
    """Git adds the values of a repository to those of ~/.gitconfig."""
    need("root", sandbox.tester.disposable, "the test writes the configuration of its user")
    own = sandbox.tester.home / ".gitconfig"
    assert not own.exists()
    own.write_text('[remote "backup"]\n\turl = https://example.org/b\n')
    sandbox.tester.give(own)
    script = (
        "git config remote.backup.url https://evil.example; git remote add new https://new.example"
    )
    try:
        for place, inside in places(sandbox):
            host_repository(sandbox, place)
            outcome = agent_runs(sandbox, place, script, inside=inside)
            urls = host_runs(sandbox, place, "git config --get-all remote.backup.url")
            expected = "https://example.org/b\n" + ("" if inside else "https://evil.example\n")
            assert urls == expected, str(outcome)
            assert host_runs(sandbox, place, "git config remote.new.url"), "the control"
    finally:
        own.unlink()


def test_the_refusal_names_the_setting(sandbox: SandboxRunner) -> None:
    host_repository(sandbox, sandbox.tree.project)
    script = "git remote set-url origin https://evil.example; : > .git/config"
    outcome = agent_runs(sandbox, sandbox.tree.project, script, inside=True)
    config = sandbox.tree.project / ".git/config"
    for program, setting in (("git", "remote.origin.url"), ("sh", "branch.main.remote")):
        reason = f"{setting} stays as it was before the run: run the command outside"
        assert f"refused: write {config} by {program}: {reason}" in outcome.stderr, str(outcome)
    reasons = [event["reason"] for event in sandbox.events() if event["event"] == "file.refused"]
    assert any("remote.origin.url stays" in reason for reason in reasons), reasons


# The repository `remote` is the host's too. P is the project.
REMOTE = """
git init -qb main remote; cd remote; git config user.name h; git config user.email h@x
git commit -q --allow-empty -m x; git branch x; cd ..
git remote add local $P/remote; git fetch -q local
git branch old; git config branch.old.remote local; git config branch.old.merge refs/heads/x
"""
SUBMODULE = """
echo 1 > remote/b.txt; git -C remote add .; git -C remote commit -qm b
git -c protocol.file.allow=always submodule --quiet add $P/remote lib; git commit -qm lib
"""
# Work that fails inside, with the reason.
REFUSED = {
    "alias": ("git config alias.x '!x'", "an alias runs a program"),
    "bundle": (
        "git bundle create -q b main; git clone -q $P/b copy",
        "a file at this path could lead git to another repository",
    ),
    "a relative remote": ("git remote add l ../x", "it means another place in each work tree"),
    "submodule add": (
        "git -c protocol.file.allow=always submodule --quiet add $P/remote new",
        ".gitmodules is protected",
    ),
    "submodule update --init": (
        "git -c protocol.file.allow=always submodule --quiet update --init",
        "the files of a new submodule lead git elsewhere",
    ),
    "branch -m": ("git branch -m old new", "without its remote git would push to origin"),
    "submodule deinit": (
        'git submodule --quiet deinit -f lib; test -z "$(git config submodule.lib.url)"',
        "it removes the URL",
    ),
    "unset-upstream": ("git branch --unset-upstream main", "a push would go to another remote"),
    "worktree remove": ("git worktree remove wt", "another repository could get its place"),
    "rerere": (
        "git config rerere.enabled true; git checkout -qb side; echo 2 > a.txt;"
        " git commit -qam two; git checkout -q main; echo 3 > a.txt; git commit -qam three;"
        " git merge -q side; test -e .git/MERGE_RR",
        "git applies a recorded resolution to the user's next merge",
    ),
    "a split index": ("git update-index --split-index", "a part of the index is in another file"),
    "sparse-checkout": (
        "git sparse-checkout set --no-cone /a.txt; test -e .git/info/sparse-checkout",
        "git would remove protected files from the work tree",
    ),
    "init --bare": ("git init -q --bare bare", "git obeys it in each directory below"),
    "clone --bare": ("git clone -q --bare remote bare", "git obeys it in each directory below"),
}
HONEST = {
    "user.name": "git config user.name x; test $(git config user.name) = x",
    "unset": "git config --unset user.name; test -z \"$(git config --local user.name)\"",
    "remote add": "git remote add new https://example.org/n;"
    " git remote set-url new https://example.org/m; git remote rename new newer;"
    " git remote remove newer",
    "push -u": "git checkout -qb feature; git push -q -u local feature;"
    " test $(git config branch.feature.remote) = local; git -C remote rev-parse feature",
    "branch -d": "git checkout -qb z; git branch -D main;"
    " test -z \"$(git config branch.main.remote)\"",
    "branch -m": "git branch -m main new; test $(git config branch.new.remote) = origin",
    "checkout -b": "git checkout -q -b x local/x; test $(git config branch.x.remote) = local",
    "set-upstream-to": "git branch -q --set-upstream-to=local/x old; git checkout -qb y;"
    " git branch -q --set-upstream-to=local/x; test $(git config branch.y.merge) = refs/heads/x",
    "fetch and merge": "git fetch -q local; git merge -q --allow-unrelated-histories local/x",
    "clone": "git clone -q remote copy; cd copy; git remote set-url origin https://example.org/c;"
    " git remote remove origin; cd ..; rm -rf copy; git clone -q remote copy",
    "moved clone": "git clone -q remote copy; mv copy moved; cd moved;"
    " git remote set-url origin https://example.org/c; git config branch.main.remote origin",
    "init": "git init -q new; cd new; git remote add origin https://example.org/n;"
    " git remote set-url origin https://example.org/m; git remote remove origin; cd ..; rm -r new",
    "worktree": "git worktree add -q -b tree tree; git -C tree config user.name x;"
    " mv tree other; git worktree repair other; git worktree remove other",
    "written in place": "sed -i s/host@x/y@x/ .git/config; printf '[user]\\n\\tname = z\\n'"
    " >> .git/config; test $(git config user.name)$(git config user.email) = zy@x",
    "submodule update": "git -C lib checkout -q HEAD~; git submodule --quiet update;"
    " test -e lib/b.txt; git submodule --quiet foreach 'git config user.name x'",
    "submodule.url": "git config submodule.t.url https://example.org/t;"
    " git config submodule.t.active true",
}  # fmt: skip


@pytest.mark.parametrize("work", HONEST)
def test_ordinary_work_succeeds(sandbox: SandboxRunner, work: str) -> None:
    for place, inside in places(sandbox):
        submodule = SUBMODULE if work.startswith("submodule") else ""
        host_repository(sandbox, place, f"P={place}; {REMOTE} {submodule}")
        outcome = agent_runs(sandbox, place, f"set -e; P={place}; {HONEST[work]}", inside=inside)
        assert outcome.exit_code == 0, str(outcome)
        assert host_runs(sandbox, place, "git status --porcelain -uno") == ""


@pytest.mark.parametrize("work", REFUSED)
def test_work_that_is_refused(sandbox: SandboxRunner, work: str) -> None:
    """docs/design/judged-writes.md lists it."""
    script, _reason = REFUSED[work]
    for place, inside in places(sandbox):
        before = SUBMODULE if work.startswith("submodule") else "git worktree add -q wt"
        before += "rm -rf lib .git/modules" if work.endswith("--init") else ""
        host_repository(sandbox, place, f"P={place}; {REMOTE} {before}")
        outcome = agent_runs(sandbox, place, f"P={place}; {script}", inside=inside)
        assert (outcome.exit_code != 0) == inside, str(outcome)


def test_a_remote_of_the_host_that_comes_during_the_run_stays(sandbox: SandboxRunner) -> None:
    """The command waits for the host, which adds a remote with an editor."""
    script = (
        "git config user.name x; mkfifo wait; echo ready; cat wait >/dev/null;"
        " git remote set-url late https://evil.example; git config user.name y"
    )
    place = sandbox.tree.project
    host_repository(sandbox, place)
    words = sandbox.command(["sh", "-c", script])
    with sandbox.tester.starting(words, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        late = "printf '[remote \"late\"]\\n\\turl = https://example.org/l\\n' >> .git/config"
        host_runs(sandbox, place, f"{late}; echo go > wait")
        process.wait(timeout=60)
    shown = host_runs(sandbox, place, "git config remote.late.url; git config user.name")
    assert shown == "https://example.org/l\ny\n"
