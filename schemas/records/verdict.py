"""Annotations of trajectories: tables of their own, keyed by (trajectory id, item, name).

``item`` is an index into ``Trajectory.content``, or ``None`` for the whole trajectory. Selections of tasks have the
task id instead.
"""

from __future__ import annotations

from typing import Any, Literal

from agentmill.schemas.records.record import JsonObject, Record


class Verdict(Record):
    """A judgement and its evidence. "Unscored" is a status; ``score`` and ``passed`` are then ``None``."""

    trajectory_id: str
    name: str
    status: Literal["scored", "unscored", "error"]
    judge: str
    item: int | None = None
    score: float | None = None
    passed: bool | None = None
    reason: str | None = None
    evidence: JsonObject = {}


class Label(Record):
    """A category given to a trajectory or a step."""

    trajectory_id: str
    name: str
    value: str
    labeller: str
    item: int | None = None
    reason: str | None = None


class Value(Record):
    """An estimate of what is to come from a step on; ``n`` is the number of samples behind it."""

    trajectory_id: str
    name: str
    value: float
    estimator: str
    n: int
    item: int | None = None


class Selection(Record):
    """A curation decision on one trajectory: kept or left out, with the reason.

    A reason is a code that is counted, alone or followed by a colon and details: ``duplicate: equal to a1b2``.
    """

    trajectory_id: str
    name: str
    kept: bool
    reason: str | None = None
    score: float | None = None
    item: int | None = None
    weight: float = 1.0


class TaskSelection(Record):
    """A curation decision on one task: kept or not, with the reason and the score that decided."""

    task_id: str
    name: str
    kept: bool
    reason: str | None = None
    score: float | None = None


class Node(Record):
    """A node of a search tree: ``prior`` and ``q`` as in AlphaZero's MCTS, ``turn`` is the last turn it holds.

    ``trajectory_id`` is the run that this turn belongs to, if any does: it is copied in others that share it.
    """

    node_id: str
    tree_id: str
    parent_id: str | None
    trajectory_id: str | None
    turn: int
    visits: int = 0
    q: float | None = None
    prior: float | None = None
    state_digest: str | None = None
    terminal: bool = False
    extra: dict[str, Any] = {}


class Dropped(Record):
    """A dead letter: an input that a stage did not use, with the reason.

    ``blamed`` names the party at fault; ``reason`` is a short code that is counted, ``detail`` says it in words;
    ``input`` is the record itself, or a reference to it (shard and row) where it is large.
    """

    input_id: str
    stage: str
    reason: str
    blamed: Literal["environment", "policy", "verifier", "generator", "format", "input", "curation"]
    detail: str = ""
    input: JsonObject = {}


class Image(Record):
    """Image bytes, kept once."""

    sha256: str
    media_type: str
    data: bytes


Ending = Literal["nothing", "message", "call", "code", "observation"]


class Quality(Record):
    """What can be counted in one trajectory.

    ``calls`` are tool calls and code. ``calls_unanswered`` have no observation that answers them; ``results_unlinked``
    are observations with the id of no call. ``calls_undeclared`` name no declared tool, ``calls_misfit`` have arguments
    that the declared tool does not take (both 0 where no tools are declared). ``content_digest`` is equal for runs that
    say the same. ``tokens`` is the length of all texts under a tokenizer, ``longest_text`` that of the longest one;
    ``language`` is the ISO 639 code of what the agent writes, ``None`` where it writes too little. ``refusals`` are
    messages of the agent that refuse to help, ``refused``: its last message is one. ``secrets``, ``personal`` and
    ``paths`` are the different values that the scan of publishing finds. ``None`` is what was not counted.
    """

    trajectory_id: str
    content_digest: str
    ending: Ending
    items: int
    turns: int
    messages: int
    calls: int
    calls_with_thought: int
    calls_unanswered: int
    calls_undeclared: int
    calls_misfit: int
    results_unlinked: int
    errors: int
    characters: int
    starts_with_user: bool
    has_system_prompt: bool
    tokens: int | None = None
    language: str | None = None
    code_languages: list[str] = []
    status: str | None = None
    longest_text: int | None = None
    refusals: int | None = None
    refused: bool | None = None
    secrets: int | None = None
    personal: int | None = None
    paths: int | None = None
