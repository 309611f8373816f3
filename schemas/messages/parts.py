"""Contents of messages that are lists of parts: texts and images, as in OpenAI messages.

How a list was put together is noted as an outline: a list with the length of each plain text, and for any other part
the part itself with the length in the place of its text, or without the address of its image.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from agentmill.schemas.format import FormatError, Remarks
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyItem, ImageObservation, WebObservation


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


def image_remarks(content: Sequence[AnyItem]) -> Remarks:
    """``missing_image_path`` for an empty one, ``unsafe_image_path`` for one that leads out of the data set's folder.

    Addresses with a scheme (``https:``, ``data:``) are no paths.
    """
    remarks = Remarks()
    for item in content:
        image = item.image_observation if isinstance(item, WebObservation) else item
        if isinstance(image, ImageObservation):
            remarks["missing_image_path"] += not image.content
            remarks["unsafe_image_path"] += _leads_out(image.content)
    return +remarks


def _leads_out(path: str) -> bool:
    scheme, colon, _ = path.partition(":")
    # A single letter before a colon is a drive of Windows, which is a path.
    if colon and len(scheme) > 1 and scheme.isalpha() and scheme != "file":
        return False
    # As both systems read it: a data set may be used on another one than it was made on.
    parts = (PurePosixPath(path), PureWindowsPath(path))
    return scheme == "file" or any(".." in each.parts or each.is_absolute() or each.drive for each in parts)


def text_of(given: JsonObject, name: str, rest: JsonObject) -> str | None:
    """The text that ``given`` has under ``name``; a value of another type, unless null, is kept in ``rest``."""
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    rest[name] = value
    return None


def count_of(value: Any) -> int | None:
    """``value``, if it is an integer of at most 64 bits."""
    # Not isinstance: a bool is an int in Python.
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def number_of(value: Any) -> float | None:
    """``value`` as a float, if it is a number that one can hold."""
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    # JSON integers may be larger than any float.
    except OverflowError:
        return None


REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of the field for hidden reasoning, the usual one first."""

_REASONING = frozenset(REASONING)


def reasoning_of(message: JsonObject) -> tuple[str | None, str | None]:
    """The name of the field with the reasoning, and the reasoning."""
    if not _REASONING.isdisjoint(message):
        for name in REASONING:
            if isinstance(message.get(name), str):
                return name, message[name]
    return None, None


def speaker_of(message: JsonObject) -> str | None:
    """The name of who speaks. Raises ``FormatError`` (``invalid``) if it is no text."""
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise FormatError("invalid", f"the name of who speaks is {name!r:.60}, expected a text")
    return name


def renamed(fields: JsonObject, taken: Collection[str]) -> JsonObject:
    """``fields``, those whose names are ``taken`` under names of their own."""
    found: JsonObject = {}
    for name, value in fields.items():
        new, tries = name, 0
        while new in taken or (new != name and new in fields):
            tries += 1
            # Then numbered by how many names there are: signs would grow where thousands are added one by one.
            new = name + "_" * tries if tries <= 3 else f"{name}_{len(taken) + tries}"
        found[new] = value
    return found


def rest_of(message: JsonObject, known: frozenset[str], flag_field: str | None) -> dict[str, Any]:
    """The fields that have a value and are neither ``known`` nor ``flag_field``."""
    return {
        field: value
        for field, value in message.items()
        if field not in known and field != flag_field and value is not None
    }
