"""The items of an ADP trajectory, one by one: which fields they have, and how they map to ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from schemas.formats.adp_languages import legal_language
from schemas.formats.adp_links import position_ids
from schemas.formats.format import FormatError, Losses
from schemas.record import JsonObject
from schemas.trajectory import (
    Action,
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    WebObservation,
)

FIELDS: dict[str, tuple[type[msgspec.Struct], tuple[str, ...]]] = {
    "message_action": (MessageAction, ("content", "description")),
    "api_action": (ApiAction, ("function", "kwargs", "description")),
    "code_action": (CodeAction, ("language", "content", "description")),
    "text_observation": (TextObservation, ("content", "name", "source")),
    "image_observation": (ImageObservation, ("content", "source", "annotations")),
    "web_observation": (WebObservation, ("html", "axtree", "url", "image_observation", "viewport_size")),
}
"""By class name: our type, and the fields of version 1, all of them always written."""

_CLASSES = {record_type: name for name, (record_type, _) in FIELDS.items()}
_ANNOTATION = ("text", "element_type", "bounding_box")


def read_item(item: Any, index: int, losses: Losses) -> AnyItem:
    """One action or observation. Raises ``FormatError``: ``unknown_class``, or ``invalid`` for a broken one."""
    name = item.get("class_") if isinstance(item, dict) else None
    if name not in FIELDS:
        raise FormatError("unknown_class", f"item {index} is of class {name!r}; known: {', '.join(FIELDS)}")
    try:
        return cast(AnyItem, msgspec.convert(_known(item, losses, "content"), AnyItem))
    except msgspec.ValidationError as error:
        raise FormatError("invalid", f"item {index}: {error}") from error


def write_item(item: AnyItem, version: str, losses: Losses) -> JsonObject:
    """The item in version ``1`` or ``1.5``, without its call id."""
    name = _CLASSES[type(item)]
    own = FIELDS[name][1]
    later = [] if version == "1" else ["reward", "reasoning_content"]
    written: JsonObject = {"class_": name, **{field: _plain(getattr(item, field)) for field in own}}
    for field in msgspec.structs.fields(type(item)):
        value = getattr(item, field.name)
        if field.name in own or field.name in ("turn", "tool_call_id") or value == field.default:
            continue
        if field.name in later:
            written[field.name] = value
        else:
            losses[f"content.{field.name}"] += 1
    if isinstance(item, WebObservation) and item.image_observation is not None:
        written["image_observation"] = write_item(item.image_observation, version, losses)
    return written


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else msgspec.to_builtins(value)


def placed(content: Sequence[AnyItem]) -> list[AnyItem]:
    """``content`` with turns, and with call ids where it has none, as the order of the items says.

    Actions that follow each other share a turn: nothing was seen between them.
    """
    ids = position_ids(content)
    result = []
    turn = 0
    for index, item in enumerate(content):
        if isinstance(item, Action) and not (index and isinstance(content[index - 1], Action)):
            turn += 1
        name = item.tool_call_id if item.tool_call_id is not None else ids[index]
        result.append(msgspec.structs.replace(item, turn=turn, tool_call_id=name))
    return result


def legal_content(content: Sequence[AnyItem]) -> tuple[list[AnyItem], dict[str, str]]:
    """``content`` with languages that ADP allows, and the names of those it does not, by place."""
    result: list[AnyItem] = list(content)
    names = {}
    for index, item in enumerate(content):
        if isinstance(item, CodeAction) and (legal := legal_language(item.language)) != item.language:
            names[str(index)] = item.language
            result[index] = msgspec.structs.replace(item, language=legal)
    return result, names


def _known(item: JsonObject, losses: Losses, path: str) -> JsonObject:
    """The fields of an item that we hold; others are counted, unless they are null."""
    record_type, own = FIELDS[item["class_"]]
    held = {"class_", *own, "reward", "tool_call_id"} | (
        {"reasoning_content"} if issubclass(record_type, Action) else set()
    )
    losses.update(f"{path}.{key}" for key, value in item.items() if key not in held and value is not None)
    known = {key: value for key, value in item.items() if key in held}
    image = known.get("image_observation")
    if isinstance(image, dict):
        image = {"class_": "image_observation", **image}
        known["image_observation"] = _known(image, losses, f"{path}.image_observation")
    if isinstance(known.get("annotations"), list):
        known["annotations"] = [_annotation(one, losses, path) for one in known["annotations"]]
    return known


def _annotation(annotation: Any, losses: Losses, path: str) -> Any:
    if not isinstance(annotation, dict):
        return annotation
    known = {key: annotation[key] for key in _ANNOTATION if key in annotation}
    losses.update(f"{path}.annotations.{key}" for key in annotation if key not in known and annotation[key] is not None)
    return {**known, "text": known["text"] or ""} if "text" in known else known
