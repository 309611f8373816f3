"""Contents of messages that are lists of parts: texts and images, as in OpenAI messages.

How a list was put together is noted as an outline: a list with the length of each plain text, and for any other part
the part itself with the length in the place of its text, or without the address of its image.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from schemas.formats.format import FormatError
from schemas.record import JsonObject


class Image(NamedTuple):
    """The path or address of an image in a message."""

    url: str


Outline = list[Any]


def read_parts(parts: list[Any]) -> tuple[list[str | Image], Outline]:
    """Texts (neighbours joined) and images, at least one text or image; and the outline of ``parts``.

    Raises ``FormatError`` (``unknown_part``) for anything else.
    """
    found: list[str | Image] = []
    outline: Outline = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            text = part["text"]
            if found and isinstance(found[-1], str):
                found[-1] += text
            else:
                found.append(text)
            outline.append(len(text) if len(part) == 2 else {**part, "text": len(text)})
        elif kind == "image_url" and (url := _address(part)) is not None:
            found.append(Image(url))
            outline.append({**part, "image_url": _without_address(part["image_url"])})
        else:
            raise FormatError("unknown_part", f"expected a part of type text or image_url, got {part!r:.80}")
    return found or [""], outline


def opening_of(content: Any) -> str:
    """The text that the content of a message opens with, in parts or not; empty if it opens with anything else."""
    first = content[0] if isinstance(content, list) and content else content
    text = first.get("text") if isinstance(first, dict) else first
    return text if isinstance(text, str) else ""


def write_parts(found: list[str | Image], outline: Outline) -> list[JsonObject]:
    """The list of parts of which ``read_parts`` made ``found`` and ``outline``."""
    parts = []
    rest = iter(found)
    text = ""
    for entry in outline:
        image = isinstance(entry, dict) and entry["type"] == "image_url"
        if image:
            parts.append(_with_address(entry, next(rest)))
            text = ""
            continue
        if not (parts and parts[-1]["type"] == "text"):
            text = str(next(rest))
        length = entry if isinstance(entry, int) else entry["text"]
        part = {"type": "text"} if isinstance(entry, int) else dict(entry)
        parts.append({**part, "text": text[:length]})
        text = text[length:]
    return parts


def spans(outline: Outline) -> int:
    """How many texts and images ``outline`` is of: so many items the message became."""
    kinds = ["image" if isinstance(entry, dict) and entry["type"] == "image_url" else "text" for entry in outline]
    joined = sum(one == other == "text" for one, other in pairwise(kinds))
    return max(len(kinds) - joined, 1)


def _address(part: JsonObject) -> str | None:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) else None


def _without_address(image: Any) -> JsonObject | None:
    return {key: value for key, value in image.items() if key != "url"} if isinstance(image, dict) else None


def _with_address(entry: JsonObject, image: str | Image) -> JsonObject:
    url = image.url if isinstance(image, Image) else image
    rest = entry["image_url"]
    return {**entry, "image_url": url if rest is None else {**rest, "url": url}}
