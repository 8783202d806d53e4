"""Every relative link in a Markdown file leads to a file, and its anchor to a heading there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "container/*.md")
    for path in sorted(ROOT.glob(pattern))
]
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes from headings, and those that are written as HTML."""
    text = CODE_BLOCK.sub("", document.read_text("utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


def broken(document: Path) -> list[str]:
    found = []
    for link in LINK.findall(CODE_BLOCK.sub("", document.read_text("utf-8"))):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def test_the_documents_are_found() -> None:
    names = {document.name for document in DOCUMENTS}
    assert {"README.md", "SECURITY.md", "policy.md", "names.md"} <= names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken(document) == []
