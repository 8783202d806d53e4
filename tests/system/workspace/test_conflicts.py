"""The host and the session changed the same path: a conflict is reported, nothing is applied there,
and nothing is lost.
"""

from __future__ import annotations

from tests.support.cow import SUPPORT, Cow, tree_entries

# The change of the session and the change of the host to a file → the line of diff. No entry: no
# change is left.
SESSION = {
    "edit": "echo session >> {0}",
    "save": "echo session > {0}.tmp; mv {0}.tmp {0}",
    "delete": "rm {0}",
    "mode": "chmod 700 {0}",
    "directory": "rm {0}; mkdir {0}; echo session > {0}/inner",
    "link": "rm {0}; ln -s elsewhere {0}",
}
HOST = {
    "nothing": "true",
    "edit": "echo host >> {0}",
    "save": "echo host > {0}.tmp; mv {0}.tmp {0}",
    "delete": "rm {0}",
    "mode": "chmod 600 {0}",
    "touch": "touch {0}",
    "directory": "rm {0}; mkdir {0}; echo host > {0}/theirs",
    "same": "",  # the same as the session
}
PLAIN = {
    "edit": "changed",
    "save": "changed",
    "delete": "deleted",
    "mode": "mode",
    "directory": "type",
    "link": "type",
}


def expected(session: str, host: str) -> str | None:
    match session, host:
        case _, "nothing":
            return PLAIN[session]
        case _, "same":
            return None
        case "delete", "delete":
            return None
        case "delete", "directory":
            return "deleted!conflict"
        case "edit" | "mode", "delete":
            return "added!conflict"
        case "save" | "directory" | "link", "delete":
            return "added"  # the session has no trace of an earlier file
        case "edit" | "save" | "mode" | "link", "directory":
            return "type!conflict"
        case "directory", "directory":
            return None  # both created the directory; its entries are judged separately
        case "mode", "edit" | "save":
            return "changed!conflict"
        case _:
            return f"{PLAIN[session]}!conflict"


def cell(session: str, host: str) -> str:
    return f"{session}-{host}"


def test_every_pair_of_session_and_host_changes(cow: Cow) -> None:
    cells = [(session, host) for session in SESSION for host in HOST]
    cow.host(
        "; ".join(f"mkdir {cell(*pair)}; echo {cell(*pair)} > {cell(*pair)}/f" for pair in cells)
    )
    cow.session(
        "; ".join(SESSION[session].format(f"{cell(session, host)}/f") for session, host in cells)
    )
    acts = [(HOST[host] or SESSION[session], cell(session, host)) for session, host in cells]
    cow.host("; ".join(text.format(f"{place}/f") for text, place in acts))
    shown = cow.diff()
    found = {pair: shown.get(f"{cell(*pair)}/f") for pair in cells}
    assert found == {pair: expected(*pair) for pair in cells}

    before = tree_entries(cow.workspace)
    upper = tree_entries(cow.upper(cow.made[0])).keys()
    applied = cow.paddock("apply")
    assert applied.exit_code == 1
    assert "changed on the host since the session started" in applied.stdout
    after = tree_entries(cow.workspace)
    for session, host in cells:
        place = cell(session, host)
        if "!" in (expected(session, host) or "!"):
            kept = {path: entry for path, entry in before.items() if path.startswith(f"{place}/")}
            assert {path: entry for path, entry in after.items() if path in kept} == kept, place
    assert tree_entries(cow.upper(cow.made[0])).keys() == upper, "the session keeps what it has"
    assert {path: what for path, what in shown.items() if "!" in what} == cow.diff(), (
        "only the conflicts are left"
    )


def test_overwrite_is_for_named_paths_and_keeps_the_hosts_version(cow: Cow) -> None:
    for name in ("a", "b", "d/x", "d/y"):
        cow.put(name, "base\n")
    session = cow.session("echo session > a; echo session > b; rm -r d")
    for name in ("a", "b", "d/x"):
        cow.put(name, f"host {name}\n")
    refused = cow.paddock("apply", "--overwrite")
    assert refused.exit_code == 125
    assert "needs at least one PATH" in refused.stderr
    applied = cow.paddock("apply", "--overwrite", "a", "d")
    assert applied.exit_code == 0, applied
    assert f"{cow.store}/{session}/kept" in applied.stdout
    assert (cow.workspace / "a").read_text() == "session\n"
    assert (cow.workspace / "b").read_text() == "host b\n"
    assert not (cow.workspace / "d").exists()
    kept = {
        name: entry[-1]
        for name, entry in tree_entries(cow.store / session / "kept").items()
        if entry[0] == "file"
    }
    assert {name.partition("/")[2]: content for name, content in kept.items()} == {
        "a": b"host a\n",
        "d/x": b"host d/x\n",
    }
    assert cow.diff() == {"b": "changed!conflict"}


def test_changes_applied_by_one_session_are_host_changes_to_another(cow: Cow) -> None:
    cow.put("shared", "base\n")
    one = cow.session("echo one > shared; echo one > only-one; echo one > both")
    two = cow.session("echo two > shared; echo two > only-two; echo two > both")
    assert cow.diff(two) == {"both": "added", "only-two": "added", "shared": "changed"}
    assert cow.paddock("apply", one).exit_code == 0
    assert cow.diff(two) == {
        "both": "changed!conflict",
        "only-two": "added",
        "shared": "changed!conflict",
    }
    assert cow.paddock("apply", two).exit_code == 1
    assert (cow.workspace / "shared").read_text() == "one\n"
    assert (cow.workspace / "only-two").read_text() == "two\n"


