"""Training rows: what ``agentmill export`` makes through a view, and the only thing a trainer reads."""

from __future__ import annotations

from typing import Literal

from agentmill.schemas.records.record import JsonObject, Record

ChatRole = Literal["system", "user", "assistant", "tool"]

ArgumentLoss = Literal["trained", "untrained", "only"]
"""Whether the values of a call's arguments carry loss as the rest of the message does, none, or alone."""


class MessageCall(Record):
    """A tool call of an assistant message; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str | None = None


class Message(Record):
    """One chat message. ``train``: its text carries loss, times ``weight``; only assistant messages may.

    ``argument_loss``: of a message with loss all of it carries it, what is no value of an argument, or only that.
    """

    role: ChatRole
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageCall] = []
    tool_call_id: str | None = None
    name: str | None = None
    train: bool = False
    weight: float = 1.0
    argument_loss: ArgumentLoss = "trained"


class SampledTurn(Record):
    """The tokens that a model sampled for a message: ``input_ids[start:end]``.

    ``message`` is its place in the conversation, which begins with the prompt in rows that have one.
    """

    message: int
    start: int
    end: int


class RowTokens(Record):
    """The tokens of one segment of a conversation (see ``TurnTokens``), as its model saw and sampled them.

    They reach from the start of the segment to the end of its last turn with loss. ``turns`` are what was sampled
    there, in order; what lies before and between them is the prompt. ``model`` and ``revision`` say whose tokens they
    are, ``None`` where that is not known: copied turns with loss may be another model's.
    """

    input_ids: list[int]
    turns: list[SampledTurn]
    model: str | None = None
    revision: str | None = None


class SftRow(Record):
    """One conversation for supervised fine-tuning. ``tools`` is JSON text: a list of OpenAI function schemas.

    ``tokens`` are those of the segments that hold messages with loss, where we generated the conversation and it is
    told as it was; no message is in two of them.
    """

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    messages: list[Message]
    tools: str | None = None
    tokens: list[RowTokens] = []
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class PreferenceRow(Record):
    """A prompt with a better and a worse continuation; ``weight`` scales the loss of the pair.

    Of the continuations, the messages marked ``train`` carry loss; items are those where the two part ways.
    ``chosen_tokens`` and ``rejected_tokens`` are those of the prompt with either, as the tokens of an ``SftRow``.
    """

    row_id: str
    view: str
    view_parameters: JsonObject
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    chosen_id: str
    rejected_id: str
    chosen_score: float | None = None
    rejected_score: float | None = None
    chosen_item: int | None = None
    rejected_item: int | None = None
    weight: float = 1.0
    tools: str | None = None
    chosen_tokens: list[RowTokens] = []
    rejected_tokens: list[RowTokens] = []
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class UnpairedRow(Record):
    """A prompt with one continuation that is good (``label`` true) or bad; ``weight`` balances the classes.

    ``tokens`` are those of the prompt with the continuation, as in an ``SftRow``.
    """

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    prompt: list[Message]
    completion: list[Message]
    label: bool
    item: int | None = None
    weight: float = 1.0
    tools: str | None = None
    tokens: list[RowTokens] = []
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class ScorerRow(Record):
    """A conversation up to a point, and what a scorer should say of it: a number, a category, or words.

    ``item`` is the step that is scored, ``None`` for the whole run; ``n`` is the number of samples behind ``value``.
    """

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    messages: list[Message]
    item: int | None = None
    value: float | None = None
    n: int | None = None
    label: str | None = None
    critique: str | None = None
    tools: str | None = None
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class PromptRow(Record):
    """A conversation that a model is to go on with, for reinforcement learning; ``item`` is the step it stops at.

    ``outcome`` is how the run that it is taken from ended.
    """

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    prompt: list[Message]
    item: int | None = None
    outcome: str | None = None
    tools: str | None = None
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class TextRow(Record):
    """Plain text for continued pre-training."""

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    text: str
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None
