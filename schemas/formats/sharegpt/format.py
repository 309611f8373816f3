"""ShareGPT: ``conversations`` of ``{from, value}`` turns, and the variants that LLaMA-Factory and data sets have of it.

Reads any of the names in use for who speaks, ``{role, content}`` turns, ``loss`` flags, calls as ``function_call``
turns and results as ``observation``, a ``system`` field or turn, ``tools`` as JSON text, ``kto_tag`` (the outcome), and
``chosen``/``rejected`` (two runs).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import FormatError, Losses, Origin, Raw, Read, Written, parse
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.formats.openai import read_list
from agentmill.schemas.formats.pairs import Pair, pair_losses, pair_remarks, paired, prompt_length
from agentmill.schemas.formats.sharegpt.turns import (
    LOSS,
    LoadableOrder,
    TurnReader,
    TurnWriter,
    is_answer,
    read_texts,
)
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.conversation import Conversation, Flag, layout, to_trajectory
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.messages.surface_text import spelled
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.messages.writer import MessageWriter
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, Tool, Trajectory

CONVERTER_VERSION = "3"
NAME = "sharegpt"
FIELDS = ("conversations", "conversation", "messages")
"""Names of the field with the turns, the usual one first."""

_LISTED = (list, str)
_ANSWER = (dict, list)


class ShareGpt(WithDialect):
    """Conversations as ShareGPT has them, and LLaMA-Factory's preference and feedback rows."""

    flag: ClassVar[Flag] = LOSS

    kto_tag: str = Field(default="kto_tag", description="the field with whether the answer is good (true or false)")
    labelled: bool = Field(default=False, description="write the outcome of every run as ``kto_tag``")
    order: Literal["llamafactory", "as_said"] = Field(
        default="llamafactory",
        description="the order of written turns: the one that LLaMA-Factory loads, where neighbours of one side are"
        " joined, or as they were said, which loses nothing and of which it may skip rows",
    )

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One conversation, or two: ``chosen``, and ``rejected`` with it. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` for turns that are missing or broken; ``unknown_role``;
        ``unknown_part``; ``unknown_call``.
        """
        row = parse(raw)
        field = FIELDS[0]
        if not isinstance(row.get(field), _LISTED) or not row[field]:
            listed = [name for name in FIELDS if isinstance(row.get(name), _LISTED)]
            # A list without turns is taken where no other has any.
            field = next((name for name in listed if row[name]), next(iter(listed), field))
        given = row.pop(field, None)
        turns, style = read_list(given)
        if not isinstance(turns, list):
            raise FormatError("invalid", f"expected {field!r}, a list of turns, got {turns!r:.60}")
        losses, spelling = Losses(), JsonObject()
        if isinstance(given, str) and style is None:
            losses[f"{field}.spelling"] = 1
        if field != FIELDS[0]:
            spelling["field"] = field
        if style is not None:
            spelling["messages"] = style
        system = row.pop("system") if isinstance(row.get("system"), str) and row["system"] else None
        if system is not None:
            spelling["system_field"] = True
        tools, note, lost = read_tools(row.pop("tools", None), "spaced")
        if note != _usual(tools):
            spelling["tools"] = note
        answers = _answers(row, len(turns), spelling)
        outcome = self._outcome(row, spelling)
        conversation = self._conversation(turns, answers[0] if answers else [], system, spelling)
        run = to_trajectory(conversation, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools, outcome=outcome)
        remarks = conversation.remarks + link_remarks(run.content, tools)
        if not answers:
            return Read(run, losses + lost, remarks=remarks)
        other = self._conversation(turns, answers[1], system, {} if system is None else {"system_field": True})
        starts = other.starts[len(turns) + (system is not None) :]
        pair = paired(run, other, NAME, starts[0] if starts else len(other.content))
        return Read(pair.chosen, losses + lost, (pair.rejected,), remarks + pair_remarks(other, pair))

    def write(self, trajectory: Trajectory) -> Written:
        """One conversation. Raises ``FormatError``.

        Reasons: ``unsayable`` for a call that the dialect has no words for; ``unknown_outcome`` where it is to be
        written; those of ``LoadableOrder``. What was joined for the order is among the losses.
        """
        turns, merged = self._turns(trajectory), Losses()
        if self.order == "llamafactory":
            writer = TurnWriter(layout(trajectory, NAME))
            order = LoadableOrder(writer.names, writer.aliases, writer.style)
            turns, merged = order.write(turns), order.merged
        document = self._document(trajectory, turns)
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME) + merged)

    def write_pair(self, chosen: Trajectory, rejected: Trajectory) -> Written:
        """One row of two runs: what they begin with, and the two answers. Raises what ``write`` does."""
        better, worse = self._turns(chosen), self._turns(rejected)
        spelling = layout(chosen, NAME).spelling
        names = TurnWriter(layout(chosen, NAME)).names
        prompt = spelling.get("prompt")
        if prompt is None:
            prompt = prompt_length(better, worse, lambda turn: is_answer(turn, names))
        document = self._document(chosen, better[:prompt])
        for name, turns in (("chosen", better[prompt:]), ("rejected", worse[prompt:])):
            single = len(turns) == 1 and name not in spelling.get("listed", ())
            document[name] = turns[0] if single else turns
        back = self.read(msgspec.json.encode(document), Origin(""))
        return Written(document, pair_losses(Pair(chosen, rejected), back, NAME))

    def _conversation(
        self, turns: list[Any], answer: list[Any], system: str | None, spelling: JsonObject
    ) -> Conversation:
        plain = None if answer or system is not None else read_texts(turns)
        if plain is not None:
            texts, names = plain
            conversation = MessageReader("object", LOSS, self.chosen_dialect).read_texts(texts)
            conversation.spelling |= {**names, **spelling}
            return conversation
        reader = TurnReader()
        pairs = reader.read([*turns, *answer])
        messages = [message for message, _ in pairs]
        opening = [] if system is None else [{"role": "system", "content": system}]
        conversation = MessageReader("object", LOSS, self.chosen_dialect).read(opening + messages)
        for start, (_, note) in zip(conversation.starts[len(opening) :], pairs, strict=True):
            if note:
                conversation.note(start, **note)
        conversation.spelling |= {**reader.spelling(), **spelling}
        conversation.remarks.update(reader.remarks)
        return conversation

    def _turns(self, trajectory: Trajectory) -> list[JsonObject]:
        """The turns, without the system prompt where that has a field of its own."""
        held = layout(trajectory, NAME)
        written = MessageWriter(held, "object", LOSS, self.chosen_dialect).write(trajectory)
        if held.spelling.get("system_field"):
            written = written[1:]
        return TurnWriter(held).write(written)

    def _document(self, trajectory: Trajectory, turns: list[JsonObject]) -> JsonObject:
        held = layout(trajectory, NAME)
        field = held.spelling.get("field", FIELDS[0])
        style = held.spelling.get("messages")
        document: JsonObject = {**held.row, field: turns if style is None else spelled(turns, style)}
        if held.spelling.get("system_field"):
            document["system"] = trajectory.system_prompt
        tools = write_tools(trajectory.tools, held.spelling.get("tools", _usual(trajectory.tools)), "spaced")
        if tools is not None:
            document["tools"] = tools
        if self.labelled or held.spelling.get("labelled"):
            if trajectory.outcome.status == "unknown":
                raise FormatError("unknown_outcome", f"{self.kto_tag!r} is to be written, but the outcome is not known")
            document[self.kto_tag] = trajectory.outcome.status == "success"
        return document

    def _outcome(self, row: JsonObject, spelling: JsonObject) -> Outcome:
        if not isinstance(row.get(self.kto_tag), bool):
            return Outcome()
        spelling["labelled"] = True
        return Outcome(status="success" if row.pop(self.kto_tag) else "failure")


def _answers(row: JsonObject, turns: int, spelling: JsonObject) -> list[list[Any]]:
    """The better and the worse answer, each a list of turns, if the record has them."""
    if not isinstance(row.get("chosen"), _ANSWER) or not isinstance(row.get("rejected"), _ANSWER):
        return []
    spelling["prompt"] = turns
    listed = [name for name in ("chosen", "rejected") if isinstance(row[name], list) and len(row[name]) == 1]
    spelling |= {"listed": listed} if listed else {}
    return [each if isinstance(each, list) else [each] for each in (row.pop("chosen"), row.pop("rejected"))]


def _usual(tools: list[Tool]) -> JsonObject:
    """How tools are spelled if nothing is noted: bare functions, if there are any."""
    return {"flat": True} if tools else {}
