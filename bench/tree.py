"""Two source trees: a small one, and one large enough to measure file work.

The large one has some thousand small files under git, and C files to compile.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.tester import Tester

DIRECTORIES, FILES_EACH, C_FILES = 200, 40, 6
FILES = DIRECTORIES * FILES_EACH


def grow(root: Path, tester: Tester) -> None:
    line = "the quick brown fox jumps over the lazy dog {}\n"
    for directory in range(DIRECTORIES):
        place = root / f"part-{directory % 16:02}" / f"section-{directory:03}"
        place.mkdir(parents=True)
        for file in range(FILES_EACH):
            text = "".join(line.format(directory * file + row) for row in range(30 + file))
            (place / f"file-{file:02}.txt").write_text(text)
    sources = root / "sources"
    sources.mkdir()
    for file in range(C_FILES):
        functions = "".join(
            f'int f{file}_{n}(int x) {{ return x * {n} + printf("%d\\n", x); }}\n'
            for n in range(60)
        )
        (sources / f"unit{file}.c").write_text(
            f"#include <stdio.h>\n#include <stdlib.h>\n{functions}"
        )
    _commit(root, tester)


def sow(root: Path, tester: Tester) -> None:
    (root / "src").mkdir()
    for name in ("README.md", "Makefile", "src/main.c", "src/part.c"):
        (root / name).write_text(f"{name}\n")
    _commit(root, tester)
    (root / ".env").write_text("old")
    tester.give(root)


def _commit(root: Path, tester: Tester) -> None:
    tester.give(root)
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for words in (
        ["init", "-q"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "tree"],
        ["status"],
    ):
        done = tester.run(["git", *words], cwd=root, timeout_s=120)
        assert done.exit_code == 0, str(done)


def jobs(root: Path) -> dict[str, list[str]]:
    sources = sorted(str(path) for path in (root / "sources").glob("*.c"))
    return {
        "git status": ["/usr/bin/git", "-C", str(root), "status", "--porcelain"],
        "find": ["/usr/bin/find", str(root), "-type", "f", "-size", "+100k"],
        "grep -r": ["/usr/bin/grep", "-rc", "--exclude-dir=.git", "lazy dog 77", str(root)],
        "tar": ["/usr/bin/tar", "-cf", "/dev/null", "--exclude=.git", "-C", str(root), "."],
        "compile": ["/usr/bin/cc", "-O1", "-fsyntax-only", *sources],
    }
