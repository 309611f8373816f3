"""Running a strategy on one task, for tests of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.synthesis.rollouts.retrieval import Library, card_of
from agentmill.synthesis.rollouts.strategy import Exploration, Strategy
from tests.ruin_environment import RuinEnvironment, ruin_task


def exploration(
    task: Task | None = None,
    *,
    seed: int = 7,
    earlier: tuple[Trajectory, ...] = (),
    annotations: Annotations = NOTHING,
    library: Library | None = None,
    world: Any = RuinEnvironment,
    entries: Mapping[str, str] = MappingProxyType({}),
    **policies: Any,
) -> Any:
    """An exploration by these policies, in a world of gambler's ruin or another one."""
    return Exploration(
        task=task or ruin_task(),
        spec=world().spec,
        make_environment=world,
        policies=policies,
        entries=entries,
        seed=seed,
        earlier=earlier,
        annotations=annotations,
        library=library,
    )


def library(*runs: Trajectory) -> Library:
    """These runs, to be recalled."""
    return Library(map(card_of, runs), {run.trajectory_id: run for run in runs}.__getitem__)


async def explore(strategy: Strategy, explored: Exploration) -> list[Any]:
    """All that all pieces yield, in the order of the plan."""
    return [found for piece in strategy.planned(explored) async for found in strategy.explore(explored, piece)]


async def only(strategy: Strategy, explored: Exploration) -> Trajectory:
    """The one trajectory that comes of it."""
    [trajectory] = await explore(strategy, explored)
    assert isinstance(trajectory, Trajectory)
    return trajectory


def commands(trajectory: Trajectory) -> list[str]:
    """What was done, the copied with a star."""
    return [
        ("*" if item.context_operation == "copied" else "") + item.content
        for item in trajectory.content
        if item.turn > 0 and type(item).__name__ == "MessageAction"
    ]
