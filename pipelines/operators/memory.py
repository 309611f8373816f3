"""``memory`` and ``imagine``: episodes with earlier trajectories in their prompts, acted out or imagined by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Blamed
from agentmill.pipelines.operators.bounds import Most, for_words
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.rollout import Episodes, refuse_planners, stand_in_notes
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, Where
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.retrieval import Library, Retrieval, card_of
from agentmill.synthesis.rollouts.strategy import Exploration, Strategy
from agentmill.synthesis.strategies.imagine import Imagine as ImagineStrategy
from agentmill.synthesis.strategies.memory import Memory as MemoryStrategy

OF_EXAMPLES = (
    *Retrieval.model_fields,
    *(role for role in ANNOTATION_ROLES if role != "selections"),
    "where",
    "verdict",
)
"""The parameters of examples, which need ``from``; selections may be of the tasks."""


class Memory(FilterParameters, Episodes, MemoryStrategy):
    """k episodes per task, with exemplars or reflections of earlier trajectories in the prompt."""

    strategy_type: ClassVar[type[EpisodeParameters]] = MemoryStrategy
    table_roles: ClassVar[Sequence[str]] = ("tasks", "from_", "environments", *ANNOTATION_ROLES)

    from_: TableNames = Field(alias="from", description="tables of earlier trajectories, of these tasks or others")
    where: Where = Field(default="success", description="which of them, by the verdict")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "from", "Trajectory")
        self.check_filter_needs(reads)
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The episodes."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, MemoryStrategy)
        earlier = EarlierRuns(TrajectoryIndex(tables_of(inputs, "from")), self.choice(inputs), strategy)
        return Remembering(context.operator, strategy, tables, self.actors(context), self.window_of(context), earlier)


class EarlierRuns:
    """The runs that ``retrieval`` picks from: those of some tables that are chosen and serve it. Pickles to workers."""

    def __init__(self, runs: TrajectoryIndex, choice: TrajectoryFilter, retrieval: Retrieval) -> None:
        self.retrieval = retrieval
        self._runs = runs
        self._choice = choice

    def library(self) -> Library:
        """All of them, by their cards. Raises ``UserError`` for a file that cannot be read."""
        self._choice.load()
        cards = [card_of(run) for run in self._runs.scan() if self.retrieval.serves(run) and self._chosen(run)]
        return Library(cards, self._runs.get)

    def _chosen(self, run: Trajectory) -> bool:
        try:
            self._choice.annotations(run.trajectory_id)
        except Unused:
            return False
        return True


class Remembering(Rollout):
    """A rollout with a library; a task for which nothing is found in it is dropped."""

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        tables: SideTables,
        actors: Actors,
        window: int,
        earlier: EarlierRuns | None,
    ) -> None:
        super().__init__(name, strategy, tables, actors, window)
        self._earlier = earlier
        self._library: Library | None = None

    async def open(self) -> None:
        """As ``Rollout.open``, and read through the earlier runs."""
        await super().open()
        self._library = None if self._earlier is None else self._earlier.library()

    def refused(self, record: Any) -> Unused | None:
        """A task for which nothing can be recalled, too."""
        if (
            self._earlier is not None
            and self._library is not None
            and not self._library.holds(record, self._earlier.retrieval)
        ):
            return Unused("nothing_recalled", "no run that was chosen can be recalled for it")
        return super().refused(record)

    def _exploration(self, record: Any) -> Exploration | None:
        found = super()._exploration(record)
        return None if found is None else msgspec.structs.replace(found, library=self._library)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_library": None}


class WithExamples(FilterParameters, Episodes):
    """Episodes of which a model makes up the observations, and may be shown earlier trajectories as examples."""

    table_roles: ClassVar[Sequence[str]] = ("tasks", "from_", "environments", *ANNOTATION_ROLES)

    from_: TableNames | None = Field(
        default=None, alias="from", description="tables of earlier trajectories that this model is shown as examples"
    )

    @model_validator(mode="after")
    def _examples_from_somewhere(self) -> Self:
        given = next((name for name in OF_EXAMPLES if self._differs(name)), None)
        if self.from_ is None and given is not None:
            raise ValueError(f"`{given}` goes with `from`, the tables of earlier runs")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        if "from" in reads:
            expect(reads, "from", "Trajectory")
        elif Selection.__name__ in reads.get("selections", ()):
            raise UserError(
                "`selections` of trajectories goes with `from`, the tables of earlier runs\n"
                "give `from`, or name selections of tasks, as difficulty_band makes them",
                ErrorCode.NEEDS_ANOTHER_KEY,
            )
        self.check_filter_needs(reads)
        return super().writes(reads)

    def earlier_runs(self, inputs: Inputs, retrieval: Retrieval) -> EarlierRuns | None:
        """The trajectories of ``from`` that are chosen; ``None`` without any."""
        return (
            EarlierRuns(TrajectoryIndex(tables_of(inputs, "from")), self.choice(inputs), retrieval)
            if self.from_
            else None
        )


class Imagine(WithExamples, ImagineStrategy):
    """k trajectories per task that a model writes whole; each turn is checked against the environment's rules."""

    strategy_type: ClassVar[type[EpisodeParameters]] = ImagineStrategy

    policy: str = Field(description="the model that writes the runs: an entry of models, @base or @last")

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """As ``Acting.check_models``. Raises ``UserError`` for a planner, too, which cannot write."""
        refuse_planners(models, "write trajectories")
        super().check_models(models)

    def notes(self, manifest: Manifest) -> list[str]:
        """As ``FilterParameters.notes``, with a warning where nothing was imagined."""
        played = "it acts in the environments, and no observation is imagined"
        return [*super().notes(manifest), *stand_in_notes(manifest, played)]

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """The writing of a run, and its repairs."""
        del turns
        return {"actor": for_words(1 + self.repairs)}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The runs."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, ImagineStrategy)
        earlier = self.earlier_runs(inputs, strategy)
        return Imagining(context.operator, strategy, tables, self.actors(context), self.window_of(context), earlier)


class Imagining(Remembering):
    """As ``Remembering``; counts what had to be repaired."""

    blamed: ClassVar[Blamed] = "generator"

    def measures(self, output: Any) -> Mapping[str, float]:
        """Runs that were repaired, and the faults of them, too."""
        faults = output.extra.get("repaired", [])
        return {**super().measures(output), "repaired": int(bool(faults)), "faults": len(faults)}
