"""Tasks for levels of BabyAI: a seed draws map and mission, and the length of the expert's solution is measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.babyai.environment import BabyaiEnvironment
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.generator import (
    MOST_LONGER,
    GenerationError,
    check_direction,
    different_tasks,
    is_on_side,
    plan_range,
    turns_of_plan,
)
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of

TRIES = 12
"""Maps that are drawn for a task before it is given up."""


class BabyaiTaskGenerator:
    """Proposes missions whose solutions are ``plan_length`` = (least, most) commands long."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8)) -> None:
        self._least, self._most = plan_range(plan_length)

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """``n`` tasks or failures, no two of one map and mission; one failure for a level that cannot be made."""
        try:
            draws = Draws(spec, self._most, lambda length: length >= self._least)
        except EnvError as error:
            yield GenerationError("broken_environment", str(error))
            return

        def proposal(number: int) -> Task | GenerationError:
            drawn = derive_seed("propose", spec.environment_id, seed, number)
            return draws.task(Lineage(operator="propose", seed=drawn), None)

        with closing(draws):
            for each in different_tasks(proposal, n, f"a solution of {self._least} to {self._most} commands", TRIES):
                yield each

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` other maps of the level, with shorter solutions, longer ones, or (``other``) as long ones."""
        check_direction("babyai", direction)
        length = len(parent.gold or [])
        if not length:
            yield GenerationError("broken_parent", f"task {parent.task_id} has no gold solution to go by")
            return
        try:
            draws = Draws(spec, length + MOST_LONGER, lambda found: is_on_side(found, length, direction))
        except EnvError as error:
            yield GenerationError("broken_environment", str(error))
            return
        with closing(draws):
            draws.seen.add(parent.structure_digest)
            for number in range(n):
                drawn = derive_seed("evolve", parent.task_id, direction, seed, number)
                notes = {"direction": direction}
                lineage = Lineage(operator="evolve", parents=[parent.task_id], seed=drawn, notes=notes)
                yield draws.task(lineage, parent.split, f"no_{direction}_task")


class Draws:
    """Missions of one level with solutions of at most ``most`` commands that fit. Raises ``EnvError``."""

    def __init__(self, spec: EnvironmentSpec, most: int, fits: Callable[[int], bool]) -> None:
        self._environment = BabyaiEnvironment(spec)
        self._most = most
        self._fits = fits
        self.seen: set[str | None] = set()
        """The structure digests of the tasks so far."""

    def task(self, lineage: Lineage, split: str | None, reason: str = "no_new_task") -> Task | GenerationError:
        """The first new mission that fits, of ``TRIES``; ``reason`` is that of a failure."""
        spec = self._environment.spec
        for attempt in range(TRIES):
            task = Task(
                task_id=digest(lineage.operator, spec.environment_id, lineage.parents, lineage.seed),
                environment_id=spec.environment_id,
                instruction="",
                # Gymnasium takes seeds of any size; those of 31 bits can be typed.
                initial_state={"seed": derive_seed(lineage.seed, attempt) % 2**31},
                lineage=lineage,
                split=split,
            )
            try:
                self._environment.reset(task, 0)
            except EnvError as error:
                return GenerationError("broken_environment", str(error))
            mission = self._environment.mission()
            structure = digest(spec.structure_digest or spec.source, mission, self._environment.state_digest())
            gold = [] if structure in self.seen else self._solution()
            if gold and self._fits(len(gold)):
                self.seen.add(structure)
                return msgspec.structs.replace(
                    task,
                    instruction=f"Goal: {mission}.",
                    gold=gold,
                    difficulty=difficulty_of(len(gold), None),
                    skills=sorted({action.function for action in gold if isinstance(action, ApiAction)}),
                    max_turns=turns_of_plan(len(gold)),
                    structure_digest=structure,
                )
        return GenerationError(reason, f"no new mission with a solution that fits in {TRIES} draws")

    def _solution(self) -> list[AnyAction]:
        """The commands of the expert from here; none where it fails, or needs more than the most."""
        done: list[AnyAction] = []
        while len(done) < self._most and (advice := self._environment.expert()) is not None:
            done.append(advice)
            if self._environment.step(advice).terminated:
                break
        return done if self._environment.check().passed else []

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()
