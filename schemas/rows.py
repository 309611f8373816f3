"""Training rows: what ``agentmill export`` makes through a view, and the only thing a trainer reads."""

from __future__ import annotations

from typing import Literal

from schemas.record import JsonObject, Record

ChatRole = Literal["system", "user", "assistant", "tool"]


class MessageCall(Record):
    """A tool call of an assistant message; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str | None = None


class Message(Record):
    """One chat message. ``train``: its text carries loss, times ``weight``; only assistant messages may."""

    role: ChatRole
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageCall] = []
    tool_call_id: str | None = None
    name: str | None = None
    train: bool = False
    weight: float = 1.0


class SftRow(Record):
    """One conversation for supervised fine-tuning. ``tools`` is JSON text: a list of OpenAI function schemas."""

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    messages: list[Message]
    tools: str | None = None
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class PreferenceRow(Record):
    """A prompt with a better and a worse continuation."""

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
    tools: str | None = None
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None


class UnpairedRow(Record):
    """A prompt with one continuation that is good (``label`` true) or bad; ``weight`` balances the classes."""

    row_id: str
    trajectory_id: str
    view: str
    view_parameters: JsonObject
    prompt: list[Message]
    completion: list[Message]
    label: bool
    weight: float = 1.0
    tools: str | None = None
    task_id: str | None = None
    environment_id: str | None = None
    split: str | None = None
