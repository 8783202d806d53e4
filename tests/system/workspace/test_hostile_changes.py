"""Hostile names, contents and directories that try to make a diff lie, or an apply write
elsewhere.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.support.cow import Cow, tree_entries

NAMES = (
    b"new\nline",
    b"\x1b[2J\x1b]0;owned\x07",
    b"not\xff\xfeutf8",
    "right\u202eto-left".encode(),
    b"-rf",
    b" ",
    b"a\tb",
)
PLANT = """
import os
for name in {names!r}:
    with open(name, 'wb') as file:
        file.write(b'x ' + name)
os.mkdir(b'dir\\n\\x1b[1m'); open(b'dir\\n\\x1b[1m/in', 'w').write('in')
os.symlink(b'\\x1b[31mtarget\\n', 'link')
"""


def plant(cow: Cow) -> None:
    script = PLANT.format(names=NAMES)
    cow.bench.directory.joinpath("plant.py").write_text(script)
    cow.session(f"python3 {cow.bench.directory}/plant.py")


@pytest.mark.parametrize("form", [(), ("--stat",), ("--json",)])
def test_no_name_or_content_steers_the_terminal_or_adds_a_line(
    cow: Cow, form: tuple[str, ...]
) -> None:
    plant(cow)
    shown = cow.paddock("diff", *form)
    assert shown.exit_code == 0
    text = shown.stdout + shown.stderr
    assert all(letter.isprintable() or letter in "\n\t" for letter in text)
    heads = [line for line in shown.stdout.splitlines() if line.startswith("added ")]
    assert form == ("--json",) or len(heads) == len(NAMES) + 3
    assert form or r"added    \x1b[2J\x1b]0;owned\x07" in shown.stdout
    sessions = cow.paddock("sessions")
    assert all(letter.isprintable() or letter == "\n" for letter in sessions.stdout)


def test_every_name_is_applied_as_it_is(cow: Cow) -> None:
    plant(cow)
    applied = cow.paddock("apply", "--json")
    assert applied.exit_code == 0, applied
    there = set(os.listdir(os.fsencode(cow.workspace)))
    assert set(NAMES) < there
    assert os.readlink(os.fsencode(cow.workspace / "link")) == b"\x1b[31mtarget\n"
    paths = {os.fsencode(one["path"]) for one in json.loads(applied.stdout)["applied"]}
    assert set(NAMES) < paths
    assert cow.diff() == {}


def test_a_hostile_name_can_be_selected(cow: Cow) -> None:
    plant(cow)
    applied = cow.tester.run(
        [cow.installation.paddock, "apply", "--", NAMES[2], NAMES[4]], cwd=cow.workspace
    )
    assert applied.exit_code == 0, applied
    assert set(os.listdir(os.fsencode(cow.workspace))) == {b"own.txt", NAMES[2], NAMES[4]}


def test_a_diff_of_hostile_files_ends(cow: Cow) -> None:
    cow.host("seq 30000 > numbers; seq 3000 > few")
    cow.session(
        "sort -R numbers > t; mv t numbers; sort -rn few > t; mv t few; "
        "head -c 3000000 /dev/zero > zeros;"
        "head -c 900000 /dev/urandom | base64 -w0 > line; yes | head -c 30000000 > yes; "
        "printf 'a\\0b' > nul"
    )
    shown = cow.paddock("diff")
    assert shown.exit_code == 0
    assert len(shown.stdout) < 10 << 20
    assert max(map(len, shown.stdout.splitlines())) < 5000
    for output in (
        "added    zeros\n  too large to show, 3 MB",
        "added    yes\n  too large",
        "added    nul\n  binary, 3 B",
    ):
        assert output in shown.stdout


@pytest.mark.parametrize("mode", ["0500", "0300", "0000"])
@pytest.mark.parametrize("verb", ["apply", "discard"])
def test_a_command_that_shuts_its_workspace_does_not_lock_out_the_owner(
    cow: Cow, mode: str, verb: str
) -> None:
    cow.host("echo old > a; mkdir d; echo old > d/b")
    session = cow.session(f"echo new > a; echo new > d/b; chmod {mode} d .")
    shown = cow.paddock("diff", session)
    assert shown.exit_code == 0, shown
    assert "changed  a" in shown.stdout
    done = cow.paddock(verb, session)
    assert done.exit_code == 0, done
    kept = "new\n" if verb == "apply" else "old\n"
    assert stat.S_IMODE(cow.workspace.stat().st_mode) == (
        int(mode, 8) if verb == "apply" else 0o755
    )
    for directory in (cow.workspace, cow.workspace / "d"):
        directory.chmod(0o755)
    assert [(cow.workspace / name).read_text() for name in ("a", "d/b")] == [kept, kept]


def test_diff_shows_each_kind_of_change(cow: Cow) -> None:
    cow.host(
        "printf 'one\\ntwo\\nthree\\n' > text; printf 'a\\tb' > end; mkdir d; echo x > d/x; "
        "ln -s old link"
    )
    cow.session(
        "printf 'one\\n2\\nthree\\n' > text; printf 'a\\tc' > end; rm -r d; ln -sfn new link;"
        "printf '#!\\n' > run; chmod 755 run"
    )
    shown = cow.paddock("diff")
    assert shown.stdout == (
        "deleted  d/x\n@@ -1,1 +0,0 @@\n-x\n"
        "deleted  d/\n"
        "changed  end\n@@ -1,1 +1,1 @@\n-a\tb\n\\ No newline at end of file\n+a\tc\n"
        "\\ No newline at end of file\n"
        "changed  link  (symlink old → new)\n"
        "added    run  (mode 755)\n@@ -0,0 +1,1 @@\n+#!\n"
        "changed  text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )
    assert shown.stderr == (
        f"paddock: session {cow.made[0]} of {cow.workspace}: 6 changes: 2 deleted, "
        f"3 changed, 1 added\n"
    )
    stat = cow.paddock("diff", "--stat", "text", "d")
    assert (
        stat.stdout
        == "deleted  d/x  -1\ndeleted  d/\nchanged  text  +1 -1\n3 changes: 2 deleted, 1 changed\n"
    )


def test_a_directory_that_is_swapped_for_a_link_leads_nowhere(cow: Cow) -> None:
    script = cow.bench.script(Path(__file__).with_name("races.py"))
    base = Path("/dev/shm", f"paddock-race-{os.getpid()}")
    found = {}
    for how, rounds in (("names", "10"), ("apply", "40")):
        done = cow.tester.run([*script, how, base, rounds], cwd=cow.bench.directory)
        assert done.exit_code == 0, done
        found[how] = json.loads(done.stdout)
    assert found["names"]["outside"] > 0, "the control: a copy by path names does"
    assert found["apply"]["met"] > 0, "the race happened"
    assert found["apply"]["outside"] == 0


def test_a_link_in_upper_is_not_followed_either(cow: Cow) -> None:
    session = cow.session("mkdir d; echo fine > d/f")
    upper = cow.upper(session)
    (upper / "d").rename(upper / "aside")
    (upper / "d").symlink_to(cow.tree.outside)
    assert cow.diff(session) == {"aside": "added", "aside/f": "added", "d": "added"}
    assert cow.paddock("apply").exit_code == 0
    assert (cow.workspace / "d").is_symlink()
    assert not [path for path in tree_entries(cow.workspace) if path.startswith("d/")]
