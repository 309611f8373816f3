"""The contract of a strategy: how episodes of one task are explored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.rollouts.episode import EpisodePlan
from agentmill.synthesis.rollouts.retrieval import Library

MakeEnvironment = Callable[[], Environment]


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy works with: a task, its environment's spec and maker, and policies by role (``actor`` …).

    ``entries`` are what the recipe's ``models`` call these policies: part of the ids of what they make.
    ``earlier`` are the trajectories of the task that a strategy goes on from, where it needs some; ``annotations`` is
    what other tables say of it, where there is one. ``library`` holds runs of whatever task, to be recalled.
    ``refused_s`` says for how long in all the providers of the policies have refused everybody, which is no time of an
    episode.
    """

    task: Task
    spec: EnvironmentSpec
    make_environment: MakeEnvironment
    policies: Mapping[str, Policy]
    entries: Mapping[str, str] = {}
    seed: int
    round: int = 0
    earlier: tuple[Trajectory, ...] = ()
    annotations: Annotations = NOTHING
    library: Library | None = None
    refused_s: Callable[[], float] = lambda: 0.0
    plans: dict[str, EpisodePlan] | None = None

    def plans_of(self, make: Callable[[], Iterable[EpisodePlan]]) -> Mapping[str, EpisodePlan]:
        """The plans that ``make`` returns, by trajectory id; made once where the exploration keeps them in ``plans``.

        A plan has the digest of all that decides its episode, and the pieces of one task share an exploration.
        """
        if self.plans is None:
            return {plan.trajectory_id: plan for plan in make()}
        if not self.plans:
            self.plans.update((plan.trajectory_id, plan) for plan in make())
        return self.plans


class Strategy(Protocol):
    """How a task is explored, in pieces that need nothing of each other: an episode of ``sample``, a search tree.

    Holds parameters only, so one instance serves many explorations at once.
    """

    @property
    def episode_timeout_s(self) -> float:
        """Seconds that end an episode."""

    def count(self, start: Task | Trajectory) -> int:
        """How many pieces it makes of a task, or of the trajectory it goes on from."""

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of its pieces, known before any is begun; for the journal."""

    def explore(self, exploration: Exploration, plan_id: str) -> AsyncIterator[Trajectory | Node]:
        """Yield the trajectories and search nodes of the piece with this id.

        Exceptions of the environment, the policy or the strategy are passed on with the party at fault as type:
        ``EnvError``, ``PolicyError``, anything else. Trajectories that were yielded before one of the first two stay.
        """
