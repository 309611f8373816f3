"""``sample``: k episodes per task, the real model acting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from pipelines.engine.operation import Operation
from pipelines.stages.lookup import Lookup
from pipelines.stages.rollout import Actors, Rollout, settings_of
from pipelines.stages.stage import Inputs, Stage, StageContext, TableNames, expect, tables_of
from schemas.record import JsonObject
from schemas.task import EnvironmentSpec
from synthesis.strategies.sample import Sample as SampleStrategy
from synthesis.strategies.scaffold import ScaffoldName


class Sample(Stage):
    """k episodes per task by a policy, crossed with scaffold and constraints."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments")
    model_roles: ClassVar[Mapping[str, str]] = {"actor": "policy"}
    incidental: ClassVar[Sequence[str]] = ("window",)

    policy: str = Field(description="the model that acts: an entry of models, @base or @last")
    tasks: TableNames = Field(description="tables of tasks")
    environments: TableNames = Field(description="tables of the environments of these tasks")
    split: str | None = Field(default=None, description="only tasks of this split; all of them by default")
    share: float = Field(default=1.0, gt=0, le=1, description="of these tasks only so many, chosen by their ids")
    k: int = Field(default=1, ge=1, description="episodes per task")
    temperature: float | None = Field(default=None, ge=0, description="before the temperature of the model")
    max_tokens: int | None = Field(default=None, ge=1, description="per turn, before that of the model")
    scaffold: ScaffoldName = Field(default="text", description="commands as text, or calls of tools")
    constrain: Literal["none", "admissible"] = Field(default="none", description="only legal commands, or any")
    max_turns: int | None = Field(default=None, ge=1, description="turns per episode; by default the task's own")
    max_invalid: int | None = Field(default=5, ge=1, description="invalid actions in a row that end an episode")
    episode_timeout_s: float = Field(default=1800.0, gt=0, description="seconds that end an episode")
    seed: int | None = Field(default=None, description="by default derived from that of the run")
    window: int | None = Field(default=None, ge=1, description="episodes in flight per worker")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        expect(reads, "environments", "EnvironmentSpec")
        return "Trajectory"

    def sampling(self) -> JsonObject:
        """Temperature and tokens, where given."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}

    def settled(self, context: StageContext) -> JsonObject:
        """As ``Stage.settled``, with the seed and the round that hold."""
        return {**super().settled(context), "seed": self._seed(context), "round": context.round}

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The episodes."""
        actors = Actors(
            policies=settings_of(context.models, self.sampling()),
            split=self.split,
            share=self.share,
            seed=self._seed(context),
            round=context.round,
        )
        environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec)
        window = self.window or context.models["actor"].window
        return Rollout(self.operator(), self._strategy(), environments, actors, window)

    @classmethod
    def operator(cls) -> str:
        """The name that dead letters carry."""
        return "sample"

    def _strategy(self) -> SampleStrategy:
        fields: dict[str, Any] = {name: getattr(self, name) for name in SampleStrategy.model_fields if name != "role"}
        return SampleStrategy(**fields)

    def _seed(self, context: StageContext) -> int:
        return context.seed if self.seed is None else self.seed
