"""The effect of ``-r``, ``-w``, ``-a``, ``-x`` and ``--deny`` on the real kernel."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.saved_state import remove
from tests.support.tree import SECRET, ProjectTree, Snapshot

# grant: read, list, overwrite, create, execute   (F-083 to F-086, C-012, C-013, C-021, C-067)
MEANING = {
    "-r": (True, True, False, False, True),
    "-w": (False, False, True, True, False),
    "-a": (True, True, True, True, True),
    "-x": (True, False, False, False, True),
}
LONG = {"-r": ("--read", "--ro"), "-w": ("--write",), "-a": ("--allow", "--rw"), "-x": ("--exec",)}


def fill_directory(tree: ProjectTree) -> Path:
    place = tree.make(tree.root / "place")
    tree.put(place / "file.txt", SECRET + "\n")
    tree.put(place / "tool", "#!/bin/sh\necho ok ran\n", mode=0o755)
    return place


def acts(place: Path) -> list[tuple[str, ...]]:
    return [
        ("read", f"{place}/file.txt"),
        ("list", f"{place}"),
        ("overwrite", f"{place}/file.txt"),
        ("create", f"{place}/new.txt"),
        ("execute", f"{place}/tool"),
    ]


@pytest.mark.parametrize("flag", MEANING)
def test_a_grant_gives_what_its_letter_says_and_no_more(
    sandbox: SandboxRunner, tree: ProjectTree, flag: str
) -> None:
    place = fill_directory(tree)
    copied = tree.make(tree.root / "copied")
    (copied / "probe").write_bytes(sandbox.programs.probe.read_bytes())
    (copied / "probe").chmod(0o755)
    for act, allowed in zip(acts(place), MEANING[flag], strict=True):
        if (
            flag == "-x" and act[0] == "execute"
        ):  # an interpreter also reads its script, so this test uses a program
            act = ("execute", str(copied / "probe"))
            outcome = sandbox.inside(sandbox.probe(*act), flag, f"{copied}/**")
            assert "usage: probe" in outcome.stderr, str(outcome)
            continue
        outcome = sandbox.inside(sandbox.probe(*act), flag, f"{place}/**")
        if allowed:
            assert outcome.answer.startswith("ok"), (flag, str(outcome))
        else:
            assert outcome.answer == "EACCES", (flag, str(outcome))
    wrote = (place / "new.txt").exists()
    assert wrote == MEANING[flag][3]
    assert ((place / "file.txt").read_text() == SECRET + "\n") == (not MEANING[flag][2])


@pytest.mark.parametrize(
    ("flag", "spelling"), [(flag, long) for flag, longs in LONG.items() for long in longs]
)
def test_long_spellings_mean_the_same(
    sandbox: SandboxRunner, tree: ProjectTree, flag: str, spelling: str
) -> None:
    place = fill_directory(tree)
    for act, allowed in list(zip(acts(place), MEANING[flag], strict=True))[:3:2]:
        outcome = sandbox.inside(sandbox.probe(*act), spelling, f"{place}/**")
        assert outcome.answer.startswith("ok") == allowed, (spelling, str(outcome))


def test_control_acts_fail_without_a_grant_and_work_without_the_sandbox(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    place = fill_directory(tree)
    before = Snapshot.of(place)
    for act in acts(place):
        assert sandbox.inside(sandbox.probe(*act)).answer == "EACCES"
    assert Snapshot.of(place) == before
    for act in acts(place):
        assert sandbox.outside(sandbox.probe(*act)).answer.startswith("ok")


@pytest.mark.parametrize(
    ("key", "execute", "runs", "reads", "writes"),
    [
        ("read_globs", True, True, True, False),
        ("read_globs", False, False, True, False),
        ("write_globs", None, False, False, True),
        ("write_globs", False, False, False, True),
        ("allow_globs", True, True, True, True),
        ("allow_globs", False, False, True, True),
        ("exec_globs", True, True, True, False),
    ],
)
def test_execution_goes_with_each_kind_of_grant_or_is_turned_off(
    sandbox: SandboxRunner,
    tree: ProjectTree,
    key: str,
    execute: bool | None,
    runs: bool,
    reads: bool,
    writes: bool,
) -> None:
    """F-086: a script in each kind."""
    place = fill_directory(tree)
    flag = "" if execute is None else f", execute = {str(execute).lower()}"
    file = tree.put(
        tree.root / "p.toml",
        f'[meta]\ninherit = "ai-agent"\n[filesystem]\n{key} = [{{ path = "{place}/**"{flag} }}]\n',
    )
    for act, allowed in (
        (("execute", place / "tool"), runs),
        (("read", place / "file.txt"), reads),
        (("create", place / "new"), writes),
    ):
        outcome = sandbox.inside(sandbox.probe(*act), "--policy", file)
        assert outcome.answer.startswith("ok") if allowed else outcome.answer == "EACCES", str(
            outcome
        )
    assert (place / "new").exists() == writes
    assert sandbox.outside(sandbox.probe("execute", place / "tool")).answer == "ok ran"


def test_a_workspace_without_execution_can_be_written_and_not_run(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """Over a profile that grants the same path with execution, and for the private temporary
    directory.
    """
    closed = tree.put(
        tree.root / "p.toml",
        '[meta]\ninherit = "ai-agent"\n[filesystem]\n'
        'allow_globs = [{ path = "<cwd>/**", execute = false }, { path = "<tmp>/**", '
        "execute = false }]\n",
    )
    make = (
        'printf "#!/bin/sh\\necho ran\\n" > $DIR/made; chmod +x $DIR/made; echo started; $DIR/made'
    )
    for directory in ("$PWD", "$TMPDIR"):
        script = ["sh", "-c", f"DIR={directory}; {make}"]
        denied = sandbox.inside(script, "--policy", closed)
        assert denied.started, str(denied)
        assert (denied.exit_code, "Permission denied" in denied.stderr) == (126, True), str(denied)
        assert sandbox.inside(script).stdout == "started\nran\n"
    assert (tree.project / "made").exists()
    why: list[Word] = [
        sandbox.installation.paddock,
        "why",
        "--policy",
        closed,
        "--path",
        "made",
        "--op",
        "exec",
    ]
    answer = sandbox.tester.run(why, cwd=tree.project)
    assert answer.exit_code == 1, str(answer)
    assert "granted only for allow-noexec, read-noexec" in answer.stdout
    explained = sandbox.tester.run(
        [sandbox.installation.paddock, "explain", "--policy", closed], cwd=tree.project
    )
    assert f"allow-noexec {tree.project} " in explained.stdout, str(explained)


def test_full_tier_maps_no_code_from_a_grant_without_execution(
    full: SandboxRunner, tree: ProjectTree
) -> None:
    """The mount is noexec: neither the loader nor a library call maps code from it. An inner grant
    has its own flag.
    """
    closed = tree.put(
        tree.root / "p.toml",
        '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = ["<cwd>/tools/**"]\n'
        'allow_globs = [{ path = "<cwd>/**", execute = false }, { path = "<tmp>/**", '
        "execute = false }]\n",
    )
    tree.put(tree.project / "tools" / "tool", "#!/bin/sh\necho tool\n", mode=0o755)
    loader = next(Path("/lib64").glob("ld-linux-*.so.*"), None) or next(
        Path("/lib").glob("ld-linux-*.so.*")
    )
    script = f"cp /bin/echo $DIR/made; echo started; $DIR/made ran; {loader} $DIR/made ran"
    for directory in ("$PWD", "$TMPDIR"):
        words = ["sh", "-c", f"DIR={directory}; {script}"]
        assert full.inside(words, "--policy", closed).stdout == "started\n"
        assert full.inside(words).stdout == "started\nran\nran\n"
    below = full.inside(
        ["sh", "-c", "tools/tool && touch tools/new && echo made"], "--policy", closed
    )
    assert below.stdout == "tool\nmade\n", str(below)


def test_execution_that_a_wider_grant_would_give_back_stops_the_run(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    tree.put(tree.project / "data" / "tool", "#!/bin/sh\n", mode=0o755)
    file = tree.put(
        tree.root / "p.toml",
        '[meta]\ninherit = "ai-agent"\n[filesystem]\nread_globs = [{ path = "<cwd>/data/**", '
        "execute = false }]\n",
    )
    refused = sandbox.inside(
        sandbox.probe("execute", tree.project / "data" / "tool"), "--policy", file
    )
    assert (refused.exit_code, refused.stdout) == (125, ""), str(refused)
    assert f"{file}:4: execute = false cannot be enforced for {tree.project}/data" in refused.stderr


def test_flags_are_repeatable(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """C-013: two writable trees, a third is denied."""
    one, two, third = (tree.make(tree.root / name) for name in ("one", "two", "third"))
    flags = ("-a", f"{one}/**", "-a", f"{two}/**")
    assert sandbox.inside(sandbox.probe("create", one / "x"), *flags).answer == "ok"
    assert sandbox.inside(sandbox.probe("create", two / "x"), *flags).answer == "ok"
    assert sandbox.inside(sandbox.probe("create", third / "x"), *flags).answer == "EACCES"
    assert (one / "x").exists()
    assert (two / "x").exists()
    assert not (third / "x").exists()


def test_rename_between_two_writable_trees_works(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """C-021: the REFER right. Without it every move between directories is EXDEV."""
    one, two = tree.make(tree.root / "one"), tree.make(tree.root / "two")
    tree.put(one / "x", "moved\n")
    flags = ("-a", f"{one}/**", "-a", f"{two}/**")
    assert sandbox.inside(sandbox.probe("rename", one / "x", two / "x"), *flags).answer == "ok"
    assert (two / "x").read_text() == "moved\n"
    read_only = sandbox.inside(
        sandbox.probe("rename", two / "x", one / "x"), "-a", f"{two}/**", "-r", f"{one}/**"
    )
    assert read_only.answer in ("EACCES", "EXDEV"), str(read_only)
    assert (two / "x").exists()


def test_a_rename_between_two_mounts_says_once_what_to_do(
    full: SandboxRunner, tree: ProjectTree
) -> None:
    """In the full tier each grant is a mount, and the kernel renames only inside one."""
    above = tree.make(tree.root / "above")
    one, two = tree.make(above / "one"), tree.make(above / "two")
    for name in ("x", "y"):
        tree.put(one / name, "moved\n")
    flags = ("-a", f"{one}/**", "-a", f"{two}/**")
    script = (
        "import os, sys; print('started', flush=True)\n"
        "for name in 'xy':\n"
        "    try: os.rename(f'{sys.argv[1]}/{name}', f'{sys.argv[2]}/{name}'); print('ok')\n"
        "    except OSError as error: print(error.strerror)"
    )
    outcome = full.inside(["/usr/bin/python3", "-c", script, one, two], *flags)
    assert outcome.stdout.splitlines()[1:] == ["Invalid cross-device link"] * 2, str(outcome)
    told = [line for line in outcome.stderr.splitlines() if "EXDEV" in line]
    assert len(told) == 1, str(outcome)
    assert f"{two}/x" in told[0]
    assert "grant a directory above both" in told[0]
    assert sorted(path.name for path in one.iterdir()) == ["x", "y"]
    # A program expects it from /tmp, which is often a file system of its own.
    private = "echo > /tmp/x && mv /tmp/x moved && echo ok"
    from_tmp = full.inside(["sh", "-c", private])
    assert (from_tmp.stdout, "EXDEV" in from_tmp.stderr) == ("ok\n", False), str(from_tmp)
    wider = full.inside(["/usr/bin/python3", "-c", script, one, two], "-a", f"{above}/**")
    assert wider.stdout.splitlines()[1:] == ["ok"] * 2, str(wider)
    assert sorted(path.name for path in two.iterdir()) == ["x", "y"]


def test_a_file_grant_covers_that_file_and_not_its_siblings(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """F-093, F-098."""
    granted, sibling = (
        tree.put(tree.root / "place" / "hello.py", "1\n"),
        tree.put(tree.root / "place" / "b", "2\n"),
    )
    assert sandbox.inside(sandbox.probe("overwrite", granted), "-a", granted).answer == "ok"
    assert sandbox.inside(sandbox.probe("read", sibling), "-a", granted).answer == "EACCES"
    assert sandbox.inside(sandbox.probe("overwrite", sibling), "-a", granted).answer == "EACCES"
    assert (
        sandbox.inside(sandbox.probe("create", granted.parent / "new"), "-a", granted).answer
        == "EACCES"
    )
    assert (granted.read_text(), sibling.read_text()) == ("probe\n", "2\n")
    assert sandbox.outside(sandbox.probe("overwrite", sibling)).answer == "ok"


def test_saving_by_rename_fails_on_a_file_grant(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """F-094: ``sed -i`` and editors need the directory."""
    granted = tree.put(tree.root / "place" / "hello.py", "1\n")
    denied = sandbox.inside(["sh", "-c", f"echo started; sed -i s/1/2/ {granted}"], "-a", granted)
    assert denied.started, str(denied)
    assert denied.exit_code != 0, str(denied)
    assert granted.read_text() == "1\n"
    allowed = sandbox.inside(["sed", "-i", "s/1/2/", granted], "-a", f"{granted.parent}/**")
    assert allowed.exit_code == 0, str(allowed)
    assert granted.read_text() == "2\n"


def test_a_missing_grant_path_stops_the_run_unless_it_is_optional(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """F-095, C-022."""
    missing = tree.root / "nowhere"
    refused = sandbox.inside(sandbox.probe("create", "ran"), "-r", missing)
    assert refused.exit_code == 125, str(refused)
    assert str(missing) in refused.stderr, str(refused)
    assert not (tree.project / "ran").exists()
    assert sandbox.inside(sandbox.probe("create", "ran"), "-r", f"{missing}?").answer == "ok"


def test_granted_trees_are_bound_when_the_run_starts(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """A directory swapped for a link while the command runs does not move the grant."""
    place = fill_directory(tree)
    script = "echo started; read line; cat place/secret.txt"
    flags = ("-r", f"{place}/**")
    with sandbox.starting(
        ["sh", "-c", f"cd {tree.root}; {script}"], *flags, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "started\n"
        place.rename(tree.root / "place-before")
        place.symlink_to(tree.outside)
        stdout, stderr = process.communicate("\n", timeout=120)
    assert SECRET not in stdout
    assert "Permission denied" in stderr
    assert sandbox.outside(["cat", place / "secret.txt"]).stdout == SECRET + "\n"


# ---- deny inside allow


def test_a_denied_place_inside_a_granted_one_stays_closed(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    place = fill_directory(tree)
    private = tree.put(place / "private" / "key", SECRET + "\n")
    flags = ("-a", f"{place}/**", "--deny", f"{private.parent}/**")
    before = Snapshot.of(private.parent)
    assert (
        sandbox.inside(sandbox.probe("read", place / "file.txt"), *flags).answer == f"ok {SECRET}"
    )
    for act in (
        ("read", private),
        ("overwrite", private),
        ("unlink", private),
        ("list", private.parent),
        ("create", private.parent / "new"),
        ("rename", private, place / "key"),
        ("link", private, place / "key"),
    ):
        denied = sandbox.inside(sandbox.probe(*act), *flags)
        assert denied.answer in ("EACCES", "EXDEV"), str(denied)
    assert Snapshot.of(private.parent) == before
    assert (
        sandbox.inside(sandbox.probe("read", private), "-a", f"{place}/**").answer == f"ok {SECRET}"
    )
    assert sandbox.outside(sandbox.probe("read", private)).answer == f"ok {SECRET}"


def test_check_and_explain_report_a_lost_listing_and_run_does_not(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    place = fill_directory(tree)
    tree.put(place / "private" / "key", SECRET + "\n")
    file = tree.put(
        tree.root / "p.toml",
        '[meta]\ninherit = "ai-agent"\n[filesystem]\n'
        f'read_globs = ["{place}/**"]\ndeny_globs = ["{place}/private/**"]\n',
    )
    lists = sandbox.probe("list", place)
    run = sandbox.inside(lists, "--policy", file)
    assert run.answer == "EACCES", str(run)
    assert run.stderr == "", "the run itself is quiet"
    assert (
        sandbox.inside(sandbox.probe("read", place / "file.txt"), "--policy", file).answer
        == f"ok {SECRET}"
    )
    assert sandbox.inside(lists, "-r", f"{place}/**").answer.startswith("ok")
    assert sandbox.outside(lists).answer.startswith("ok")
    denial = f"is denied inside {place}, so the command cannot list {place}"
    checked = sandbox.tester.run([sandbox.installation.paddock, "check", file], cwd=tree.project)
    assert checked.exit_code == 0
    assert (
        f"note: {file}:4: {place}/private ({file}:5) {denial} in the landlock tier\n"
        in checked.stderr
    )
    words: list[Word] = [
        sandbox.installation.paddock,
        "explain",
        "--tier",
        sandbox.tier,
        "--policy",
        file,
    ]
    explained = sandbox.tester.run(words, cwd=tree.project)
    assert f"{file}:4: {place}/private {denial}" in " ".join(explained.stdout.split())


def test_directories_above_a_denied_path_cannot_be_renamed(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """Else the next run would find the secret under a name without a deny."""
    place = fill_directory(tree)
    private = tree.put(place / "deep" / "private" / "key", SECRET + "\n")
    flags = ("-a", f"{place}/**", "--deny", f"{private.parent}/**")
    before = Snapshot.of(place)
    for act in (
        ("rename", place / "deep", place / "elsewhere"),
        ("rename", private.parent, place / "deep" / "moved"),
    ):
        denied = sandbox.inside(sandbox.probe(*act), *flags)
        assert denied.answer in ("EACCES", "EXDEV"), str(denied)
    assert Snapshot.of(place) == before
    assert (
        sandbox.outside(sandbox.probe("rename", place / "deep", place / "elsewhere")).answer == "ok"
    )


@pytest.mark.parametrize(
    "spelling", ["{place}/secret.env", "{place}/./secret.env", "{place}//secret.env"]
)
def test_a_denied_file_that_does_not_exist_yet_cannot_be_made_or_read_later(
    sandbox: SandboxRunner, tree: ProjectTree, spelling: str
) -> None:
    place = fill_directory(tree)
    name = place / "secret.env"
    flags = ("-a", f"{place}/**", "--deny", spelling.format(place=place))
    denied = sandbox.inside(sandbox.probe("create", name), *flags)
    assert denied.answer == "EACCES", str(denied)
    assert not name.exists()
    script = f"echo started; read line; cat {name}"
    with sandbox.starting(["sh", "-c", script], *flags, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        tree.put(name, SECRET + "\n")
        stdout, stderr = process.communicate("\n", timeout=120)
    assert SECRET not in stdout
    assert "Permission denied" in stderr
    assert sandbox.outside(sandbox.probe("read", name)).answer == f"ok {SECRET}"


def test_a_deny_with_a_trailing_slash_still_denies(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    place = fill_directory(tree)
    private = tree.put(place / "private" / "key", SECRET + "\n")
    denied = sandbox.inside(
        sandbox.probe("read", private), "-a", f"{place}/**", "--deny", f"{private.parent}/"
    )
    assert denied.exit_code == 125 or denied.answer == "EACCES", str(denied)
    assert SECRET not in denied.stdout


def test_a_deny_holds_for_every_name_of_the_file(sandbox: SandboxRunner, tree: ProjectTree) -> None:
    """A symlink in the deny or in the grant counts as its target."""
    place = fill_directory(tree)
    private = tree.put(place / "private" / "key", SECRET + "\n")
    alias = tree.root / "alias"
    alias.symlink_to(private.parent)
    by_alias = sandbox.inside(
        sandbox.probe("read", private), "-a", f"{place}/**", "--deny", f"{alias}/**"
    )
    assert by_alias.answer == "EACCES", str(by_alias)
    granted_alias = sandbox.inside(
        sandbox.probe("read", private), "-a", f"{alias}/**", "--deny", f"{private.parent}/**"
    )
    assert granted_alias.exit_code == 125 or granted_alias.answer == "EACCES", str(granted_alias)
    assert SECRET not in granted_alias.stdout


def test_a_symlink_planted_before_the_run_does_not_open_the_denied_place(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    place = fill_directory(tree)
    private = tree.put(place / "private" / "key", SECRET + "\n")
    (place / "shortcut").symlink_to(private.parent)
    flags = ("-a", f"{place}/**", "--deny", f"{private.parent}/**")
    denied = sandbox.inside(sandbox.probe("read", place / "shortcut" / "key"), *flags)
    assert denied.answer == "EACCES", str(denied)


def test_a_narrower_grant_does_not_reopen_a_denied_place(
    sandbox: SandboxRunner, tree: ProjectTree
) -> None:
    """Deny wins over every grant, whichever is closer."""
    private = tree.put(tree.root / "place" / "private" / "key", SECRET + "\n")
    flags = ("-r", f"{private}", "--deny", f"{private.parent}/**")
    denied = sandbox.inside(sandbox.probe("read", private), *flags)
    assert denied.exit_code == 125 or denied.answer == "EACCES", str(denied)
    assert SECRET not in denied.stdout


@pytest.mark.parametrize("tier", ["landlock", "full"])
def test_a_read_grant_of_everything_keeps_denied_files_closed(
    sandbox: SandboxRunner, host: dict[str, Any], tier: str
) -> None:
    """A-111: a named option, and secrets stay closed."""
    if tier == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    sandbox = replace(sandbox, tier=tier)
    key = sandbox.tester.home / ".ssh" / "id_ed25519"
    key.parent.mkdir(mode=0o700)
    key.write_text("secret\n")
    sandbox.tester.give(key.parent)
    try:
        policy = sandbox.tree.put(
            sandbox.tree.root / "all.toml",
            '[meta]\ninherit = "ai-agent"\n[filesystem]\nreads = "all"\n',
        )
        sandbox.outside([sandbox.installation.paddock, "trust", policy])
        flags: tuple[Word, ...] = ("--policy", policy)
        everything = sandbox.inside_of_everything
        assert (
            everything(sandbox.probe("read", sandbox.tree.secret), *flags).answer
            == "ok the-secret-outside"
        )
        assert sandbox.inside(sandbox.probe("read", sandbox.tree.secret)).answer in (
            "EACCES",
            "ENOENT",
        ), "not by default"
        assert everything(sandbox.probe("read", key), *flags).answer in ("EACCES", "ENOENT")
        assert everything(sandbox.probe("append", sandbox.tree.secret), *flags).answer in (
            "EACCES",
            "EROFS",
        )
        assert sandbox.outside(sandbox.probe("read", key)).answer == "ok secret"
    finally:
        remove(key.parent)
