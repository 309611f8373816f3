"""``memory``: episodes with what earlier runs hold in their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout import Actors, Rollout, Worlds
from agentmill.pipelines.operators.selection import SAID, FilterParameters, TrajectoryFilter, Where
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.retrieval import Library, Retrieval, card_of
from agentmill.synthesis.rollouts.strategy import Exploration, Strategy
from agentmill.synthesis.strategies.memory import Memory as MemoryStrategy


class Memory(FilterParameters, Acting, MemoryStrategy):
    """k episodes per task, with exemplars or reflections from earlier runs in the prompt."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "from_", "environments", *SAID)

    tasks: TableNames = Field(description="tables of tasks")
    from_: TableNames = Field(alias="from", description="tables of earlier trajectories, of these tasks or others")
    where: Where = Field(default="success", description="which of them, by the verdict")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        expect(reads, "from", "Trajectory")
        self.expect_said(reads)
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The episodes."""
        worlds = Worlds(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec))
        strategy = self.strategy(MemoryStrategy)
        shelf = Shelf(TrajectoryIndex(tables_of(inputs, "from")), self.choice(inputs), strategy)
        return Remembering("memory", strategy, worlds, self.actors(context), self.window_of(context), shelf)


class Shelf:
    """The runs that ``recall`` picks from: those of some tables that are chosen and serve it. Pickles to workers."""

    def __init__(self, runs: TrajectoryIndex, choice: TrajectoryFilter, recall: Retrieval) -> None:
        self.recall = recall
        self._runs = runs
        self._choice = choice

    def library(self) -> Library:
        """All of them, by their cards. Raises ``UserError`` for a file that cannot be read."""
        self._choice.load()
        cards = [card_of(run) for run in self._runs.scan() if self.recall.serves(run) and self._chosen(run)]
        return Library(cards, self._runs.get)

    def _chosen(self, run: Trajectory) -> bool:
        try:
            self._choice.evidence(run.trajectory_id)
        except Unused:
            return False
        return True


class Remembering(Rollout):
    """A rollout with a library; a task for which nothing is found in it is dropped."""

    def __init__(
        self, name: str, strategy: Strategy, worlds: Worlds, actors: Actors, window: int, shelf: Shelf | None
    ) -> None:
        super().__init__(name, strategy, worlds, actors, window)
        self._shelf = shelf
        self._library: Library | None = None

    async def open(self) -> None:
        """As ``Rollout.open``, and read through the earlier runs."""
        await super().open()
        self._library = None if self._shelf is None else self._shelf.library()

    def refused(self, record: Any) -> Unused | None:
        """A task for which nothing can be recalled, too."""
        if (
            self._library is not None
            and self._shelf is not None
            and not self._library.holds(record, self._shelf.recall)
        ):
            return Unused("nothing_recalled", "no run that was chosen can be recalled for it")
        return super().refused(record)

    def _exploration(self, record: Any, task: Task, spec: EnvironmentSpec, piece: str | None = None) -> Exploration:
        return msgspec.structs.replace(super()._exploration(record, task, spec, piece), library=self._library)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_library": None}
