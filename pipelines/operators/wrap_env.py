"""``wrap_env``: environments, or tasks of them, under other circumstances or other names; solutions stay proved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.splits import check_chosen, chosen
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_wrap import wrap as pddl
from agentmill.synthesis.generators.renaming.renaming import Names, Style, renaming_of
from agentmill.synthesis.generators.toolbox_wrap import wrap as toolbox
from agentmill.synthesis.generators.wrapping import NOTE, Wrapper, Wrapping

WRAPPERS = {
    "pddl": Wrapper(pddl.wrap_environment, pddl.wrap_task),
    "toolbox": Wrapper(toolbox.wrap_environment, toolbox.wrap_task),
}
"""The families whose environments can be wrapped."""


class WrapEnv(Operator):
    """Wrapped environments, or the tasks of environments that another step wrapped."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of", "environments")

    of: TableNames = Field(description="tables of environments, or of tasks")
    environments: TableNames | None = Field(default=None, description="for tasks: tables of wrapped environments")
    twins: int = Field(default=0, ge=0, description="tools that get a near-duplicate")
    distractors: int = Field(default=0, ge=0, description="tools of another matter")
    policy: int = Field(default=0, ge=0, le=4, description="complexity of a policy document; 0 is none")
    hidden: int = Field(default=0, ge=0, description="details per task that the user gives only when asked")
    user: Literal["tool", "person"] = Field(
        default="tool",
        description="who gives hidden details: the tool ask_user, or a person, a role of multi_agent with "
        "`knows: goal.user`",
    )
    faults: float = Field(default=0.0, ge=0, lt=1, description="share of calls that fail the first time")
    hints: bool = Field(default=False, description="refusals say what would help")
    milestones: bool = Field(default=False, description="progress is rewarded, not the end alone")
    rename: Style | None = Field(
        default=None,
        description="other names in all texts and data, mapped one to one: `words` are synonyms or plain words, "
        "`symbols` words that do not exist",
    )
    names: Names = Field(
        default="all",
        description="which names `rename` changes: `actions` (tools, commands), `objects` (things, their kinds, "
        "parameters, fields and values), or `all`, which in planning environments are also the words of predicates",
    )
    share: float = Field(default=1.0, gt=0, le=1, description="of the tasks only so many are wrapped, chosen by ids")
    seed: int | None = Field(default=None, description="by default derived from that of the run")

    @model_validator(mode="after")
    def _keys_that_need_another(self) -> WrapEnv:
        if self.names != "all" and self.rename is None:
            raise ValueError("`names` chooses what `rename` changes; give `rename: words` or `rename: symbols` too")
        if self.user == "person" and not self.hidden:
            raise ValueError("`user: person` needs `hidden`, the number of details that it gives only when asked")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """What it reads: environments or tasks."""
        record = expect(reads, "of", "EnvironmentSpec", "Task")
        given = self._wrapping() != Wrapping()
        if record == "EnvironmentSpec" and "share" in self.model_fields_set:
            raise UserError(
                "`share` is for tasks, and `of` holds environments\ngive it in the step that wraps the tasks of these",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        if record == "EnvironmentSpec" and (self.environments or not given):
            raise UserError(
                "wrap_env of environments takes a wrapper, such as `twins: 3`, and no `environments`",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        if record == "Task" and (not self.environments or given):
            raise UserError(
                "wrap_env of tasks takes `environments`, a table that wrap_env made, and no wrappers",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        return record

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """As ``Operator.families``. Raises ``UserError`` where none of the environments can be wrapped."""
        if reads and reads.isdisjoint(WRAPPERS):
            raise UserError(
                f"environments of family {', '.join(sorted(reads))} have no wrappers\n"
                f"wrap environments of family {' or '.join(WRAPPERS)}, or leave out this step and what needs its table",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        return reads

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a share without tasks."""
        if self.share < 1:
            check_chosen(tables_of(inputs, "of"), [None], self.share)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds; without a share of all."""
        given = super().provenance_config(context)
        if self.share == 1:
            given.pop("share", None)
        return {**given, "seed": self._seed(context)}

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``; how long the solution of a wrapped task is nobody knows before it is played."""
        read = rows["of"] if self.environments is None else rows["of"].drawn(self.share)
        found = super().bounds({**rows, "of": read}, models)
        return msgspec.structs.replace(found, rows=msgspec.structs.replace(found.rows, turns=None, plan=None))

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The wrapping of what the tables of ``of`` hold."""
        if self.environments is None:
            return EnvironmentWrapping(self._wrapping(), self._seed(context))
        wrapped = Lookup(tables_of(inputs, "environments"), EnvironmentSpec, key=wrapped_id)
        return TaskWrapping(wrapped, self.share, self._seed(context))

    def _wrapping(self) -> Wrapping:
        return Wrapping(**{name: getattr(self, name) for name in Wrapping.__struct_fields__})

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


def wrapped_id(spec: EnvironmentSpec) -> str:
    """The id of the environment that ``spec`` wraps; its own where it wraps none."""
    wraps = spec.lineage is not None and NOTE in spec.lineage.notes
    return spec.lineage.parents[0] if spec.lineage is not None and wraps else spec.environment_id


class EnvironmentWrapping(RowOperation[EnvironmentSpec, EnvironmentSpec]):
    """One wrapped environment per environment."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 50

    def __init__(self, wrapping: Wrapping, seed: int) -> None:
        super().__init__("wrap_env", EnvironmentSpec, EnvironmentSpec)
        self._wrapping = wrapping
        self._seed = seed

    def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The wrapped environment; only families of ``WRAPPERS`` can be wrapped."""
        wrapper = WRAPPERS.get(record.family)
        if wrapper is None:
            error = GenerationError("no_wrapper", f"environments of family {record.family} have no wrappers")
            return [Result(input_id=unit[0], dropped=dead_letter(error, unit[0], self, {}))]
        made = wrapper.environment(record, self._wrapping, self._seed)
        if isinstance(made, GenerationError):
            return [Result(input_id=unit[0], dropped=dead_letter(made, unit[0], self, {}))]
        kept = renaming_of(made.lineage).kept
        measures = {"names_kept": float(len(kept))} if self._wrapping.rename is not None else {}
        return [Result(input_id=unit[0], outputs=[made], measures=measures)]


class TaskWrapping(RowOperation[Task, Task]):
    """One task per wrapped environment of its own environment, for a ``share`` of the tasks."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 100
    many: ClassVar[bool] = True

    def __init__(self, environments: Lookup[EnvironmentSpec], share: float, seed: int) -> None:
        super().__init__("wrap_env", Task, Task)
        self._environments = environments
        self._share = share
        self._seed = seed

    def open(self) -> None:
        """Load the environments."""
        self._environments.load()

    def count(self, record: Task) -> int:
        """One for a task that is chosen."""
        return int(chosen(record.task_id, self._share))

    def units(self, record: Task) -> Iterable[Unit]:
        """As ``Operation.units``, of a task that is chosen."""
        return super().units(record) if self.count(record) else []

    def process(self, record: Task, unit: Unit) -> Iterable[Result]:
        """The task in the wrapped environment, with a solution that is accepted there."""
        spec = self._environments.get(record.environment_id)
        notes = spec.lineage.notes if spec is not None and spec.lineage is not None else {}
        if spec is None or NOTE not in notes or spec.environment_id == record.environment_id:
            raise EnvError(f"no wrapped environment of {record.environment_id!r} in the tables of `environments`")
        wrapping = msgspec.convert(notes[NOTE], Wrapping)
        made = WRAPPERS[spec.family].task(record, spec, wrapping, self._seed)
        if isinstance(made, GenerationError):
            return [Result(input_id=unit[0], dropped=dead_letter(made, unit[0], self, {}))]
        return [Result(input_id=unit[0], outputs=[made])]
