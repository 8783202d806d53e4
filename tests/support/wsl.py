"""Copies the fake wsl.exe of this directory into a directory of a test."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

from tests.support.features import need

PROGRAM = Path(__file__).with_name("wsl.exe")


class FakeWsl:
    def __init__(self, directory: Path, *distros: str) -> None:
        need(
            "python3",
            Path("/usr/bin/python3").exists(),
            "no python3 on this machine, which the fake wsl.exe needs",
        )
        self.directory = directory
        self.program = directory / "wsl.exe"
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, self.program)
        (directory / "distros").mkdir()
        for name in distros:
            (directory / "distros" / name).touch()

    @property
    def calls(self) -> list[dict[str, Any]]:
        path = self.directory / "calls"
        return (
            [ast.literal_eval(line) for line in path.read_text().splitlines()]
            if path.exists()
            else []
        )

    @property
    def argv(self) -> list[list[str]]:
        return [call["argv"] for call in self.calls]

    @property
    def distros(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "distros").iterdir())
