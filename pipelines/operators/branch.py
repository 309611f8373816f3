"""``branch``: new episodes from turns of earlier trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.errors import dead_letter
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Most, Rows, least, mapped, product
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect
from agentmill.pipelines.operators.rollout import Acting, is_planner
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.roles import several_agents
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import PolicyError, Unreachable
from agentmill.synthesis.policies.scripted import THOUGHTS
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.scaffold import CLOSED_BOOK
from agentmill.synthesis.rollouts.step import imagined
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.branch import Branch as BranchStrategy
from agentmill.synthesis.strategies.inject import Inject as InjectStrategy


class Branch(FilterParameters, Acting, BranchStrategy):
    """k new episodes from each of some turns of earlier trajectories, in the state that was before the turn."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "rollout"
    scaffold_of_parents: ClassVar[bool] = True
    strategy_type: ClassVar[type[EpisodeParameters]] = BranchStrategy
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments", *ANNOTATION_ROLES)
    model_roles: ClassVar[Mapping[str, str]] = {**Acting.model_roles, "teacher": "teacher"}

    of: TableNames = Field(description="tables of trajectories that we made")
    tasks: TableNames = Field(description="tables of their tasks")
    teacher: str | None = Field(default=None, description="a model that takes the first turn, the actor the others")

    @model_validator(mode="after")
    def _one_takes_the_first_turn(self) -> Self:
        if self.given is not None and self.teacher is not None:
            raise ValueError("`given` and `teacher` exclude each other: both take the first turn")
        if self.teacher is not None and self.edits == ["remove"]:
            raise ValueError("`teacher` takes a new turn, and `edits: [remove]` has none; leave it out")
        return self

    def drawing(self, models: Mapping[str, ModelConfig]) -> list[str]:
        """As ``Acting.drawing``: of a single turn, who takes it."""
        if self.depth == 1 and self.teacher is not None:
            return ["teacher"]
        return super().drawing(models)

    def check_models(self, models: Mapping[str, ModelConfig]) -> None:
        """As ``Acting.check_models``. Raises ``UserError``, too, for several branches of a turn that nobody draws."""
        super().check_models(models)
        # As for temperature 0, this is no warning: equal branches would count as samples.
        fixed = self.given is not None and (self.depth == 1 or self.then == "recorded")
        # A branch has the environment of its parent, with the same seed, so that a plan is the same each time.
        planned = all(is_planner(models[role]) for role in self.drawing(models))
        if self.k > 1 and (fixed or planned) and not self.distinct:
            why = "no model takes a turn after `given`" if fixed else "an expert keeps to its plan"
            raise UserError(
                f"k: {self.k} makes {self.k} equal branches of a turn, since {why}\n"
                "give `k: 1`, or let a model take the turns",
                ErrorCode.DRAWS_EQUAL,
            )

    def pieces(self, rows: Mapping[str, Rows]) -> Most:
        """The branches of a trajectory with as many turns as it can have."""
        turns = rows["of"].turns
        points = 1 if self.turns in ("last", "first_error", "after_branch") else turns
        if self.turns == "even":
            points = least(turns, self.n)
        if self.turns == "every":
            points = mapped(turns, lambda n: -(-n // (self.n or 1)))
        return product(points, self.k, len(self.edits))

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """The teacher takes the first turn, if there is one; a given one costs nothing.

        Recorded turns cost nothing either, but the actor goes on where none is left.
        """
        first = 0 if self.given is not None or self.teacher is not None else 1
        more = 0 if self.depth == 1 else mapped(turns, lambda n: n - 1)
        own = None if more is None else first + more
        return {"actor": own, "teacher": 1 if self.teacher is not None else 0, **self._summaries(turns)}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from trajectories."""
        expect(reads, "of", "Trajectory")
        expect(reads, "tasks", "Task")
        self.check_filter_needs(reads)
        return super().writes(reads)

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``, without ``edits`` where nothing else is done than to replace."""
        config = super().provenance_config(context)
        # Tables that were made before there were edits are found again.
        return {name: value for name, value in config.items() if name != "edits" or value != ["replace"]}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The branches."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, BranchStrategy)
        choice = self.choice(inputs)
        return Branching(context.operator, strategy, tables, self.actors(context), self.window_of(context), choice)


class Branching(Rollout):
    """One input per branch. A trajectory that is not chosen, or has no turn to branch from, is dropped as one input.

    Where branches are to be distinct, those of one turn are made one after the other, each compared with those before.
    """

    def __init__(
        self,
        name: str,
        strategy: BranchStrategy | InjectStrategy,
        tables: SideTables,
        actors: Actors,
        window: int,
        choice: TrajectoryFilter,
    ) -> None:
        super().__init__(name, strategy, tables, actors, window, reads=Trajectory)
        self._branching = strategy
        self._choice = choice

    async def open(self) -> None:
        """As ``Rollout.open``, and load what the choice rests on."""
        self._choice.load()
        await super().open()

    def units(self, record: Any) -> list[Unit]:
        """One unit per branch; if they are to be distinct, one for those of each turn."""
        units = super().units(record)
        together = self._branching.together
        groups = (units[start : start + together] for start in range(0, len(units), together))
        return [Unit(chain(*group), group[0].data) for group in groups]

    async def process(self, record: Any, unit: Unit) -> list[Result]:
        """Explore the branches of ``unit``; one that fails, or repeats another one, is dropped alone."""
        results: list[Result] = []
        siblings: list[Trajectory] = []
        for part in unit:
            one = Unit([part], _with_siblings(unit.data, siblings))
            try:
                (result,) = await super().process(record, one)
            except (PolicyError, EnvError) as error:
                # The engine drops a branch that is alone in its unit, and drops nothing where no server answers.
                if isinstance(error, Unreachable) or len(unit) == 1:
                    raise
                letter = dead_letter(error, part, self, {"trajectory_id": record.trajectory_id})
                result = Result(input_id=part, dropped=letter, measures=super().dropped_measures(one))
            siblings += result.outputs
            results.append(result)
        return results

    def dropped_measures(self, unit: Unit) -> Mapping[str, float]:
        """As ``Rollout.dropped_measures``, of all branches of a unit."""
        spent: Counter[str] = Counter()
        for part in unit:
            spent.update(super().dropped_measures(Unit([part])))
        return spent

    def annotations(self, record: Any) -> Annotations:
        """The annotations of a trajectory and its steps. Raises ``Unused`` for one that is not chosen."""
        return self._choice.annotations(record.trajectory_id)

    def refused(self, record: Any) -> Unused | None:
        """Not chosen, not made by us, not played, in a scaffold that does not fit, or without such a turn."""
        try:
            annotations = self.annotations(record)
        except Unused as error:
            return error
        if record.generation is None:
            return Unused("not_generated", "it does not say how it was made, so it cannot be replayed")
        if several := several_agents(record):
            return several
        if any(map(imagined, record.content)):
            return Unused("imagined", "a model made up what the environment answered, so no state of it is known")
        if record.generation.scaffold == CLOSED_BOOK:
            return Unused(CLOSED_BOOK, "it is an answer without tools, so no state of an environment precedes it")
        if self._branching.constrain == "admissible" and record.generation.scaffold != "text":
            return Unused("not_text", "it was played with tools, and `constrain: admissible` chooses among commands")
        thoughts = any(settings.sampling.get(THOUGHTS) for settings in self._actors.policies.values())
        if thoughts and record.generation.scaffold == "text":
            return Unused("commands_alone", "it was played by commands alone, and the expert writes thoughts, too")
        if not self._branching.points(record, annotations):
            return Unused("no_turn", "it has no turn of this kind to branch from")
        return super().refused(record)


def _with_siblings(exploration: Any, siblings: Sequence[Trajectory]) -> Any:
    """``exploration`` with the branches of the same turn that were made before; anything else as it is."""
    if not isinstance(exploration, Exploration):
        return exploration
    return msgspec.structs.replace(exploration, earlier=(*exploration.earlier, *siblings))
