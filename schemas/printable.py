"""Text from data, file names and other programs, made safe to print on a terminal."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves the cursor, changes colours or turns the direction of writing; a line break and a tab do not count."""


def printable(text: str) -> str:
    """``text`` with the codes of characters that would act on a terminal: what data holds may come from anywhere."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
