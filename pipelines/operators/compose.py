"""``compose``: several tasks of an environment become one, with one instruction, one goal and a solution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
from pydantic import Field, field_validator

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, mapped, product
from agentmill.pipelines.operators.lookup import Lookup, distinct, ids_of
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.proposals import HELD_OUT_ENVIRONMENTS, result_of
from agentmill.pipelines.operators.selection import SelectionParameters
from agentmill.pipelines.operators.selection_tables import Selected
from agentmill.pipelines.operators.spec_env import HELD_OUT
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.verdict import TaskSelection
from agentmill.synthesis.generators import TASK_COMPOSERS
from agentmill.synthesis.generators.composition import (
    FAMILIES,
    FEWEST_PARTS,
    MOST_PARTS,
    CompositionMaker,
    How,
    Wanted,
)
from agentmill.synthesis.generators.generator import MOST_LONGER, TOO_FEW, GenerationError, turns_of_plan

REFUSED = "refused."
"""Before a reason in the metrics: so many drawn parts do not go together."""
ELSEWHERE = "tasks_of_other_environments"
NOT_SELECTED = "tasks_not_selected"


class Compose(SelectionParameters):
    """n tasks per environment, each made of several; `selections` choose among the parts."""

    primary: ClassVar[str] = "environments"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of", "environments", "selections")
    selectable: ClassVar[Sequence[str]] = (TaskSelection.__name__,)
    counted: ClassVar[Sequence[str]] = ("n",)

    of: TableNames = Field(description="tables of tasks, admitted ones")
    environments: TableNames = Field(description="tables of the environments of these tasks")
    how: list[How] = Field(
        min_length=1,
        description="parts are chained (`sequence`), listed in another order (`reorder`), chained where they are about"
        " one row (`recombine`), asked for together (`width`), or the answer of one is hidden in the next (`depth`);"
        " several take turns",
    )
    parts: tuple[int, int] = Field(
        default=(FEWEST_PARTS, FEWEST_PARTS), description=f"fewest and most parts, up to {MOST_PARTS}; or one number"
    )
    n: int = Field(default=8, ge=1, description="composed tasks per environment")
    tries: int = Field(default=20, ge=1, description="draws of parts for each of them")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @field_validator("how", mode="before")
    @classmethod
    def _listed(cls, how: object) -> object:
        return [how] if isinstance(how, str) else how

    @field_validator("how")
    @classmethod
    def _different(cls, how: list[How]) -> list[How]:
        if len({*how}) < len(how):
            raise ValueError(f"names one twice: {', '.join(how)}")
        return how

    @field_validator("parts", mode="before")
    @classmethod
    def _range(cls, parts: object) -> object:
        return [parts, parts] if isinstance(parts, int) else parts

    @field_validator("parts")
    @classmethod
    def _ordered(cls, parts: tuple[int, int]) -> tuple[int, int]:
        if not FEWEST_PARTS <= parts[0] <= parts[1] <= MOST_PARTS:
            raise ValueError(f"{list(parts)} is no range of {FEWEST_PARTS} to {MOST_PARTS} parts")
        return parts

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from tasks."""
        expect(reads, "environments", "EnvironmentSpec")
        self.check_selections(reads)
        return expect(reads, "of", "Task")

    def check_families(self, families: frozenset[str]) -> None:
        """Every ``how`` must fit a family, and every family a ``how``."""
        fitting = sorted(how for how, possible in FAMILIES.items() if families & {*possible})
        idle = [how for how in self.how if how not in fitting]
        # A family that is in none of those that the parameters fit, or any family where one fits none.
        unfit = sorted(families if idle else families - {each for how in self.how for each in FAMILIES[how]})
        if not unfit:
            return
        possible = sorted({each for how in idle or self.how for each in FAMILIES[how]})
        ways = f"for these there is `how: {' or '.join(fitting)}`" if fitting else "name other environments"
        raise UserError(
            f"`how: {', '.join(idle or self.how)}` composes no tasks of family {', '.join(unfit)}, only of"
            f" {', '.join(possible)}\n{ways}",
            ErrorCode.KEY_NOT_FOR_THIS,
        )

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: n tasks per environment, of any split that parts can have."""
        del models
        environments, parts = rows["environments"], rows["of"]
        plan = mapped(product(parts.plan, self.parts[1]), lambda actions: actions + MOST_LONGER)
        splits = None
        if environments.splits is not None and parts.splits is not None:
            unseen = environments.splits.get(HELD_OUT, 0)
            seen = sum(environments.splits.values()) - unseen
            splits = {name: self.n * (unseen if name == HELD_OUT_ENVIRONMENTS else seen) for name in parts.splits}
        made = Rows(n=product(environments.n, self.n), splits=splits, turns=mapped(plan, turns_of_plan), plan=plan)
        return Bounds(reads=made.n, rows=made)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def check_inputs(self, inputs: Inputs) -> None:
        """Some of the tasks must be of these environments; selections must be of these tasks."""
        count = sum(table.manifest.counts.written for table in inputs["of"])
        if count and _of_others(inputs) == count:
            folders = " and ".join(str(table.folder) for table in inputs["environments"])
            raise UserError(
                f"none of the {count:,} tasks of `of` is of an environment in {folders}\n"
                "name the environments that these tasks were made for",
                ErrorCode.TASKS_OF_OTHERS,
            )
        self.selected(inputs, inputs["of"], TaskSelection)
        self.check_families(frozenset[str]().union(*(distinct(each, "family") for each in inputs["environments"])))

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings of what was not composed."""
        found, notes = manifest.metrics, []
        if missing := manifest.reasons.get(TOO_FEW):
            refused = {name: n for name, n in sorted(found.items()) if name.startswith(REFUSED)}
            why = ", ".join(f"{name.removeprefix(REFUSED)} {n:,.0f}" for name, n in refused.items())
            notes.append(f"warning: {missing:,} tasks cannot be composed; draws of parts were refused: {why}")
        if found.get(ELSEWHERE):
            notes.append(f"warning: {found[ELSEWHERE]:,.0f} tasks are of environments that are not named, and no parts")
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The compositions."""
        wanted = Wanted(how=tuple(self.how), parts=self.parts, tries=self.tries)
        return Composition(
            Lookup(tables_of(inputs, "of"), Task),
            self.selected(inputs, tables_of(inputs, "of"), TaskSelection),
            wanted,
            self.n,
            self._seed(context),
            _of_others(inputs),
        )

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


def _of_others(inputs: Inputs) -> int:
    """How many tasks are of none of the environments."""
    known = {str(each) for table in tables_of(inputs, "environments") for each in ids_of(table).to_pylist()}
    tasks = [ids_of(table, "environment_id") for table in tables_of(inputs, "of")]
    return sum(str(each) not in known for ids in tasks for each in ids.to_pylist())


class Composition(RowOperation[EnvironmentSpec, Task]):
    """``n`` inputs per environment, called ``ENVIRONMENT/NUMBER`` and made together, so that they differ."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 4
    many: ClassVar[bool] = True

    def __init__(
        self, tasks: Lookup[Task], selected: Selected | None, wanted: Wanted, n: int, seed: int, of_others: int
    ) -> None:
        super().__init__("compose", EnvironmentSpec, Task)
        self._tasks = tasks
        self._selected = selected
        self._wanted = wanted
        self._n = n
        self._seed = seed
        self._of_others = of_others
        self._by_environment: dict[str, list[Task]] = {}

    def open(self) -> None:
        """Load the tasks."""
        self._tasks.load()
        grouped: dict[str, list[Task]] = defaultdict(list)
        for task in self._tasks.all():
            grouped[task.environment_id].append(task)
        self._by_environment = dict(grouped)

    def units(self, record: EnvironmentSpec) -> list[Unit]:
        """All tasks of an environment together."""
        return [Unit(f"{record.environment_id}/{number}" for number in range(self._n))]

    def count(self, record: EnvironmentSpec) -> int:
        """Tasks of an environment."""
        del record
        return self._n

    def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The tasks, each in the split of its parts."""
        tasks = self._by_environment.get(record.environment_id, [])
        kept = [task for task in tasks if self._selected is None or self._selected.refusal(task.task_id) is None]
        how = tuple(each for each in self._wanted.how if record.family in FAMILIES[each])
        if not how:
            detail = f"tasks of family {record.family} are not composed by {', '.join(self._wanted.how)}"
            return [result_of(each, GenerationError("family_not_composed", detail), self, None) for each in unit]
        wanted = msgspec.structs.replace(self._wanted, how=how)
        maker = CompositionMaker(TASK_COMPOSERS.load(record.family), record, kept, wanted, self._seed)
        made = list(maker.propose(self._n))
        results = [
            result_of(input_id, each, self, each.split if isinstance(each, Task) else None)
            for input_id, each in zip(unit, made, strict=True)
        ]
        counts = {REFUSED + reason: float(n) for reason, n in maker.counts.items()}
        counts |= {NOT_SELECTED: float(len(tasks) - len(kept))} if len(kept) < len(tasks) else {}
        return [msgspec.structs.replace(results[0], measures=counts), *results[1:]]

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the number of tasks whose environments are not named."""
        return {**metrics, **({ELSEWHERE: float(self._of_others)} if self._of_others else {})}
