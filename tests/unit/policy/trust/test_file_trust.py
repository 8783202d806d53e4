"""Which policy files are trusted: by owner, mode, path, type, and the user's consent to the
text.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy import Request, load
from paddock.policy.trust.file_trust import is_trusted, read_policy, trust, untrust
from paddock.policy.trust.trusted_list import MAX_FILE_BYTES, TrustedList
from tests.support.features import need
from tests.unit.policy.user_dirs import UserDirs

as_root = pytest.mark.usefixtures("root")


@pytest.fixture
def root() -> None:
    need("root", os.getuid() == 0, "giving files away needs root")


def refused(dirs: UserDirs, path: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        dirs.load_file(path)
    return caught.value.message


def test_a_regular_file_of_the_user_is_read(dirs: UserDirs) -> None:
    assert dirs.load_file(dirs.file("p.conf", "ro /a\n"))


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o602])
def test_a_file_others_may_write_is_refused(dirs: UserDirs, mode: int) -> None:
    """C-060."""
    path = dirs.file("p.conf", "ro /a\n")
    path.chmod(mode)
    assert f"writable by others (mode {mode:04o})" in refused(dirs, path)


def test_a_named_profile_that_others_may_write_is_refused(dirs: UserDirs) -> None:
    dirs.user("p.conf", "ro /a\n").chmod(0o646)
    assert "writable by others" in dirs.refuse_request(Request(profiles=("p",))).message


@as_root
def test_a_file_of_another_user_is_refused(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    os.chown(path, 12345, -1)
    assert "belongs to uid 12345" in refused(dirs, path)


@as_root
def test_a_file_of_root_is_trusted_by_all_and_a_users_file_by_that_user(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    somebody = replace(dirs.origin, uid=12345)
    assert read_policy(str(path), somebody, shown="p")
    os.chown(path, 12345, -1)
    assert read_policy(str(path), somebody, shown="p")


@as_root
def test_a_directory_of_another_user_is_refused(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    os.chown(path.parent, 12345, -1)
    assert "its directory" in refused(dirs, path)


def test_a_directory_others_may_write_is_refused_unless_sticky(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    path.parent.chmod(0o777)
    assert "its directory" in refused(dirs, path)
    path.parent.chmod(0o1777)
    assert dirs.load_file(path)


@pytest.mark.parametrize(
    ("name", "members", "first_of", "believed"),
    [
        ("ada", [], ["ada"], True),
        ("ada", ["ada"], [], True),
        ("ada", ["bob"], ["ada"], False),
        ("ada", [], ["ada", "bob"], False),
        ("staff", [], [], False),
    ],
)
def test_group_write_is_allowed_for_a_private_group_only(
    dirs: UserDirs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    members: list[str],
    first_of: list[str],
    believed: bool,
) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    path.chmod(0o664)
    group = path.stat().st_gid
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
    users = [
        pwd.struct_passwd((user, "x", 1000 + number, group, "", "", ""))
        for number, user in enumerate(first_of)
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    if believed:
        assert load(Request(policies=(str(path),)), replace(dirs.origin, gid=group))
    else:
        with pytest.raises(PolicyError, match="writable by others"):
            load(Request(policies=(str(path),)), replace(dirs.origin, gid=group))
    with pytest.raises(PolicyError, match="writable by others"):
        load(Request(policies=(str(path),)), replace(dirs.origin, gid=group + 1))


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [make_fifo, make_directory])
def test_only_a_regular_file_is_a_policy(dirs: UserDirs, make: Callable[[Path], None]) -> None:
    make(dirs.root / "p.toml")
    assert "not a regular file" in refused(dirs, dirs.root / "p.toml")


def test_a_loop_of_links_is_an_error(dirs: UserDirs) -> None:
    loop = dirs.root / "p.toml"
    loop.symlink_to(loop)
    assert "too many symbolic links" in refused(dirs, loop)


def test_size_has_a_limit(dirs: UserDirs) -> None:
    comment = b"#" * 1023 + b"\n"
    assert dirs.load_file(dirs.file("p.conf", comment * (MAX_FILE_BYTES // 1024)))
    assert "longer than" in refused(
        dirs, dirs.file("p.conf", comment * (MAX_FILE_BYTES // 1024) + b"\n")
    )


def test_a_link_is_judged_by_what_it_points_to(dirs: UserDirs) -> None:
    target = dirs.file("p.conf", "ro /a\n")
    link = dirs.root / "link.conf"
    link.symlink_to(target)
    (file,) = dirs.load_file(link).files
    assert (file.path, file.found) == (str(target.resolve()), str(link))
    target.chmod(0o666)
    assert "writable by others" in refused(dirs, link)


def test_the_policy_remembers_the_bytes_it_was_read_from(dirs: UserDirs) -> None:
    path = dirs.file("p.conf", "ro /a\n")
    (file,) = dirs.load_file(path).files
    assert (file.path, file.sha256) == (str(path.resolve()), hashlib.sha256(b"ro /a\n").hexdigest())


# The user's consent to a text.

PROJECT = "[meta]\ninherit = 'ai-agent'\n"


def test_a_project_file_is_read_only_after_the_person_trusted_it(dirs: UserDirs) -> None:
    path = dirs.write(dirs.work / "paddock.toml", PROJECT)
    error = dirs.refuse_request(Request())
    assert "is not trusted yet" in error.message
    assert "paddock trust ./paddock.toml" in (error.hint or "")
    dirs.trust(path)
    assert dirs.load().profiles[0] == "./paddock.toml"


def test_a_changed_project_file_has_to_be_trusted_again(dirs: UserDirs) -> None:
    path = dirs.write(dirs.work / "paddock.toml", PROJECT)
    dirs.trust(path)
    dirs.write(path, PROJECT + "# changed\n")
    assert "has changed since you trusted it" in dirs.refuse_request(Request()).message
    dirs.trust(path)
    assert dirs.load()
    dirs.write(path, PROJECT)  # the older text is no longer trusted
    assert "has changed" in dirs.refuse_request(Request()).message


def test_a_file_inherited_by_path_needs_trust_too(dirs: UserDirs) -> None:
    """Else a trusted file would inherit any file that the repository puts beside it."""
    parent = dirs.write(dirs.work / "loose.toml", "[filesystem]\nread_globs = ['/srv']\n")
    path = dirs.write(dirs.work / "paddock.toml", "[meta]\ninherit = './loose.toml'\n")
    dirs.trust(path)
    assert "loose.toml: is not trusted yet" in dirs.refuse_request(Request()).message
    dirs.trust(parent)
    assert dirs.load()


def test_a_profile_inherited_by_name_needs_no_trust(dirs: UserDirs) -> None:
    dirs.user("mine.toml", "[filesystem]\nread_globs = ['/srv']\n")
    dirs.trust(dirs.write(dirs.work / "paddock.toml", "[meta]\ninherit = 'mine'\n"))
    assert dirs.load()


@pytest.mark.parametrize("parent", ["read-only", "ai-agent"])
def test_a_file_in_the_current_directory_always_needs_trust(dirs: UserDirs, parent: str) -> None:
    """An agent would write a text that does not grant writing to its own directory."""
    path = dirs.write(dirs.work / "a.toml", f"[meta]\ninherit = '{parent}'\n")
    assert "could rewrite this file" in refused(dirs, path)
    dirs.trust(path)
    assert dirs.load_file(path)
    dirs.write(path, "[meta]\ninherit = 'read-only'\n[filesystem]\nread_globs = ['~/**']\n")
    assert "has changed since you trusted it" in refused(dirs, path)


def test_a_changed_trusted_file_needs_trust_again(dirs: UserDirs) -> None:
    path = dirs.file("p.toml", "[meta]\ninherit = 'read-only'\n")
    assert dirs.load_file(path)
    dirs.trust(path)
    dirs.write(path, "[meta]\ninherit = 'read-only'\n# more\n")
    assert "has changed since you trusted it" in refused(dirs, path)


def test_a_link_does_not_borrow_the_trust_of_what_it_leads_to(dirs: UserDirs) -> None:
    """An agent can put a link to another project's trusted policy into its own."""
    trusted = dirs.file("trusted.toml", PROJECT)
    dirs.trust(trusted)
    assert dirs.load_file(trusted)
    link = dirs.work / "paddock.toml"
    link.symlink_to(trusted)
    with pytest.raises(PolicyError, match="is not trusted yet"):
        dirs.load(Request())


