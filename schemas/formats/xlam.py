"""xLAM's ActionStudio, version 2 (arXiv:2503.22673): whole trajectories, and its training rows, one per assistant turn.

A trajectory's ``conversation`` is OpenAI messages. A row's prompt is ``messages`` and its answer ``output_message``, or
``chosen`` alone: text, or calls as a JSON list behind ``[TOOL_CALLS]``. Only the answer of a row is trained on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.config import Config
from agentmill.schemas.format import FormatError, Origin, Raw, Read, Written, parse
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.conversation import WEIGHT, layout, to_trajectory
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.messages.writer import MessageWriter
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, AnyItem, TextObservation, Trajectory

CONVERTER_VERSION = "1"
NAME = "xlam"
CALLS = "[TOOL_CALLS]"


class XLam(Config):
    """ActionStudio's trajectories and training rows; a trajectory of another origin is written as a trajectory."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One run. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` where there are no messages, or a row has no answer; ``unknown_role``,
        ``unknown_part``, ``unknown_call``.
        """
        row = parse(raw)
        spelling: JsonObject = {}
        answer: list[Any] = []
        messages = row.pop("conversation", None)
        if messages is None and isinstance(row.get("messages"), list):
            messages = row.pop("messages")
            answer = [_answer(row, spelling)]
        elif messages is None:
            raise FormatError("invalid", "expected 'conversation', or 'messages' with 'output_message' or 'chosen'")
        conversation = MessageReader("compact", WEIGHT).read(messages + answer if answer else messages)
        tools, note, losses = read_tools(row.pop("tools", None), "object")
        conversation.spelling |= spelling | ({"tools": note} if note else {})
        if answer:
            conversation.content = _trained(conversation.content, conversation.starts[-1])
        run = to_trajectory(conversation, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools)
        return Read(run, losses, remarks=conversation.remarks + link_remarks(run.content, tools))

    def write(self, trajectory: Trajectory) -> Written:
        """One record, a row if it was read from one."""
        held = layout(trajectory, NAME)
        output = held.spelling.get("output")
        if output is not None:
            # The shape of the row marks what is trained on, so messages need no weight, but for an answer without loss.
            last = trajectory.content[-1].turn if trajectory.content else 0
            content = [
                msgspec.structs.replace(item, train=item.train if item.turn == last and item.train is False else None)
                for item in trajectory.content
            ]
            plain = msgspec.structs.replace(trajectory, content=content)
        else:
            plain = trajectory
        messages = [each.message for each in MessageWriter(held, "compact", WEIGHT).write(plain)]
        document: JsonObject = dict(held.row)
        if output is None:
            document["conversation"] = messages
            if NAME not in trajectory.extra:
                document = {"unique_trajectory_id": trajectory.trajectory_id, **_instruction(trajectory), **document}
        else:
            document["messages"] = messages[:-1]
            document |= {"output_message": messages[-1]} if output == "message" else {}
        tools = write_tools(trajectory.tools, held.spelling.get("tools", {}), "object")
        document |= {"tools": tools} if tools is not None else {}
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME))


def _answer(row: JsonObject, spelling: JsonObject) -> Any:
    """The message that a row's answer is; how it is written goes into ``spelling``."""
    if isinstance(row.get("output_message"), dict):
        spelling["output"] = "message"
        return row.pop("output_message")
    chosen = row.get("chosen")
    if not isinstance(chosen, str):
        raise FormatError("invalid", f"expected 'output_message', or 'chosen', a text, got {chosen!r:.60}")
    spelling["output"] = "chosen"
    calls = _calls(chosen)
    if calls is None:
        return {"role": "assistant", "content": chosen}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": call} for call in calls]}


def _calls(chosen: str) -> list[JsonObject] | None:
    """The calls behind the mark, if that is what there is."""
    before, mark, text = chosen.partition(CALLS)
    try:
        calls = msgspec.json.decode(text) if mark and not before.strip() else None
    except (msgspec.DecodeError, RecursionError):
        return None
    known = {"name", "arguments"}
    if not isinstance(calls, list) or not calls:
        return None
    plain = all(isinstance(call, dict) and isinstance(call.get("name"), str) and call.keys() <= known for call in calls)
    return calls if plain else None


def _trained(content: list[AnyItem], start: int) -> list[AnyItem]:
    """``content`` with what the row trains on: the actions from ``start`` on that have no other mark, none before."""
    learnt = [index >= start and item.train is not False for index, item in enumerate(content)]
    return [
        msgspec.structs.replace(item, train=train) if isinstance(item, Action) else item
        for item, train in zip(content, learnt, strict=True)
    ]


def _instruction(trajectory: Trajectory) -> JsonObject:
    """The task, where a user says one before the first turn."""
    questions = (item for item in trajectory.content if isinstance(item, TextObservation) and item.source == "user")
    first = next((item for item in questions if item.turn == 0), None)
    return {"task_instruction": first.content} if first is not None else {}
