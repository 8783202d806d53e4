"""Forms of an upper directory on real mounts that a naive apply would apply wrongly."""

from __future__ import annotations

import os
import stat

from tests.support.cow import Cow, tree_entries


def test_every_kind_of_change_is_shown_and_applied(cow: Cow) -> None:
    for name in ("edit", "gone", "mode", "moved", "d/keep", "d/gone", "old/a", "old/b"):
        cow.put(name, f"content of {name}\n")
    session = cow.session(
        "echo more >> edit; rm gone; chmod 600 mode; mv moved renamed; rm d/gone; rm -r old; "
        "mkdir old;"
        "echo new > old/a; mkdir -p new/deep; echo x > new/deep/file; ln -s edit link; touch d/keep"
    )
    assert (cow.workspace / "gone").exists(), "the host is untouched"
    assert cow.diff() == {
        "d/gone": "deleted",
        "edit": "changed",
        "gone": "deleted",
        "link": "added",
        "mode": "mode",
        "new": "added",
        "new/deep": "added",
        "new/deep/file": "added",
        "old/a": "changed",
        "old/b": "deleted",
        "renamed": "renamed",
    }
    applied = cow.paddock("apply")
    assert applied.exit_code == 0, applied
    assert not cow.diff()
    found = tree_entries(cow.workspace)
    assert set(found) == {
        "own.txt", "edit", "mode", "renamed", "d", "d/keep", "old", "old/a", "new", "new/deep",
        "new/deep/file", "link",
    }  # fmt: skip
    assert found["edit"][-1] == b"content of edit\nmore\n"
    assert found["mode"][1] == 0o600
    assert found["link"] == ("link", "edit")
    assert cow.paddock("discard", session).exit_code == 0
    assert not (cow.store / session).exists()


def test_a_directory_in_place_of_a_link_does_not_lead_out_of_the_workspace(cow: Cow) -> None:
    outside = cow.tree.outside
    before = tree_entries(outside)
    cow.host(f"ln -s {outside} d; ln -s {cow.tree.secret} f")
    cow.session(
        "rm d f; mkdir d; echo evil > d/secret.txt; echo evil > d/authorized_keys; echo evil > f"
    )
    assert cow.diff() == {
        "d": "type",
        "d/authorized_keys": "added",
        "d/secret.txt": "added",
        "f": "type",
    }
    # the control: a copy by path names follows the link
    (cow.workspace / "d" / "control").write_text("here")
    assert (outside / "control").exists()
    (outside / "control").unlink()
    assert cow.paddock("apply").exit_code == 0
    assert tree_entries(outside) == before
    assert not (cow.workspace / "d").is_symlink()
    assert (cow.workspace / "d" / "secret.txt").read_text() == "evil\n"
    assert not (cow.workspace / "f").is_symlink()


def test_a_new_link_is_applied_as_a_link(cow: Cow) -> None:
    cow.session(f"ln -s {cow.tree.secret} out; ln -s nowhere dangling")
    assert cow.paddock("apply").exit_code == 0
    assert os.readlink(cow.workspace / "out") == str(cow.tree.secret)
    assert os.readlink(cow.workspace / "dangling") == "nowhere"


def test_below_a_replaced_directory_every_old_name_is_deleted_at_any_depth(cow: Cow) -> None:
    for name in ("d/a", "d/s/b", "d/s/t/c", "d/s/t/keep"):
        cow.put(name, name)
    cow.session(
        "rm -r d; mkdir -p d/s/t; echo d/s/t/keep > d/s/t/new; printf d/s/t/keep > d/s/t/keep"
    )
    upper = cow.upper(cow.made[0])
    assert os.getxattr(upper / "d", "user.overlay.opaque") == b"y"
    assert "user.overlay.opaque" not in os.listxattr(upper / "d" / "s" / "t"), (
        "the mark is on the top alone"
    )
    assert cow.diff() == {
        "d/a": "deleted",
        "d/s/b": "deleted",
        "d/s/t/c": "deleted",
        "d/s/t/new": "added",
    }
    assert cow.paddock("apply").exit_code == 0
    assert {name for name in tree_entries(cow.workspace) if name.startswith("d/")} == {
        "d/s",
        "d/s/t",
        "d/s/t/new",
        "d/s/t/keep",
    }


def test_a_copied_up_unchanged_file_is_no_change(cow: Cow) -> None:
    cow.put("same", "text\n")
    cow.put("d/same", "text\n")
    cow.session(
        "echo x >> same; printf 'text\\n' > same; chmod 600 d/same; chmod 644 d/same; touch d/same"
    )
    assert (cow.upper(cow.made[0]) / "d" / "same").exists()
    assert cow.diff() == {}


def test_a_command_cannot_forge_the_marks_of_the_overlay(cow: Cow) -> None:
    cow.put("d/precious", "mine\n")
    cow.session(
        "touch d/new; python3 -c \"import os; os.setxattr('d', 'user.overlay.opaque', b'y')\";"
        "python3 -c \"import os; os.mknod('d/precious2', 0o20600, 0)\" || true"
    )
    assert cow.diff() == {"d/new": "added"}


def test_fifos_and_sockets_are_left_and_reported(cow: Cow) -> None:
    cow.put("was-a-file", "mine\n")
    cow.session(
        'mkfifo pipe; python3 -c "import socket; '
        "socket.socket(socket.AF_UNIX).bind('sock')\"; rm was-a-file;"
        "mkfifo was-a-file; echo fine > file"
    )
    assert cow.diff() == {
        "file": "added",
        "pipe": "added!special",
        "sock": "added!special",
        "was-a-file": "type!special",
    }
    applied = cow.paddock("apply")
    assert applied.exit_code == 1
    assert "skipped (special): added    pipe" in applied.stdout
    assert (cow.workspace / "was-a-file").read_text() == "mine\n"
    assert not (cow.workspace / "pipe").exists()
    assert (cow.workspace / "file").exists()


