"""What a model writes tasks from: earlier tasks, trajectories with their verdicts, and texts, by environment.

Held in memory are ids, the skills of tasks, and the few seeds of each environment that are shown, cut to a length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from agentmill.pipelines.operators.lookup import Shards
from agentmill.pipelines.operators.selection import TrajectoryFilter
from agentmill.pipelines.operators.spec_env import TRAIN
from agentmill.pipelines.operators.trajectory_index import CONTENT, stream
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed, random_key
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Inspiration, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.generators.task_author import TaskSeed
from agentmill.synthesis.rollouts.delimiting import message_lines

MOST_LETTERS = 6_000
"""Of the JSON of one seed; of a longer trajectory the first and the last messages are shown."""

Group = tuple[str, bool]
"""An environment, and whether its seeds are held out."""

_IDS = ["trajectory_id", "environment_id", "task_id", "split"]


class TaskSeeds:
    """Seeds by environment. Pickles as paths; each worker loads them once.

    Of each environment at most ``most`` seeds are kept, and as many that are held out, in an order that ``seed``
    decides and no order of tables does.
    """

    def __init__(
        self, tables: Sequence[Table], texts: Sequence[Inspiration], chosen: TrajectoryFilter, most: int, seed: int
    ) -> None:
        self._tasks = Shards([table for table in tables if table.record_type is Task], Task)
        self._paths = [path for table in tables if table.record_type is Trajectory for path in table.shards()]
        self._texts = [TaskSeed(seed_id=each.inspiration_id, lines=[{"text": each.text}]) for each in texts]
        self._chosen = chosen
        self._most = most
        self._seed = seed
        self._seeds: dict[Group, list[TaskSeed]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._skills: dict[str, set[str]] = {}
        self._rates: dict[str, float] = {}

    def load(self) -> None:
        """Read the tables. Raises ``UserError`` for a file that cannot be read, and if no seed is chosen at all."""
        self._chosen.load()
        self._seeds, self._counts, self._skills = {}, {}, {}
        ranked: dict[Group, list[tuple[int, str, TaskSeed | int]]] = {}
        skills_of: dict[str, list[str]] = {}
        found: dict[str, Task] = {}
        for task in self._tasks:
            self._tasks.put(found, task.task_id, task, f"task {task.task_id}")
        for task_id, task in found.items():
            skills_of[task_id] = task.skills
            self._skills.setdefault(task.environment_id, set()).update(task.skills)
            group = (task.environment_id, held_out(task))
            ranked.setdefault(group, []).append((self._rank(task_id), task_id, task_seed(task)))
        self._count_trajectories(ranked, skills_of)
        if not ranked and not self._texts:
            raise UserError(
                "no row of the tables of `seeds` is chosen, so there is nothing to make tasks from\n"
                "ask less of them by `where` and `selections`, or leave `seeds` out",
                ErrorCode.NO_RECORDS,
            )
        self._keep(ranked)

    def _count_trajectories(
        self, ranked: dict[Group, list[tuple[int, str, TaskSeed | int]]], skills_of: Mapping[str, list[str]]
    ) -> None:
        """Adds the trajectories that are chosen by their numbers, and finds the pass rates of skills over all."""
        passed, judged = Counter[str](), Counter[str]()
        for number, each in stream(self._paths, _IDS):
            verdict = self._chosen.verdict(each.trajectory_id)
            if verdict is not None and verdict.passed is not None:
                for skill in skills_of.get(each.task_id or "", ()):
                    judged[skill] += 1
                    passed[skill] += verdict.passed
            environment_id = each.environment_id or ""
            try:
                self._chosen.annotations(each.trajectory_id)
            except Unused:
                self._count(environment_id, "left_out")
                continue
            entry = (self._rank(each.trajectory_id), each.trajectory_id, number)
            ranked.setdefault((environment_id, held_out(each)), []).append(entry)
        self._rates = {skill: passed[skill] / n for skill, n in judged.items()}

    def _keep(self, ranked: Mapping[Group, list[tuple[int, str, TaskSeed | int]]]) -> None:
        kept = {group: sorted(each, key=lambda seed: seed[:2])[: self._most] for group, each in ranked.items()}
        wanted = sorted(place for each in kept.values() for *_, place in each if isinstance(place, int))
        read: dict[int, TaskSeed] = {}
        if wanted:
            for number, trajectory in stream(self._paths, [*_IDS, CONTENT], np.array(wanted, np.int64)):
                read[number] = self._trajectory_seed(trajectory)
        for group, each in kept.items():
            self._count(group[0], "not_shown", len(ranked[group]) - len(each))
            self._seeds[group] = [read[place] if isinstance(place, int) else place for *_, place in each]

    def of(self, environment_id: str, number: int, n: int, *, train: bool) -> list[TaskSeed]:
        """The ``n`` seeds of the task ``number``: those of its environment in turn, then a text.

        A task that is trained on (``train``) is shown none that is held out.
        """
        groups = [(environment_id, False), *([] if train else [(environment_id, True)])]
        own = _turn([seed for group in groups for seed in self._seeds.get(group, ())], number * n, n)
        start = derive_seed("texts", self._seed, environment_id)
        return [*own, *_turn(self._texts, start + number, 1)]

    def weak(self, environment_id: str, below: float) -> list[str]:
        """The skills of an environment whose tasks pass less often than ``below``, the weakest first."""
        own = [skill for skill in self._skills.get(environment_id, ()) if self._rates.get(skill, 1.0) < below]
        return sorted(own, key=lambda skill: (self._rates[skill], skill))

    def has_held_out(self, environment_id: str) -> bool:
        """Whether an environment has seeds that no task that is trained on is shown."""
        return (environment_id, True) in self._seeds

    def counts(self, environment_id: str) -> Mapping[str, int]:
        """How many trajectories of an environment ``where`` left out, and how many seeds were more than are shown."""
        return self._counts.get(environment_id, {})

    def _count(self, environment_id: str, name: str, n: int = 1) -> None:
        self._counts.setdefault(environment_id, Counter())[name] += n

    def _rank(self, seed_id: str) -> int:
        return random_key(seed_id, self._seed)

    def _trajectory_seed(self, trajectory: Trajectory) -> TaskSeed:
        verdict = self._chosen.verdict(trajectory.trajectory_id)
        judged = {} if verdict is None else {"passed": verdict.passed, "score": verdict.score, "reason": verdict.reason}
        ending: list[JsonObject] = [{"verdict": judged}] if judged else []
        lines = shortened(message_lines(trajectory.content), MOST_LETTERS)
        return TaskSeed(seed_id=trajectory.trajectory_id, lines=[*lines, *ending])

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_seeds": {}, "_counts": {}, "_skills": {}, "_rates": {}}


def held_out(seed: Task | Trajectory) -> bool:
    """Whether tasks that are trained on must not be made from a seed."""
    return seed.split not in (None, TRAIN)


def task_seed(task: Task) -> TaskSeed:
    """A task as its author sees it."""
    gold = [msgspec.to_builtins(action) for action in task.gold or []]
    calls = [{"tool": each.get("function"), "arguments": each.get("kwargs")} for each in gold if "function" in each]
    line: JsonObject = {"task": task.instruction, **task.initial_state, "solution": calls}
    return TaskSeed(seed_id=task.task_id, lines=shortened([line], MOST_LETTERS), task=task)


def shortened(lines: Sequence[JsonObject], letters: int) -> list[JsonObject]:
    """The first and the last of ``lines`` that fit into so many letters, with a line that counts those between."""
    sizes = [len(msgspec.json.encode(line)) for line in lines]
    if sum(sizes) <= letters:
        return list(lines)
    head, tail, used = 0, len(lines), 0
    while head < tail:
        place = head if head <= len(lines) - tail else tail - 1
        if used + sizes[place] > letters:
            break
        used += sizes[place]
        head, tail = (head + 1, tail) if place == head else (head, tail - 1)
    return [*lines[:head], {"left_out": tail - head}, *lines[tail:]]


def _turn(seeds: Sequence[TaskSeed], start: int, n: int) -> list[TaskSeed]:
    """``n`` of ``seeds`` from ``start`` on, around their end, none twice."""
    return [seeds[(start + place) % len(seeds)] for place in range(min(n, len(seeds)))]
