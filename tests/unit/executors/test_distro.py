"""Distributions of WSL, with the wsl.exe of tests/support and a TLS server on loopback."""

from __future__ import annotations

import hashlib
import http.server
import os
import pwd
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.errors import ExecutorError
from paddock.executors import distro
from paddock.executors.distro import (
    download_rootfs,
    import_distro,
    is_wsl_available,
    list_distros,
    run_in_distro,
    set_up,
    unregister_distro,
)
from paddock.policy.formats.executor_modes import WslSandboxConfig
from tests.support.clients import serving_site
from tests.support.wsl import FakeWsl
from tests.system.network.certificates import TestAuthority

ROOTFS = b"\x1f\x8b not really an archive" * 1000
DIGEST = hashlib.sha256(ROOTFS).hexdigest()


@pytest.fixture(scope="module")
def authority() -> TestAuthority:
    return TestAuthority()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWsl:
    fake = FakeWsl(tmp_path / "windows")
    monkeypatch.setenv("PATH", f"{fake.directory}:/usr/bin:/bin")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    return fake


@pytest.fixture
def url(tmp_path: Path, authority: TestAuthority) -> Iterator[str]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "rootfs.tar.gz").write_bytes(ROOTFS)
    with serving_site(site, context=authority.server("localhost")) as served:
        yield f"https://localhost:{served.port}/rootfs.tar.gz"


def test_installation_of_wsl_is_detected(fake: FakeWsl) -> None:
    """A-180"""
    assert is_wsl_available()
    fake.program.unlink()
    assert not is_wsl_available()


def test_distributions_are_listed_imported_used_and_removed(fake: FakeWsl, tmp_path: Path) -> None:
    """A-180"""
    assert list_distros() == ()
    archive = tmp_path / "archive"
    archive.write_bytes(ROOTFS)
    for name in ("one", "two"):
        import_distro(name, str(tmp_path / "kept" / name), str(archive))
    assert list_distros() == ("one", "two")
    with pytest.raises(ExecutorError, match="already exists"):
        import_distro("one", str(tmp_path / "kept" / "one"), str(archive))
    ran = run_in_distro("one", 'echo "$HOME" >&2; exit 3')
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "", "/tmp\n")
    unregister_distro("one")
    assert list_distros() == ("two",)
    with pytest.raises(ExecutorError, match="no distribution"):
        unregister_distro("one")
    assert [
        "--import",
        "one",
        str(tmp_path / "kept" / "one"),
        str(archive),
        "--version",
        "2",
    ] in fake.argv


def test_an_archive_with_the_expected_hash_is_fetched(
    tmp_path: Path, authority: TestAuthority, url: str
) -> None:
    """A-143"""
    download_rootfs(url, DIGEST.upper(), str(tmp_path / "got"), context=authority.trust())
    assert (tmp_path / "got").read_bytes() == ROOTFS


def test_one_changed_byte_is_refused(tmp_path: Path, authority: TestAuthority, url: str) -> None:
    """A-143"""
    changed = bytearray(ROOTFS)
    changed[1234] ^= 1
    (tmp_path / "site" / "rootfs.tar.gz").write_bytes(changed)
    with pytest.raises(ExecutorError, match=f"not {DIGEST}"):
        download_rootfs(url, DIGEST, str(tmp_path / "got"), context=authority.trust())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site"]


def test_a_server_without_a_trusted_certificate_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ExecutorError, match="certificate"):
        download_rootfs(url, DIGEST, str(tmp_path / "got"), context=ssl.create_default_context())
    assert not (tmp_path / "got").exists()


def test_only_https_is_fetched(tmp_path: Path, authority: TestAuthority) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "rootfs.tar.gz").write_bytes(ROOTFS)
    with serving_site(site) as plain:
        address = f"http://localhost:{plain.port}/rootfs.tar.gz"
        for url in (address, (site / "rootfs.tar.gz").as_uri()):
            with pytest.raises(ExecutorError, match="only https"):
                download_rootfs(url, DIGEST, str(tmp_path / "got"))
        with (
            _redirecting(address, authority.server("localhost")) as secure,
            pytest.raises(ExecutorError, match=r"leads to http:.* only https"),
        ):
            download_rootfs(secure, DIGEST, str(tmp_path / "got"), context=authority.trust())
        assert plain.seen == []
    assert not (tmp_path / "got").exists()


