"""LLaMA-Factory v1: ``messages`` of parts, ``tools`` as JSON text, ``extra_info``; for preferences two conversations.

Calls have no ids: results belong to the calls before them, in order. ``loss_weight`` says whether a message carries
loss; a weight other than 0 and 1 is kept beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.config import Config
from schemas.formats.chat_tools import read_tools, write_tools
from schemas.formats.conversation import Conversation, Flag, layout, to_trajectory
from schemas.formats.differences import differences
from schemas.formats.format import FormatError, Origin, Raw, Read, Written, parse
from schemas.formats.links import link_remarks
from schemas.formats.llamafactory_messages import PartsReader, PartsWriter
from schemas.formats.message_reading import MessageReader
from schemas.formats.message_writing import MessageWriter
from schemas.formats.pairs import Pair, common, pair_losses, pair_remarks, paired
from schemas.record import JsonObject
from schemas.trajectory import Trajectory

CONVERTER_VERSION = "1"
NAME = "llamafactory"
WEIGHT = Flag("loss_weight", 0.0, 1.0)
SIDES = ("chosen_messages", "rejected_messages")


class LlamaFactory(Config):
    """Conversations and pairs of them as LLaMA-Factory v1 keeps them."""

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One conversation, or two: the chosen one, and the rejected one beside it. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` for messages that are missing or broken; ``unknown_role``;
        ``unknown_part``; ``unknown_call``.
        """
        row = parse(raw)
        tools, note, losses = read_tools(row.pop("tools", None), "spaced")
        sides = [row.pop(side) for side in SIDES] if all(isinstance(row.get(side), list) for side in SIDES) else []
        talk = _talk(sides[0] if sides else row.pop("messages", None))
        if note:
            talk.spelling["tools"] = note
        run = to_trajectory(talk, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools)
        remarks = talk.remarks + link_remarks(run.content, tools)
        if not sides:
            return Read(run, losses, remarks=remarks)
        other = _talk(sides[1])
        shared = common(*sides)
        pair = paired(run, other, NAME, other.starts[shared] if shared < len(other.starts) else len(other.content))
        return Read(pair.chosen, losses, (pair.rejected,), remarks + pair_remarks(other, pair))

    def write(self, trajectory: Trajectory) -> Written:
        """One conversation."""
        document = _document(trajectory, {"messages": _messages(trajectory)})
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME))

    def write_pair(self, chosen: Trajectory, rejected: Trajectory) -> Written:
        """One row of two conversations. Raises ``FormatError`` (``tied_pair``)."""
        sides = [_messages(chosen), _messages(rejected)]
        if sides[0] == sides[1] and not layout(chosen, NAME).side:
            raise FormatError("tied_pair", "the better and the worse run are the same")
        document = _document(chosen, dict(zip(SIDES, sides, strict=True)))
        back = self.read(msgspec.json.encode(document), Origin(""))
        return Written(document, pair_losses(Pair(chosen, rejected), back, NAME))


def _talk(given: Any) -> Conversation:
    reader = PartsReader()
    found = reader.read(given)
    talk = MessageReader("object", WEIGHT).read([message for message, _, _ in found])
    for start, (_, note, calls) in zip(talk.starts, found, strict=True):
        for index, each in [(start, note), *((start + place, call) for place, call in enumerate(calls))]:
            if each:
                talk.note(index, **each)
    if reader.style not in (None, "spaced"):
        talk.spelling["value"] = reader.style
    return talk


def _messages(trajectory: Trajectory) -> list[JsonObject]:
    held = layout(trajectory, NAME)
    return PartsWriter(held).write(MessageWriter(held, "object", WEIGHT).write(trajectory))


def _document(trajectory: Trajectory, messages: JsonObject) -> JsonObject:
    held = layout(trajectory, NAME)
    tools = write_tools(trajectory.tools, held.spelling.get("tools", {}), "spaced")
    return {**held.row, **messages, **({} if tools is None else {"tools": tools})}
