"""Changes of names that programs outside execute or trust, and of names that were hidden from the
command.
"""

from __future__ import annotations

from tests.support.cow import Cow, tree_entries


def test_protected_names_are_left_unless_they_are_named(cow: Cow) -> None:
    cow.put(".git/config", "mine\n")
    cow.session(
        "echo evil > .envrc; mkdir -p sub/.vscode; echo evil > sub/.vscode/tasks.json; "
        "echo evil > sub/fine;"
        "echo evil >> .git/config; mkdir .git/hooks; echo evil > .git/hooks/pre-commit; "
        "echo ref: refs/heads/main > .git/HEAD"
    )
    shown = cow.diff()
    assert shown[".git/HEAD"] == shown["sub/fine"] == "added"
    kept = {
        ".envrc",
        ".git/config",
        ".git/hooks",
        ".git/hooks/pre-commit",
        "sub/.vscode",
        "sub/.vscode/tasks.json",
    }
    assert {path for path, what in shown.items() if what.endswith("!protected")} == kept
    for words in ([], ["."], ["sub", ".git"]):
        assert cow.paddock("apply", *words).exit_code == 1
    assert {path for path in tree_entries(cow.workspace) if path in kept} == {".git/config"}
    assert (cow.workspace / ".git" / "config").read_text() == "mine\n"
    assert (cow.workspace / "sub" / "fine").exists()
    assert cow.paddock("apply", ".envrc", "sub/.vscode/tasks.json").exit_code == 0
    assert cow.paddock("apply", ".git/hooks").exit_code == 0
    assert cow.diff() == {".git/config": "changed!protected"}


def test_a_name_that_the_search_path_would_find_before_paddock_is_protected(cow: Cow) -> None:
    cow.put("bin/other", "mine\n")
    path = f"{cow.workspace}/bin:tools:{cow.installation.paddock.parent}:/usr/bin:/bin"
    known = cow.sessions()
    script = "mkdir tools lib; for d in bin tools lib; do echo evil > $d/paddock; done"
    done = cow.tester.run(cow.running("sh", "-c", script), cwd=cow.workspace, env={"PATH": path})
    cow.made.extend(cow.sessions() - known)
    assert done.exit_code == 0, done
    shown = cow.diff()
    assert {name for name, what in shown.items() if what.endswith("!protected")} == {
        "bin/paddock",
        "tools/paddock",
    }
    assert cow.paddock("apply").exit_code == 1
    assert not (cow.workspace / "bin" / "paddock").exists()
    assert (cow.workspace / "lib" / "paddock").exists(), "control: no directory of PATH"


def test_a_repository_by_another_name_is_protected_piece_by_piece(cow: Cow) -> None:
    """Git treats any directory with HEAD, objects and refs as a repository, and obeys its
    configuration.
    """
    cow.put("old/HEAD", "ref: refs/heads/main\n")
    cow.put("old/refs/x", "")
    cow.put("plain/config", "1\n")
    cow.session(
        "mkdir -p docs/refs docs/objects old/objects; echo evil > docs/config; echo ref: "
        "refs/heads/x > docs/HEAD;"
        "echo evil > old/config; mkdir -p old/hooks; echo evil > old/hooks/update; "
        "echo text > docs/text;"
        "echo 2 > plain/config; mkdir plain/refs; echo 2 > HEAD"
    )
    shown = cow.diff()
    kept = {path for path, what in shown.items() if what.endswith("!protected")}
    assert kept == {
        "docs/HEAD", "docs/config", "docs/objects", "docs/refs", "old/config", "old/hooks",
        "old/hooks/update", "old/objects",
    }  # fmt: skip
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / "docs" / "text").exists()
    assert (cow.workspace / "plain" / "config").read_text() == "2\n"
    assert not any((cow.workspace / path).exists() for path in kept)
    assert cow.paddock("apply", "docs/HEAD").exit_code == 0, "a person may select it"


def test_a_link_to_where_protected_names_lie_is_protected(cow: Cow) -> None:
    cow.session(
        "mkdir c; echo evil > c/settings.json; ln -s c .claude; mkdir -p d; "
        "ln -s ../c d/.claude; ln -s c other"
    )
    shown = cow.diff()
    assert {path for path, what in shown.items() if what.endswith("!protected")} == {
        ".claude",
        "d/.claude",
    }
    assert cow.paddock("apply").exit_code == 1
    assert not (cow.workspace / ".claude").is_symlink()
    assert (cow.workspace / "other").is_symlink()


