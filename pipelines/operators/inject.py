"""``inject``: trajectories with one known wrong turn, and labels of their steps that are true by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Most, Rows, mapped
from agentmill.pipelines.operators.branch import Branching
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect
from agentmill.pipelines.operators.rollout import Acting
from agentmill.pipelines.operators.rollout_operation import Actors, SideTables
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter
from agentmill.pipelines.operators.verify import LABELS
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.step_values import step_labels
from agentmill.synthesis.strategies.inject import INJECTED, Recorded
from agentmill.synthesis.strategies.inject import Inject as InjectStrategy

WINDOW = 64
"""Episodes in flight where no model acts."""


# The strategy before ``Acting``: its default of ``max_invalid`` is the one that holds.
class Inject(FilterParameters, InjectStrategy, Acting):
    """k trajectories with one wrong turn each, made from successes, and labels that say which turn it is."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "rollout"
    scaffold_of_parents: ClassVar[bool] = True
    strategy_type: ClassVar[type[EpisodeParameters]] = InjectStrategy
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments", *ANNOTATION_ROLES)
    sides: ClassVar[Sequence[str]] = (LABELS,)

    of: TableNames = Field(description="tables of trajectories that we made; only successes get an error")
    tasks: TableNames = Field(description="tables of their tasks")
    policy: str | None = Field(default=None, description="the model that goes on, for then: actor")  # type: ignore[assignment]
    name: str = Field(default="inject", min_length=1, description="what the labels are called")

    @model_validator(mode="after")
    def _who_goes_on(self) -> Self:
        if (self.then == "actor") != (self.policy is not None):
            raise ValueError("`policy` goes with `then: actor`; give both or none")
        given = next((key for key in ("temperature", "max_tokens") if getattr(self, key) is not None), None)
        if self.policy is None and given is not None:
            raise ValueError(f"`{given}` goes with `then: actor`; no model is asked where recorded turns follow")
        return self

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """The turns after the error, where a model takes them."""
        return {"actor": turns if self.policy is not None else 0}

    def most_turns(self, rows: Mapping[str, Rows], actor: ModelConfig | None) -> Most:
        """As ``Acting.most_turns``; before recorded turns an error may be one more."""
        turns = super().most_turns(rows, actor)
        return mapped(turns, lambda n: n + 1) if self.then == "recorded" and self.max_turns is None else turns

    def draws(self) -> tuple[str, int]:
        """Several trajectories of one differ in their errors, whoever goes on."""
        return "k", 1

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from trajectories."""
        expect(reads, "of", "Trajectory")
        expect(reads, "tasks", "Task")
        self.check_filter_needs(reads)
        return super().writes(reads)

    def notes(self, manifest: Manifest) -> list[str]:
        """The kinds of errors that were made, and how often others were drawn and did not apply."""
        kinds = {kind: manifest.metrics.get(f"kind.{kind}", 0) for kind in self.errors}
        skipped = sum(n for name, n in manifest.metrics.items() if name.startswith("skipped."))
        made = ", ".join(f"{kind} {n:,.0f}" for kind, n in kinds.items())
        return [*super().notes(manifest), f"errors: {made}; {skipped:,.0f} draws of kinds that did not apply"]

    def window_of(self, context: StepContext) -> int:
        """Episodes in flight."""
        return super().window_of(context) if self.policy is not None else self.window or WINDOW

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The trajectories and the labels."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, InjectStrategy)
        window, choice = self.window_of(context), self.choice(inputs)
        return Injecting(context.operator, strategy, tables, self.actors(context), window, choice, self.name)


class Injecting(Branching):
    """One input per trajectory with an error. One that is no success is dropped as one input."""

    def __init__(
        self,
        name: str,
        strategy: InjectStrategy,
        tables: SideTables,
        actors: Actors,
        window: int,
        choice: TrajectoryFilter,
        labels: str,
    ) -> None:
        super().__init__(name, strategy, tables, actors, window, choice)
        self.sides = (LABELS,)
        self._label = labels

    async def open(self) -> None:
        """As ``Branching.open``; where no model goes on, the record is the actor."""
        await super().open()
        self._policies.setdefault(ACTOR, Recorded())

    async def process(self, record: Any, unit: Unit) -> list[Result]:
        """The trajectory of ``unit``, with the labels of its steps."""
        results = await super().process(record, unit)
        return [msgspec.structs.replace(each, sides=self._sides(each)) for each in results]

    def refused(self, record: Any) -> Unused | None:
        """As ``Branching.refused``, and a trajectory that is no success."""
        refused = super().refused(record)
        if refused is None and record.outcome.status != "success":
            return Unused("not_a_success", f"its outcome is {record.outcome.status}: it may hold other errors")
        return refused

    def measures(self, output: Trajectory) -> Mapping[str, float]:
        """As ``Rollout.measures``, with the kind of the error, and those that did not apply."""
        made = output.extra[INJECTED]
        skipped = {f"skipped.{kind}": 1 for kind in made["skipped"]}
        return {**super().measures(output), f"kind.{made['kind']}": 1, **skipped}

    def side_measures(self, output: Any) -> Mapping[str, float]:
        """How many labels there are."""
        del output
        return {"labels": 1}

    def _sides(self, result: Result) -> Mapping[str, list[Any]]:
        labels = [
            label
            for made in result.outputs
            for label in step_labels(
                made, made.extra[INJECTED]["turn"], made.extra[INJECTED]["kind"], self._label, INJECTED
            )
        ]
        return {LABELS: labels} if labels else {}
