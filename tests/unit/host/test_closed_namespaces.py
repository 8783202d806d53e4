"""The setting that closes user namespaces is named, with the command that opens them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock.host.closed_namespaces import closed_by


def settings(root: Path, **values: str) -> Path:
    """Files of /proc/sys. The names of the keys have ``__`` for a dot."""
    for name, value in values.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("name", "closed", "open_"),
    [
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ],
)
def test_each_setting_is_named_with_its_command(
    tmp_path: Path, name: str, closed: str, open_: str
) -> None:
    key = name.replace(".", "__")
    found = closed_by(filtered=True, settings=settings(tmp_path, **{key: closed}))
    assert found is not None
    assert found.setting == f"{name} is {closed}"
    assert found.opened_by == f"type `sudo sysctl -w {name}={open_}`"
    assert closed_by(filtered=False, settings=settings(tmp_path, **{key: open_})) is None


def test_the_filter_of_a_container_is_named_if_no_setting_closes_them(tmp_path: Path) -> None:
    found = closed_by(filtered=True, settings=tmp_path)
    assert found is not None
    assert "container" in found.setting
    assert closed_by(filtered=False, settings=tmp_path) is None