def test_a_link_that_git_would_write_through_is_protected(cow: Cow) -> None:
    cow.put(".git/config", "mine\n")
    cow.put("sub/.git/config", "mine\n")
    cow.session(
        "ln -s config .git/COMMIT_EDITMSG; ln -s config link;"
        "mkdir -p sub/.git/logs; ln -s ../../../x sub/.git/logs/HEAD"
    )
    shown = cow.diff()
    kept = {".git/COMMIT_EDITMSG", "sub/.git/logs/HEAD"}
    assert {path for path, what in shown.items() if what.endswith("!protected")} == kept
    assert cow.paddock("apply").exit_code == 1
    assert not any((cow.workspace / path).is_symlink() for path in kept)
    assert (cow.workspace / "link").is_symlink()
    assert cow.paddock("apply", ".git/COMMIT_EDITMSG").exit_code == 0, "a person may select it"


def test_a_configuration_under_another_name_is_protected(cow: Cow) -> None:
    """The host has links at protected names, and repositories whose configuration names
    programs.
    """
    for path in (
        "envs/dev",
        "cl/settings.json",
        "sub/tools/pre-commit",
        "sub/clean.sh",
        "srv/hooks/x",
        "plain/file",
    ):
        cow.put(path, "1\n")
    cow.host(
        "ln -s envs/dev .envrc; ln -s cl .claude; git init -q sub; "
        "git -C sub config core.hooksPath tools;"
        "git -C sub config filter.x.clean 'sh ./clean.sh'; git init -q --bare srv"
    )
    cow.session(
        "for f in envs/dev cl/settings.json sub/tools/pre-commit sub/tools/post-commit "
        "sub/clean.sh "
        "srv/hooks/pre-receive plain/file sub/file; do echo evil > $f; done"
    )
    shown = cow.diff()
    assert {path for path, what in shown.items() if not what.endswith("!protected")} == {
        "plain/file",
        "sub/file",
    }
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / "envs" / "dev").read_text() == "1\n"
    assert (cow.workspace / "plain" / "file").read_text() == "evil\n"
    assert cow.paddock("apply", "envs/dev").exit_code == 0, "a person may select it"


def test_a_git_directory_that_becomes_a_file_is_protected(cow: Cow) -> None:
    cow.put("a/.git/HEAD", "ref\n")
    cow.session(
        "rm -r a/.git; echo gitdir: /elsewhere > a/.git; mkdir b; echo gitdir: "
        "/elsewhere > b/.git; mkdir -p c/.git"
    )
    assert cow.diff() == {
        "a/.git": "type!protected",
        "a/.git/HEAD": "deleted!protected",
        "b": "added",
        "b/.git": "added!protected",
        "c": "added",
        "c/.git": "added",
    }


def test_a_protected_name_keeps_the_directory_that_the_session_removed(cow: Cow) -> None:
    cow.put("sub/.envrc", "mine\n")
    cow.put("sub/other", "mine\n")
    cow.session("rm -r sub")
    assert cow.paddock("apply").exit_code == 1
    assert set(tree_entries(cow.workspace / "sub")) == {".envrc"}
    assert cow.paddock("apply", "sub/.envrc").exit_code == 0
    assert cow.paddock("apply").exit_code == 0
    assert not (cow.workspace / "sub").exists()


def test_a_masked_name_is_never_touched_nor_its_directory_removed(cow: Cow) -> None:
    for name in (".env", "sub/.env", "sub/x", "dir/.env", "dir/y"):
        cow.put(name, f"secret {name}\n")
    # as a program sees it: the names are missing, so it creates its own, or removes their directory
    cow.session(
        "test ! -e .env; echo own > .env; rm -r sub; test ! -e dir/.env; rm -r dir; "
        "echo file > dir",
        masked=[".env", "sub/.env", "dir/.env"],
    )
    assert cow.diff() == {
        ".env": "changed!masked",
        "dir": "type!blocked",
        "dir/.env": "deleted!masked",
        "dir/y": "deleted!blocked",
        "sub": "deleted!blocked",
        "sub/.env": "deleted!masked",
        "sub/x": "deleted",
    }
    assert "secret" not in cow.paddock("diff", "--", ".env").stdout
    named = cow.paddock("apply", "--overwrite", ".env", "sub", "dir", "sub/.env")
    assert named.exit_code == 1
    for name in (".env", "sub/.env", "dir/.env", "dir/y"):
        assert (cow.workspace / name).read_text() == f"secret {name}\n"
    assert not (cow.workspace / "sub" / "x").exists()


