"""``multi_agent``: episodes of several agents, each with its own prompt and, where it is given, its own model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.bounds import Most, mapped, product
from agentmill.pipelines.operators.operator import Inputs, StepContext
from agentmill.pipelines.operators.rollout import Episodes
from agentmill.pipelines.operators.rollout_operation import Actors, Rollout, SideTables
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.errors import near_match
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.rollouts.roles import NotInTask, Role
from agentmill.synthesis.rollouts.step import ACTOR
from agentmill.synthesis.strategies.multi_agent import UNDECIDED
from agentmill.synthesis.strategies.multi_agent import MultiAgent as MultiAgentStrategy


class MultiAgent(Episodes, MultiAgentStrategy):
    """k episodes per task by several agents: planner and actor, actor and critic, agent and user, specialists."""

    strategy_type: ClassVar[type[EpisodeParameters]] = MultiAgentStrategy

    policy: str = Field(description="the model that plays all roles without one in `models`")
    models: dict[str, str] = Field(default={}, description="models of roles that have their own, by role")

    @model_validator(mode="after")
    def _known_roles(self) -> Self:
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

    def choosing(self, models: Mapping[str, ModelConfig]) -> list[str]:
        """As ``Acting.choosing``, of those who act: the others only speak."""
        acting = {role.name if role.name in self.models else ACTOR for role in self.roles if role.acts}
        return [role for role in super().choosing(models) if role in acting]

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """Each agent may speak all messages and propose all actions; a reviewer is asked of each that may be vetoed."""
        vetoed = self.max_vetoes if any(role.veto is not None for role in self.roles) else 0
        spoken = mapped(turns, lambda n: self.max_messages + n * (1 + vetoed))
        reviews = product(turns, vetoed)
        calls: dict[str, Most] = {}
        # Those who share a model take their turns one after the other, reviewers apart.
        shared = [role for role in self.roles if role.name not in self.models]
        if speaking := [_calls_of_message(role) for role in shared if role.veto is None]:
            calls[ACTOR] = product(spoken, max(speaking))
        reviewing = product(reviews, sum(role.veto is not None for role in shared))
        calls[ACTOR] = None if calls.get(ACTOR, 0) is None or reviewing is None else (calls.get(ACTOR) or 0) + reviewing
        named = {role.name: role for role in self.roles if role.name in self.models}
        own = {
            name: product(spoken, _calls_of_message(role)) if role.veto is None else reviews
            for name, role in named.items()
        }
        return {**calls, **own}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The episodes."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, MultiAgentStrategy)
        return MultiAgentRollout(context.operator, strategy, tables, self.actors(context), self.window_of(context))


def _calls_of_message(role: Role) -> int:
    """What a message of a role asks of its model: itself, or drafts and the choice among them."""
    return 1 if role.best_of == 1 else role.best_of + 1


class MultiAgentRollout(Rollout):
    """As ``Rollout``; a task without what an agent should know in it is dropped as one input."""

    def __init__(
        self, name: str, strategy: MultiAgentStrategy, tables: SideTables, actors: Actors, window: int
    ) -> None:
        super().__init__(name, strategy, tables, actors, window)
        self._roles = strategy.roles

    def refused(self, record: Any) -> Unused | None:
        """Also a task without what one of the agents should know."""
        try:
            for role in self._roles:
                role.knowledge(record)
        except NotInTask as error:
            return Unused(error.reason, str(error))
        return super().refused(record)

    def measures(self, output: Trajectory) -> Mapping[str, float]:
        """As ``Rollout.measures``, with choices among drafts that could not be read."""
        undecided = output.extra.get(UNDECIDED)
        return {**super().measures(output), **({UNDECIDED: undecided} if undecided else {})}
