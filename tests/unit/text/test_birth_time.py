"""Birth times: no program sets one, and a removed file's does not come back."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.text.birth_time import born_object_at


def test_changes_of_a_file_leave_its_birth_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    before = born_object_at(str(file))
    found = os.lstat(file)
    assert before is not None
    assert before[:2] == (found.st_dev, found.st_ino)
    os.utime(file, ns=(1, 1))
    file.chmod(0o600)
    file.write_text("more")
    assert born_object_at(str(file.rename(tmp_path / "renamed"))) == before


def test_a_link_is_not_followed_and_nothing_has_no_birth_time(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    found = born_object_at(f"{tmp_path}/link")
    assert found is not None
    assert found.inode == os.lstat(tmp_path / "link").st_ino
    assert born_object_at(f"{tmp_path}/missing") is None
    assert born_object_at("/\0") is None
