"""The rules of ADP as a checker of documents, written from the protocol's description and apart from our writer."""

from __future__ import annotations

from typing import Any

REQUIRED = {
    "message_action": {"content": str},
    "api_action": {"function": str, "kwargs": dict},
    "code_action": {"language": str, "content": str, "description": (str, type(None))},
    "text_observation": {"content": str, "source": str},
    "image_observation": {"content": str, "source": str},
    "web_observation": {"html": (str, type(None)), "url": (str, type(None))},
}
OPTIONAL = {
    "message_action": {"description"},
    "api_action": {"description"},
    "code_action": set(),
    "text_observation": {"name"},
    "image_observation": {"annotations"},
    "web_observation": {"axtree", "image_observation", "viewport_size"},
}
CALLS = {"api_action", "code_action"}


def broken(document: dict[str, Any], version: str) -> list[str]:
    """What of the document breaks the rules of version ``1`` or ``1.5``."""
    found = [f"{key} is missing" for key in ("id", "content") if key not in document]
    top = {"id", "content", "details"}
    if version == "1.5":
        top |= {"schema_version", "available_custom_tools", "available_code_languages"}
    found += [f"unknown key {key}" for key in document.keys() - top]
    if version == "1":
        found += [
            f"detail {key} is no text" for key, value in document["details"].items() if not isinstance(value, str)
        ]
    for index, item in enumerate(document["content"]):
        found += [f"item {index}: {text}" for text in _item(item, version)]
    return found + (_links(document["content"]) + _declared(document) if version == "1.5" else [])


def _item(item: dict[str, Any], version: str) -> list[str]:
    name = item["class_"]
    allowed = {"class_", *REQUIRED[name], *OPTIONAL[name]}
    if version == "1.5":
        allowed |= {"reward", "tool_call_id"} | ({"reasoning_content"} if name.endswith("action") else set())
    found = [f"unknown field {key}" for key in item.keys() - allowed]
    for key, kind in REQUIRED[name].items():
        if key not in item or not isinstance(item[key], kind):
            found.append(f"{key} is {item.get(key)!r}")
    if item.get("source", "user") not in ("user", "agent", "environment"):
        found.append("source")
    return found


def _links(content: list[dict[str, Any]]) -> list[str]:
    found = []
    calls: set[str] = set()
    answered: set[str] = set()
    for index, item in enumerate(content):
        call_id = item.get("tool_call_id")
        after = content[index + 1]["class_"] if index + 1 < len(content) else ""
        if item["class_"] in CALLS:
            if after.endswith("observation") and call_id is None:
                found.append(f"(a) item {index} has no id")
            if call_id in calls:
                found.append(f"(b) id {call_id} twice")
            calls |= {call_id} - {None}
        elif item["class_"] == "message_action":
            if call_id is not None:
                found.append(f"(f) item {index} has an id")
        elif call_id is not None:
            if call_id not in calls:
                found.append(f"(c) item {index} answers nothing")
            if call_id in answered:
                found.append(f"(d) id {call_id} answered twice")
            answered.add(call_id)
    return found + [f"(e) id {call_id} unanswered" for call_id in calls - answered]


def _declared(document: dict[str, Any]) -> list[str]:
    content = document["content"]
    languages = {item["language"] for item in content if item["class_"] == "code_action"}
    found = []
    if "available_code_languages" in document and set(document["available_code_languages"]) != languages:
        found.append("(g) languages")
    called = {item["function"] for item in content if item["class_"] == "api_action"}
    if "available_custom_tools" in document and not called <= set(document["available_custom_tools"]):
        found.append("(g) tools")
    return found
