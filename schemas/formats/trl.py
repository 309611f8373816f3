"""Rows that TRL trains on: ``messages``, ``prompt`` with ``completion``, ``label`` or step ``labels``, and pairs.

Each may be plain text or chat messages. Call arguments are objects, as TRL needs them for chat templates; those that
are no JSON object stay the text they are. ``label`` is the outcome, ``chosen``/``rejected`` are two runs.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.dialects.options import WithDialect
from agentmill.schemas.format import FormatError, Origin, Raw, Read, Written, parse
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.formats.pairs import Pair, common, pair_losses, pair_remarks, paired, prompt_length
from agentmill.schemas.messages.calls import drop_filled_nulls, link_remarks
from agentmill.schemas.messages.conversation import WEIGHT, Conversation, Layout, layout, to_trajectory
from agentmill.schemas.messages.reader import MessageReader
from agentmill.schemas.messages.tools import read_tools, write_tools
from agentmill.schemas.messages.writer import MessageWriter
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, Trajectory

CONVERTER_VERSION = "3"
NAME = "trl"
Shape = Literal["messages", "prompt", "completion", "unpaired", "stepwise", "preference", "implicit"]
"""What a row consists of; ``implicit`` is a preference whose two sides repeat the prompt."""


class Trl(WithDialect):
    """Conversational and plain rows for the trainers of TRL."""

    rows: Literal["as_read", "messages", "completion", "unpaired"] = Field(
        default="as_read",
        description="what is written: as it was read (else messages), the whole conversation, the last answer and its"
        " prompt, or these with the outcome as label",
    )

    def read(self, raw: Raw, origin: Origin) -> Read:
        """One run, or two: the chosen one, and the rejected one with it. Raises ``FormatError``.

        Reasons: those of ``parse``; ``invalid`` for a row of none of these shapes; ``unknown_role``; ``unknown_part``;
        ``unknown_call``.
        """
        row = parse(raw)
        shape = _shape(row)
        tools, note, losses = read_tools(row.pop("tools", None), "object")
        spelling: JsonObject = {"tools": note} if note else {}
        spelling |= {} if shape == "messages" else {"shape": shape}
        outcome = Outcome()
        if shape == "unpaired":
            outcome = Outcome(status="success" if row.pop("label") else "failure")
        prompt, answers = _parts(row, shape, spelling)
        conversation = self._conversation(prompt + answers[0])
        conversation.spelling |= spelling
        losses += drop_filled_nulls(conversation, tools)
        run = to_trajectory(conversation, raw, origin, NAME, CONVERTER_VERSION, row, tools=tools, outcome=outcome)
        remarks = conversation.remarks + link_remarks(run.content, tools)
        if len(answers) == 1:
            return Read(run, losses, remarks=remarks)
        other = self._conversation(prompt + answers[1])
        shared = common(*answers) if shape == "implicit" else len(prompt)
        start = other.starts[shared] if shared < len(other.starts) else len(other.content)
        losses += drop_filled_nulls(other, tools, start)
        pair = paired(run, other, NAME, start)
        return Read(pair.chosen, losses, (pair.rejected,), remarks + pair_remarks(other, pair))

    def write(self, trajectory: Trajectory) -> Written:
        """One row. Raises ``FormatError``.

        Reasons: ``unsayable`` for a call that the dialect has no words for; ``no_answer`` where one is to be the
        completion; ``unknown_outcome`` where it is to be the label.
        """
        held = layout(trajectory, NAME)
        read = held.spelling.get("shape", "messages")
        shape = self.rows if self.rows != "as_read" else "messages" if held.side else read
        messages = self._messages(trajectory)
        if shape == "messages":
            document: JsonObject = {"messages": messages}
        else:
            document = _divided(messages, shape, held, as_read=shape == read)
        if shape == "unpaired":
            if trajectory.outcome.status == "unknown":
                raise FormatError("unknown_outcome", "'label' is to be written, but the outcome is not known")
            document["label"] = trajectory.outcome.status == "success"
        document = {**held.row, **document, **_tools(trajectory, held)}
        # Losses are what a reader misses, which holds whatever way this writer took.
        back = self.read(msgspec.json.encode(document), Origin("")).trajectory
        return Written(document, differences(trajectory, back, NAME))

    def write_pair(self, chosen: Trajectory, rejected: Trajectory) -> Written:
        """One preference row. Raises ``FormatError``: ``tied_pair``, ``no_common_prompt``, and what ``write`` does."""
        held = layout(chosen, NAME)
        better, worse = self._messages(chosen), self._messages(rejected)
        prompt = held.spelling.get("prompt")
        if prompt is None:
            prompt = prompt_length(better, worse, lambda message: bool(message["role"] == "assistant"))
        document: JsonObject = {"prompt": better[:prompt]} if held.spelling.get("shape") != "implicit" else {}
        document |= {"chosen": better[prompt:], "rejected": worse[prompt:]}
        document = {**held.row, **_as_texts(document, held), **_tools(chosen, held)}
        back = self.read(msgspec.json.encode(document), Origin(""))
        return Written(document, pair_losses(Pair(chosen, rejected), back, NAME))

    def _conversation(self, messages: list[Any]) -> Conversation:
        return MessageReader("object", WEIGHT, self.chosen_dialect).read(messages)

    def _messages(self, trajectory: Trajectory) -> list[JsonObject]:
        held = layout(trajectory, NAME)
        return [
            written.message for written in MessageWriter(held, "object", WEIGHT, self.chosen_dialect).write(trajectory)
        ]


def _shape(row: JsonObject) -> Shape:
    # Tables of several shapes have all columns in every row, with nulls.
    has = row.keys() & {name for name, value in row.items() if value is not None}
    if {"chosen", "rejected"} <= has:
        # The prompt of whole conversations is their first message once more.
        repeated = isinstance(row.get("prompt"), str) and all(map(_is_whole, (row["chosen"], row["rejected"])))
        return "preference" if "prompt" in has and not repeated else "implicit"
    if {"prompt", "completions", "labels"} <= has:
        return "stepwise"
    if {"prompt", "completion"} <= has:
        return "unpaired" if isinstance(row.get("label"), bool) else "completion"
    if "messages" in has:
        return "messages"
    if "prompt" in has:
        return "prompt"
    raise FormatError("invalid", f"expected messages, or a prompt with what answers it, got the fields {_names(row)}")


def _is_whole(side: Any) -> bool:
    """Whether a side is a conversation from its beginning on, and no answer alone."""
    return bool(isinstance(side, list) and side and isinstance(side[0], dict) and side[0].get("role") != "assistant")


def _parts(row: JsonObject, shape: Shape, spelling: JsonObject) -> tuple[list[Any], list[list[Any]]]:
    """The prompt, and the answers to it: one, or the better and the worse one. Takes them out of ``row``."""
    texts: list[str] = []
    if shape == "messages":
        return _list(row, "messages", "", texts), [[]]
    prompt = [] if shape == "implicit" else _list(row, "prompt", "user", texts)
    if shape == "stepwise":
        answers = [_steps(row)]
    else:
        names = {"prompt": (), "completion": ("completion",), "unpaired": ("completion",)}
        answers = [_list(row, name, "assistant", texts) for name in names.get(shape, ("chosen", "rejected"))] or [[]]
    spelling["prompt"] = len(prompt)
    if texts:
        spelling["texts"] = texts
    return prompt, answers


def _list(row: JsonObject, name: str, role: str, texts: list[str]) -> list[Any]:
    value = row.pop(name)
    if isinstance(value, str) and role:
        texts.append(name)
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise FormatError("invalid", f"expected {name!r}, a list of messages, got {value!r:.60}")
    return value


def _steps(row: JsonObject) -> list[JsonObject]:
    """Each completion is a turn of its own, with its label with it."""
    completions, labels = row.pop("completions"), row.pop("labels")
    if not isinstance(completions, list) or not isinstance(labels, list) or len(completions) != len(labels):
        raise FormatError("invalid", "expected as many labels as completions, both lists")
    return [
        {"role": "assistant", "content": each, "label": label} for each, label in zip(completions, labels, strict=True)
    ]


def _divided(messages: list[JsonObject], shape: str, held: Layout, as_read: bool) -> JsonObject:
    """Prompt and completion; the completion is what it was, or the last answer."""
    if as_read:
        cut, end = held.spelling["prompt"], len(messages)
    else:
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            raise FormatError("no_answer", "no assistant message has content")
        cut, end = answers[-1], answers[-1] + 1
    prompt, completion = messages[:cut], messages[cut:end]
    if shape == "prompt":
        return _as_texts({"prompt": prompt}, held)
    if shape == "stepwise":
        steps = {
            "completions": [each["content"] for each in completion],
            # One without a label was null.
            "labels": [each.get("label") for each in completion],
        }
        return {**_as_texts({"prompt": prompt}, held), **steps}
    document = {"prompt": prompt, "completion": completion}
    return _as_texts(document, held) if as_read else document


def _as_texts(document: JsonObject, held: Layout) -> JsonObject:
    """Fields that were plain texts as such."""
    texts = held.spelling.get("texts", ())
    return {name: value[0]["content"] if name in texts else value for name, value in document.items()}


def _tools(trajectory: Trajectory, held: Layout) -> JsonObject:
    tools = write_tools(trajectory.tools, held.spelling.get("tools", {}), "object")
    return {} if tools is None else {"tools": tools}


def _names(row: JsonObject) -> str:
    return ", ".join(row) or "none"
