"""Secrets are read from their source and put into requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.http.credentials import injection, injections, read
from paddock.policy.model import Credential, CredentialKind, InjectMode, Route, Source, Upstream


def credential(kind: CredentialKind, place: str) -> Credential:
    return Credential(kind=kind, place=place, source=Source(file="p.toml", line=3))


def route(mode: InjectMode | None = None, name: str | None = None) -> Route:
    return Route(
        name="x",
        upstream=Upstream(scheme="https", host="h", port=443),
        credential=credential(CredentialKind.ENV, "KEY"),
        inject_mode=mode,
        inject_name=name,
        source=Source(file="p.toml", line=1),
    )


@pytest.mark.parametrize(
    ("mode", "name", "secret", "header", "parameter", "value"),
    [
        (None, None, b"abcdefgh", b"authorization", None, b"Bearer abcdefgh"),
        (InjectMode.BEARER, None, b"abcdefgh", b"authorization", None, b"Bearer abcdefgh"),
        (InjectMode.HEADER, None, b"abcdefgh", b"authorization", None, b"Bearer abcdefgh"),
        (InjectMode.HEADER, "x-api-key", b"abcdefgh", b"x-api-key", None, b"abcdefgh"),
        (InjectMode.BASIC, "ada", b"abcdefgh", b"authorization", None, b"Basic YWRhOmFiY2RlZmdo"),
        (InjectMode.BASIC, None, b"ada:abcdefgh", b"authorization", None,
         b"Basic YWRhOmFiY2RlZmdo"),
        (InjectMode.QUERY, None, b"abc/defgh", None, "key", b"abc%2Fdefgh"),
        (InjectMode.QUERY, "token", b"abcdefgh", None, "token", b"abcdefgh"),
    ],
)  # fmt: skip
def test_each_inject_mode_sets_its_header_or_parameter(
    mode: InjectMode, name: str, secret: bytes, header: bytes, parameter: str, value: bytes
) -> None:
    put = injection(route(mode, name), secret)
    assert (put.header, put.parameter, put.value) == (header, parameter, value)
    assert "abc" not in repr(put)


def test_a_variable_of_the_parent_is_read() -> None:
    assert read(credential(CredentialKind.ENV, "KEY"), {"KEY": "abcdefgh\n"}) == b"abcdefgh"
    assert set(injections([route()], {"KEY": "abcdefgh"})) == {"x", "//h"}
    with pytest.raises(PolicyError, match=r"p\.toml:3: credential: the variable KEY is not set"):
        read(credential(CredentialKind.ENV, "KEY"), {})


@pytest.mark.parametrize(
    "secret",
    ["short", "x" * 5000, "two\nlines are no secret", "tab\tin the middle", "käse und brot"],
)
def test_a_secret_that_fits_no_header_is_refused(secret: str) -> None:
    with pytest.raises(PolicyError) as refused:
        read(credential(CredentialKind.ENV, "KEY"), {"KEY": secret})
    assert secret not in refused.value.message


def test_a_file_is_read_if_no_other_user_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("abcdefgh\n")
    file.chmod(0o600)
    assert read(credential(CredentialKind.FILE, str(file)), {}) == b"abcdefgh"
    file.chmod(0o622)
    with pytest.raises(PolicyError, match="other users can read or write"):
        read(credential(CredentialKind.FILE, str(file)), {})
    with pytest.raises(PolicyError, match="is not a file"):
        read(credential(CredentialKind.FILE, str(tmp_path)), {})
    with pytest.raises(PolicyError, match="No such file"):
        read(credential(CredentialKind.FILE, str(tmp_path / "none")), {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PolicyError, match="is not a file"):
        read(credential(CredentialKind.FILE, str(tmp_path / "pipe")), {})


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("abcdefgh\n")
    file.chmod(0o600)
    os.chown(file, 12345, 12345)
    with pytest.raises(PolicyError, match="belongs to another user"):
        read(credential(CredentialKind.FILE, str(file)), {})


def test_a_credential_command_runs_without_a_shell() -> None:
    assert (
        read(credential(CredentialKind.COMMAND, "printf '%s;$HOME`id`' abcdefgh"), {})
        == b"abcdefgh;$HOME`id`"
    )
    with pytest.raises(PolicyError, match="exit code 1"):
        read(credential(CredentialKind.COMMAND, "false"), {})
    with pytest.raises(PolicyError, match="no such program"):
        read(credential(CredentialKind.COMMAND, "./in-the-workspace"), {})


def test_a_missing_keyring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(PolicyError, match="the Python package keyring is not installed") as refused:
        read(credential(CredentialKind.KEYRING, "paddock/x"), {})
    assert refused.value.hint == "type `pip install keyring`"