def test_control_the_file_is_lost_without_a_mask(cow: Cow) -> None:
    cow.put("sub/.env", "secret\n")
    cow.session("rm -r sub")
    assert cow.paddock("apply").exit_code == 0
    assert not (cow.workspace / "sub").exists()


def test_a_file_that_runs_outside_later_is_marked(cow: Cow) -> None:
    cow.session(
        "echo evil > Makefile; echo fine > plain; mkdir -p node_modules/x; "
        "echo x > node_modules/x/package.json;"
        "ln -s node_modules/x part; ln -s plain other"
    )
    shown = cow.paddock("diff", "--stat").stdout
    assert "Makefile  (executed outside the sandbox)" in shown, shown
    assert "part" in shown, shown
    assert shown.count("executed outside") == 2, shown
    applied = cow.paddock("apply")
    assert applied.exit_code == 0, str(applied)
    assert "executed outside the sandbox: Makefile, part\n" in applied.stdout


_WHO = (
    "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n"
)

# A repository among the branches of a submodule, like that of a submodule that only the index
# names.
_AS_A_SUBMODULE = r"""
B=$PWD/.git/modules/x/refs/heads/.git
mkdir -p $B sub; git init -q $TMP/t; cp -r $TMP/t/.git/. $B/; cp -r .git/objects/?? $B/objects/
printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n' > $B/config
printf '\tfsmonitor = "touch %s; false"\n' "$MARK" >> $B/config
H=$(git rev-parse HEAD); echo $H > $B/HEAD
printf '[submodule "x/refs/heads/.git"]\n\tpath = sub\n' > $TMP/gm
printf '\turl = https://example.invalid/x\n' >> $TMP/gm
git update-index --add --cacheinfo 100644,$(git hash-object -w $TMP/gm),.gitmodules
git update-index --add --cacheinfo 160000,$H,sub
exit 0
"""


def test_a_submodule_among_branches_is_not_applied(cow: Cow) -> None:
    mark = cow.tree.make(cow.tree.outside / "marks")
    script = f"TMP=$(mktemp -d)\n{_AS_A_SUBMODULE}"
    cow.host(f"{_WHO}git init -q -b main .; git commit -q --allow-empty -m one")
    assert cow.run("sh", "-c", f"MARK={mark}/session\n{script}").exit_code == 0
    shown = cow.diff()
    planted = ".git/modules/x/refs/heads/.git"
    assert shown[f"{planted}/config"] == "added!protected"
    assert cow.paddock("apply").exit_code == 1
    assert not (cow.workspace / planted / "config").exists()
    cow.host("git submodule update --init || true")
    assert not list(mark.iterdir())
    control = (
        f"git init -q -b main control; cd control; git commit -q --allow-empty -m one; "
        f"MARK={mark}/control"
    )
    cow.host(f"{_WHO}{control}\n({script})\ngit submodule update --init || true")
    assert [one.name for one in mark.iterdir()] == ["control"], "the control: the plant works"


def test_a_link_in_a_bare_repository_is_not_applied(cow: Cow) -> None:
    victim = cow.tree.put(cow.tree.outside / "bashrc", "mine\n")
    cow.host(
        f"{_WHO}git init -q -b main s; git -C s commit -q --allow-empty -m one; "
        f"git clone -q --bare s .bare;"
        "cd .bare; git worktree add -q -b feature ../feature main"
    )
    cow.session(
        f"{_WHO}E=.bare/worktrees/feature; rm -f $E/logs/HEAD; ln -s {victim} $E/logs/HEAD; "
        f"ln -s x feature/link;"
        "mkdir -p .bare/objects/info; echo /evil > .bare/objects/info/alternates; "
        "echo 1 > .bare/objects/new"
    )
    shown = cow.diff()
    assert shown[".bare/worktrees/feature/logs/HEAD"] == "type!protected"
    assert shown[".bare/objects/info/alternates"] == "added!protected"
    assert shown[".bare/objects/new"] == "added", "commits can be applied"
    assert shown["feature/link"] == "added"
    cow.paddock("apply")
    cow.host(f"{_WHO}cd feature; git commit -q --allow-empty -m 'written through'")
    assert victim.read_text() == "mine\n"
