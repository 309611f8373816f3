"""OpenAI chat messages with tools, one conversation a record: ``messages``, ``tools``, and whatever else a row has.

Reads ``tool_calls`` and the older ``function_call`` with role ``function``, parallel calls, results in any order,
reasoning under each of its names, contents in parts, and messages or tools as JSON text. Arguments that are no JSON
object stay the text they are. With a dialect, calls are found in the text of assistants, and what comes after them is
the environment's.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Written, parse
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.messages.calls import drop_filled_nulls, link_remarks
from agentmill.schemas.messages.conversation import WEIGHT, layout, to_trajectory
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.messages.surface_text import spelled, style_of
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.messages.writer import MessageWriter
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory

CONVERTER_VERSION = "3"
NAME = "openai"
READ_BY = {"conversations": "sharegpt", "prompt": "trl"}
"""Other formats with one conversation a record, by the field that only they have."""
MOST_FIELDS = 8
"""How many fields of a record without messages its error names."""


class OpenAi(WithDialect):
    """Chat messages with tool calls, as the OpenAI API has them and as data sets of it keep them."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One conversation. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` for messages that are missing or broken; ``unknown_role``,
        ``unknown_part`` and ``unknown_call`` for what no message of this format is made of.
        """
        row = parse(raw)
        given = take_messages(row, NAME)
        messages, style = read_list(given)
        conversation = MessageReader("compact", WEIGHT, self.chosen_dialect).read(messages)
        if style is not None:
            conversation.spelling["messages"] = style
        losses = Losses()
        # The text cannot be written again as it was.
        if isinstance(given, str) and style is None:
            losses["messages.spelling"] = 1
        # The name of OpenAI's API before parallel calls, which older data sets still have.
        named = "functions" if not row.get("tools") and isinstance(row.get("functions"), list) else "tools"
        tools, note, lost = read_tools(row.pop(named, None), "object")
        if named == "functions":
            note = {**note, "field": named}
        if note:
            conversation.spelling["tools"] = note
        lost += drop_filled_nulls(conversation, tools)
        run = to_trajectory(conversation, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools)
        return Read(run, losses + lost, remarks=conversation.remarks + link_remarks(run.content, tools))

    def write(self, trajectory: Trajectory) -> Written:
        """One record. Raises ``FormatError`` (``unsayable``) for a call that the dialect has no words for."""
        held = layout(trajectory, NAME)
        written = MessageWriter(held, "compact", WEIGHT, self.chosen_dialect).write(trajectory)
        messages: Any = [each.message for each in written]
        if "messages" in held.spelling:
            messages = spelled(messages, held.spelling["messages"])
        document: JsonObject = {**held.row, "messages": messages}
        note = held.spelling.get("tools", {})
        tools = write_tools(trajectory.tools, note, "object")
        if tools is not None:
            document[note.get("field", "tools")] = tools
        # Losses are what a reader misses, which holds whatever way this writer took.
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME))


def take_messages(row: JsonObject, name: str) -> Any:
    """What is at ``messages``, which is taken out of ``row``. Raises ``FormatError`` where format ``name`` lacks it."""
    if "messages" in row:
        return row.pop("messages")
    held = ", ".join(map(repr, islice(row, MOST_FIELDS))) + (", …" if len(row) > MOST_FIELDS else "")
    other = next((f"; format {other} reads {field!r}" for field, other in READ_BY.items() if field in row), "")
    raise FormatError("invalid", f"format {name} expects 'messages'; the record has {held or 'no field'}{other}")


def read_list(given: Any) -> tuple[Any, str | None]:
    """A list of messages and how its JSON text is spelled, if it is a text; what is no list is for others to refuse."""
    if not isinstance(given, str):
        return given, None
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError("invalid", f"the text of the messages is no JSON: {error}") from error
    return value, style_of(given, value)
