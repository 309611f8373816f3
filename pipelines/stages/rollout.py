"""Episodes: what ``sample`` and ``expert`` do with a task. One input is one episode, by the id of its trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pipelines.engine.operation import AsyncOperation, Blamed, Result, Unit
from pipelines.stages.lookup import Lookup
from pipelines.stages.shares import chosen
from schemas.record import Record
from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import Action, Trajectory
from synthesis.environments import blocks, make
from synthesis.environments.environment import WorldError
from synthesis.policies import make_policy
from synthesis.policies.policy import Policy, exhausted
from synthesis.policies.settings import PolicySettings
from synthesis.strategies.apart import CALL_TIMEOUT_S, gathered
from synthesis.strategies.sample import Sample
from synthesis.strategies.strategy import Exploration


class Actors(Record):
    """Who acts, on which tasks, and from which seed.

    ``split`` ``None`` takes the tasks of every split; of those it takes a ``share``, chosen by their ids.
    """

    policies: dict[str, PolicySettings]
    split: str | None
    share: float
    seed: int
    round: int


class Rollout(AsyncOperation):
    """The episodes of a strategy whose trajectories are all known beforehand."""

    blamed: ClassVar[Blamed] = "environment"

    def __init__(
        self, name: str, strategy: Sample, environments: Lookup[EnvironmentSpec], actors: Actors, window: int
    ) -> None:
        super().__init__(name, Task, Trajectory, window)
        self._strategy = strategy
        self._environments = environments
        self._actors = actors
        self._policies: dict[str, Policy] = {}

    async def open(self) -> None:
        """Load the environments and make the policies."""
        self._environments.load()
        self._policies = {role: make_policy(settings) for role, settings in self._actors.policies.items()}

    async def close(self) -> None:
        """Close the policies."""
        for policy in self._policies.values():
            await policy.close()
        self._policies = {}

    def exhausted(self) -> str | None:
        """The budget that is spent, if one is."""
        return exhausted(self._policies.values())

    def count(self, record: Any) -> int:
        """Attempts at a task that is wanted."""
        actors = self._actors
        wanted = actors.split in (None, record.split) and chosen(record.task_id, actors.share)
        return self._strategy.k if wanted else 0

    def units(self, record: Any) -> list[Unit]:
        """One unit per episode, so that each has its own place in the window."""
        if not self.count(record):
            return []
        spec = self._environments.get(record.environment_id)
        if spec is None:
            return [(f"{record.task_id}/{attempt}",) for attempt in range(self._strategy.k)]
        return [(planned,) for planned in self._strategy.planned(self._exploration(record, spec))]

    async def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """Live the one episode of ``unit``."""
        spec = self._environments.get(record.environment_id)
        if spec is None:
            raise WorldError(f"no environment {record.environment_id!r} in the tables of `environments`")
        exploration = self._exploration(record, spec)
        others = frozenset(self._strategy.planned(exploration)) - set(unit)
        lived = await gathered(
            lambda given: self._strategy.explore(given, others),
            exploration,
            blocks(spec),
            min(CALL_TIMEOUT_S, self._strategy.episode_timeout_s),
        )
        if [trajectory.trajectory_id for trajectory in lived] != list(unit):
            raise RuntimeError(f"{self._strategy!r} did not keep to its plan: {len(lived)} trajectories for {unit[0]}")
        return [Result(input_id=unit[0], outputs=lived)]

    def measures(self, output: Any) -> Mapping[str, float]:
        """Episodes, successes, turns, tokens and costs."""
        usage = output.usage
        turns = {item.turn for item in output.content if isinstance(item, Action) and item.turn > 0}
        return {
            "episodes": 1,
            "success": int(output.outcome.status == "success"),
            "truncated": int(output.outcome.truncated),
            "turns": len(turns),
            "prompt_tokens": usage.prompt_tokens or 0,
            "completion_tokens": usage.completion_tokens or 0,
            "cost_usd": usage.cost_usd or 0.0,
        }

    def _exploration(self, task: Task, spec: EnvironmentSpec) -> Exploration:
        return Exploration(
            task=task,
            spec=spec,
            make_environment=lambda: make(spec),
            policies=self._policies,
            seed=self._actors.seed,
            round=self._actors.round,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_policies": {}}


def settings_of(models: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, PolicySettings]:
    """The policies of a step as data, by role."""
    return {role: model.settings(sampling) for role, model in models.items()}
