"""Package installers without proxy variables, from indexes on the host."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.support.clients import ALLOWED, OTHER, Clients, Site
from tests.support.clients import serving_site as serve
from tests.support.features import need, need_program
from tests.support.sandbox import Word


def _wheel(directory: Path) -> None:
    """An index with a minimal package of one module."""
    name = "tiny-1.0-py3-none-any.whl"
    place = directory / "simple" / "tiny"
    place.mkdir(parents=True)
    (place / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with zipfile.ZipFile(place / name, "w") as wheel:
        wheel.writestr("tiny.py", "said = 'tiny'\n")
        wheel.writestr(
            "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")


def test_pip_installs_from_an_allowed_index(clients: Clients, tmp_path: Path) -> None:
    python, project = need_program("python3"), clients.sandbox.tree.project
    has_pip = (
        subprocess.run([python, "-c", "import pip"], check=False, capture_output=True).returncode
        == 0
    )
    need("pip", has_pip, "python3 has no pip")
    _wheel(tmp_path)

    def installing(site: Site, name: str, target: str) -> list[Word]:
        pip: list[Word] = [
            "/usr/bin/env",
            "PIP_CONFIG_FILE=/dev/null",
            python,
            "-m",
            "pip",
            "--isolated",
            "install",
        ]
        quiet = [
            "-q",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--retries",
            "0",
            "--timeout",
            "60",
        ]
        index = ["--index-url", site.at(name, "simple/"), "--trusted-host", name, "--no-deps"]
        return [*pip, *quiet, *index, "--target", target, "tiny"]

    with serve(tmp_path) as site:
        control = clients.outside(installing(site, OTHER, "control"))
        assert (project / "control/tiny.py").exists(), str(control)
        assert set(site.seen) == {OTHER}
        site.seen.clear()
        outcome = clients.inside(installing(site, ALLOWED, "inside"), site.port)
        assert (outcome.exit_code, (project / "inside/tiny.py").exists()) == (0, True), str(outcome)
        refused = clients.inside(installing(site, OTHER, "refused"), site.port)
        assert (refused.exit_code, (project / "refused/tiny.py").exists()) == (1, False), str(
            refused
        )
        assert f"denied: {OTHER}" in refused.stderr, str(refused)
        assert set(site.seen) == {ALLOWED}
        assert {("connect", "allow", ALLOWED), ("name", "deny", OTHER)} <= set(clients.decided())


def _tarball() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in (("package.json", '{"name":"tiny","version":"1.0.0"}'), ("index.js", "")):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def _registry(directory: Path, site: Site, name: str) -> None:
    """The metadata of a package: its versions and the URL of each tarball."""
    tarball = _tarball()
    (directory / "tiny.tgz").write_bytes(tarball)
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    dist = {"tarball": site.at(name, "tiny.tgz"), "integrity": f"sha512-{digest}"}
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    metadata = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (directory / "tiny").write_text(json.dumps(metadata))


def test_npm_installs_from_an_allowed_registry(clients: Clients, tmp_path: Path) -> None:
    npm, project = need_program("npm"), clients.sandbox.tree.project

    def installing(site: Site, name: str, target: str) -> list[Word]:
        _registry(tmp_path, site, name)
        clients.sandbox.tree.make(project / target)
        quiet = [
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel=error",
            "--fetch-retries=0",
        ]
        place: list[Word] = ["--prefix", project / target, "--cache", project / target / "cache"]
        return [npm, "install", *quiet, "--registry", site.at(name, ""), *place, "tiny"]

    with serve(tmp_path) as site:
        control = clients.outside(installing(site, OTHER, "control"))
        assert (project / "control/node_modules/tiny/index.js").exists(), str(control)
        assert set(site.seen) == {OTHER}
        site.seen.clear()
        outcome = clients.inside(installing(site, ALLOWED, "inside"), site.port)
        installed = (project / "inside/node_modules/tiny/index.js").exists()
        assert (outcome.exit_code, installed) == (0, True), str(outcome)
        refused = clients.inside(installing(site, OTHER, "refused"), site.port)
        assert refused.exit_code != 0
        assert f"denied: {OTHER}" in refused.stderr, str(refused)
        assert set(site.seen) == {ALLOWED}
        assert {("connect", "allow", ALLOWED), ("name", "deny", OTHER)} <= set(clients.decided())
