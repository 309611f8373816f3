"""What other tables say of trajectories, put on the shelf with them: verdicts, labels, values, rows, trees, pairs."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from agentmill.pipelines.view.js_shards import JsShards, Texts
from agentmill.pipelines.view.runs import Runs, mark
from agentmill.pipelines.view.sources import Source, batches
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.rows import Message, SftRow
from agentmill.schemas.records.verdict import Label, Node, Selection, Verdict

ROW_COLUMNS = ["row_id", "trajectory_id", "view", "view_parameters", "messages", "prompt", "completion", "label"]
"""All that masks are made of; the tokens of rows are left where they are."""
ROWS = [name for name, kind in RECORD_KINDS.items() if kind.shown == "row"]
KINDS = [*(name for name, kind in RECORD_KINDS.items() if kind.shown and name not in ROWS), *ROWS]
"""Records that are shown with the trajectories they speak of, rows last."""


def add_annotations(source: Source, runs: Runs, shards: JsShards) -> None:
    """Put the rows of a table that annotate trajectories with these, and into the index what it filters by."""
    kind = RECORD_KINDS[source.record].shown
    assert kind is not None, source.record
    inputs = frozenset(source.table.manifest.inputs.values())
    for batch in batches(source.table, ROW_COLUMNS if kind == "row" else None):
        for record in batch:
            places = runs.rows_of(record.trajectory_id, inputs)
            if not places:
                continue
            fields = row_object(record) if kind == "row" else msgspec.to_builtins(record)
            del fields["trajectory_id"]
            entry, facet = msgspec.json.encode({**fields, "table": source.name}), facet_of(record)
            for place in places:
                shards.add(place, kind, entry)
                if facet is not None:
                    runs.sets[kind].add(place, facet)


def facet_of(record: Record) -> str | None:
    """What a trajectory is filtered by; verdicts and selections of single steps are no news of the whole."""
    if isinstance(record, Label):
        return f"{record.name}: {record.value}"
    if isinstance(record, Selection) and record.item is None:
        return f"{record.name}: {'kept' if record.kept else 'dropped'}"
    if isinstance(record, Verdict) and record.item is None:
        return f"{record.name}: {verdict_word(record)}"
    return None


def verdict_word(verdict: Verdict) -> str:
    """A verdict in a word."""
    if verdict.status != "scored" or verdict.passed is None:
        return verdict.status
    return "passed" if verdict.passed else "failed"


def row_object(row: Any) -> JsonObject:
    """A training row as (mark, weight of its loss) for each message of the agent, and how many messages it has."""
    messages: list[Message] = row.messages if isinstance(row, SftRow) else [*row.prompt, *row.completion]
    agent = [message for message in messages if message.role == "assistant"]
    return {
        "trajectory_id": row.trajectory_id,
        "row_id": row.row_id,
        "view": row.view,
        "view_parameters": row.view_parameters,
        "label": None if isinstance(row, SftRow) else row.label,
        "messages": len(messages),
        "loss": [[mark(message), message.weight if message.train else 0] for message in agent],
    }


def add_nodes(source: Source, runs: Runs, trees: dict[str, int], shards: JsShards) -> None:
    """Put the nodes of search trees on their shelf, and note which trajectories are in which tree."""
    for batch in batches(source.table):
        for node in batch:
            assert isinstance(node, Node)
            tree = trees.setdefault(node.tree_id, len(trees))
            shards.add(tree, "node", msgspec.json.encode({**msgspec.to_builtins(node), "table": source.name}))
            for place in runs.rows_of(node.trajectory_id or "", ()):
                runs.trees[place] = tree


def add_tasks(source: Source, tasks: Texts, shards: JsShards, done: set[str]) -> None:
    """Put the tasks that trajectories are of on their shelf, each once."""
    for batch in batches(source.table):
        for task in batch:
            place = tasks.known.get(task.task_id)
            if place is not None and task.task_id not in done:
                done.add(task.task_id)
                shards.add(place, "task", msgspec.json.encode(msgspec.to_builtins(task)))


class Pairs:
    """The columns of all preference rows."""

    def __init__(self) -> None:
        self.texts = {name: Texts() for name in ("table", "view", "task", "environment", "split")}
        self.ids: list[str] = []
        self.chosen: list[int] = []
        self.rejected: list[int] = []
        self.numbers: dict[str, list[float | None]] = {"chosen_score": [], "rejected_score": [], "weight": []}

    def add(self, source: Source, runs: Runs, shards: JsShards) -> None:
        """Put the pairs of a table on their shelf; their tokens are left where they are."""
        columns = source.table.record_type.__struct_fields__
        inputs = frozenset(source.table.manifest.inputs.values())
        for batch in batches(source.table, [name for name in columns if not name.endswith("_tokens")]):
            for row in batch:
                shards.add(len(self.ids), "pair", msgspec.json.encode(msgspec.to_builtins(row)))
                self.append(source.name, row, runs, inputs)

    def append(self, table: str, row: Any, runs: Runs, inputs: Container[str]) -> None:
        """Add a row to the columns."""
        environment = row.environment_id
        self.ids.append(row.row_id)
        for column, name in ((self.chosen, row.chosen_id), (self.rejected, row.rejected_id)):
            column.append(next(iter(runs.rows_of(name, inputs)), -1))
        for name, number in (
            ("chosen_score", row.chosen_score),
            ("rejected_score", row.rejected_score),
            ("weight", row.weight),
        ):
            self.numbers[name].append(number)
        texts = {"table": table, "view": row.view, "task": row.task_id, "split": row.split}
        for name, text in {**texts, "environment": runs.environments.get(environment or "", environment)}.items():
            self.texts[name].append(text)

    def encoded(self) -> JsonObject:
        """As the index holds it."""
        columns = {name: column.encoded() for name, column in self.texts.items()}
        return {
            "ids": self.ids,
            "chosen": self.chosen,
            "rejected": self.rejected,
            "facets": columns,
            "numbers": self.numbers,
        }
