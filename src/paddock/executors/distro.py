"""WSL distributions: list, create from an archive with a known digest, remove.

download (https, SHA-256) ─► import ─► wsl.conf ─► pre-install commands ─► packages ─► terminate

Nothing is removed before its replacement exists. A distribution whose set-up failed is removed
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import posixpath
import shlex
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from paddock.errors import ExecutorError
from paddock.executors.remote_client import scripted
from paddock.executors.wsl import (
    AUTOMOUNT,
    WslWorkspace,
    checked_distro,
    checked_shell,
    client_environment,
    decoded,
    in_distro,
    wsl_program,
)
from paddock.policy.formats.executor_modes import WslSandboxConfig

MAX_ROOTFS_BYTES = 4 * 1024**3
_ETC = "/etc"
_CALL_TIMEOUT_S = 120.0
_INSTALL_TIMEOUT_S = 1800.0
_FETCH_TIMEOUT_S = 60.0  # longest silence of the server
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DistroResult:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def is_wsl_available() -> bool:
    """A Windows without WSL has a wsl.exe that can only install WSL."""
    try:
        return _wsl("--status").ok
    except ExecutorError:
        return False


def list_distros() -> tuple[str, ...]:
    listed = _wsl("--list", "--quiet")
    # Without any distribution it prints an error on stdout.
    return (
        tuple(name for line in listed.stdout.splitlines() if (name := line.strip()))
        if listed.ok
        else ()
    )


def import_distro(name: str, install_path: str, archive: str) -> None:
    _done(
        _wsl(
            "--import",
            checked_distro(name),
            install_path,
            archive,
            "--version",
            "2",
            timeout_s=_INSTALL_TIMEOUT_S,
        ),
        name,
    )


def unregister_distro(name: str) -> None:
    """Removes the distribution and all of its files."""
    _done(_wsl("--unregister", checked_distro(name)), name)


def terminate_distro(name: str) -> None:
    _done(_wsl("--terminate", checked_distro(name)), name)


def run_in_distro(
    name: str,
    command: str,
    *,
    shell: str = "sh",
    user: str | None = None,
    timeout_s: float = _CALL_TIMEOUT_S,
) -> DistroResult:
    script = scripted([checked_shell(shell), "-c", command], "/", {})
    argv, sent = in_distro(checked_distro(name), shell, script, program=wsl_program(), user=user)
    return _called(argv, sent, timeout_s)


def download_rootfs(
    url: str, sha256: str, to: str, *, context: ssl.SSLContext | None = None
) -> None:
    """Downloads into the file ``to``, which exists only if the digest is correct."""
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _OnlyHttps())
    digest = hashlib.sha256()
    try:
        if not url.startswith("https://"):
            raise ExecutorError(f"{url}: Paddock fetches only https addresses")
        with contextlib.ExitStack() as held:
            answer = held.enter_context(opener.open(url, timeout=_FETCH_TIMEOUT_S))
            directory = held.enter_context(
                tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(to)))
            )
            part = os.path.join(directory, "part")
            size = 0
            with open(part, "wb") as file:
                while chunk := answer.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > MAX_ROOTFS_BYTES:
                        raise ExecutorError(f"{url}: larger than {MAX_ROOTFS_BYTES} bytes")
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256.lower():
                raise ExecutorError(
                    f"{url}: its SHA-256 is {digest.hexdigest()}, not {sha256.lower()}",
                    hint="the file at this address changed; nothing was installed",
                )
            os.replace(part, to)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ExecutorError(f"cannot fetch {url}: {reason}") from None


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise ExecutorError(
                f"{req.full_url} leads to {newurl}: Paddock fetches only https addresses"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def set_up(
    config: WslSandboxConfig,
    *,
    force: bool = False,
    context: ssl.SSLContext | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """False: the distribution exists and was not changed. ``force``: it is removed and created
    again.
    """
    there = config.distro in list_distros()
    if there and not force:
        return False
    workspace = WslWorkspace(
        config.workspace if config.workspace is not None else os.getcwd(), AUTOMOUNT
    )
    with tempfile.TemporaryDirectory() as directory:
        archive = os.path.join(directory, "rootfs.tar.gz")
        say(f"fetching {config.rootfs_url}")
        download_rootfs(config.rootfs_url, config.rootfs_sha256, archive, context=context)
        if there:
            say(f"removing {config.distro}")
            unregister_distro(config.distro)
        say(f"importing {config.distro} into {config.installed_in}")
        import_distro(config.distro, config.installed_in, archive)
    try:
        for line in (
            *_settings(config, workspace),
            *config.pre_install_commands,
            *_installing(config),
        ):
            say(f"running {line.splitlines()[0]}")
            ran = run_in_distro(
                config.distro, line, shell=config.shell, user="root", timeout_s=_INSTALL_TIMEOUT_S
            )
            if not ran.ok:
                raise ExecutorError(
                    f"{line}: exit code {ran.exit_code}: "
                    f"{(ran.stderr or ran.stdout).strip()[-2000:]}"
                )
        terminate_distro(config.distro)
    except BaseException:
        with contextlib.suppress(ExecutorError):
            unregister_distro(config.distro)
        raise
    return True


def _settings(config: WslSandboxConfig, workspace: WslWorkspace) -> list[str]:
    """Shell lines that write the settings of the distribution, if there are any."""
    lines, settings = [], ""
    if config.user is not None:
        made = f"adduser -D {config.user} 2>/dev/null || useradd --create-home {config.user}"
        lines.append(f"id {config.user} >/dev/null 2>&1 || {made}")
        settings += f"[user]\ndefault = {config.user}\n"
    if not config.automount:
        # Only the workspace of Windows is mounted. A process that is root inside can still mount
        # the rest.
        settings += "[automount]\nenabled = false\nmountFsTab = true\n"
        settings += "[interop]\nenabled = false\nappendWindowsPath = false\n"
        table = f"{_field(workspace.windows)} {_field(workspace.linux)} drvfs rw,noatime 0 0\n"
        lines.append(
            f"mkdir -p {shlex.quote(workspace.linux)} && printf %s {shlex.quote(table)} "
            f">{_ETC}/fstab"
        )
    if settings:
        lines.append(f"printf %s {shlex.quote(settings)} >{_ETC}/wsl.conf")
    return lines


def _field(text: str) -> str:
    """Escapes a field for fstab(5)."""
    return text.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


def _installing(config: WslSandboxConfig) -> list[str]:
    return [config.install_line] if config.packages else []


def _wsl(*words: str, timeout_s: float = _CALL_TIMEOUT_S) -> DistroResult:
    return _called([wsl_program(), *words], b"", timeout_s)


def _called(argv: list[str], sent: bytes, timeout_s: float) -> DistroResult:
    try:
        done = subprocess.run(
            argv, input=sent, capture_output=True, env=client_environment(), timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ExecutorError(
            f"wsl.exe did not answer within {timeout_s:.0f} s: {posixpath.basename(argv[-1])}"
        ) from None
    except OSError as error:
        raise ExecutorError(
            f"cannot start wsl.exe: {error.strerror}", hint="type `wsl --install` to install WSL"
        ) from None
    return DistroResult(
        exit_code=done.returncode, stdout=decoded(done.stdout), stderr=decoded(done.stderr)
    )


def _done(ran: DistroResult, name: str) -> None:
    if not ran.ok:
        raise ExecutorError(
            f"wsl: {name}: {(ran.stdout + ran.stderr).strip() or f'exit code {ran.exit_code}'}"
        )
