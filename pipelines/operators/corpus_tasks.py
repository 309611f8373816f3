"""``corpus_tasks``: questions over the corpora of search environments, by rules, worded by a model if one is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from pydantic import Field, field_validator, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, asked_of
from agentmill.pipelines.operators.environment_tasks import EnvironmentTasks
from agentmill.pipelines.operators.operator import Inputs, StepContext
from agentmill.pipelines.operators.proposals import Drawn, DrawnProposals, Numbers, result_of
from agentmill.pipelines.refusals import is_refusal
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import TextObservation
from agentmill.schemas.tables import Table, read_columns
from agentmill.synthesis.environments.search.corpus import check_unchanged
from agentmill.synthesis.environments.search.sources import read_source
from agentmill.synthesis.generators.search_procedural.generator import FAMILY
from agentmill.synthesis.generators.search_tasks.checks import shows_answer, shows_name
from agentmill.synthesis.generators.search_tasks.generator import CHECKED_WALKS, TOP_HIT, CorpusTaskMaker, Wanted
from agentmill.synthesis.generators.search_tasks.questions import LEAST_DEPTH, MOST_DEPTH, Method
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.llm_calls import TRIES, words_if_any

REWORDED, KEPT_WORDING = "reworded", "rewordings_refused"
"""Metrics: tasks in the words of the model, and those that kept theirs, since the model gave something away."""


class CorpusTasks(EnvironmentTasks):
    """n questions over the corpus of each search environment, with answers and solutions that were replayed."""

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

    def families(self, reads: frozenset[str] | None) -> frozenset[str] | None:
        """As ``Operator.families``. Raises ``UserError`` where the environments are of other families."""
        other = min((reads or frozenset()) - {FAMILY}, default=None)
        if other is not None:
            raise other_family("the environments are", other)
        return reads

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: the tasks of each environment, each worded once if a model is given."""
        # A search and an opening for each passage, and the answer.
        proposed = self.proposed_rows(rows["of"], 2 * self.depth[1] + 1)
        calls = {"generator": None if proposed.n is None else proposed.n * TRIES} if self.policy else {}
        return Bounds(reads=proposed.n, rows=proposed, asked=asked_of(models, calls, self.sampling))

    def check_inputs(self, inputs: Inputs) -> None:
        """All environments must be of family ``search``, with their corpora as they were."""
        for path, corpus in sorted({each for table in inputs["of"] for each in _corpora(table)}):
            check_unchanged(Path(path), corpus)
        super().check_inputs(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """How many walks the first hit would have answered, and warnings of what was not made or not read."""
        found, notes = manifest.metrics, []
        if walks := found.get(CHECKED_WALKS):
            answered = found.get(TOP_HIT, 0)
            notes.append(
                f"{answered:,.0f} of {walks:,.0f} drawn walks ({answered / walks:.0%}) were left out: the first hit of"
                " their own words answers them"
            )
        fewer = f"some corpora have fewer than {self.n} different ones of depth {list(self.depth)}"
        notes += self.too_few_notes(manifest, fewer)
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
        numbers = self.numbers(inputs, context)
        settings = context.models["generator"].settings({}) if self.policy else None
        wanted = Wanted(methods=tuple(self.method), depth=self.depth, see=self.see)
        return CorpusProposals(numbers, wanted, settings, self.window)


class CorpusProposals(DrawnProposals):
    """Tasks of a corpus, drawn together so that they differ, and each worded on its own."""

    def __init__(self, numbers: Numbers, wanted: Wanted, settings: PolicySettings | None, window: int) -> None:
        super().__init__(numbers, settings, window, "corpus_tasks")
        self._wanted = wanted

    async def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The task of a number, in its split."""
        (input_id,), number = unit, int(unit.data)
        tasks, counts = self.drawn(record)
        made, measures = tasks[number], dict(counts) if number == 0 else {}
        if isinstance(made, Task) and self._policy is not None:
            reworded = await self._worded(made, input_id)
            measures |= {KEPT_WORDING if reworded is None else REWORDED: 1.0, **self._tokens(input_id)}
            made = reworded or made
        result = result_of(input_id, made, self, self._numbers.split(record, number))
        return [msgspec.structs.replace(result, measures=measures)]

    def draw(self, record: EnvironmentSpec) -> Drawn:
        """All tasks of an environment."""
        maker = CorpusTaskMaker(record, self._wanted, self._numbers.seed)
        tasks = list(maker.propose(self._n))
        return tasks, {name: float(count) for name, count in maker.counts.items() if count}

    async def _worded(self, task: Task, input_id: str) -> Task | None:
        """The task in the model's words; ``None`` if they are cut off, refuse, or tell an answer or a hidden name.

        Raises ``PolicyError``.
        """
        assert self._policy is not None
        assert self._settings is not None
        assert task.lineage is not None
        who = (self._policy.name, self._policy.model, self._policy.revision, self._settings.entry)
        given = [TextObservation(content=task.instruction, source="user")]
        seed = derive_seed("corpus_tasks", task.task_id)
        policy = self._counting_policy(input_id)
        words, _ = await words_if_any(policy, task.task_id, prompt("corpus_reword"), given, seed, whole=True)
        if words is None or is_refusal(words.content):
            return None
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
