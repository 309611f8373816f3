"""Several tasks of one environment made into one, whose solution is played in the environment.

``sequence``, ``reorder`` and ``recombine`` chain parts: each begins where the solution of the one before ends (CompWoB,
arXiv:2311.18751; AgentSynth, arXiv:2506.14205; APIGen-MT, arXiv:2504.03601). ``width`` and ``depth`` make one question
of several (TaskCraft, arXiv:2506.10055). How parts of a family go together is said by its composer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Literal, Protocol

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Difficulty, EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.admission import AdmissionLimits, admit_task, rejection
from agentmill.synthesis.generators.generator import MOST_LONGER, GenerationError, different_tasks, turns_of_plan

OPERATOR = "compose"
HOW = "how"
"""The key of ``lineage.notes`` under which a composed task, and each variant of one, keeps how it was composed."""
FEWEST_PARTS, MOST_PARTS = 2, 4

How = Literal["sequence", "reorder", "recombine", "width", "depth"]

FAMILIES: Mapping[How, tuple[str, ...]] = {
    "sequence": ("pddl", "toolbox"),
    "reorder": ("toolbox",),
    "recombine": ("toolbox",),
    "width": ("search",),
    "depth": ("search",),
}
"""The families whose tasks can be composed in this way."""

NO_PARTS, REPEATED, TOO_LONG, NO_SOLUTION = "no_parts", "repeated", "too_long", "no_solution"
"""Why drawn parts are refused: none go together, they came before, their solution is too long, one has none."""
UNFIT = "unfit."
"""Before a reason in ``counts``: so many tasks are no parts of any composition."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the ways ``how`` in turn, so many ``parts``, least and most, and ``tries`` draws per task."""

    how: tuple[How, ...]
    parts: tuple[int, int]
    tries: int


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts come to. ``structure`` is the digest of the task, ``notes`` are for its lineage."""

    instruction: str
    goal: JsonObject
    gold: list[AnyAction]
    structure: str
    initial_state: JsonObject = {}
    notes: JsonObject = {}


class Composer(Protocol):
    """How tasks of one environment are composed. Raises ``EnvError`` or ``ValueError`` for a broken environment."""

    def __init__(self, spec: EnvironmentSpec, tasks: Sequence[Task]) -> None:
        """``tasks`` are those that may be parts; all have solutions that are calls."""

    def unfit(self, task: Task) -> str | None:
        """Why a task can be no part; ``None`` if it can."""

    def next_parts(self, how: How, chosen: Sequence[Task]) -> Sequence[Task]:
        """The tasks that may come after those ``chosen``, of whatever split."""

    def compose(self, how: How, parts: Sequence[Task], chance: random.Random) -> Draft:
        """The parts as one. Raises ``GenerationError`` where they do not go together."""

    def close(self) -> None:
        """Free what it holds."""


class CompositionMaker:
    """The composed tasks of one environment. ``counts`` holds drawn parts that were refused, by reason."""

    def __init__(
        self, composer: type[Composer], spec: EnvironmentSpec, tasks: Sequence[Task], wanted: Wanted, seed: int
    ) -> None:
        self._composer = composer
        self._spec = spec
        # In order of their ids: the order of tables decides nothing.
        self._tasks = sorted(tasks, key=lambda task: task.task_id)
        self._wanted = wanted
        self._seed = seed
        self._seen: set[str] = set()
        self._first: dict[How, list[Task]] = {}
        self.counts: Counter[str] = Counter()

    def propose(self, n: int) -> Iterator[Task | GenerationError]:
        """``n`` different tasks or failures; all fail alike where the environment is broken."""
        solved = [task for task in self._tasks if task.gold]
        self._count(UNFIT + NO_SOLUTION, len(self._tasks) - len(solved))
        try:
            composer = self._composer(self._spec, solved)
        except (EnvError, ValueError) as error:
            yield from [GenerationError("broken_environment", str(error))] * n
            return
        with closing(composer):
            usable = [task for task in solved if self._fits(composer, task)]
            least, most = self._wanted.parts
            wanted = f"{least} to {most} parts by {' or '.join(self._wanted.how)}"
            yield from different_tasks(
                lambda number: self._task(composer, usable, number), n, wanted, self._wanted.tries, "parts or how"
            )

    def _fits(self, composer: Composer, task: Task) -> bool:
        reason = composer.unfit(task)
        if reason is not None:
            self._count(UNFIT + reason)
        return reason is None

    def _task(self, composer: Composer, usable: Sequence[Task], number: int) -> Task | GenerationError:
        how = self._wanted.how[number % len(self._wanted.how)]
        seed = derive_seed(OPERATOR, self._spec.environment_id, self._seed, number)
        for attempt in range(self._wanted.tries):
            chance = random.Random(derive_seed(seed, attempt))
            try:
                parts = self._drawn(composer, how, usable, chance)
                return self._composed(how, parts, composer.compose(how, parts, chance))
            except GenerationError as error:
                self.counts[error.reason] += 1
        return GenerationError("no_new_task", f"no new task by {how} in {self._wanted.tries} draws")

    def _drawn(self, composer: Composer, how: How, usable: Sequence[Task], chance: random.Random) -> list[Task]:
        """Different tasks of one split that may follow each other. Raises ``GenerationError``."""
        if how not in self._first:
            # Most questions name no other answer: a draw among all tasks would often come to nothing.
            self._first[how] = [task for task in usable if _following(composer, how, [task], usable)]
        n, pool = chance.randint(*self._wanted.parts), self._first[how]
        chosen: list[Task] = []
        while pool and len(chosen) < n:
            chosen.append(chance.choice(pool))
            pool = _following(composer, how, chosen, usable)
        if len(chosen) < n:
            raise GenerationError(NO_PARTS, f"{len(chosen)} of {n} parts go together")
        return chosen

    def _composed(self, how: How, parts: Sequence[Task], draft: Draft) -> Task:
        """The task, which is sure to be admitted unless another one has its structure. Raises ``GenerationError``."""
        if draft.structure in self._seen:
            raise GenerationError(REPEATED, "these parts were composed before")
        if len(draft.gold) > sum(len(part.gold or ()) for part in parts) + MOST_LONGER:
            raise GenerationError(TOO_LONG, f"the solution takes {len(draft.gold)} actions")
        ids = [part.task_id for part in parts]
        task = Task(
            task_id=digest(OPERATOR, self._spec.environment_id, how, ids, draft.instruction),
            environment_id=self._spec.environment_id,
            instruction=draft.instruction,
            initial_state=draft.initial_state,
            goal=draft.goal,
            constraints=list(dict.fromkeys(each for part in parts for each in part.constraints)),
            gold=draft.gold,
            difficulty=summed_difficulty([part.difficulty for part in parts], len(draft.gold)),
            skills=sorted({skill for part in parts for skill in part.skills}),
            max_turns=turns_of_plan(len(draft.gold)),
            structure_digest=draft.structure,
            # Without the seed, which the id does not hold either: two seeds may come to the same task.
            lineage=Lineage(operator=OPERATOR, parents=ids, notes={HOW: how, **draft.notes}),
            split=parts[0].split,
        )
        failed = rejection(admit_task(task, self._spec, AdmissionLimits())[0])
        if failed is not None:
            raise GenerationError(failed.name, failed.detail)
        self._seen.add(draft.structure)
        return task

    def _count(self, name: str, n: int = 1) -> None:
        self.counts.update({name: n} if n else {})


def _following(composer: Composer, how: How, chosen: Sequence[Task], usable: Sequence[Task]) -> list[Task]:
    """The usable tasks of the same split that may come next."""
    possible = {task.task_id for task in composer.next_parts(how, chosen)} - {task.task_id for task in chosen}
    return [task for task in usable if task.task_id in possible and task.split == chosen[0].split]


def summed_difficulty(parts: Sequence[Difficulty | None], actions: int) -> Difficulty | None:
    """That of a task with these parts and a solution of so many ``actions``; ``None`` if that of a part is not known.

    Levels are effort / (effort + a constant of the family), so effort is proportional to level / (1 - level).
    """
    levels = [part.level for part in parts if part is not None]
    if len(levels) < len(parts):
        return None
    if max(levels) >= 1:
        return Difficulty(level=1.0, plan_length=actions)
    effort = sum(level / (1 - level) for level in levels)
    return Difficulty(level=round(effort / (effort + 1), 4), plan_length=actions)
