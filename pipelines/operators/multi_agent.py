"""``multi_agent``: episodes in which several agents act and talk, each with its own prompt and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout import Actors, Rollout, Worlds
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.schemas.errors import near_match
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.roles import NotInTask
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.strategies.multi_agent import MultiAgent as MultiAgentStrategy


class MultiAgent(Acting, MultiAgentStrategy):
    """Episodes of several agents: planner and actor, actor and critic, agent and simulated user, specialists."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments")

    tasks: TableNames = Field(description="tables of tasks")
    policy: str = Field(description="the model that plays all roles without one in `models`")
    models: dict[str, str] = Field(default={}, description="models of roles that have their own, by role")

    @model_validator(mode="after")
    def _known_roles(self) -> MultiAgent:
        names = [role.name for role in self.roles]
        for name in self.models:
            if name == ACTOR:
                raise ValueError(f"`models` names {name!r}, whose model is `policy`")
            if name not in names:
                known = ", ".join(names)
                raise ValueError(f"`models` names {name!r}; the `roles` are {known}.{near_match(name, names)}")
        return self

    def policies(self) -> dict[str, str]:
        """The models by role; those without one of their own are played by that of the actor."""
        return {**super().policies(), **self.models}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The episodes."""
        worlds = Worlds(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec))
        strategy = self.strategy(MultiAgentStrategy)
        return Talking(strategy, worlds, self.actors(context), self.window_of(context))


class Talking(Rollout):
    """As ``Rollout``; a task without what an agent should know in it is dropped as one input."""

    def __init__(self, strategy: MultiAgentStrategy, worlds: Worlds, actors: Actors, window: int) -> None:
        super().__init__("multi_agent", strategy, worlds, actors, window)
        self._roles = strategy.roles

    def refused(self, record: Any) -> Unused | None:
        """Without what one of the agents should know, too."""
        try:
            for role in self._roles:
                role.knowledge(record)
        except NotInTask as error:
            return Unused(error.reason, str(error))
        return super().refused(record)
