"""The pages of the documents, and what can be taken out of them to be tried."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks_of(page: str, kind: str) -> list[str]:
    """The blocks of a page of ``docs`` in one language, in order."""
    return [text for language, text in BLOCK.findall((ROOT / "docs" / page).read_text()) if language == kind]