@pytest.mark.parametrize(
    "pattern", ["{dir}/**", "{dir}/p.toml", "{dir}/*.toml", "{dir}/../policies/p.toml", "{link}/**"]
)
def test_every_kind_of_write_grant_counts_as_writable(dirs: UserDirs, pattern: str) -> None:
    link = dirs.root / "link"
    link.symlink_to(dirs.root / "policies")
    where = pattern.format(dir=dirs.root / "policies", link=link)
    path = dirs.file("p.toml", f"[filesystem]\nallow_globs = ['{where}']\nwiden = 'allow'\n")
    if ".." in pattern:
        assert "'..'" in refused(dirs, path)
    else:
        assert "could rewrite this file" in refused(dirs, path)


def test_a_read_grant_does_not_count_as_writable(dirs: UserDirs) -> None:
    path = dirs.file("p.toml", f"[filesystem]\nread_globs = ['{dirs.root}/policies/**']\n")
    assert dirs.load_file(path)


def test_files_in_config_directories_need_no_trust(dirs: UserDirs) -> None:
    dirs.user("p.toml", "[filesystem]\nallow_globs = ['~/**']\n")
    assert dirs.load(Request(profiles=("p",)))


def test_check_reads_an_untrusted_file(dirs: UserDirs) -> None:
    dirs.write(dirs.work / "paddock.toml", PROJECT)
    assert dirs.load(Request(trust_required=False))
    assert dirs.load(Request(trust_required=False, policies=("./paddock.toml",)))


