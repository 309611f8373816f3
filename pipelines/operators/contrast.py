"""``contrast``: twins of tasks whose right behaviour is another: to decline, or to ask before one acts.

As with ``wrap_env``, one step makes environments of twins, and another the twins in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, mapped
from agentmill.pipelines.operators.lookup import Lookup, distinct
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.proposals import result_of
from agentmill.pipelines.operators.splits import check_chosen, chosen
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import CONTRAST, EnvironmentSpec, Task, contrast_of
from agentmill.synthesis.generators.contrasting import KINDS, TOOLS, Kind, Tools, TwinMaker
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.toolbox_wrap.contrast import contrast_environment, contrast_task

TWIN_MAKERS = {"toolbox": TwinMaker(contrast_environment, contrast_task)}
"""The families whose tasks have twins, all of them of every kind."""

OF_KIND = "of_kind."
"""Before a kind: how many twins of it were made."""


class Contrast(Operator):
    """Twins of tasks that are to be declined, or to be asked about, or environments for such twins."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of", "environments")

    of: TableNames = Field(description="tables of environments, or of tasks")
    environments: TableNames | None = Field(
        default=None, description="for tasks: tables of the environments of twins that a contrast of environments made"
    )
    kinds: Annotated[list[Kind], Field(min_length=1)] = Field(
        default=[*KINDS],
        description="no_tool, irrelevant_tool: tools are gone, or of another matter; missing_argument: the request "
        "lacks a value; harmful: it would hurt somebody; silent: it asks for nothing; solvable: it is as it was",
    )
    share: float = Field(default=1.0, gt=0, le=1, description="of the tasks only so many have twins, chosen by ids")
    n: int | None = Field(
        default=None, ge=1, description="twins per task, of kinds that are drawn for each task; null: one of each kind"
    )
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @model_validator(mode="after")
    def _kinds_to_draw_from(self) -> Contrast:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"`kinds` names one twice: {', '.join(self.kinds)}")
        if self.n is not None and self.n > len(self.kinds):
            raise ValueError(f"`n: {self.n}` is more than the {len(self.kinds)} `kinds`; a task has one twin of a kind")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """What it reads: environments or tasks."""
        record = expect(reads, "of", "EnvironmentSpec", "Task")
        if record == "Task":
            if self.environments is None:
                raise UserError(
                    "contrast of tasks needs `environments`, a table that contrast made of their environments",
                    ErrorCode.NEEDS_ANOTHER_KEY,
                )
            expect(reads, "environments", "EnvironmentSpec")
            return record
        given = next((key for key in ("environments", "share", "n") if key in self.model_fields_set), None)
        if given is not None:
            raise UserError(
                f"`{given}` is for twins of tasks, and `of` holds environments\n"
                "give it in the step that makes twins of tasks in these environments",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        return record

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """Those that it reads. Raises ``UserError`` for one without twins."""
        check_family(reads or frozenset())
        return reads

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a family without twins, a kind without environments, and a share without tasks."""
        for table in tables_of(inputs, "environments" if self.environments else "of"):
            check_family(distinct(table, "family"))
        if self.environments is None:
            return
        offered = {contrast_of(spec.lineage) for table in tables_of(inputs, "environments") for spec in table.rows()}
        absent = next((kind for kind in self.kinds if TOOLS[kind] not in offered), None)
        if absent is not None:
            raise UserError(
                f"no environment of {', '.join(self.environments)} was made for twins of kind {absent}\n"
                f"name a table that contrast made of environments, with {absent} among its `kinds`",
                ErrorCode.NO_RECORDS,
            )
        if self.share < 1:
            check_chosen(tables_of(inputs, "of"), [None], self.share)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the twins of each task, or the environments of each; a question is one turn more."""
        del models
        read = rows["of"]
        if self.environments is None:
            made = read.times(len(self._tools()))
            return Bounds(reads=made.n, rows=made)
        of_tasks = msgspec.structs.replace(
            read.drawn(self.share),
            turns=mapped(read.turns, lambda turns: turns + 2),
            plan=mapped(read.plan, lambda plan: plan + 1),
        )
        made = of_tasks.times(self.n or len(self.kinds))
        return Bounds(reads=made.n, rows=made)

    def notes(self, manifest: Manifest) -> list[str]:
        """The twins of each kind, and a warning for kinds of which there is none."""
        if manifest.record != "Task":
            return []
        counts = {kind: int(manifest.metrics.get(f"{OF_KIND}{kind}", 0)) for kind in self.kinds}
        none = ", ".join(kind for kind, count in counts.items() if not count)
        return [
            ", ".join(f"{kind} {count:,}" for kind, count in counts.items()),
            *([f"warning: there is no twin of kind {none}"] if none else []),
        ]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The twins, or their environments."""
        if self.environments is None:
            return TwinEnvironments(self._tools(), self._seed(context))
        environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec, key=place_of)
        return Twins(environments, self.kinds, self.share, self.n or len(self.kinds), self._seed(context))

    def _tools(self) -> list[Tools]:
        """The tools that environments for these kinds offer."""
        return list(dict.fromkeys(TOOLS[kind] for kind in self.kinds))

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


def check_family(families: Iterable[str]) -> None:
    """Raises ``UserError`` for a family whose tasks have no twins."""
    other = next((family for family in sorted(families) if family not in TWIN_MAKERS), None)
    if other is not None:
        raise UserError(
            f"environments of family {other} have no twins of kinds {', '.join(KINDS)}: nothing there checks that an"
            " agent declines or asks\n"
            f"give contrast environments of family {', '.join(TWIN_MAKERS)} only",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def place_of(spec: EnvironmentSpec) -> str:
    """Whose twins an environment is for, and with which tools; the id of one that is for no twins."""
    tools = contrast_of(spec.lineage)
    return spec.environment_id if tools is None or spec.lineage is None else f"{spec.lineage.parents[0]}/{tools}"


class TwinEnvironments(RowOperation[EnvironmentSpec, EnvironmentSpec]):
    """The environments of twins, one for each choice of tools; inputs are called ``ENVIRONMENT/TOOLS``."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 50
    many: ClassVar[bool] = True

    def __init__(self, tools: Sequence[Tools], seed: int) -> None:
        super().__init__(CONTRAST, EnvironmentSpec, EnvironmentSpec)
        self._tools = tools
        self._seed = seed

    def count(self, record: EnvironmentSpec) -> int:
        """Environments of twins."""
        del record
        return len(self._tools)

    def units(self, record: EnvironmentSpec) -> list[Unit]:
        """One per choice of tools."""
        return [Unit([f"{record.environment_id}/{tools}"], tools) for tools in self._tools]

    def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The environment with some tools."""
        made = TWIN_MAKERS[record.family].environment(record, unit.data, self._seed)
        if isinstance(made, EnvironmentSpec):
            return [Result(input_id=unit[0], outputs=[made])]
        return [Result(input_id=unit[0], dropped=dead_letter(made, unit[0], self, {}))]


class Twins(RowOperation[Task, Task]):
    """The twins of each task in their environments; inputs are called ``TASK/KIND``."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 100
    many: ClassVar[bool] = True

    def __init__(
        self, environments: Lookup[EnvironmentSpec], kinds: Sequence[Kind], share: float, n: int, seed: int
    ) -> None:
        super().__init__(CONTRAST, Task, Task)
        self._environments = environments
        self._kinds = kinds
        self._share = share
        self._n = n
        self._seed = seed

    def open(self) -> None:
        """Load the environments."""
        self._environments.load()

    def count(self, record: Task) -> int:
        """Twins of a task."""
        return self._n if chosen(record.task_id, self._share) else 0

    def units(self, record: Task) -> list[Unit]:
        """One per kind that is drawn for a task."""
        # By what it makes and not by place, so that the order of `kinds` says nothing.
        drawn = random.Random(derive_seed(CONTRAST, self._seed, record.task_id)).sample(sorted(self._kinds), self._n)
        return [Unit([f"{record.task_id}/{kind}"], kind) for kind in drawn] if self.count(record) else []

    def process(self, record: Task, unit: Unit) -> Iterable[Result]:
        """The twin of a kind, in the split of its parent."""
        kind: Kind = unit.data
        spec = self._environments.get(f"{record.environment_id}/{TOOLS[kind]}")
        if spec is None:
            detail = f"no environment of {record.environment_id!r} for twins of kind {kind} in `environments`"
            return [result_of(unit[0], GenerationError("no_environment", detail), self, record.split)]
        made = TWIN_MAKERS[spec.family].task(record, spec, kind, self._seed)
        return [result_of(unit[0], made, self, record.split)]

    def measures(self, output: Task) -> Mapping[str, float]:
        """The twins of each kind."""
        return {f"{OF_KIND}{contrast_of(output.lineage)}": 1}
