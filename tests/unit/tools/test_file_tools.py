"""The file tools on real files."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import stat
from collections import Counter
from pathlib import Path

import pytest

from paddock import ToolCall
from paddock.explain.file_rules import Operation
from paddock.text.path_walk import Identity
from paddock.tools import name_in_open_dir
from paddock.tools.dispatch import Tools
from paddock.tools.file_tools import Limits
from paddock.tools.result import FileText, FileWritten, Listing, ToolOutcome
from paddock.workspace import system_calls
from tests.unit.tools.calls import call, lenient
from tests.unit.tools.policy.test_open_judged import race, swapping, swaps

SWAPS, WRITES = 10_000, 300


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_a_file_is_read_whole_or_by_lines(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\r\nthree")
    result = call(tmp_path, "read_file", path="f")
    assert result.ok
    assert result.content == FileText(
        path=f"{tmp_path}/f",
        text="one\ntwo\nthree",
        encoding="utf-8",
        newline="\r\n",
        size=15,
        first_line=1,
        more=False,
    )
    part = call(tmp_path, "read_file", path="f", offset=2, limit=1).content
    assert isinstance(part, FileText)
    assert (part.text, part.first_line, part.more) == ("two\n", 2, True)
    for wrong in ({"offset": 0}, {"limit": 0}, {"offset": 4}, {"encoding": "zip"}):
        assert (
            call(tmp_path, "read_file", path="f", **wrong).outcome is ToolOutcome.INVALID_ARGUMENTS
        )
    (tmp_path / "empty").touch()
    assert call(tmp_path, "read_file", path="empty").ok


@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file"])
def test_special_files_are_left_alone_and_block_no_call(tmp_path: Path, tool: str) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        more = {
            "write_file": {"content": "x"},
            "edit_file": {"old_text": "a", "new_text": "b"},
        }.get(tool, {})
        for name in ("directory", "fifo", "socket"):
            before = os.lstat(tmp_path / name)
            result = call(tmp_path, tool, path=name, **more)
            assert (result.outcome, name in result.message) == (ToolOutcome.NOT_A_FILE, True)
            assert os.lstat(tmp_path / name).st_ino == before.st_ino
        everywhere = Tools(lenient(tmp_path, allowed_paths=None))
        assert call(everywhere, tool, path="/dev/null", **more).outcome is ToolOutcome.NOT_A_FILE
        assert call(everywhere, tool, path="/", **more).outcome is ToolOutcome.NOT_A_FILE


@pytest.mark.parametrize("moved", ["secret", "directory"])
def test_a_closed_object_that_comes_to_a_judged_path_stays_closed(
    tmp_path: Path, moved: str
) -> None:
    """A command may rename directories between the decision and the open. Here the decision itself
    renames them.
    """
    kept = tmp_path / "kept"
    (kept / "directory" / "below").mkdir(parents=True)
    (kept / "directory" / "below" / "file").write_text("secret")
    (kept / "secret").write_text("secret")
    closed = Identity.of(os.stat(kept / moved))
    path = "way/secret" if moved == "secret" else "way/directory/below/file"
    made = "way/directory/below/new/er"

    def sandbox(judged: str, operation: Operation) -> str | None:
        if kept.exists():
            kept.rename(tmp_path / "way")
        return None

    async def refused(at: str, operation: Operation, facts: os.stat_result) -> str | None:
        above = [os.stat(place) for place in Path(at).parents]
        return "it is closed" if closed in map(Identity.of, (facts, *above)) else None

    def outcomes(tools: Tools) -> list[ToolOutcome]:
        found = []
        for tool, where, more in (
            ("read_file", path, {}),
            ("edit_file", path, {"old_text": "secret", "new_text": "known"}),
            ("write_file", path, {"content": "x"}),
            ("write_file", made, {"content": "x"}),
            ("list_directory", "way/directory/below", {}),
        ):
            found.append(call(tools, tool, path=where, **more).outcome)
            if (tmp_path / "way").exists():
                (tmp_path / "way").rename(kept)
        return found

    in_closed = ToolOutcome.OK if moved == "secret" else ToolOutcome.BLOCKED
    policy = lenient(tmp_path)
    assert outcomes(Tools(policy, policy_denial=sandbox, object_denial=refused)) == [
        *[ToolOutcome.BLOCKED] * 3,
        in_closed,
        in_closed,
    ]
    assert (kept / path.removeprefix("way/")).read_text() == "secret"
    assert (kept / made.removeprefix("way/")).exists() == (moved == "secret")
    listing = call(
        Tools(policy, object_denial=refused), "list_directory", path="kept", depth=3
    ).content
    assert isinstance(listing, Listing)
    assert listing.closed == (() if moved == "secret" else ("directory",))
    assert outcomes(Tools(policy, policy_denial=sandbox)) == [ToolOutcome.OK] * 5  # the control
    assert (kept / path.removeprefix("way/")).read_text() == "x"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(100_000_000)
    result = call(tmp_path, "read_file", path="large")
    assert result.outcome is ToolOutcome.TOO_LARGE
    assert "100000000 bytes" in result.message
    edited = call(tmp_path, "edit_file", path="large", old_text="a", new_text="b")
    assert edited.outcome is ToolOutcome.TOO_LARGE
    assert os.stat(tmp_path / "large").st_size == 100_000_000


def test_an_endless_file_of_size_zero_is_bounded() -> None:
    """Files of the kernel have size zero."""
    tools = Tools(lenient(Path("/"), allowed_paths=None), limits=Limits(read_bytes=1000))
    assert call(tools, "read_file", path="/proc/kallsyms").outcome is ToolOutcome.TOO_LARGE
    found = call(tools, "read_file", path="/proc/sys/kernel/ostype").content
    assert isinstance(found, FileText)
    assert found.text == "Linux\n"


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("none", ToolOutcome.NOT_FOUND),
        ("none/f", ToolOutcome.NOT_FOUND),
        ("f/f", ToolOutcome.NOT_A_DIRECTORY),
        ("loop", ToolOutcome.INVALID_ARGUMENTS),
        ("../outside", ToolOutcome.BLOCKED),
        (".env", ToolOutcome.BLOCKED),
        ("C:\\f", ToolOutcome.BLOCKED),
    ],
)
def test_an_unreadable_file_is_an_error_with_the_reason(
    tmp_path: Path, path: str, outcome: ToolOutcome
) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / ".env").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    assert call(tmp_path, "read_file", path=path).outcome is outcome


def test_a_new_file_is_made_with_its_directories(tmp_path: Path) -> None:
    result = call(tmp_path, "write_file", path="a/b/new", content="täxt\n")
    assert result.content == FileWritten(path=f"{tmp_path}/a/b/new", size=6, created=True)
    assert (tmp_path / "a/b/new").read_bytes() == "täxt\n".encode()
    assert names(tmp_path / "a" / "b") == {"new"}
    policy = lenient(tmp_path, allowed_paths=[f"{tmp_path}/a/*/f"])
    assert (
        call(Tools(policy), "write_file", path="a/x/f", content="").outcome is ToolOutcome.NOT_FOUND
    )
    assert names(tmp_path / "a") == {"b"}


def test_a_file_is_replaced_atomically_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    file.chmod(0o4751)
    os.setxattr(file, "user.origin", b"here")
    with open(file, "rb") as reader:
        assert call(tmp_path, "write_file", path="f", content="c\nd\n").ok
        assert reader.read() == b"\xef\xbb\xbfa\r\nb\r\n"  # an open reader still reads the old file
    assert file.read_bytes() == b"\xef\xbb\xbfc\r\nd\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751  # a write removes these rights too
    assert os.getxattr(file, "user.origin") == b"here"
    assert names(tmp_path) == {"f"}


def test_writing_through_a_link_changes_its_target_only(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "link").symlink_to("f")
    os.link(tmp_path / "f", tmp_path / "other")
    assert call(tmp_path, "write_file", path="link", content="new").ok
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f").read_text() == "new"
    assert (tmp_path / "other").read_text() == "old"  # a hard link to the old file, perhaps outside


def test_an_encoding_is_kept_or_chosen(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("alt\n".encode("utf-16"))
    assert call(tmp_path, "write_file", path="f", content="neu €\n").ok
    assert (tmp_path / "f").read_bytes() == "neu €\n".encode("utf-16")
    assert call(tmp_path, "write_file", path="f", content="neu €\n", encoding="cp1252").ok
    assert (tmp_path / "f").read_bytes() == b"neu \x80\n"
    assert call(tmp_path, "read_file", path="f").outcome is ToolOutcome.ENCODING
    edited = call(tmp_path, "edit_file", path="f", old_text="€", new_text="£", encoding="cp1252")
    assert edited.ok
    assert (tmp_path / "f").read_bytes() == b"neu \xa3\n"
    refused = call(tmp_path, "write_file", path="f", content="€", encoding="latin-1")
    assert refused.outcome is ToolOutcome.ENCODING
    assert (tmp_path / "f").read_bytes() == b"neu \xa3\n"


def test_too_much_is_not_written(tmp_path: Path) -> None:
    tools = Tools(lenient(tmp_path), limits=Limits(write_bytes=10))
    assert call(tools, "write_file", path="f", content="x" * 11).outcome is ToolOutcome.TOO_LARGE
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "outcome", "after"),
    [
        ({"old_text": "two", "new_text": "2"}, ToolOutcome.OK, b"one\r\n2\r\none\r\n"),
        ({"old_text": "two\none", "new_text": "2\n1"}, ToolOutcome.OK, b"one\r\n2\r\n1\r\n"),
        ({"old_text": "one", "new_text": "1"}, ToolOutcome.NOT_UNIQUE, None),
        ({"old_text": "one", "new_text": "1", "expected_count": 3}, ToolOutcome.NOT_UNIQUE, None),
        (
            {"old_text": "one", "new_text": "1", "expected_count": 2},
            ToolOutcome.OK,
            b"1\r\ntwo\r\n1\r\n",
        ),
        (
            {"old_text": "one", "new_text": "1", "replace_all": True},
            ToolOutcome.OK,
            b"1\r\ntwo\r\n1\r\n",
        ),
        (
            {"old_text": "one", "new_text": "1", "replace_all": True, "expected_count": 1},
            ToolOutcome.NOT_UNIQUE,
            None,
        ),
        ({"old_text": "three", "new_text": "3"}, ToolOutcome.NO_MATCH, None),
        ({"old_text": "", "new_text": "3"}, ToolOutcome.INVALID_ARGUMENTS, None),
        ({"old_text": "two", "new_text": "two"}, ToolOutcome.INVALID_ARGUMENTS, None),
    ],
)
def test_an_edit_is_exact(
    tmp_path: Path, arguments: dict[str, object], outcome: ToolOutcome, after: bytes | None
) -> None:
    before = b"one\r\ntwo\r\none\r\n"
    (tmp_path / "f").write_bytes(before)
    result = call(tmp_path, "edit_file", path="f", **arguments)
    assert result.outcome is outcome, result.message
    assert (tmp_path / "f").read_bytes() == (before if after is None else after)
    if outcome is ToolOutcome.NOT_UNIQUE:
        assert "2 times (line 1, 3)" in result.message


def test_a_concurrent_write_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last check and the exchange."""
    file = tmp_path / "f"
    file.write_text("old")
    new = tmp_path / "n"

    def meanwhile(temporary: str, name: str, dir_fd: int) -> None:
        monkeypatch.undo()
        (tmp_path / "theirs").write_text("theirs")
        os.rename(tmp_path / "theirs", tmp_path / name)
        getattr(system_calls, act)(temporary, name, dir_fd)

    for act, path in (("exchange", file), ("rename_new", new)):
        monkeypatch.setattr(name_in_open_dir, act, meanwhile)
        result = call(tmp_path, "write_file", path=path.name, content="ours")
        assert result.outcome is ToolOutcome.CHANGED
        assert path.read_text() == "theirs"
    assert names(tmp_path) == {"f", "n"}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = call(tmp_path, "write_file", path="f", content="new")
    assert result.outcome is ToolOutcome.FAILED
    assert "No space left" in result.message
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == {"f"}


