"""``propose``: tasks for each environment, from nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import Field, field_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, Blamed, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Most, Rows
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.operators.spec_env import HELD_OUT, TRAIN
from agentmill.pipelines.operators.splits import check_held_out, falls_in
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.tables import Table, read_columns
from agentmill.synthesis.generators import TASK_GENERATORS
from agentmill.synthesis.generators.generator import GenerationError, TaskGenerator, turns_of_plan

HELD_OUT_TASKS, HELD_OUT_ENVIRONMENTS = "held_out_tasks", "held_out_environments"
"""The splits of tasks that are set aside: of environments that are trained on, and of others."""


class Propose(Operator):
    """n tasks proposed for each environment."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of",)

    counted: ClassVar[Sequence[str]] = ("n",)

    of: TableNames = Field(description="tables of environments")
    n: int = Field(default=8, ge=1, description="tasks per environment")
    plan_length: tuple[int, int] = Field(default=(2, 8), description="fewest and most actions of a shortest plan")
    held_out: float = Field(default=0.0, ge=0, lt=1, description="share of all tasks of train environments set aside")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @field_validator("plan_length")
    @classmethod
    def _ordered(cls, plan_length: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= plan_length[0] <= plan_length[1]:
            raise ValueError(f"{list(plan_length)} is no range; expected [fewest, most] with 1 <= fewest <= most")
        return plan_length

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from environments."""
        expect(reads, "of", "EnvironmentSpec")
        return "Task"

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tasks of each environment, in their splits."""
        del models
        read = rows["of"]
        n: Most = None if read.n is None else read.n * self.n
        splits: dict[str | None, int] | None = None
        if read.splits is not None:
            unseen = read.splits.get(HELD_OUT, 0) * self.n
            others = sum(read.splits.values()) * self.n - unseen
            aside = sum(falls_in(number, self.held_out) for number in range(others))
            splits = {TRAIN: others - aside, HELD_OUT_TASKS: aside, HELD_OUT_ENVIRONMENTS: unseen}
        plan = max(2, self.plan_length[1])
        return Bounds(reads=n, rows=Rows(n=n, splits=splits, turns=turns_of_plan(plan), plan=plan))

    def check_inputs(self, inputs: Inputs) -> None:
        """A share that is held out must be one task or more, of all environments together."""
        check_held_out(self.n * len(train_environments(inputs["of"])), self.held_out, "tasks of train environments")

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The proposals."""
        # Tasks are numbered across environments, so that a share of less than one task per environment is not lost.
        ids = train_environments(inputs["of"]) if self.held_out else []
        first = {environment_id: place * self.n for place, environment_id in enumerate(ids)}
        return Proposal(self, self._seed(context), first)

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


def train_environments(tables: Sequence[Table]) -> list[str]:
    """The ids of the environments of ``tables`` that are not held out, each once, in their order."""
    ids: dict[str, None] = {}
    for shard in (shard for table in tables for shard in table.shards()):
        columns = read_columns(shard, EnvironmentSpec, ["environment_id", "split"]).to_pydict()
        rows = zip(columns["environment_id"], columns["split"], strict=True)
        ids.update(dict.fromkeys(environment_id for environment_id, split in rows if split != HELD_OUT))
    return list(ids)


class Proposal(AsyncOperation[EnvironmentSpec, Task]):
    """``n`` inputs per environment, called ``ENVIRONMENT/NUMBER``, made together.

    ``first`` numbers the tasks of train environments: it has the number of the first task of each.
    """

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 50

    def __init__(self, parameters: Propose, seed: int, first: Mapping[str, int]) -> None:
        super().__init__("propose", EnvironmentSpec, Task, window=parameters.n)
        self._n = parameters.n
        self._held_out = parameters.held_out
        self._first = first
        self._options = {"plan_length": parameters.plan_length}
        self._seed = seed
        self._generators: dict[str, TaskGenerator] = {}

    def count(self, record: EnvironmentSpec) -> int:
        """Tasks of an environment."""
        del record
        return self._n

    def units(self, record: EnvironmentSpec) -> list[Unit]:
        """All tasks of an environment in one unit, so that the generator sees to it that they differ."""
        return [Unit(f"{record.environment_id}/{number}" for number in range(self._n))]

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The tasks, each in its split."""
        generator = generator_for(record.family, self._generators, self._options)
        made = await gather(generator.propose(record, self._n, self._seed), len(unit))
        return [
            result_of(input_id, each, self, self._split(record, number))
            for number, (input_id, each) in enumerate(zip(unit, made, strict=True))
        ]

    def _split(self, spec: EnvironmentSpec, number: int) -> str:
        if spec.split == HELD_OUT:
            return HELD_OUT_ENVIRONMENTS
        held_out = self._held_out and falls_in(self._first[spec.environment_id] + number, self._held_out)
        return HELD_OUT_TASKS if held_out else TRAIN


def generator_for(family: str, made: dict[str, TaskGenerator], options: Mapping[str, Any]) -> TaskGenerator:
    """The task generator of a family, made once. Raises ``UserError`` if there is none."""
    if family not in made:
        made[family] = TASK_GENERATORS.load(family)(**options)
    return made[family]


async def gather(made: AsyncIterator[Task | GenerationError], n: int) -> list[Task | GenerationError]:
    """Exactly ``n`` of what a generator makes; where it stops before, its last word stands for the rest."""
    found = [each async for each in made][:n]
    last = found[-1] if found and isinstance(found[-1], GenerationError) else None
    return found + [last or GenerationError("not_proposed", "the generator made no more")] * (n - len(found))


def result_of(input_id: str, made: Task | GenerationError, operation: AnyOperation, split: str | None) -> Result:
    """A task in its split, or a dead letter for the failure to make one."""
    if isinstance(made, GenerationError):
        return Result(input_id=input_id, dropped=dead_letter(made, input_id, operation, {}))
    return Result(input_id=input_id, outputs=[msgspec.structs.replace(made, split=split)])
