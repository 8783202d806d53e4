"""Secrets: where they are read, and their placeholders inside. Answers are searched for them
(secret_scrubber.py).

The sandbox gets a placeholder from the core: a random text without meaning. No table maps it to the
secret, so it is useless at every host. A route inserts the secret by itself, whatever the request
contains there.
"""

from __future__ import annotations

import base64
import importlib
import os
import shlex
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from paddock.core import process as core
from paddock.errors import EXIT_PADDOCK, PolicyError
from paddock.http.secret_scrubber import MIN_SECRET_CHARS, Scrubber, SecretSearch
from paddock.policy.model import Credential, CredentialKind, InjectMode, Route
from paddock.policy.trust import host_commands
from paddock.policy.trust.writable_history import EMPTY_HISTORY, WritableHistory

COMMAND_TIMEOUT_S = 60
MAX_SECRET_BYTES = 4096
# OpenSSL obeys these even if Python is told to ignore them
# (core/src/network/supervisor/http_helper.rs always passes some of them).
_TLS_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "OPENSSL_ENGINES",
)


@dataclass(frozen=True, slots=True)
class Injection:
    """The secret that a route inserts into its requests, in a ``header`` or a ``parameter``; the
    other one is None. Both are None if only answers are searched.
    """

    header: bytes | None
    parameter: str | None
    value: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    search: SecretSearch = field(
        repr=False
    )  # for every secret that goes to the same host, in answers

    def scrubber(self) -> Scrubber:
        return Scrubber(self.search)


def injections(
    routes: Iterable[Route],
    environ: Mapping[str, str],
    writable_history: WritableHistory = EMPTY_HISTORY,
    plan_fd: int | None = None,
) -> dict[str, Injection]:
    """By the names of routes, and by :func:`searched_at`. All secrets are read before anything
    runs: a missing secret stops the session. ``writable_history``: paths where commands could have
    planted a program. ``plan_fd``: the plan with the same list, for the core.
    """
    routes = tuple(routes)
    found = {
        route.name: injection(route, read(route.credential, environ, writable_history, plan_fd))
        for route in routes
        if route.credential is not None
    }
    # A host may return in one answer what it got by another route.
    for host in {route.upstream.host for route in routes if route.name in found}:
        there = [route.name for route in routes if route.upstream.host == host]
        search = SecretSearch(*dict.fromkeys(found[name].secret for name in there if name in found))
        alone = Injection(None, None, b"", b"", search)
        found |= {name: replace(found.get(name, alone), search=search) for name in there}
        found[searched_at(host)] = alone
    return found


def searched_at(host: str) -> str:
    """The key of a host that has no route of its own but gets a secret by one. No route has such a
    name.
    """
    return f"//{host}"


def injection(route: Route, secret: bytes) -> Injection:
    credential = route.credential
    assert credential is not None
    own = secret
    match route.inject_mode, route.inject_name:
        case (InjectMode.QUERY, name):
            value = quote(secret, safe="").encode("ascii")
            return Injection(
                None, name or "key", value, own, SecretSearch(_checked(own, credential))
            )
        case (InjectMode.BASIC, name):
            if name is not None:
                whole = name.encode() + b":" + secret
            elif b":" in secret:
                whole, own = secret, secret.partition(b":")[2]
            else:
                raise PolicyError(
                    f"route {route.name}: the credential is not of the form user:password",
                    where=str(credential.source),
                    hint='if the credential is only the password, write inject_name = "USER"',
                )
            header, value = b"authorization", b"Basic " + base64.b64encode(whole)
        case (InjectMode.HEADER, str(name)):
            header, value = name.encode("ascii"), secret
        case _:
            header, value = b"authorization", b"Bearer " + secret
    return Injection(header, None, value, own, SecretSearch(_checked(own, credential)))


def read(
    credential: Credential,
    environ: Mapping[str, str],
    writable_history: WritableHistory = EMPTY_HISTORY,
    plan_fd: int | None = None,
) -> bytes:
    match credential.kind:
        case CredentialKind.ENV:
            text = os.fsencode(environ.get(credential.place, ""))
            if not text:
                raise _missing(
                    credential,
                    f"the variable {credential.place} is not set",
                    hint=f"type `export {credential.place}=…`, then start the run again",
                )
        case CredentialKind.FILE:
            text = _file(credential, environ, writable_history)
        case CredentialKind.KEYRING:
            text = _keyring(credential, environ, writable_history)
        case CredentialKind.COMMAND:
            text = _command(credential, environ, writable_history, plan_fd)
    return _checked(text.rstrip(b"\r\n"), credential)


def _checked(secret: bytes, credential: Credential) -> bytes:
    if not MIN_SECRET_CHARS <= len(secret) <= MAX_SECRET_BYTES:
        raise _missing(
            credential,
            f"the secret has {len(secret)} characters; it must have {MIN_SECRET_CHARS} to "
            f"{MAX_SECRET_BYTES}",
        )
    if any(not 0x20 <= byte < 0x7F for byte in secret) or secret != secret.strip():
        raise _missing(credential, "the secret is not one line of printable ASCII characters")
    return secret