@contextmanager
def _redirecting(to: str, context: ssl.SSLContext) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.HTTPServer):
        def finish_request(self, request: object, client_address: object) -> None:
            with context.wrap_socket(request, server_side=True) as encrypted:  # type: ignore[arg-type]
                super().finish_request(encrypted, client_address)

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://localhost:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def _config(url: str, tmp_path: Path) -> WslSandboxConfig:
    log = tmp_path / "log"
    return WslSandboxConfig(
        workspace=r"C:\A b",
        rootfs_url=url,
        rootfs_sha256=DIGEST,
        pre_install_commands=(f"echo first >>{log}", f"echo second >>{log}"),
        packages=("git", "libstdc++6"),
        package_install_command=f"echo {{packages}} >>{log}",
    )


def test_setup_runs_its_steps_in_order(
    fake: FakeWsl, tmp_path: Path, authority: TestAuthority, url: str
) -> None:
    """A-142, A-167"""
    output: list[str] = []
    assert set_up(_config(url, tmp_path), context=authority.trust(), say=output.append)
    assert [argv[0] for argv in fake.argv] == [
        "--list",
        "--import",
        "-d",
        "-d",
        "-d",
        "--terminate",
    ]
    assert fake.argv[1][1:3] == [
        "paddock-sandbox",
        f"{tmp_path}/local\\paddock\\wsl-distros\\paddock-sandbox",
    ]
    assert fake.argv[2][:6] == ["-d", "paddock-sandbox", "-u", "root", "--", "sh"]
    assert (tmp_path / "log").read_text() == "first\nsecond\ngit libstdc++6\n"
    assert [line.split()[0] for line in output] == [
        "fetching",
        "importing",
        "running",
        "running",
        "running",
    ]


def test_an_existing_distribution_is_kept_unless_forced(
    fake: FakeWsl, tmp_path: Path, authority: TestAuthority, url: str
) -> None:
    """A-144"""
    config = _config(url, tmp_path)
    (fake.directory / "distros" / "paddock-sandbox").touch()
    assert not set_up(config, context=authority.trust())
    assert fake.argv == [["--list", "--quiet"]]
    assert set_up(config, force=True, context=authority.trust())
    assert [argv[0] for argv in fake.argv[1:4]] == ["--list", "--unregister", "--import"]


def test_nothing_is_removed_or_imported_for_a_changed_archive(
    fake: FakeWsl, tmp_path: Path, authority: TestAuthority, url: str
) -> None:
    """A-143"""
    (fake.directory / "distros" / "paddock-sandbox").touch()
    (tmp_path / "site" / "rootfs.tar.gz").write_bytes(ROOTFS[:-1] + b"!")
    with pytest.raises(ExecutorError, match="SHA-256"):
        set_up(_config(url, tmp_path), force=True, context=authority.trust())
    assert [argv[0] for argv in fake.argv] == ["--list"]
    assert fake.distros == ["paddock-sandbox"]


def test_a_distribution_whose_set_up_failed_is_not_left(
    fake: FakeWsl, tmp_path: Path, authority: TestAuthority, url: str
) -> None:
    config = replace(_config(url, tmp_path), pre_install_commands=("echo no space >&2; exit 7",))
    with pytest.raises(ExecutorError, match=r"exit code 7: no space"):
        set_up(config, context=authority.trust())
    assert fake.distros == []


def test_windows_drives_can_be_unmounted_in_the_distribution(
    fake: FakeWsl,
    tmp_path: Path,
    authority: TestAuthority,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A-134"""
    etc, mounts = tmp_path / "etc", tmp_path / "mnt"
    etc.mkdir()
    monkeypatch.setattr(distro, "_ETC", str(etc))
    monkeypatch.setattr(distro, "AUTOMOUNT", str(mounts))
    whoami = pwd.getpwuid(os.getuid()).pw_name  # setup does not create an existing user
    config = replace(_config(url, tmp_path), automount=False, user=whoami)
    assert set_up(config, context=authority.trust())
    wanted = f"[user]\ndefault = {whoami}\n[automount]\nenabled = false\nmountFsTab = true\n"
    assert (
        etc / "wsl.conf"
    ).read_text() == wanted + "[interop]\nenabled = false\nappendWindowsPath = false\n"
    assert (
        etc / "fstab"
    ).read_text() == rf"C:\134A\040b {mounts}/c/A\040b drvfs rw,noatime 0 0" + "\n"
    assert (mounts / "c" / "A b").is_dir()