def test_unrelated_host_changes_are_no_conflict(cow: Cow) -> None:
    for name in ("a", "d/b", "d/moved"):
        cow.put(name, f"{name}\n")
    cow.session("echo session >> a; echo session >> d/b; mv d/moved d/renamed; echo new > d/new")
    cow.put("d/theirs", "host\n")
    cow.put("theirs", "host\n")
    assert cow.diff() == {
        "a": "changed",
        "d/b": "changed",
        "d/new": "added",
        "d/renamed": "renamed",
    }
    assert cow.paddock("apply").exit_code == 0
    assert (cow.workspace / "d" / "theirs").read_text() == "host\n"


def test_host_files_in_a_directory_removed_by_the_session_stay(cow: Cow) -> None:
    cow.put("d/old", "old\n")
    cow.put("e/old", "old\n")
    cow.session("rm -r d e; echo file > e")
    cow.put("d/theirs", "host\n")
    cow.put("e/theirs", "host\n")
    shown = cow.diff()
    assert shown["d/theirs"] == "deleted!conflict"
    assert shown["d/old"] == "deleted"
    assert shown["e/old"] == "deleted!blocked", "a directory is replaced as a whole or not at all"
    assert cow.paddock("apply").exit_code == 1
    left = tree_entries(cow.workspace)
    assert {"d/theirs", "e/old", "e/theirs"} <= set(left)
    assert "d/old" not in left


def test_a_directory_that_the_host_removed_is_a_conflict_and_comes_back_only_by_name(
    cow: Cow,
) -> None:
    cow.put("d/a", "a\n")
    cow.put("d/b", "b\n")
    cow.session("echo session >> d/a")
    cow.host("rm -r d")
    assert cow.diff() == {"d": "added!conflict", "d/a": "added!blocked"}
    assert cow.paddock("apply").exit_code == 1
    assert not (cow.workspace / "d").exists()
    assert cow.paddock("apply", "--overwrite", "d/a").exit_code == 0
    assert set(tree_entries(cow.workspace / "d")) == {"a"}


def test_a_session_resumed_after_an_apply_has_no_conflict_with_itself(
    cow: Cow,
) -> None:
    cow.put("a", "1\n")
    cow.put("d/gone", "1\n")
    session = cow.session("echo 2 > a; mkdir n; echo 2 > n/f; rm d/gone; chmod 700 d")
    assert cow.paddock("apply").exit_code == 0
    cow.session("echo 3 > a; echo 3 > n/f; chmod 750 d n; echo 3 > d/gone", name=session)
    assert cow.diff() == {
        "a": "changed",
        "d": "mode",
        "d/gone": "added",
        "n": "mode",
        "n/f": "changed",
    }
    cow.put("n/f", "host\n")
    assert cow.diff()["n/f"] == "changed!conflict"
    assert cow.paddock("apply").exit_code == 1
    assert (cow.workspace / "a").read_text() == "3\n"
    assert (cow.workspace / "n" / "f").read_text() == "host\n"


def test_a_selection_brings_the_directories_it_needs_and_nothing_else(cow: Cow) -> None:
    cow.put("was/file", "1\n")
    cow.session(
        "mkdir -p n/m; echo a > n/m/a; echo b > n/m/b; echo c > n/c; rm -r was; echo file > was"
    )
    assert cow.paddock("apply", "n/m/a").exit_code == 0
    assert {name for name in tree_entries(cow.workspace) if name.startswith("n")} == {
        "n",
        "n/m",
        "n/m/a",
    }
    blocked = cow.paddock("apply", "was/file")
    assert blocked.exit_code == 1
    assert "apply skips was" in blocked.stdout
    assert (cow.workspace / "was" / "file").exists()
    unknown = cow.paddock("apply", "n/x")
    assert unknown.exit_code == 125
    assert "neither a session nor a path with changes" in unknown.stderr
    assert cow.paddock("apply", "was").exit_code == 0
    assert (cow.workspace / "was").read_text() == "file\n"
    below = cow.paddock("apply", "m/b", "c", cwd=cow.workspace / "n")
    assert below.exit_code == 0, "paths are relative to the current directory"
    assert cow.diff() == {}


def test_apply_skips_paths_on_another_file_system(cow: Cow) -> None:
    cow.put("sub/f", "1\n")
    session = cow.session("echo 2 > sub/f; echo 2 > sub/new; echo 2 > own.txt")
    script = cow.bench.script(SUPPORT / "overlay.py")
    mounted = [*script, "--tmpfs", "1m", cow.workspace / "sub", "--"]
    words = ["sh", "-c", f"echo theirs > f; {cow.installation.paddock} apply {session}; cat f; ls"]
    applied = cow.tester.run([*mounted, *words], cwd=cow.workspace)
    assert applied.stdout.count("another file system is mounted there") == 3, applied
    assert applied.stdout.endswith("theirs\nf\n"), applied
    assert (cow.workspace / "own.txt").read_text() == "2\n"
    assert (cow.workspace / "sub" / "f").read_text() == "1\n"
    assert cow.diff() == {"sub/f": "changed", "sub/new": "added"}, (
        "the control: without it nothing stands in the way"
    )


def test_a_dry_run_lists_changes_and_applies_none(cow: Cow) -> None:
    cow.put("a", "1\n")
    cow.put("b", "1\n")
    cow.session("echo 2 > a; echo 2 > b; echo 2 > c")
    cow.put("b", "host\n")
    before = tree_entries(cow.workspace)
    shown = cow.paddock("apply", "--dry-run")
    assert shown.exit_code == 1
    assert (
        "would apply: changed  a\nwould apply: added    c\n"
        "skipped (conflict): changed  b: changed on" in shown.stdout
    )
    assert tree_entries(cow.workspace) == before
    assert not (cow.store / cow.made[0] / "applied.jsonl").exists()
