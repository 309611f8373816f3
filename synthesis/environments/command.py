"""Commands as agents write them."""

from __future__ import annotations


def tidy(command: str) -> str:
    """A command without what does not count: white space around and between, wrapping quotes, a full stop."""
    text, before = " ".join(command.split()), ""
    while text != before:
        before = text
        text = text.rstrip(" .!;,")
        if len(text) > 1 and text[0] == text[-1] and text[0] in "`'\"*":
            text = text[1:-1].strip()
    return text
