"""``branch``: new episodes from turns of earlier trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import Operation, Result, Unit
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout import Actors, Rollout, Worlds
from agentmill.pipelines.operators.selection import SAID, FilterParameters, TrajectoryFilter
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.roles import several_agents
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import PolicyError, Unreachable
from agentmill.synthesis.rollouts.step import imagined
from agentmill.synthesis.strategies.branch import Branch as BranchStrategy


class Branch(FilterParameters, Acting, BranchStrategy):
    """k new episodes from each of some turns of earlier trajectories, in the state that was before the turn."""

    primary: ClassVar[str] = "of"
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments", *SAID)
    model_roles: ClassVar[Mapping[str, str]] = {**Acting.model_roles, "teacher": "teacher"}

    of: TableNames = Field(description="tables of trajectories that we made")
    tasks: TableNames = Field(description="tables of their tasks")
    teacher: str | None = Field(default=None, description="a model that takes the first turn, the actor the others")

    @model_validator(mode="after")
    def _one_takes_the_first_turn(self) -> Branch:
        if self.given is not None and self.teacher is not None:
            raise ValueError("`given` and `teacher` exclude each other: both take the first turn")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from trajectories."""
        expect(reads, "of", "Trajectory")
        expect(reads, "tasks", "Task")
        self.expect_said(reads)
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The branches."""
        worlds = Worlds(
            environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec),
            tasks=Lookup(tables_of(inputs, "tasks"), Task),
        )
        strategy = self.strategy(BranchStrategy)
        return Branching(strategy, worlds, self.actors(context), self.window_of(context), self.choice(inputs))


class Branching(Rollout):
    """One input per branch. A trajectory that is not chosen, or has no turn to branch from, is dropped as one input.

    Where branches are to be distinct, those of one turn are made one after the other, each compared with those before.
    """

    def __init__(
        self, strategy: BranchStrategy, worlds: Worlds, actors: Actors, window: int, choice: TrajectoryFilter
    ) -> None:
        super().__init__("branch", strategy, worlds, actors, window, reads=Trajectory)
        self._branching = strategy
        self._choice = choice
        self._siblings: dict[str, list[Trajectory]] = {}

    async def open(self) -> None:
        """As ``Rollout.open``, and load what the choice rests on."""
        self._choice.load()
        await super().open()

    def units(self, record: Any) -> list[Unit]:
        """One unit per branch; if they are to be distinct, one for those of each turn."""
        units = super().units(record)
        together = self._branching.k if self._branching.distinct else 1
        return [tuple(chain(*units[start : start + together])) for start in range(0, len(units), together)]

    async def process(self, record: Any, unit: Unit) -> list[Result]:
        """Explore the branches of ``unit``; one that fails, or repeats another one, is dropped alone."""
        results: list[Result] = []
        made: list[Trajectory] = []
        for piece in unit:
            self._siblings[piece] = made
            try:
                (result,) = await super().process(record, (piece,))
            except (PolicyError, EnvError) as error:
                if isinstance(error, Unreachable) or len(unit) == 1:
                    raise
                letter = dead_letter(error, piece, self, {"trajectory_id": record.trajectory_id})
                result = Result(input_id=piece, dropped=letter, measures=super().lost((piece,)))
            finally:
                del self._siblings[piece]
            made += result.outputs
            results.append(result)
        return results

    def lost(self, unit: Unit) -> Mapping[str, float]:
        """As ``Rollout.lost``, of all branches of a unit."""
        return sum((Counter(super(Branching, self).lost((piece,))) for piece in unit), Counter())

    def earlier(self, record: Any, piece: str | None = None) -> tuple[Trajectory, ...]:
        """The trajectory that is branched from, and the branches of this turn that were made before ``piece``."""
        return (record, *self._siblings.get(piece or "", ()))

    def evidence(self, record: Any) -> Annotations:
        """What is said of a trajectory and its steps. Raises ``Unused`` for one that is not chosen."""
        return self._choice.evidence(record.trajectory_id)

    def refused(self, record: Any) -> Unused | None:
        """Not chosen, not made by us, not lived, with tools where commands are needed, or without such a turn."""
        try:
            evidence = self.evidence(record)
        except Unused as error:
            return error
        if record.generation is None:
            return Unused("not_generated", "it does not say how it was made, so it cannot be replayed")
        if several := several_agents(record):
            return several
        if any(map(imagined, record.content)):
            return Unused("imagined", "a model made up what the world answered, so no state of it is known")
        if self._branching.constrain == "admissible" and record.generation.scaffold != "text":
            return Unused("not_text", "it was lived with tools, and `constrain: admissible` chooses among commands")
        if not self._branching.points(record, evidence):
            return Unused("no_turn", "it has no turn of this kind to branch from")
        return super().refused(record)
