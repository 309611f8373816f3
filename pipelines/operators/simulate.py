"""``simulate``: episodes of tasks in environments that a model plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation
from agentmill.pipelines.operators.bounds import Most, product
from agentmill.pipelines.operators.memory import Remembering, WithExamples
from agentmill.pipelines.operators.operator import Inputs, StepContext
from agentmill.synthesis.rollouts.parameters import EpisodeParameters
from agentmill.synthesis.strategies.simulated_env import SIMULATOR
from agentmill.synthesis.strategies.simulated_episodes import Simulate as SimulateStrategy


class Simulate(WithExamples, SimulateStrategy):
    """k episodes per task in which one model acts and another one plays the environment."""

    strategy_type: ClassVar[type[EpisodeParameters]] = SimulateStrategy
    model_roles: ClassVar[Mapping[str, str]] = {**WithExamples.model_roles, SIMULATOR: "simulator"}

    simulator: str = Field(description="the model that plays the environment: an entry of models, @base or @last")

    def calls_of_piece(self, turns: Most) -> dict[str, Most]:
        """Those of the agent; the simulator answers at most as many actions as there are turns, with all retries."""
        return {**super().calls_of_piece(turns), SIMULATOR: product(turns, 1 + self.retries)}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The episodes."""
        strategy, tables = self.strategy(), self.side_tables(inputs)
        assert isinstance(strategy, SimulateStrategy)
        earlier = self.earlier_runs(inputs, strategy)
        return SimulatedRollouts(
            context.operator, strategy, tables, self.actors(context), self.window_of(context), earlier
        )


class SimulatedRollouts(Remembering):
    """As ``Remembering``; counts how actions were answered, and what the simulator claims."""

    def measures(self, output: Any) -> Mapping[str, float]:
        """Answers by the model and without it, and answers that were asked for again, by reason, too."""
        answers = {f"answers.{name}": n for name, n in output.extra["answers"].items()}
        claimed = int(output.extra["claim"]["status"] == "success")
        return {**super().measures(output), **answers, "claimed_success": claimed}
