"""Text that is not trusted, as it is shown: nothing in it controls how it is shown, and it is cut where it is long."""

from __future__ import annotations

import unicodedata

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of characters that control, format, or are none."""


def visible(text: str) -> str:
    """``text`` with characters that control or format by their codes, as those that turn the direction of writing."""
    return "".join(map(_seen, text))


def _seen(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in UNSEEN:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def finalize(value: object) -> object:
    """What a template puts in the place of an expression; what is markup already is our own."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def cut(text: str, limit: int) -> str:
    """``text``, or its beginning and how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def label(text: str, limit: int) -> str:
    """A name in one line of at most ``limit`` characters: of a long one its beginning and its end."""
    # Cut first: the text may have megabytes, of which little is shown.
    line = " ".join(visible(text[: 20 * limit]).split())
    if len(line) <= limit:
        return line
    end = limit // 2
    return f"{line[: limit - end - 1]}…{line[-end:]}"
