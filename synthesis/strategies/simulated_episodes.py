"""``simulate``: episodes of a task in an environment that a model plays.

The agent acts turn by turn as in ``sample``, and a second model answers (Simia, arXiv:2511.01824; WebEvolver,
arXiv:2504.21024; AutoCoA, arXiv:2503.06580; AgentAlign, arXiv:2505.23020). ``imagine`` is the variant in which one
model writes both sides at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import AnyAction, AnyObservation, Trajectory
from agentmill.synthesis.environments import DESCRIBED
from agentmill.synthesis.environments.environment import Check, EnvError, Environment, Transition
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.rollouts.episode import Episode, EpisodePlan, begin, run_episode, trajectory_of
from agentmill.synthesis.rollouts.llm_calls import identity_of, total
from agentmill.synthesis.rollouts.parameters import Attempts
from agentmill.synthesis.rollouts.retrieval import Retrieval, retold
from agentmill.synthesis.rollouts.step import SIMULATED
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.memory import retrieved
from agentmill.synthesis.strategies.simulated_env import RESULTS, SIMULATOR, AnswerRules, SimulatedEnvironment


class SimulatedEpisode(Episode):
    """An episode whose observations a model makes up: they are ``synthetic``, without rewards, the outcome unknown."""

    async def take_turn(self, policy: Policy | None = None) -> str | None:
        """As ``Episode.take_turn``. Raises what ``SimulatedEnvironment.answer`` raises, too."""
        environment = self.environment
        assert isinstance(environment, SimulatedEnvironment)
        # Nothing would answer what the policy is asked for.
        if environment.asked == self.plan.max_turns:
            return "max_turns"
        drawn = await self.draw([self.turn_seed()], policy)
        if isinstance(drawn, str):
            return drawn
        seed = self.turn_seed()
        for index, action in enumerate(self.add_turn(drawn[0])):
            # A turn may hold any number of calls, so turns alone do not bound what the simulator is asked.
            if environment.asked == self.plan.max_turns:
                return "max_turns"
            cost = await environment.answer(action, self.plan.trajectory_id, derive_seed(seed, index))
            self.usage = total(self.usage, cost)
            limit = self.perform([action])
            if self.terminated or limit is not None:
                return limit
        return None

    def trajectory(self, reason: str | None, check: Check | None = None) -> Trajectory:
        """What was played; nobody knows what state it ended in."""
        return trajectory_of(self, reason, check)

    def _observed(self, transition: Transition, action: AnyAction) -> AnyObservation:
        return msgspec.structs.replace(super()._observed(transition, action), reward=None, synthetic=True)


class Simulate(Retrieval, Attempts):
    """k episodes per task by a policy, in an environment that another model plays.

    An episode has at most ``max_turns`` turns, and the simulator answers at most as many actions.
    """

    episode_type: ClassVar[type[Episode]] = SimulatedEpisode

    retries: int = Field(default=2, ge=0, description="how often a faulty answer of the simulator is asked for again")
    max_chars: int = Field(default=4000, ge=1, description="characters of an observation, of which more are a fault")
    results: Literal["text", "json"] = Field(
        default="text", description="json: what any tool answers must be JSON, also where no schema of it is known"
    )

    @model_validator(mode="after")
    def _nothing_to_choose_from(self) -> Simulate:
        if self.constrain != "none":
            raise ValueError("`constrain: admissible` needs a list of legal actions, which no simulator gives")
        return self

    async def explore(self, exploration: Exploration, trajectory_id: str) -> AsyncIterator[Trajectory]:
        """Yield the trajectory with this id. Raises ``GenerationError`` where an answer stays faulty, too."""
        plan = self.plan_of(exploration, trajectory_id)
        real = None if exploration.spec.family == DESCRIBED else exploration.make_environment()
        try:
            simulator = exploration.policies[SIMULATOR]
            environment = SimulatedEnvironment(exploration.spec, real, simulator, self._rules(exploration, real))
            opening = begin(plan, environment)
            if real is None:  # it shows nothing at the start
                opening = opening[:1]
            environment.introduce(plan.task, opening, _examples(exploration, plan), plan.scaffold in SCAFFOLD_FORMATS)
            episode = self.episode(plan, environment, exploration, opening)
            played = await run_episode(episode, episode.play())
            yield msgspec.structs.replace(played, extra={**played.extra, **_about(environment, simulator)})
        finally:
            if real is not None:
                real.close()

    def attempt_plan(self, exploration: Exploration, attempt: int) -> EpisodePlan:
        """As ``Attempts.attempt_plan``."""
        found = retrieved(exploration, self, attempt, one_per_task=False)
        simulator = identity_of(exploration.policies[SIMULATOR], exploration.entries.get(SIMULATOR))
        given = digest(self.retries, self.max_chars, self.results, found, simulator)
        plan = self.plan(exploration, SIMULATED, f"{self.scaffold}:{given}", attempt=attempt)
        return msgspec.structs.replace(plan, extra={"recalls": found} if found else {})

    def _rules(self, exploration: Exploration, real: Environment | None) -> AnswerRules:
        spec = exploration.spec
        declared = spec.parameters.get(RESULTS, {}) if real is None else {}
        if not isinstance(declared, dict) or not all(isinstance(each, dict) for each in declared.values()):
            raise EnvError(f"environment {spec.environment_id}: `{RESULTS}` must have a JSON Schema for each tool")
        tools = spec.tools if real is None else real.tools
        undeclared = {tool.name: JsonObject() for tool in tools} if self.results == "json" else {}
        return AnswerRules(self.retries, self.max_chars, {**undeclared, **declared})


def _examples(exploration: Exploration, plan: EpisodePlan) -> list[str]:
    """The earlier trajectories that the simulator is shown, as texts."""
    library = exploration.library
    return [] if library is None else [retold(library.get(each)) for each in plan.extra.get("recalls", [])]


def _about(environment: SimulatedEnvironment, simulator: Policy) -> JsonObject:
    """Who played the environment, what it claims of the end, and how often it was asked or answered for."""
    return {
        SIMULATOR: simulator.model or simulator.name,
        "claim": {"status": environment.claim},
        "answers": {"asked": environment.asked, **environment.counts},
    }