def _file(
    credential: Credential, environ: Mapping[str, str], writable_history: WritableHistory
) -> bytes:
    # The path is denied to the command by its name; another name would be open.
    real = os.path.realpath(credential.place)
    if real != credential.place:
        raise _missing(
            credential,
            f"the path {credential.place} contains a symbolic link",
            hint=f"write file:{real}",
        )
    # The secret determines the account of a request.
    if planted := host_commands.planted(real, environ, writable_history):
        raise _planted(credential, f"a command could have written {planted}")
    try:
        descriptor = os.open(
            credential.place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        )
    except OSError as error:
        raise _missing(credential, f"{credential.place}: {error.strerror}") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise _missing(credential, f"{credential.place} is not a file")
        if facts.st_uid not in (os.getuid(), 0):
            raise _missing(credential, f"{credential.place} belongs to another user")
        # Files of root that others can read (secrets of a container) are accepted.
        open_to_others = 0o077 if facts.st_uid == os.getuid() != 0 else 0o022
        if facts.st_mode & open_to_others:
            raise _missing(
                credential,
                f"other users can read or write {credential.place}",
                hint=f"type `chmod 600 {shlex.quote(credential.place)}`",
            )
        return os.read(descriptor, MAX_SECRET_BYTES + 3)
    finally:
        os.close(descriptor)


def _keyring(
    credential: Credential, environ: Mapping[str, str], writable_history: WritableHistory
) -> bytes:
    service, _, user = credential.place.partition("/")
    for variable, fallback in (
        ("XDG_CONFIG_HOME", "~/.config"),
        ("XDG_DATA_HOME", "~/.local/share"),
    ):
        # It names the Python module that is used.
        settings = os.path.join(
            environ.get(variable) or os.path.expanduser(fallback), "python_keyring/keyringrc.cfg"
        )
        if os.path.lexists(settings) and (
            planted := host_commands.planted(settings, environ, writable_history)
        ):
            raise _planted(credential, f"a command could have written {planted}")
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise _missing(
            credential,
            "the Python package keyring is not installed",
            hint="type `pip install keyring`",
        ) from None
    try:
        found: object = keyring.get_password(service, user)
    except Exception as error:  # each of its backends has its own exceptions
        raise _missing(credential, f"the keyring does not answer: {type(error).__name__}") from None
    if not isinstance(found, str) or not found:
        raise _missing(
            credential,
            "the keyring has no such secret",
            hint=shlex.join(["keyring", "set", service, user]),
        )
    return found.encode()


def _command(
    credential: Credential,
    environ: Mapping[str, str],
    writable_history: WritableHistory,
    plan_fd: int | None,
) -> bytes:
    words = shlex.split(credential.place)
    try:
        command = host_commands.command(words, environ, writable_history)
    except host_commands.Planted as planted:
        raise _planted(credential, f"a command could have written {planted}") from None
    except FileNotFoundError:
        raise _missing(credential, f"{words[0]}: no such program") from None
    except OSError as error:
        raise _missing(credential, f"{words[0]}: {error.strerror}") from None
    program = command.argv[0]
    argv, passed = list(command.argv), list[int]()
    if writable_history.trees:
        # The words do not name every file that the command uses. The core refuses the files
        # themselves.
        assert plan_fd is not None
        argv, passed = (
            [core.program(), "unreached", "--plan-fd", str(plan_fd), "--", *argv],
            [plan_fd],
        )
    # No pipe, because a background process of the command may keep it open.
    with open(os.memfd_create("complaint", os.MFD_CLOEXEC), "w+b") as complaint:
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaint,
                timeout=COMMAND_TIMEOUT_S,
                cwd=host_commands.COMMAND_CWD, env=command.environ, pass_fds=passed,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise _missing(
                credential, f"{program} did not answer within {COMMAND_TIMEOUT_S} s"
            ) from None
        except OSError as error:
            raise _missing(credential, f"{program}: {error.strerror}") from None
        complaint.seek(0)
        # Other programs may exit with this status too, but without our message.
        if done.returncode == EXIT_PADDOCK and (message := complaint.read()).startswith(
            b"paddock: "
        ):
            refused = core.refusal(message, done.returncode)
            raise _missing(
                credential, f"Paddock does not run {program}: {refused.message}", hint=refused.hint
            )
    if done.returncode != 0:
        unread = (
            "this program may not read or execute a file that a sandboxed command could "
            "have written; keep its files elsewhere"
        )
        raise _missing(
            credential,
            f"{program} failed (exit code {done.returncode})",
            hint=unread if writable_history.trees else None,
        )
    return done.stdout


def require_trusted(environ: Mapping[str, str], writable_history: WritableHistory) -> None:
    """Refuses TLS certificates and settings that a command could have written. They determine which
    upstreams are genuine, and those get the secrets.
    """
    for name in _TLS_VARIABLES:
        if name in environ and (
            found := host_commands.planted(environ[name], environ, writable_history)
        ):
            raise PolicyError(
                f"{name}: a command could have written {found}, which decides which certificates "
                "are valid",
                hint=f"type `unset {name}`, or set it to a file that no command can write",
            )


def _planted(credential: Credential, why: str) -> PolicyError:
    return _missing(
        credential,
        f"{why}, and Paddock would use it outside the sandbox",
        hint="give the path of a program that no command can write",
    )


def _missing(credential: Credential, why: str, *, hint: str | None = None) -> PolicyError:
    return PolicyError(
        f"credential: {why}",
        where=str(credential.source),
        hint=hint
        or f"the policy reads the secret from {credential}: put the secret there, or change that "
        "line",
    )
