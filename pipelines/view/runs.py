"""Trajectories in a view: their columns in the index, and their records on the shelf."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Any

import msgspec

from agentmill.pipelines.view.js_shards import Texts, TextSets, places, shortened
from agentmill.pipelines.view.sources import Source
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import TextObservation, Trajectory
from agentmill.schemas.views.conversation import conversation

FACETS = ("outcome", "environment", "model", "strategy", "round", "split", "dataset")
NUMBERS = ("reward", "turns", "errors", "prompt_tokens", "completion_tokens", "seconds", "cost_usd")
SETS = ("table", "verdict", "label", "selection")


class Runs:
    """The columns of all trajectories, filled row by row. ``environments`` are names by id."""

    def __init__(self, environments: dict[str, str]) -> None:
        self.environments = environments
        self.ids: list[str] = []
        self._contents: dict[str, dict[bytes, int]] = {}
        self._digests: dict[str, str] = {}
        self.tasks = Texts()
        self.titles = Texts()
        self.facets = {name: Texts() for name in FACETS}
        self.numbers: dict[str, list[float | None]] = {name: [] for name in NUMBERS}
        self.sets = {name: TextSets() for name in SETS}
        self.parents: list[str | None] = []
        self.trees: dict[int, int] = {}

    def add(self, trajectory: Trajectory, source: Source) -> tuple[int, str | None]:
        """The row of a trajectory of a table, and what it is called if it is new.

        Curated tables repeat what they keep: that is one row. Another trajectory under a known id has a row of its own,
        called ``ID (2: TABLE)``.
        """
        name = trajectory.trajectory_id
        rows = self._contents.setdefault(name, {})
        content = hashlib.blake2b(msgspec.json.encode(trajectory), digest_size=16).digest()
        new = content not in rows
        row = rows.setdefault(content, len(self.ids))
        # By the name as the set of tables has it, for ``rows_of`` looks it up there.
        self._digests[shortened(source.name)] = source.table.digest
        self.sets["table"].add(row, source.name)
        if not new:
            return row, None
        self.ids.append(name if len(rows) == 1 else f"{name} ({len(rows)}: {source.name})")
        self._append(trajectory)
        return row, self.ids[row]

    def rows_of(self, trajectory_id: str, inputs: Container[str]) -> list[int]:
        """The rows of an id; of several those that are in the tables with the digests ``inputs``, if any are."""
        rows = list(self._contents.get(trajectory_id, {}).values())
        if len(rows) < 2:
            return rows
        own = [row for row in rows if any(self._digests.get(name) in inputs for name in self.sets["table"].of(row))]
        return own or rows

    def _append(self, trajectory: Trajectory) -> None:
        self.tasks.append(trajectory.task_id)
        self.titles.append(title(trajectory))
        for name, text in self.facet_values(trajectory).items():
            self.facets[name].append(text)
        for name, number in number_values(trajectory).items():
            self.numbers[name].append(number)
        self.parents.append(trajectory.parent_id)

    def facet_values(self, trajectory: Trajectory) -> dict[str, str | None]:
        """What lists are filtered by. The model stands for the policy where there is none, as in demonstrations."""
        made, environment = trajectory.generation, trajectory.environment_id
        return {
            "outcome": trajectory.outcome.status,
            "environment": None if environment is None else self.environments.get(environment, environment),
            "model": None if made is None else made.model or made.policy,
            "strategy": None if made is None else made.strategy,
            "round": None if made is None else str(made.round),
            "split": trajectory.split,
            "dataset": None if trajectory.source is None else trajectory.source.dataset,
        }

    def encoded(self) -> JsonObject:
        """As the index holds it."""
        rows = len(self.ids)
        first = {name: next(iter(contents.values())) for name, contents in self._contents.items()}
        return {
            "ids": self.ids,
            "task": self.tasks.encoded(),
            "title": self.titles.encoded(),
            "facets": {name: column.encoded() for name, column in self.facets.items()},
            "sets": {name: column.encoded(rows) for name, column in self.sets.items()},
            "numbers": self.numbers,
            "parent": places(self.parents, first),
            "tree": [self.trees.get(row, -1) for row in range(rows)] if self.trees else [],
        }


def title(trajectory: Trajectory) -> str | None:
    """The beginning of what the user asked first; ``None`` where that is nothing."""
    asked = (each for each in trajectory.content if isinstance(each, TextObservation) and each.source == "user")
    first = next((each for each in asked if each.content.strip()), None)
    return None if first is None else shortened(first.content)


def number_values(trajectory: Trajectory) -> dict[str, float | None]:
    """What lists are sorted by."""
    usage = trajectory.usage
    return {
        "reward": trajectory.outcome.reward,
        "turns": max((item.turn for item in trajectory.content), default=0),
        "errors": sum(item.error for item in trajectory.content),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "seconds": None if usage.seconds is None else round(usage.seconds, 3),
        "cost_usd": usage.cost_usd,
    }


def record_json(trajectory: Trajectory, called: str, token_ids: bool) -> bytes:
    """A trajectory as the page shows it: under the id it is ``called`` by, fields at rest left out, tokens counted."""
    whole = without_rest({**msgspec.to_builtins(trajectory), "trajectory_id": called})
    whole["content"] = [item_object(item, token_ids) for item in whole.get("content", [])]
    return msgspec.json.encode(whole)


def item_object(item: JsonObject, token_ids: bool) -> JsonObject:
    """An item with the number of its tokens, and their ids only where they are asked for."""
    kept = without_rest(item)
    tokens = kept.get("tokens")
    if tokens is not None:
        counts = {
            "prompt_tokens": len(tokens["prompt_ids"]),
            "sampled_tokens": len(tokens["sampled_ids"]),
            "logprob": sum(tokens["logprobs"]) if tokens["logprobs"] else None,
            "segment_start": tokens["segment_start"],
            "finish_reason": tokens["finish_reason"],
        }
        kept["tokens"] = {**tokens, **counts} if token_ids else counts
    return kept


def without_rest(record: JsonObject) -> JsonObject:
    """The fields of one record that say something. What is inside of them stays whole: an argument may be null."""
    return {
        key: value
        for key, value in record.items()
        if value is not None and value != [] and not (value is False and key in ("error", "synthetic"))
    }


def marked_items(trajectory: Trajectory) -> list[list[Any]]:
    """(mark, items) of each of the agent's messages, by which messages of training rows are found in a trajectory."""
    return [[mark(parts.message), parts.items] for parts in conversation(trajectory) if parts.step is not None]


def mark(message: Message) -> str:
    """Equal for messages that say and call the same."""
    parts = [message.content or "", [[call.name, call.arguments] for call in message.tool_calls]]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()