def test_set_user_id_is_never_applied(cow: Cow) -> None:
    cow.session("cp /bin/true suid; chmod 6755 suid; mkdir sticky; chmod 1777 sticky")
    assert (cow.upper(cow.made[0]) / "suid").stat().st_mode & stat.S_ISUID, (
        "the control: the command did set it"
    )
    assert "set-user-id" in cow.paddock("diff").stdout
    assert cow.paddock("apply").exit_code == 0
    assert stat.S_IMODE((cow.workspace / "suid").stat().st_mode) == 0o755
    assert stat.S_IMODE((cow.workspace / "sticky").stat().st_mode) == 0o777
    assert cow.diff() == {}


def test_a_set_group_id_directory_keeps_its_bit(cow: Cow) -> None:
    cow.put("shared/a", "a")
    (cow.workspace / "shared").chmod(0o2775)
    cow.session("chmod 750 shared; mkdir shared/new")
    assert cow.paddock("apply").exit_code == 0
    assert stat.S_IMODE((cow.workspace / "shared").stat().st_mode) == 0o2750


def test_an_unreadable_file_of_the_session_is_shown_and_applied(cow: Cow) -> None:
    cow.put("locked/inner", "1\n")
    (cow.workspace / "locked").chmod(0o555)
    cow.session(
        "mkdir secret; echo x > secret/file; chmod 000 secret/file secret;"
        "chmod 755 locked; echo 2 > locked/inner; chmod 555 locked"
    )
    control = cow.tester.run(["ls", cow.upper(cow.made[0]) / "secret"])
    assert "Permission denied" in control.stderr
    assert cow.diff() == {"locked/inner": "changed", "secret": "added", "secret/file": "added"}
    applied = cow.paddock("apply")
    assert applied.exit_code == 0, applied
    for root in (cow.workspace, cow.upper(cow.made[0])):
        assert stat.S_IMODE((root / "secret").stat().st_mode) == 0
        assert stat.S_IMODE((root / "locked").stat().st_mode) == 0o555
    assert (cow.workspace / "locked" / "inner").read_text() == "2\n"
    assert cow.diff() == {}
    (cow.workspace / "secret").chmod(0o700)


def test_the_mode_of_one_name_is_not_the_mode_of_another(cow: Cow) -> None:
    cow.put("one", "1\n")
    os.link(cow.workspace / "one", cow.workspace / "other")
    cow.session("chmod 700 one")
    assert cow.diff() == {"one": "mode"}
    assert cow.paddock("apply").exit_code == 0
    assert stat.S_IMODE((cow.workspace / "one").stat().st_mode) == 0o700
    assert stat.S_IMODE((cow.workspace / "other").stat().st_mode) == 0o644


def test_times_and_attributes_are_applied(cow: Cow) -> None:
    cow.put("edit", "1\n")
    cow.session(
        "echo 2 > edit; touch -d '2020-02-02 02:02:02.123456789' edit;"
        "python3 -c \"import os; os.setxattr('edit', 'user.note', b'n')\""
    )
    assert cow.paddock("apply").exit_code == 0
    edit = cow.workspace / "edit"
    assert edit.stat().st_mtime_ns == (cow.upper(cow.made[0]) / "edit").stat().st_mtime_ns
    assert edit.stat().st_mtime_ns % 10**9 == 123456789
    assert {name: os.getxattr(edit, name) for name in os.listxattr(edit)} == {"user.note": b"n"}


def test_a_huge_file_that_holds_little_is_applied_at_once_and_stays_small(cow: Cow) -> None:
    cow.session("truncate -s 1T huge; printf end >> huge")
    assert cow.paddock("apply").exit_code == 0
    facts = (cow.workspace / "huge").stat()
    assert facts.st_size == 2**40 + 3
    assert facts.st_blocks * 512 < 1 << 20
    with (cow.workspace / "huge").open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"


def test_a_too_deep_tree_is_reported_and_the_rest_is_applied(cow: Cow) -> None:
    deep = (
        "import os\nfor n in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "open('bottom', "
        "'w')"
    )
    cow.session(f'echo fine > file; python3 -c "{deep}"')
    shown = cow.diff()
    assert [path for path in shown if shown[path].endswith("!too deep")] == ["d/" * 201 + "…"]
    applied = cow.paddock("apply")
    assert applied.exit_code == 1
    assert "deeper than 200 levels" in applied.stdout
    assert (cow.workspace / "file").exists()
    assert cow.paddock("discard", cow.made[0]).exit_code == 0, "the removal works at any depth"
    assert not (cow.store / cow.made[0]).exists()


def test_a_deep_tree_of_the_hosts_is_not_half_deleted_below_the_limit(cow: Cow) -> None:
    deep = (
        "import os\nfor n in range(300):\n    os.mkdir('d')\n    os.chdir('d')\nopen('bottom', 'w')"
    )
    made = cow.tester.run(["python3", "-c", deep], cwd=cow.workspace)
    assert made.exit_code == 0, made
    cow.session("rm -r d")
    assert cow.paddock("apply").exit_code == 1
    assert (
        cow.tester.run(["find", ".", "-name", "bottom"], cwd=cow.workspace).stdout.count("bottom")
        == 1
    )


def test_the_mode_of_the_workspace_itself_is_a_change(cow: Cow) -> None:
    cow.session("chmod 700 .")
    assert cow.diff() == {".": "mode"}
    assert cow.paddock("apply").exit_code == 0
    assert stat.S_IMODE(cow.workspace.stat().st_mode) == 0o700
    assert cow.diff() == {}
