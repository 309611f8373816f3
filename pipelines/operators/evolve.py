"""``evolve``: variants of tasks, after AgentGen's Bi-Evol (arXiv:2408.00764) and ASearcher (arXiv:2508.07976)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, AsyncOperation, Blamed, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, mapped
from agentmill.pipelines.operators.lookup import Lookup, distinct
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.proposals import gather, generator_for, result_of
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import (
    DIRECTIONS,
    MOST_LONGER,
    GenerationError,
    TaskGenerator,
    turns_of_plan,
)

Direction = Literal["easier", "harder", "other", "inject", "fuzz"]
LONGER = ("harder", "inject")
"""The directions whose variants have longer solutions."""


class Evolve(Operator):
    """Variants of each task in the split of their parent: easier, harder, other; of questions also inject and fuzz."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of", "environments")

    of: TableNames = Field(description="tables of tasks")
    environments: TableNames = Field(description="tables of the environments of these tasks")
    directions: Annotated[list[Direction], Field(min_length=1)] = Field(
        default=["easier", "harder"],
        description="easier, harder, other (another start or goal that takes as many actions); of family search inject"
        " (a fact about it in the place of a name) and fuzz (a range in the place of a number)",
    )
    n: int = Field(default=1, ge=1, description="variants per task and direction")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from tasks."""
        expect(reads, "environments", "EnvironmentSpec")
        return expect(reads, "of", "Task")

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the variants of each task, of which harder ones are longer."""
        del models
        made = rows["of"].times(self.n * len(set(self.directions)))
        plan = mapped(made.plan, lambda actions: actions + MOST_LONGER)
        longer = msgspec.structs.replace(made, plan=plan, turns=mapped(plan, turns_of_plan))
        return Bounds(reads=made.n, rows=longer if {*LONGER} & {*self.directions} else made)

    def check_families(self, families: frozenset[str]) -> None:
        """Every direction must be one of some family."""
        possible = {each for family in families for each in DIRECTIONS.get(family, self.directions)}
        idle = [each for each in self.directions if each not in possible]
        if families and idle:
            raise UserError(
                f"`directions: {idle[0]}` is none of family {', '.join(sorted(families))}\n"
                f"for these there is {', '.join(sorted(possible))}",
                ErrorCode.KEY_NOT_FOR_THIS,
            )

    def check_inputs(self, inputs: Inputs) -> None:
        """As ``check_families``."""
        self.check_families(frozenset[str]().union(*(distinct(each, "family") for each in inputs["environments"])))

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The variants."""
        environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec)
        return Evolution(environments, list(dict.fromkeys(self.directions)), self.n, self._seed(context))

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


class Evolution(AsyncOperation[Task, Task]):
    """``n`` inputs per task and direction, called ``TASK/DIRECTION/NUMBER``; those of one direction made together."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 100

    def __init__(
        self, environments: Lookup[EnvironmentSpec], directions: Sequence[Direction], n: int, seed: int
    ) -> None:
        super().__init__("evolve", Task, Task, window=n)
        self._environments = environments
        self._directions = directions
        self._n = n
        self._seed = seed
        self._generators: dict[str, TaskGenerator] = {}

    async def open(self) -> None:
        """Load the environments."""
        self._environments.load()

    def count(self, record: Task) -> int:
        """Variants of a task."""
        del record
        return self._n * len(self._directions)

    def units(self, record: Task) -> list[Unit]:
        """One per direction."""
        return [
            Unit((f"{record.task_id}/{direction}/{number}" for number in range(self._n)), direction)
            for direction in self._directions
        ]

    async def process(self, record: Task, unit: Unit) -> Iterable[Result]:
        """The variants of one direction."""
        spec = self._environments.get(record.environment_id)
        if spec is None:
            raise EnvError(f"no environment {record.environment_id!r} in the tables of `environments`")
        direction: Direction = unit.data
        if direction not in DIRECTIONS.get(spec.family, (direction,)):
            none = GenerationError("family_not_varied", f"tasks of family {spec.family} have no direction {direction}")
            return [result_of(input_id, none, self, None) for input_id in unit]
        generator = generator_for(spec.family, self._generators, {})
        made = await gather(generator.evolve(spec, record, direction, self._n, self._seed), len(unit))
        return [result_of(input_id, each, self, record.split) for input_id, each in zip(unit, made, strict=True)]
