"""Secrets: where they are read, and what stands for them inside. Answers are searched for them (scrub.py).

The sandbox gets a placeholder from the core: a random text that means nothing anywhere. No table leads from it to the
secret, so it is useless at every host; a route puts the secret in by itself, whatever the request carries there.
"""

from __future__ import annotations

import base64
import importlib
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from paddock.errors import PolicyError
from paddock.network.scrub import SIZE_MIN, Scrubber, Search
from paddock.policy.model import Credential, CredentialKind, InjectMode, Route
from paddock.policy.reach import NOTHING_REACHED, Reach
from paddock.way import follow

COMMAND_TIMEOUT_S = 60
SIZE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Injection:
    """What a route puts into its requests. ``header`` or ``parameter`` is its place; the other is None."""

    header: bytes | None
    parameter: str | None
    value: bytes = field(repr=False)
    search: Search = field(repr=False)  # for the secret, in answers

    def scrubber(self) -> Scrubber:
        return Scrubber(self.search)


def injections(
    routes: Iterable[Route], environ: Mapping[str, str], reach: Reach = NOTHING_REACHED
) -> dict[str, Injection]:
    """By the names of routes. Everything is read before anything runs: a secret that is missing stops the session.
    ``reach``: where commands could have put a program that is not the one that is meant."""
    return {
        route.name: injection(route, read(route.credential, environ, reach))
        for route in routes
        if route.credential is not None
    }


def injection(route: Route, secret: bytes) -> Injection:
    credential = route.credential
    assert credential is not None
    core = secret
    match route.inject_mode, route.inject_name:
        case (InjectMode.QUERY, name):
            value = quote(secret, safe="").encode("ascii")
            return Injection(None, name or "key", value, Search(_checked(core, credential)))
        case (InjectMode.BASIC, name):
            if name is not None:
                whole = name.encode() + b":" + secret
            elif b":" in secret:
                whole, core = secret, secret.partition(b":")[2]
            else:
                raise PolicyError(
                    f"route {route.name}: the credential is no user:password",
                    where=str(credential.source),
                    hint='inject_name = "USER" if it is the password alone',
                )
            header, value = b"authorization", b"Basic " + base64.b64encode(whole)
        case (InjectMode.HEADER, str(name)):
            header, value = name.encode("ascii"), secret
        case _:
            header, value = b"authorization", b"Bearer " + secret
    return Injection(header, None, value, Search(_checked(core, credential)))


def read(credential: Credential, environ: Mapping[str, str], reach: Reach = NOTHING_REACHED) -> bytes:
    match credential.kind:
        case CredentialKind.ENV:
            text = os.fsencode(environ.get(credential.place, ""))
            if not text:
                raise _missing(credential, f"the variable {credential.place} is not set")
        case CredentialKind.FILE:
            text = _file(credential)
        case CredentialKind.KEYRING:
            text = _keyring(credential)
        case CredentialKind.COMMAND:
            text = _command(credential, environ.get("PATH", os.defpath), reach)
    return _checked(text.rstrip(b"\r\n"), credential)


def _checked(secret: bytes, credential: Credential) -> bytes:
    if not SIZE_MIN <= len(secret) <= SIZE_MAX:
        raise _missing(credential, f"a secret has {SIZE_MIN} to {SIZE_MAX} letters, this has {len(secret)}")
    if any(not 0x20 <= byte < 0x7F for byte in secret) or secret != secret.strip():
        raise _missing(credential, "the secret holds something else than one line of plain letters")
    return secret


def _file(credential: Credential) -> bytes:
    # The place is closed to the command by its name; by another name it would not be.
    real = os.path.realpath(credential.place)
    if real != credential.place:
        raise _missing(credential, f"{credential.place} is reached through a link", hint=f"write file:{real}")
    try:
        descriptor = os.open(credential.place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise _missing(credential, f"{credential.place}: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _missing(credential, f"{credential.place} is not a file")
        if facts.st_uid not in (os.getuid(), 0):
            raise _missing(credential, f"{credential.place} belongs to somebody else")
        # What root has laid there for others to read (a container's secrets) is root's business.
        open_to_others = 0o077 if facts.st_uid == os.getuid() != 0 else 0o022
        if facts.st_mode & open_to_others:
            raise _missing(
                credential, f"{credential.place} is open to others", hint=f"chmod 600 {shlex.quote(credential.place)}"
            )
        return os.read(descriptor, SIZE_MAX + 3)
    finally:
        os.close(descriptor)


def _keyring(credential: Credential) -> bytes:
    service, _, user = credential.place.partition("/")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise _missing(credential, "there is no keyring", hint="pip install 'paddock[keyring]'") from None
    try:
        found: object = keyring.get_password(service, user)
    except Exception as error:  # each of its backends has its own
        raise _missing(credential, f"the keyring does not answer: {type(error).__name__}") from None
    if not isinstance(found, str) or not found:
        raise _missing(credential, "the keyring has no such secret", hint=shlex.join(["keyring", "set", service, user]))
    return found.encode()


def _command(credential: Credential, search_path: str, reach: Reach) -> bytes:
    argv = shlex.split(credential.place)
    program = shutil.which(argv[0], path=search_path)
    if program is None or not os.path.isabs(program):
        raise _missing(credential, f"{argv[0]}: there is no such program")
    if reach.holds(follow(program)):
        raise _missing(
            credential,
            f"{program} lies where a command could have put it, and would run outside of the fence",
            hint="write the path of one that no command can write",
        )
    argv[0] = program
    try:
        # Not in the workspace, where a relative name would be the command's choice.
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise _missing(credential, f"{argv[0]} did not answer in {COMMAND_TIMEOUT_S} s") from None
    except OSError as error:
        raise _missing(credential, f"{argv[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise _missing(credential, f"{argv[0]} failed (exit code {done.returncode})")
    return done.stdout


def _missing(credential: Credential, why: str, *, hint: str | None = None) -> PolicyError:
    return PolicyError(f"credential: {why}", where=str(credential.source), hint=hint)
