"""The home, workspace and config directories of a user, in a temporary directory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy import Origin, Policy, Request, load
from paddock.policy.trust.file_trust import trust
from paddock.policy.trust.trusted_list import TrustedList


@dataclass
class UserDirs:
    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    trusted: TrustedList = field(default_factory=TrustedList)

    def __post_init__(self) -> None:
        for directory in (self.home, self.work, self.config, self.system):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def config(self) -> Path:
        return self.home / ".config" / "paddock"

    @property
    def system(self) -> Path:
        return self.root / "etc"

    @property
    def origin(self) -> Origin:
        return Origin(
            cwd=str(self.work),
            uid=os.getuid(),
            gid=os.getgid(),
            user="ada",
            home=str(self.home),
            environ=self.environ,
            machine="x86_64",
            system_dir=str(self.system),
            trusted=self.trusted,
        )

    def write(self, path: Path, text: str | bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(0o644)
        return path

    def user(self, name: str, text: str | bytes) -> Path:
        return self.write(self.config / name, text)

    def etc(self, name: str, text: str | bytes) -> Path:
        return self.write(self.system / name, text)

    def file(self, name: str, text: str | bytes) -> Path:
        """A policy file that is neither in the workspace nor in a config directory."""
        return self.write(self.root / "policies" / name, text)

    def trust(self, path: Path) -> None:
        trust(str(path), self.origin)
        self.trusted = TrustedList.read(self.origin.state_dir, os.getuid())

    def load(self, request: Request | None = None) -> Policy:
        return load(request or Request(), self.origin)

    def load_file(self, path: Path | str, request: Request | None = None) -> Policy:
        return self.load(replace(request or Request(), policies=(str(path),)))

    def load_text(self, text: str | bytes, name: str = "p.toml") -> Policy:
        return self.load_file(self.file(name, text))

    def refuse(self, text: str | bytes, name: str = "p.toml") -> PolicyError:
        with pytest.raises(PolicyError) as caught:
            self.load_text(text, name)
        return caught.value

    def refuse_request(self, request: Request) -> PolicyError:
        with pytest.raises(PolicyError) as caught:
            self.load(request)
        return caught.value


def patterns(policy: Policy, access: object = None) -> list[str]:
    return [
        grant.pattern
        for grant in policy.filesystem.grants
        if access is None or grant.access is access
    ]


def words(text: str) -> list[str]:
    return text.split()
