"""The table of Landlock rights that Python and the core share."""

from __future__ import annotations

from paddock.plan.rights import ACCESS, KERNEL_OF_ABI, holdable
from paddock.policy.landlock import LandlockKind, landlock_table


def test_rows_are_sorted_and_each_name_stands_once() -> None:
    rows = [(entry.kind.value, entry.name) for entry in landlock_table()]
    assert rows == sorted(set(rows))


def test_each_access_gives_the_rights_of_the_table() -> None:
    assert ACCESS["read"] == {"execute", "read_file", "read_dir"}
    assert ACCESS["exec"] == {"execute", "read_file"}
    assert ACCESS["device"] == {"read_file", "write_file", "read_dir", "truncate", "ioctl_dev"}
    assert ACCESS["write"] == {
        "write_file", "truncate", "refer", "make_reg", "make_dir", "make_sym", "make_fifo",
        "make_sock", "remove_file", "remove_dir",
    }  # fmt: skip


def test_no_access_gives_device_nodes() -> None:
    """They are handled, so that the kernel denies them."""
    nodes = {"make_block", "make_char"}
    assert nodes <= set(holdable(1).handled)
    assert all(not nodes & rights for rights in ACCESS.values())


def test_every_right_that_an_older_kernel_lacks_has_its_gap_and_its_kernel() -> None:
    newest = max(KERNEL_OF_ABI)
    added = [entry for entry in landlock_table() if 1 < entry.abi <= newest]
    assert {entry.name for entry in added} == {one.right for one in holdable(1).missing}
    assert all(entry.without_it for entry in added)
    assert holdable(newest).missing == ()


def test_scopes_are_no_rights() -> None:
    scopes = {entry.name for entry in landlock_table() if entry.kind is LandlockKind.SCOPE}
    assert scopes == set(holdable(max(KERNEL_OF_ABI)).scoped)
    assert not scopes & set(holdable(max(KERNEL_OF_ABI)).handled)
