"""``propose``: tasks for each environment, by rules, or by a model from seeds (``pipelines.operators.task_seeds``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of, product
from agentmill.pipelines.operators.environment_tasks import EnvironmentTasks
from agentmill.pipelines.operators.lookup import check_disjoint, distinct
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, tables_of
from agentmill.pipelines.operators.proposals import (
    UNSEEDED,
    WITH_WEAK,
    Proposal,
    Writing,
    WrittenProposal,
)
from agentmill.pipelines.operators.rollout import refuse_planners, stand_in_notes
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter
from agentmill.pipelines.operators.task_seeds import TaskSeeds
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.conditions import AnnotationNeed
from agentmill.schemas.config import UserPath
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Inspiration
from agentmill.schemas.records.verdict import Selection
from agentmill.synthesis.generators import TASK_FORMS
from agentmill.synthesis.generators.inspirations import read_inspirations

_NOT_PROCEDURAL = frozenset(
    {"backend", "repairs", "examples", "texts", "persona", "weak", "where", "verdict", "selections"}
)
_OF_LLM = ("repairs", "seeds_", "examples", "texts", "persona", "weak", "window", *FilterParameters.model_fields)


class Propose(EnvironmentTasks, FilterParameters):
    """n tasks proposed for each environment. ``where`` and ``selections`` choose among trajectories of ``seeds``."""

    table_roles: ClassVar[Sequence[str]] = ("of", "seeds_", *ANNOTATION_ROLES)
    selectable: ClassVar[Sequence[str]] = ("Selection",)
    incidental: ClassVar[Sequence[str]] = ("window", "texts")

    plan_length: tuple[int, int] = Field(default=(2, 8), description="fewest and most actions of a shortest plan")
    backend: Literal["procedural", "llm"] = Field(default="procedural", description="who writes them")
    policy: str | None = Field(default=None, description="the model of backend llm")
    repairs: int = Field(default=3, ge=0, description="of llm: rounds in which a faulty task may be repaired")
    seeds_: TableNames | None = Field(
        default=None, alias="seeds", description="of llm: tables of tasks and trajectories that tasks are suggested by"
    )
    examples: int = Field(default=2, ge=1, description="of llm: how many seeds of its environment each task is shown")
    texts: UserPath | None = Field(
        default=None, description="of llm: a .jsonl, .parquet or text file, of which each task is shown one text"
    )
    persona: UserPath | list[str] | None = Field(
        default=None, description="of llm: who asks, a list that takes turns, or a file like that of texts"
    )
    weak: float | None = Field(
        default=None, gt=0, le=1, description="of llm: skills of tasks in seeds that pass less often are asked for"
    )
    window: int = Field(default=16, ge=1, description="of llm: tasks in the making at once per worker")

    @model_validator(mode="after")
    def _a_model_for_llm(self) -> Propose:
        if (self.backend == "llm") != (self.policy is not None):
            raise ValueError("`backend: llm` needs `policy`, an entry of models; `procedural` takes none")
        given = [name for name in _OF_LLM if name in self.model_fields_set]
        if self.backend == "procedural" and given:
            raise ValueError(f"`{given[0].rstrip('_')}` goes with `backend: llm`; procedural tasks are made by rules")
        for name in ("where", "weak", "selections", "examples"):
            if name in self.model_fields_set and not self.seeds_:
                raise ValueError(f"`{name}` is about `seeds`, and none are given")
        if self.weak is not None and not self.verdicts:
            raise ValueError("`weak` needs `verdicts` on the trajectories of `seeds`")
        if self.persona == []:
            raise ValueError("`persona` is an empty list; name at least one, or leave it out")
        return self

    @field_validator("plan_length")
    @classmethod
    def _ordered(cls, plan_length: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= plan_length[0] <= plan_length[1]:
            raise ValueError(f"{list(plan_length)} is no range; expected [fewest, most] with 1 <= fewest <= most")
        return plan_length

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from environments. Raises ``UserError``, also for files of texts and personas that cannot be read."""
        written = super().writes(reads)
        wrong = sorted({*reads.get("seeds", ())} - {"Task", "Trajectory"})
        if wrong:
            raise UserError(
                f"seeds holds {' and '.join(wrong)} records, expected Task or Trajectory\n"
                "give texts as a file by `texts`, verdicts by `verdicts`",
                ErrorCode.WRONG_RECORD_TYPE,
            )
        if self.weak is not None and {*reads.get("seeds", ())} != {"Task", "Trajectory"}:
            raise UserError(
                "`weak` compares trajectories by the skills of their tasks; `seeds` needs tables of both",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        self.check_filter_needs(reads)
        self.inspirations()
        self.personas()
        return written

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """As ``Operator.families``. Raises ``UserError`` where a model is to write tasks that it cannot."""
        unwritten = sorted((reads or frozenset()) - {*TASK_FORMS})
        if unwritten and self.backend == "llm":
            raise UserError(
                f"a model writes no tasks for environments of family {', '.join(unwritten)}, only of"
                f" {', '.join(sorted(TASK_FORMS))}\nuse `backend: procedural`, or other environments",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        return reads

    def annotation_needs(self) -> Iterator[AnnotationNeed]:
        """As ``FilterParameters.annotation_needs``, with the verdict that ``weak`` asks."""
        yield from super().annotation_needs()
        if self.weak is not None:
            yield AnnotationNeed("weak", "verdict", self.verdict)

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """Raises ``UserError`` for a planner, which cannot write."""
        refuse_planners(models, "write tasks")

    def inspirations(self) -> list[Inspiration]:
        """The texts, if any are given. Raises ``UserError``."""
        return [] if self.texts is None else read_inspirations(Path(self.texts))

    def personas(self) -> list[str]:
        """The personas, if any are given. Raises ``UserError``."""
        if not isinstance(self.persona, str):
            return self.persona or []
        return [each.text for each in read_inspirations(Path(self.persona), "persona file")]

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds, and texts and personas by their content."""
        given = super().provenance_config(context)
        if self.backend == "procedural":
            # As they were before a model could write tasks, so that tables of earlier versions are found again.
            return {name: value for name, value in given.items() if name not in _NOT_PROCEDURAL}
        texts = [each.inspiration_id for each in self.inspirations()]
        return {**given, "texts": digest(texts), "persona": self.personas()}

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tasks of each environment, in their splits, and repairs."""
        proposed = self.proposed_rows(rows["of"], max(2, self.plan_length[1]))
        return Bounds(
            reads=proposed.n,
            rows=proposed,
            asked=asked_of(models, {"generator": product(proposed.n, 1 + self.repairs)}, self.sampling),
        )

    def check_inputs(self, inputs: Inputs) -> None:
        """A share that is held out must be one task or more, of all environments together; seeds must be there."""
        super().check_inputs(inputs)
        if self.backend == "procedural":
            return
        self.families(frozenset[str]().union(*(distinct(table, "family") for table in inputs["of"])))
        seeds = tables_of(inputs, "seeds")
        check_disjoint(seeds)
        if seeds and not sum(table.manifest.counts.written for table in seeds):
            names = " and ".join(str(table.folder) for table in seeds)
            raise UserError(
                f"the tables of `seeds` are empty: {names}\nmake them again, or leave `seeds` out",
                ErrorCode.NO_RECORDS,
            )

    def notes(self, manifest: Manifest) -> list[str]:
        """As ``FilterParameters.notes``, and what came of the seeds."""
        found, notes = manifest.metrics, super().notes(manifest)
        fewer = f"some environments have fewer than {self.n} of plan_length {list(self.plan_length)}"
        notes += self.too_few_notes(manifest, fewer)
        if found.get(UNSEEDED):
            notes.append(
                f"warning: {found[UNSEEDED]:,.0f} tasks were asked for without a seed: none is of their environment"
            )
        if stand_in := stand_in_notes(manifest, "the procedural generator makes the tasks, and nothing suggests them"):
            return [*notes, *stand_in]
        if self.weak is not None and not found.get(WITH_WEAK):
            notes.append(f"warning: no skill has a pass rate below `weak: {self.weak:g}`, so none was asked for")
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The proposals."""
        numbers = self.numbers(inputs, context)
        if self.backend == "procedural" or context.models["generator"].config.stands_in:
            return Proposal(numbers, self.plan_length)
        tables = tables_of(inputs, "seeds")
        selected = self.selected(inputs, tables, Selection)
        chosen = TrajectoryFilter(self.where, self.verdict, AnnotationIndex(inputs), selected)
        seeds = (
            TaskSeeds(tables, self.inspirations(), chosen, self.n * self.examples, numbers.seed)
            if tables or self.texts
            else None
        )
        settings = context.models["generator"].settings({})
        writing = Writing(plan_length=self.plan_length, repairs=self.repairs, examples=self.examples, weak=self.weak)
        return WrittenProposal(numbers, writing, settings, seeds, self.personas(), self.window)