def test_a_listing_has_the_given_depth_and_skips_denied_directories(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_text("xyz")
    (tmp_path / "a" / "back").symlink_to("..")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").write_text("secret")
    os.mkfifo(tmp_path / "fifo")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    listing = call(tmp_path, "list_directory", path=".", depth=9).content
    assert isinstance(listing, Listing)
    found = [
        (entry.name, entry.kind, entry.size if entry.kind == "file" else 0)
        for entry in listing.entries
    ]
    assert found == [
        (".ssh", "directory", 0), ("a", "directory", 0), ("fifo", "fifo", 0),
        ("\udcff", "directory", 0), ("a/b", "directory", 0), ("a/back", "link", 0),
        ("a/b/f", "file", 3),
    ]  # fmt: skip
    assert (listing.closed, listing.truncated) == ((".ssh",), False)
    shallow = call(tmp_path, "list_directory", path="a").content
    assert isinstance(shallow, Listing)
    assert [entry.name for entry in shallow.entries] == ["b", "back"]
    assert call(tmp_path, "list_directory", path=".ssh").outcome is ToolOutcome.BLOCKED
    assert call(tmp_path, "list_directory", path="fifo").outcome is ToolOutcome.NOT_A_DIRECTORY
    assert call(tmp_path, "list_directory", path="none").outcome is ToolOutcome.NOT_FOUND
    for depth in (0, 17):
        assert (
            call(tmp_path, "list_directory", path=".", depth=depth).outcome
            is ToolOutcome.INVALID_ARGUMENTS
        )


def test_a_listing_is_bounded(tmp_path: Path) -> None:
    for at in range(30):
        (tmp_path / f"{at // 10}").mkdir(exist_ok=True)
        (tmp_path / f"{at // 10}" / f"{at}").touch()
    tools = Tools(lenient(tmp_path), limits=Limits(entries=12))
    listing = call(tools, "list_directory", path=".", depth=2).content
    assert isinstance(listing, Listing)
    assert (len(listing.entries), listing.truncated) == (12, True)


def test_thousands_of_swaps_lead_no_write_outside(tmp_path: Path) -> None:
    """A-175, for writing: a directory of the path is a link to another directory every other
    moment.
    """
    work = race(tmp_path)
    outside = tmp_path / "outside"
    tools = Tools(lenient(work))
    seen: Counter[ToolOutcome] = Counter()

    async def write(count: mmap.mmap) -> None:
        while swaps(count) < SWAPS or seen.total() < WRITES:
            arguments = {"path": "d/f", "content": f"{seen.total()}"}
            result = await tools.call(ToolCall(name="write_file", arguments=arguments))
            seen[result.outcome] += 1

    with swapping(work, "d", "e") as count:
        asyncio.run(write(count))
    assert (outside / "f").read_text() == "OUTSIDE"
    assert names(outside) == {"f"}
    assert seen[ToolOutcome.OK] > 0
    refused = {
        ToolOutcome.BLOCKED,
        ToolOutcome.CHANGED,
        ToolOutcome.NOT_A_DIRECTORY,
        ToolOutcome.INVALID_ARGUMENTS,
    }
    assert set(seen) <= {ToolOutcome.OK, *refused}, seen
