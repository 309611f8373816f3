"""Runs as OpenAI chat messages: the way back from ``reader``.

What a trajectory from elsewhere has beyond these messages (code, several texts in a turn, pages) is written as text,
as a chat template would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from agentmill.schemas.chat import grouped
from agentmill.schemas.messages.conversation import Flag, Layout, key
from agentmill.schemas.messages.dialect import Dialect, write_actions
from agentmill.schemas.messages.parts import REASONING, Image, spans, write_parts
from agentmill.schemas.messages.surface_text import Spelling, spelled
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import (
    AnyAction,
    AnyItem,
    ApiAction,
    CodeAction,
    ImageObservation,
    MessageAction,
    TextObservation,
    Trajectory,
)


class WrittenMessage(NamedTuple):
    """A message, and the index of its first item; -1 is the system prompt."""

    message: JsonObject
    start: int


def in_order_of_calls(written: Sequence[WrittenMessage]) -> list[WrittenMessage]:
    """The messages, neighbouring results in the order of their calls: formats without ids link them by it."""
    calls = (call for each in written for call in each.message.get("tool_calls") or ())
    places = {call["id"]: place for place, call in enumerate(calls) if "id" in call}
    found: list[WrittenMessage] = []
    for answered, group in groupby(written, lambda each: each.message.get("tool_call_id") in places):
        if answered:
            found += sorted(group, key=lambda each: places[each.message["tool_call_id"]])
        else:
            found += group
    return found


class MessageWriter:
    """Writes the messages of one trajectory; the parameters are those of its reader."""

    def __init__(self, layout: Layout, arguments: Spelling, flag: Flag, dialect: Dialect | None = None) -> None:
        self.layout = layout
        self.arguments: Spelling = layout.spelling.get("arguments", arguments)
        self.flag = flag
        self.dialect = dialect
        self._unnumbered = frozenset(layout.spelling.get("unnumbered", ()))
        self._called: set[str | None] = set()
        """Ids of the calls written so far."""
        self._names_seen: set[str | None] = set()
        """Ids of the calls in texts."""

    def write(self, trajectory: Trajectory) -> list[WrittenMessage]:
        """The messages. Raises ``FormatError`` (``unsayable``) for a call that the dialect has no words for."""
        written = [] if trajectory.system_prompt is None else [self._system(trajectory.system_prompt)]
        content = trajectory.content
        index = 0
        while index < len(content):
            turn = _turn(content, index)
            if turn:
                written.append(WrittenMessage(self._assistant(turn, index), index))
                index += len(turn)
            else:
                end = index + spans(self._note(index).get("parts", [0]))
                written.append(WrittenMessage(self._observed(content[index:end], index), index))
                index = end
        return written

    def _note(self, index: int) -> JsonObject:
        note: JsonObject = self.layout.spelling.get(key(index), {})
        return note

    def _system(self, text: str) -> WrittenMessage:
        note = self._note(-1)
        message = {"role": note.get("role", "system"), **_content(text, note)}
        return WrittenMessage({**message, **self.layout.content.get(key(-1), {})}, -1)

    def _observed(self, items: Sequence[AnyItem], index: int) -> JsonObject:
        note = self._note(index)
        item = items[0]
        message: JsonObject = {"role": self._role(item, index)}
        if isinstance(item, ImageObservation) or "parts" in note:
            contents = [Image(each.content) if isinstance(each, ImageObservation) else _text(each) for each in items]
            message["content"] = write_parts(contents, note.get("parts", _ONE_IMAGE))
        else:
            message |= _content(_text(item), note)
        numbered = item.tool_call_id is not None and index not in self._unnumbered
        if numbered and message["role"] != "user" and item.tool_call_id not in self._names_seen:
            message["tool_call_id"] = item.tool_call_id
        elif "id" in note:
            message["tool_call_id"] = note["id"]
        names = [each.name for each in items if isinstance(each, TextObservation) and each.name is not None]
        return self._finished(message, item, names[0] if names else None, index)

    def _role(self, item: AnyItem, index: int) -> str:
        note = self._note(index)
        if "role" in note or item.role in _INSTRUCTING:
            return str(note.get("role", item.role))
        if index in self._unnumbered or item.tool_call_id in self._called:
            return "tool"
        orphan = item.tool_call_id is not None and item.tool_call_id not in self._names_seen
        return "tool" if orphan and getattr(item, "source", None) == "environment" else "user"

    def _assistant(self, actions: list[AnyAction], index: int) -> JsonObject:
        note = self._note(index)
        message: JsonObject = {"role": "assistant"}
        if self.dialect is not None and "native" not in note:
            message |= _content(self._dialect_text(self.dialect, actions, note), note)
            self._names_seen.update(action.tool_call_id for action in actions if action.tool_call_id is not None)
            calls = []
        else:
            calls = [(action, index + n) for n, action in enumerate(actions) if isinstance(action, ApiAction)]
            message |= _content(_words(actions), note, null=bool(calls))
        reasoning = _reasoning(actions)
        if reasoning is not None:
            message[note.get("reasoning", REASONING[0])] = reasoning
        if note.get("role") == "function_call":
            message["function_call"] = self._function(*calls[0])
        elif calls:
            message["tool_calls"] = [self._call(action, place) for action, place in calls]
        return self._finished(message, actions[0], actions[0].agent, index)

    def _dialect_text(self, dialect: Dialect, actions: list[AnyAction], note: JsonObject) -> str:
        if "text" in note:
            return str(note["text"])
        if "plain" in note:
            return _words(actions) or ""
        return write_actions(dialect, actions, note.get("wording", self.layout.spelling.get("wording")))

    def _call(self, action: ApiAction, index: int) -> JsonObject:
        note = self._note(index)
        call_id = action.tool_call_id or f"call_{index}"
        self._called.add(call_id)
        call: JsonObject = {"id": call_id} if index not in self._unnumbered else {}
        call |= {"id": note["id"]} if "id" in note else {}
        call |= {} if note.get("type") == "absent" else {"type": "function"}
        rest = {name: value for name, value in self.layout.tool_calls.get(str(index), {}).items() if name != "function"}
        return {**call, "function": self._function(action, index), **rest}

    def _function(self, action: ApiAction, index: int) -> JsonObject:
        note = self._note(index)
        function = {"name": action.function, **self.layout.tool_calls.get(str(index), {}).get("function", {})}
        if "arguments" not in note:
            given = action.raw_arguments
            function["arguments"] = spelled(action.kwargs, self.arguments) if given is None else given
        elif note["arguments"] is not None:
            function["arguments"] = note["arguments"]
        return function

    def _finished(self, message: JsonObject, item: AnyItem, name: str | None, index: int) -> JsonObject:
        """The message with who speaks, the flag, and the fields that were kept of it."""
        if name is not None:
            message["name"] = name
        if item.train is not None:
            message[self.flag.field] = self.flag.yes if item.train else self.flag.no
        message.update(self.layout.content.get(key(index), {}))
        return message


_INSTRUCTING = ("system", "developer")
_ONE_IMAGE = [{"type": "image_url", "image_url": {}}]


def _turn(content: Sequence[AnyItem], index: int) -> list[AnyAction]:
    """The actions from ``index`` on that are of one turn."""
    found: list[AnyAction] = []
    for place in range(index, len(content)):
        item = content[place]
        if not isinstance(item, MessageAction | ApiAction | CodeAction) or (found and item.turn != found[0].turn):
            break
        found.append(item)
    return found


def _words(actions: list[AnyAction]) -> str | None:
    """What the agent writes with its calls."""
    first = actions[0]
    if len(actions) == 1 and isinstance(first, MessageAction) and not first.description:
        return first.content
    if all(isinstance(action, ApiAction) and (action is first or not action.description) for action in actions):
        return first.description
    ((message, _),) = grouped(actions)
    return message.content


def _reasoning(actions: list[AnyAction]) -> str | None:
    if all(action.reasoning_content is None for action in actions[1:]):
        return actions[0].reasoning_content
    ((message, _),) = grouped(actions)
    return message.reasoning_content


def _text(item: AnyItem) -> str:
    if isinstance(item, TextObservation):
        return item.content
    ((message, _),) = grouped([item])
    return message.content or ""


def _content(text: str | None, note: JsonObject, null: bool = False) -> JsonObject:
    """The field ``content``; ``null``: it is null where there is no text."""
    if note.get("content") == "absent":
        return {}
    if note.get("content") == "null" or (null and text is None):
        return {"content": None}
    return {"content": write_parts([text or ""], note["parts"]) if "parts" in note else text or ""}
