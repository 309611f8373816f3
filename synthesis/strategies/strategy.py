"""The contract of a strategy: how episodes of one task are explored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import Trajectory
from schemas.verdict import Node
from synthesis.environments.environment import Environment
from synthesis.policies.policy import Policy

MakeEnvironment = Callable[[], Environment]


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy works with: a task, its environment's spec and maker, and policies by role (``actor`` …)."""

    task: Task
    spec: EnvironmentSpec
    make_environment: MakeEnvironment
    policies: Mapping[str, Policy]
    seed: int
    round: int = 0


class Strategy(Protocol):
    """How a task is explored. Holds parameters only, so one instance serves many explorations at once."""

    def planned(self, exploration: Exploration) -> list[str]:
        """The ids of the trajectories it will certainly yield, known before any is run; for the journal."""

    def explore(self, exploration: Exploration, done: frozenset[str]) -> AsyncIterator[Trajectory | Node]:
        """Yield each trajectory as it ends, and search nodes. Trajectories whose id is in ``done`` are not run again.

        Exceptions of the environment, the policy or the strategy are passed on with the party at fault as type:
        ``WorldError``, ``PolicyError``, anything else.
        """
