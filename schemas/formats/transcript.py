"""A run while it is read from a log: its items in order, their links, and what else the log says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.formats.format import Remarks
from schemas.record import JsonObject
from schemas.trajectory import Action, AnyItem, ImageObservation, ObservationSource, TextObservation


class Transcript:
    """``content`` are the items, ``rest`` what is kept of each in ``extra``; ``turn`` is that of the next item."""

    def __init__(self) -> None:
        self.content: list[AnyItem] = []
        self.rest: list[JsonObject] = []
        self.turn = 0
        self.system_prompt: str | None = None
        self.remarks: Remarks = Remarks()
        self._waiting: dict[str, list[str]] = {}
        self._used: set[str] = set()
        self._repeated: dict[str, int] = {}
        """The number that made an id unique, the last time that it was repeated."""

    def add(self, item: AnyItem, rest: JsonObject) -> None:
        """Append an item of the current turn."""
        self.rest.append(rest)
        self.content.append(item if item.turn == self.turn else msgspec.structs.replace(item, turn=self.turn))

    def see(self, content: Any, source: ObservationSource, rest: JsonObject, **fields: Any) -> None:
        """Append what was shown: a text, or a list of parts as in OpenAI messages, each image an item of its own.

        Of the texts among the parts one observation is made; parts that it does not say in full are kept.
        """
        text, more = read_text(content)
        more = {"content": None} if content is None else more
        self.add(TextObservation(content=text, source=source, turn=self.turn, **fields), {**rest, **more})
        for part in content if isinstance(content, list) else ():
            url = part.get("image_url") if isinstance(part, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                self.add(ImageObservation(content=url, source=source, turn=self.turn), {})

    def call_id(self, given: Any, rest: JsonObject) -> str:
        """The id of a call: ``given``, made unique, or one by position. A call that is answered needs no more."""
        name = given if isinstance(given, str) and given else f"call_{len(self.content)}"
        unique = name
        number = self._repeated.get(name, 1)
        while unique in self._used:
            number += 1
            unique = f"{name}_{number}"
        self._repeated[name] = number
        if unique != given and given:
            rest["tool_call_id"] = given
            self.remarks["repeated_call_id"] += 1
        self._used.add(unique)
        self._waiting.setdefault(name, []).append(unique)
        return unique

    def answer(self, given: Any, rest: JsonObject, among: Sequence[str] | None = None) -> str | None:
        """The id of the call that a result with id ``given`` answers: the earliest of that id that has no result yet.

        ``among`` are the calls that it can answer, where not all. A result of no call is remarked on as
        ``orphan_result``, one more result of a call as ``duplicate_result``; they keep what they said in ``rest`` and
        have no link.
        """
        waiting = self._waiting.get(given) if isinstance(given, str) else None
        for place, name in enumerate(waiting or ()):
            if waiting is not None and (among is None or name in among):
                return waiting.pop(place)
        if given is not None:
            rest["tool_call_id"] = given
            self.remarks["orphan_result" if waiting is None else "duplicate_result"] += 1
        return None

    def notes(self) -> JsonObject:
        """Under ``content`` what is kept of the items, by their indices as text."""
        kept = {str(index): rest for index, rest in enumerate(self.rest) if rest}
        return {"content": kept} if kept else {}

    def arrange(self) -> None:
        """Put the actions of each turn before its observations: so the model made and saw them."""
        order = sorted(
            range(len(self.content)),
            key=lambda index: (self.content[index].turn, not isinstance(self.content[index], Action)),
        )
        self.content = [self.content[index] for index in order]
        self.rest = [self.rest[index] for index in order]


def read_text(content: Any) -> tuple[str, JsonObject]:
    """The text of a message's content, and its parts under ``content`` where the text does not say all of them."""
    if content is None or isinstance(content, str):
        return content or "", {}
    if not isinstance(content, list):
        return "", {"content": content}
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    plain = len(content) == len(texts) == 1 and content[0].keys() <= {"type", "text"}
    return "\n".join(texts), {} if plain else {"content": content}


def read_thinking(blocks: Any) -> tuple[str | None, JsonObject]:
    """Hidden reasoning in Anthropic's blocks, and under ``thinking_blocks`` what the text does not say."""
    if not isinstance(blocks, list) or not blocks:
        return None, {"thinking_blocks": blocks} if blocks else {}
    texts = [each["thinking"] for each in blocks if isinstance(each, dict) and isinstance(each.get("thinking"), str)]
    if len(texts) != 1 or len(blocks) != 1:
        return "\n".join(texts) if texts else None, {"thinking_blocks": blocks}
    more = {key: value for key, value in blocks[0].items() if key not in ("type", "thinking") and value is not None}
    return texts[0], {"thinking_blocks": [more]} if more else {}