def test_trust_is_stored_where_only_the_user_can_write(dirs: UserDirs) -> None:
    path = dirs.file("p.toml", PROJECT)
    digest = trust(str(path), dirs.origin)
    store = Path(dirs.origin.state_dir) / "trusted"
    assert store.read_text() == f"{digest}  {path.resolve()}\n"
    assert (store.stat().st_mode & 0o777, store.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert is_trusted(str(path), dirs.origin)
    assert trust(str(path), dirs.origin) == digest
    assert store.read_text().count("\n") == 1
    assert untrust(str(path), dirs.origin)
    assert not untrust(str(path), dirs.origin)
    assert not is_trusted(str(path), dirs.origin)


def test_a_trusted_text_at_another_path_needs_trust(dirs: UserDirs) -> None:
    """An agent could copy the loose policy of one project over the strict one of another."""
    one, other = dirs.file("one.toml", PROJECT), dirs.file("other.toml", PROJECT)
    trust(str(one), dirs.origin)
    assert is_trusted(str(one), dirs.origin)
    assert not is_trusted(str(other), dirs.origin)


def test_a_file_others_could_write_cannot_be_trusted(dirs: UserDirs) -> None:
    path = dirs.file("p.toml", PROJECT)
    path.chmod(0o666)
    with pytest.raises(PolicyError, match="writable by others"):
        trust(str(path), dirs.origin)


def test_a_list_of_trusted_files_that_others_could_write_is_refused(dirs: UserDirs) -> None:
    store = Path(dirs.origin.state_dir) / "trusted"
    assert TrustedList.read(dirs.origin.state_dir, os.getuid()) == TrustedList()
    dirs.write(store, "0" * 64 + "  /x\n")
    assert TrustedList.read(dirs.origin.state_dir, os.getuid()).knows("/x")
    store.chmod(0o622)
    with pytest.raises(PolicyError, match="only you can write"):
        TrustedList.read(dirs.origin.state_dir, os.getuid())


def test_a_damaged_list_is_an_error_with_its_line(dirs: UserDirs) -> None:
    store = dirs.write(Path(dirs.origin.state_dir) / "trusted", "0" * 64 + "  /x\ngarbage\n")
    with pytest.raises(PolicyError, match=f"{store}:2"):
        TrustedList.read(dirs.origin.state_dir, os.getuid())


def test_a_path_that_is_not_utf8_can_be_trusted(dirs: UserDirs) -> None:
    path = Path(os.fsdecode(os.fsencode(dirs.root) + b"/p\xff.toml"))
    dirs.write(path, PROJECT)
    dirs.trust(path)
    assert dirs.trusted.knows(os.path.realpath(path))
