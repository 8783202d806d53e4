"""What an upper directory can look like, and what a naive apply would make of it. On real mounts, each with its control."""

from __future__ import annotations

from tests.support.cow import Cow, tree


def test_every_kind_of_change_is_shown_and_applied(cow: Cow) -> None:
    for name in ("edit", "gone", "mode", "moved", "d/keep", "d/gone", "old/a", "old/b"):
        cow.put(name, f"content of {name}\n")
    session = cow.session(
        "echo more >> edit; rm gone; chmod 600 mode; mv moved renamed; rm d/gone; rm -r old; mkdir old; echo new > old/a;"
        "mkdir -p new/deep; echo x > new/deep/file; ln -s edit link; touch d/keep; cp -a . /tmp/seen 2>/dev/null || true"
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
    found = tree(cow.workspace)
    assert set(found) == {
        "own.txt", "edit", "mode", "renamed", "d", "d/keep", "old", "old/a", "new", "new/deep", "new/deep/file", "link",
    }  # fmt: skip
    assert found["edit"][-1] == b"content of edit\nmore\n"
    assert found["mode"][1] == 0o600
    assert found["link"] == ("link", "edit")
    assert cow.paddock("discard", session).exit_code == 0
    assert not (cow.store / session).exists()
