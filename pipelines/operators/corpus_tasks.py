"""``corpus_tasks``: questions over the corpora of search environments, by rules, worded by a model if one is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
from pydantic import Field, field_validator, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.operators.proposals import Numbers, PolicyProposals, result_of
from agentmill.pipelines.operators.propose import numbers_of, proposed_rows, train_environments
from agentmill.pipelines.operators.splits import check_held_out
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import TextObservation
from agentmill.schemas.tables import Table, read_columns
from agentmill.synthesis.environments.search.corpus import check_unchanged
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.generators.generator import TOO_FEW, GenerationError
from agentmill.synthesis.generators.search_procedural.generator import FAMILY
from agentmill.synthesis.generators.search_tasks.checks import shows_answer, shows_name
from agentmill.synthesis.generators.search_tasks.generator import CHECKED_WALKS, TOP_HIT, CorpusTaskMaker, Wanted
from agentmill.synthesis.generators.search_tasks.questions import LEAST_DEPTH, MOST_DEPTH, Method
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES, words_of

REWORDED, KEPT_WORDING = "reworded", "rewordings_refused"
"""Metrics: tasks in the words of the model, and those that kept theirs, since the model gave something away."""
ENVIRONMENTS_HELD = 4
"""Environments whose tasks are kept in memory until all of them were written."""


class CorpusTasks(Operator):
    """n questions over the corpus of each search environment, with answers and solutions that were replayed."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    model_roles: ClassVar[Mapping[str, str]] = {"generator": "policy"}
    counted: ClassVar[Sequence[str]] = ("n",)
    incidental: ClassVar[Sequence[str]] = ("window",)

    of: TableNames = Field(description="tables of search environments")
    n: int = Field(default=8, ge=1, description="tasks per environment")
    method: list[Method] = Field(
        default=["mask", "walk", "width"],
        min_length=1,
        description="a detail of a text is masked; passages are chained by hidden names; several facts of one document"
        " are asked for; methods take turns",
    )
    depth: tuple[int, int] = Field(
        default=(1, 3), description=f"fewest and most masks, passages of a walk, or facts; {MOST_DEPTH} at most"
    )
    see: bool = Field(default=False, description="whether the passages of the solution must have been seen to pass")
    held_out: float = Field(default=0.0, ge=0, lt=1, description="share of all tasks of train environments set aside")
    seed: int | None = Field(default=None, description="by default derived from that of the run")
    policy: str | None = Field(default=None, description="a model that words the questions anew")
    window: int = Field(default=16, ge=1, description="tasks in the making at once per worker")

    @field_validator("method", mode="before")
    @classmethod
    def _listed(cls, method: object) -> object:
        return [method] if isinstance(method, str) else method

    @model_validator(mode="after")
    def _depth_fits(self) -> CorpusTasks:
        least, most = self.depth
        if not 1 <= least <= most <= MOST_DEPTH:
            raise ValueError(f"depth is [{least}, {most}]; expected [least, most] within 1 and {MOST_DEPTH}")
        for method in self.method:
            if most < LEAST_DEPTH[method]:
                raise ValueError(
                    f"`method: {method}` needs a depth of {LEAST_DEPTH[method]} or more; it is at most {most}"
                )
        if len({*self.method}) < len(self.method):
            raise ValueError(f"`method` names one twice: {', '.join(self.method)}")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Tasks, from environments."""
        expect(reads, "of", "EnvironmentSpec")
        return "Task"

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """As ``Operator.families``. Raises ``UserError`` where the environments are of other families."""
        other = min((reads or frozenset()) - {FAMILY}, default=None)
        if other is not None:
            raise other_family("the environments are", other)
        return reads

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tasks of each environment, each worded once if a model is given."""
        # A search and an opening for each passage, and the answer.
        proposed = proposed_rows(rows["of"], self.n, self.held_out, 2 * self.depth[1] + 1)
        calls = {"generator": None if proposed.n is None else proposed.n * TRIES} if self.policy else {}
        return Bounds(reads=proposed.n, rows=proposed, asked=asked_of(models, calls, self.sampling))

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``Operator.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def check_inputs(self, inputs: Inputs) -> None:
        """All environments must be of family ``search``, with their corpora as they were."""
        for path, corpus in sorted({each for table in inputs["of"] for each in _corpora(table)}):
            check_unchanged(Path(path), corpus)
        check_held_out(self.n * len(train_environments(inputs["of"])), self.held_out, "tasks of train environments")

    def notes(self, manifest: Manifest) -> list[str]:
        """How many walks the first hit would have answered, and warnings of what was not made or not read."""
        found, notes = manifest.metrics, []
        if walks := found.get(CHECKED_WALKS):
            answered = found.get(TOP_HIT, 0)
            notes.append(
                f"{answered:,.0f} of {walks:,.0f} drawn walks ({answered / walks:.0%}) were left out: the first hit of"
                " their own words answers them"
            )
        if missing := manifest.reasons.get(TOO_FEW):
            notes.append(
                f"warning: {missing:,} tasks cannot be made: some corpora have fewer than {self.n} different ones of"
                f" depth {list(self.depth)}; the dead letters tell how many each has"
            )
        if unread := found.get("documents_not_read"):
            notes.append(
                f"warning: questions are about a random part of each corpus; {unread:,.0f} documents are not in it"
            )
        if refused := found.get(KEPT_WORDING):
            notes.append(
                f"warning: {refused:,.0f} tasks keep their wording: the model shown an answer or a hidden name"
            )
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The proposals."""
        numbers = numbers_of(inputs, self.n, self.held_out, self._seed(context))
        settings = context.models["generator"].settings({}) if self.policy else None
        wanted = Wanted(methods=tuple(self.method), depth=self.depth, see=self.see)
        return CorpusProposals(numbers, wanted, settings, self.window)

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


class CorpusProposals(PolicyProposals):
    """Tasks of a corpus, drawn together so that they differ, and each worded on its own."""

    def __init__(self, numbers: Numbers, wanted: Wanted, settings: PolicySettings | None, window: int) -> None:
        super().__init__(numbers, settings, window, "corpus_tasks")
        self._wanted = wanted
        self._made: dict[str, tuple[list[Task | GenerationError], Mapping[str, float]]] = {}

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The task of a number, in its split."""
        (input_id,), number = unit, int(unit.data)
        tasks, counts = self._tasks(record)
        made, measures = tasks[number], dict(counts) if number == 0 else {}
        if isinstance(made, Task) and self._policy is not None:
            reworded = await self._worded(made, input_id)
            measures |= {KEPT_WORDING if reworded is None else REWORDED: 1.0, **self._tokens(input_id)}
            made = reworded or made
        result = result_of(input_id, made, self, self._numbers.split(record, number))
        return [msgspec.structs.replace(result, measures=measures)]

    def _tasks(self, record: EnvironmentSpec) -> tuple[list[Task | GenerationError], Mapping[str, float]]:
        """All tasks of an environment, the same whichever of them is wanted."""
        key = record.environment_id
        if key not in self._made:
            while len(self._made) >= ENVIRONMENTS_HELD:
                del self._made[next(iter(self._made))]
            maker = CorpusTaskMaker(record, self._wanted, self._numbers.seed)
            tasks = list(maker.propose(self._n))
            self._made[key] = tasks, {name: float(count) for name, count in maker.counts.items() if count}
        return self._made[key]

    async def _worded(self, task: Task, input_id: str) -> Task | None:
        """The task in the model's words; ``None`` if they tell an answer or a hidden name. Raises ``PolicyError``."""
        assert self._policy is not None
        assert self._settings is not None
        assert task.lineage is not None
        who = (self._policy.name, self._policy.model, self._policy.revision, self._settings.entry)
        given = [TextObservation(content=task.instruction, source="user")]
        seed = derive_seed("corpus_tasks", task.task_id)
        words, _ = await words_of(self._counting_policy(input_id), task.task_id, prompt("corpus_reword"), given, seed)
        text, answer, notes = words.content.strip(), task.goal["answer"], task.lineage.notes
        if shows_answer(text, answer if isinstance(answer, list) else [answer]) or shows_name(text, notes["hidden"]):
            return None
        notes = {**notes, "wording": task.instruction, "model": self._policy.model}
        return msgspec.structs.replace(
            task,
            task_id=digest(task.task_id, *who),
            instruction=text,
            lineage=msgspec.structs.replace(task.lineage, notes=notes),
        )


def other_family(which: str, family: str) -> UserError:
    """The error for environments without a corpus."""
    return UserError(
        f"{which} of family {family}; corpus_tasks needs environments of family {FAMILY}\n"
        "make them by `spec_env` with `family: search` and `corpus`, or use `propose` for this family",
        ErrorCode.KEY_NOT_FOR_THIS,
    )


def _corpora(table: Table) -> set[tuple[str, str]]:
    """Path and digest of each corpus. Raises ``UserError`` for environments of another family."""
    found = set()
    for shard in table.shards():
        columns = read_columns(shard, EnvironmentSpec, ["environment_id", "family", "source"]).to_pydict()
        for name, family, source in zip(*columns.values(), strict=True):
            if family != FAMILY:
                raise other_family(f"environment {name} is", family)
            spec = EnvironmentSpec(environment_id=name, family=family, name=name, source=source)
            try:
                corpus = read_source(spec)
            except ValueError as error:
                raise UserError(f"environment {name}: {error}", ErrorCode.DAMAGED_FILE) from None
            found.add((corpus.path, corpus.digest))
    return found
