"""Text is written back byte for byte, in every encoding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.tools.result import ToolFailure, ToolOutcome
from paddock.tools.text_encoding import ENCODINGS, Document, named


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="a\r\né\ufeff", max_size=40).map(str.encode))
def test_every_text_is_written_back_as_it_was(data: bytes) -> None:
    try:
        document = Document.read(data, "f")
    except ToolFailure:
        return
    assert document.written(document.text) == data


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"plain\n", "utf-8", "plain\n"),
        (b"", "utf-8", ""),
        (b"\xef\xbb\xbfmarked", "utf-8", "marked"),
        ("häß\n".encode("utf-16"), "utf-16-le", "häß\n"),
        (b"\xfe\xff" + "häß\r\n".encode("utf-16-be"), "utf-16-be", "häß\n"),
        ("häß".encode("utf-32"), "utf-32-le", "häß"),
    ],
)
def test_the_mark_tells_the_encoding_and_stays(data: bytes, encoding: str, text: str) -> None:
    document = Document.read(data, "f")
    assert (document.encoding, document.text) == (encoding, text)
    assert document.written(text) == data


def test_a_binary_file_is_reported_as_such() -> None:
    for data, outcome in ((b"\x7fELF\0\0", ToolOutcome.BINARY), (b"caf\xe9", ToolOutcome.ENCODING)):
        with pytest.raises(ToolFailure) as failed:
            Document.read(data, "f")
        assert failed.value.outcome is outcome
    assert "byte 3" in failed.value.message
    assert Document.read(b"caf\xe9", "f", "cp1252").text == "café"
    with pytest.raises(ToolFailure, match="not utf-16-le"):
        Document.read(b"abc", "f", "utf-16-le")


@pytest.mark.parametrize(
    "name", ["zip", "idna", "unicode_escape", "rot13", "utf-7", "nothing", "", "a\0b", "utf-16"]
)
def test_no_other_codec_is_taken_for_an_encoding(name: str) -> None:
    with pytest.raises(ToolFailure, match="unknown encoding"):
        named(name)


def test_the_encodings_are_named_as_python_names_them() -> None:
    assert [named(name) for name in ENCODINGS] == list(ENCODINGS)
    assert named("Latin-1") == "iso8859-1"


def test_line_ends_are_kept_where_they_are_one_kind() -> None:
    windows = Document.read(b"a\r\nb\r\n", "f")
    assert windows.text == "a\nb\n"
    assert windows.written("x\ny\r\n") == b"x\r\ny\r\n"
    for mixed in (b"a\r\nb\n", b"a\r\r\nb\r\n", b"a\rb\r", b"\n"):
        document = Document.read(mixed, "f")
        assert document.text.encode() == mixed
        assert document.written("x\n") == b"x\n"


def test_a_character_outside_the_encoding_is_an_error() -> None:
    with pytest.raises(
        ToolFailure, match=r"U\+20AC \(character 1\) cannot be written in iso8859-1"
    ):
        Document(text="", encoding="iso8859-1").written("a€")
    with pytest.raises(ToolFailure, match=r"U\+D800"):
        Document(text="").written("\ud800")
