"""Parses one written host to a Destination, in the only spelling that the core knows.

``name``, ``*.name`` (every name below it, at any depth), ``*`` (every name, no address), an
address, a block of addresses (CIDR), each with an optional ``:port``; or ``@group``. Names are in
lower case, without a final dot, in the ASCII form of IDNA. Ambiguous text (``0x7f.1``, ``127.1``, a
URL) is an error.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from paddock.policy.formats.expand import wrong
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.model import COMMAND_LINE, Destination, Source, Sourced

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

GROUPS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host_groups.toml")
DISCOVERED = ("crates", "debian", "go", "npm", "pypi")  # by host/registries.py

_ROUTES = ".paddock.internal"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_NUMBER = re.compile(r"0x.*|[0-9]+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/@]*@)?([^/?#]*)")
_OTHER_DOTS = "\u3002\uff0e\uff61"  # IDNA treats them as dots
_FORMS = "write a name, *.name, an address, a block of addresses or @group, and optionally :PORT"

# Never reachable, despite any policy: there a cloud machine finds its own credentials. The core
# decides again (core/src/network/rules/address.rs), also for names that lead there.
_METADATA = ("metadata.google.internal", "metadata.azure.internal", "metadata", "instance-data",
             "instance-data.ec2.internal")  # fmt: skip
_METADATA_BLOCKS = ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32",
                    "168.63.129.16/32",
                    "192.0.0.192/32")  # fmt: skip


def allowed_host(written: str, source: Source) -> Sourced[Destination]:
    host = read_host(written, source)
    if _is_metadata(host.value.host):
        raise wrong(
            source,
            f"{written!r} is always denied: cloud machines get their credentials from this address",
            hint="take it out",
        )
    if f".{host.value.host}".endswith(_ROUTES):
        raise wrong(
            source,
            f"{written!r}: names that end so belong to routes",
            hint="add a route: [network.routes.NAME]",
        )
    return host


def read_host(written: str, source: Source) -> Sourced[Destination]:
    if written.startswith("@"):
        return Sourced(Destination(host=_group(written, source)), source)
    if "," in written:
        raise wrong(source, f"not a host but a list: {written!r}", hint=_one_each(written, source))
    if url := _URL.match(written):
        raise wrong(source, f"not a host but a URL: {written!r}", hint=_write(url[1]))
    host, port = _split(written, source)
    if host == "*":
        return Sourced(Destination(host="*", port=port), source)
    if ":" in host or "/" in host or host.replace(".", "").isdigit():
        return Sourced(Destination(host=_address(host, written, source), port=port), source)
    star = "*." if host.startswith("*.") else ""
    name = _name(host.removeprefix(star), written, source)
    return Sourced(Destination(host=star + name, port=port), source)


@cache  # part of the installation, like the code
def groups() -> Mapping[str, tuple[str, ...]]:
    import tomllib

    with open(GROUPS, "rb") as file:
        return {name: tuple(hosts) for name, hosts in tomllib.load(file).items()}


def _group(written: str, source: Source) -> str:
    known = sorted(f"@{name}" for name in (*groups(), *DISCOVERED))
    if written not in known:
        hint = did_you_mean(written, known) or f"known groups: {', '.join(known)}"
        raise wrong(source, f"unknown group {written!r}", hint=hint)
    return written


def _split(written: str, source: Source) -> tuple[str, int | None]:
    """``[v6]:port``; a single colon precedes a port, several belong to an address."""
    if written.startswith("["):
        host, closed, rest = written[1:].partition("]")
        if not closed or ":" not in host or (rest and not rest.startswith(":")):
            raise wrong(
                source, f"not an address in brackets: {written!r}", hint="write [2001:db8::1]:443"
            )
        return host, _port(rest[1:], written, source) if rest else None
    host, colon, port = written.partition(":")
    if not colon or ":" in port:
        return written, None
    return host, _port(port, written, source)


def _port(text: str, written: str, source: Source) -> int:
    plain = text.isascii() and text.isdecimal() and not text.startswith("0") and len(text) <= 5
    if not plain or int(text) > 65535:
        hint = (
            "a host has no path" if "/" in text else "write a number from 1 to 65535 after the ':'"
        )
        raise wrong(source, f"not a port: {text!r} in {written!r}", hint=hint)
    return int(text)


def _address(text: str, written: str, source: Source) -> str:
    from ipaddress import ip_address, ip_network

    try:
        found = ip_network(text) if "/" in text else ip_address(text)
    except ValueError:
        _refuse_address(text, written, source)
    first = found if hasattr(found, "ipv4_mapped") else getattr(found, "network_address", None)
    if "%" in text:
        raise wrong(
            source,
            f"an address with an interface (scope id) is not supported: {written!r}",
            hint=_write(text.partition("%")[0]),
        )
    if getattr(first, "ipv4_mapped", None) is not None:
        raise wrong(
            source, f"an IPv4 address written as IPv6: {written!r}", hint="write it as IPv4"
        )
    return str(found)


def _refuse_address(text: str, written: str, source: Source) -> NoReturn:
    from ipaddress import ip_address, ip_network

    address, slash, _ = text.partition("/")
    try:
        hint: str | None = _write(
            str(ip_network(text, strict=False))
        )  # host bits after those of the block
    except ValueError:
        try:
            ip_address(address)
            hint = "write the length of a block after the '/': 10.0.0.0/8" if slash else None
        except ValueError:
            hint = "write four decimal numbers without leading zeros, or an IPv6 address"
            if slash and not _NUMBER.fullmatch(address.rpartition(".")[2].lower()):
                raise wrong(
                    source, f"a host has no path: {written!r}", hint=_write(address)
                ) from None
    raise wrong(source, f"not an address: {written!r}", hint=hint) from None


def _name(text: str, written: str, source: Source) -> str:
    if "*" in text:
        raise wrong(
            source, f"a '*' must be alone or at the start, as '*.': {written!r}", hint=_FORMS
        )
    if not text or any(letter.isspace() or not letter.isprintable() for letter in text):
        bare = "".join(text.split())
        raise wrong(
            source,
            f"not a host: {written!r}",
            hint=_write(bare) if bare.isprintable() and bare else _FORMS,
        )
    if "@" in text:
        raise wrong(
            source, f"a host has no user: {written!r}", hint=_write(text.rpartition("@")[2])
        )
    labels = [_label(label, written, source) for label in text.lower().removesuffix(".").split(".")]
    name = ".".join(labels)
    if _NUMBER.fullmatch(labels[-1]):
        raise wrong(
            source,
            f"some programs read {written!r} as an address",
            hint="write four decimal numbers without leading zeros, or an IPv6 address",
        )
    if len(name) > 253:
        raise wrong(source, f"the name has more than 253 characters: {written!r}")
    return name


def _label(label: str, written: str, source: Source) -> str:
    if not label:
        raise wrong(
            source,
            f"the name has an empty part: {written!r}",
            hint="write one dot between two parts",
        )
    encoded = label if label.isascii() else _ascii(label, written, source)
    if len(encoded) > 63:
        raise wrong(source, f"a part of the name has more than 63 characters: {written!r}")
    if not _LETTERS.issuperset(encoded):
        raise wrong(source, f"not a host: {written!r}", hint=_FORMS)
    return encoded


def _ascii(label: str, written: str, source: Source) -> str:
    """Python implements the older IDNA. If the newer one means another name (``ß``), or if
    characters would be replaced, the reverse conversion does not give the written name.
    """
    from encodings import idna
    from unicodedata import normalize

    try:
        encoded = idna.ToASCII(label).decode("ascii")
        same = idna.ToUnicode(encoded) == normalize("NFC", label)
    except UnicodeError:
        same = False
    if not same or any(dot in label for dot in _OTHER_DOTS):
        raise wrong(source, f"programs read these letters as different hosts: {written!r}",
                    hint="write its ASCII form, xn--…")  # fmt: skip
    return encoded


def _is_metadata(host: str) -> bool:
    if host in _METADATA:
        return True
    if ":" not in host and not host.replace(".", "").replace("/", "").isdigit():
        return False
    from ipaddress import ip_network

    asked = ip_network(host)
    return any(_inside(asked, ip_network(block)) for block in _METADATA_BLOCKS)


def _inside(asked: IPv4Network | IPv6Network, block: IPv4Network | IPv6Network) -> bool:
    if asked.version != block.version:
        return False
    return asked.network_address in block and asked.prefixlen >= block.prefixlen


def _one_each(written: str, source: Source) -> str:
    hosts = [host for part in written.split(",") if (host := part.strip())]
    if source.file != COMMAND_LINE:
        return "write each host in its own quotation marks"
    return (
        "write each host separately: "
        f"{' '.join(f'{source.key} {shlex.quote(host)}' for host in hosts)}"
    )


def _write(host: str) -> str:
    return f"write {host!r}"
