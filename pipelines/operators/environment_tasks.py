"""What operators have in common that make tasks for each environment: how many, in which splits, from which seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from agentmill.pipelines.operators.bounds import Most, Rows
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, order_config
from agentmill.pipelines.operators.proposals import HELD_OUT_ENVIRONMENTS, HELD_OUT_TASKS, OF_SPLIT, Numbers
from agentmill.pipelines.operators.spec_env import HELD_OUT, TRAIN
from agentmill.pipelines.operators.splits import check_held_out, falls_in
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.tables import Table, read_columns
from agentmill.synthesis.generators.generator import TOO_FEW, turns_of_plan


class EnvironmentTasks(Operator):
    """Parameters of operators that make ``n`` tasks for each environment."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    model_roles: ClassVar[Mapping[str, str]] = {"generator": "policy"}
    counted: ClassVar[Sequence[str]] = ("n",)
    incidental: ClassVar[Sequence[str]] = ("window",)

    of: TableNames = Field(description="tables of environments")
    n: int = Field(default=8, ge=1, description="tasks per environment")
    held_out: float = Field(default=0.0, ge=0, lt=1, description="share of all tasks of train environments set aside")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from environments."""
        expect(reads, "of", "EnvironmentSpec")
        return "Task"

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self.seed_of(context)}

    def check_inputs(self, inputs: Inputs) -> None:
        """A share that is held out must be one task or more, of all environments together."""
        check_held_out(self.n * len(train_environments(inputs["of"])), self.held_out, "tasks of train environments")

    def tables_config(self, inputs: Inputs) -> JsonObject:
        """The order of the tables where tasks are held out, since those of all environments are numbered in it."""
        return order_config(inputs["of"]) if self.held_out else {}

    def seed_of(self, context: StepContext) -> int:
        """The seed that tasks derive from."""
        return context.seed if self.seed is None else self.seed

    def numbers(self, inputs: Inputs, context: StepContext) -> Numbers:
        """The numbers of the tasks of each environment."""
        # Tasks are numbered across environments, so that a share of less than one task per environment is not lost.
        ids = train_environments(inputs["of"]) if self.held_out else []
        first = {environment_id: place * self.n for place, environment_id in enumerate(ids)}
        return Numbers(n=self.n, held_out=self.held_out, seed=self.seed_of(context), first=first)

    def proposed_rows(self, read: Rows, plan: int) -> Rows:
        """The tasks of the environments ``read``, in their splits, with solutions of up to ``plan`` actions."""
        splits: dict[str | None, int] | None = None
        if read.splits is not None:
            unseen = read.splits.get(HELD_OUT, 0) * self.n
            others = sum(read.splits.values()) * self.n - unseen
            aside = sum(falls_in(number, self.held_out) for number in range(others))
            splits = {TRAIN: others - aside, HELD_OUT_TASKS: aside, HELD_OUT_ENVIRONMENTS: unseen}
        total: Most = None if read.n is None else read.n * self.n
        return Rows(n=total, splits=splits, turns=turns_of_plan(plan), plan=plan)

    def too_few_notes(self, manifest: Manifest, fewer: str) -> list[str]:
        """Warnings of tasks that cannot be made, and of far fewer that are held out than was asked for.

        ``fewer`` says what there are too few of.
        """
        notes, missing = [], manifest.reasons.get(TOO_FEW)
        if missing:
            notes.append(f"warning: {missing:,} tasks cannot be made: {fewer}; the dead letters tell how many each has")
        held, train = (manifest.metrics.get(f"{OF_SPLIT}{split}", 0) for split in (HELD_OUT_TASKS, TRAIN))
        # Of tasks that were not made some were to be held out.
        if held < self.held_out * (held + train) / 2:
            notes.append(
                f"warning: {held:,.0f} of {held + train:,.0f} tasks of train environments are held out, far less than"
                f" held_out: {self.held_out:g}; give a smaller n, which environments can make, or a larger share"
            )
        return notes


def train_environments(tables: Sequence[Table]) -> list[str]:
    """The ids of the environments of ``tables`` that are not held out, each once, in their order."""
    ids: dict[str, None] = {}
    for shard in (shard for table in tables for shard in table.shards()):
        columns = read_columns(shard, EnvironmentSpec, ["environment_id", "split"]).to_pydict()
        rows = zip(columns["environment_id"], columns["split"], strict=True)
        ids.update(dict.fromkeys(environment_id for environment_id, split in rows if split != HELD_OUT))
    return list(ids)
