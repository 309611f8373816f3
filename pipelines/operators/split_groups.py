"""What trajectories a split keeps together: those of a task, an environment, a family, a template or a search tree.

Variants are with what they were made from, and branches whose own group is not known with the trajectory that their
tree begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from agentmill.pipelines.benchmark_entries import sample_of
from agentmill.pipelines.canonical_form import form_of, names_in
from agentmill.pipelines.duplicates import Groups
from agentmill.pipelines.leak_features import Sample
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, tables_of
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import CONTRAST, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.generators.task_author import OPERATOR as PROPOSE
from agentmill.synthesis.generators.wrapping import OPERATOR as WRAPPED

By = Literal["task", "environment", "family", "template"]
K = TypeVar("K", str, tuple[str, str])
Node = tuple[str, str]
"""What templates are found by: ``form``, ``instruction`` or ``task``, which sort in this order, and which one."""


class Grouping:
    """The group of a trajectory. Pickles as paths."""

    def __init__(self, by: By, inputs: Inputs) -> None:
        self._by = by
        self._tasks = Lookup(tables_of(inputs, "tasks"), Task)
        columns = ["family", "lineage"]
        self._environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec, columns=columns)
        self._variants: dict[str, str] = {}
        self._trees: dict[str, str] = {}
        self._originals: dict[str, str] = {}
        self._templates: dict[Node, Node] = {}

    def load(self) -> None:
        """Load tasks and environments."""
        self._tasks.load()
        self._environments.load()
        self._variants = variants(self._environments.all())
        if self._by == "task":
            self._originals = related(self._tasks.all())

    def observe(self, trajectories: Iterable[Trajectory]) -> None:
        """Find the templates of instructions without skills, from all trajectories that are split.

        Names are masked by what an attempt acts on, so attempts at one instruction may give it several forms; these
        are one template.
        """
        links: set[tuple[Node, Node]] = set()
        for each in trajectories:
            sample = sample_of(each)
            if self._skills(each) or not (nodes := _nodes(sample)):
                continue
            names, asked = names_in(sample.acts), sample.asked[:1]
            if form := [word for text in asked for word in form_of(text, names, keep_numbers=False)]:
                nodes.append(("form", digest("template", form)))
            links.update((nodes[0], node) for node in nodes)
        self._templates = joined(links)

    def link(self, read: Callable[[], Iterable[Trajectory]]) -> None:
        """Find the trees of branches whose own group is not known; ``read`` reads all trajectories that are split.

        A tree is in the group of the trajectory that it begins with, or else a group of its own.
        """
        trees = joined(
            (each.trajectory_id, each.parent_id) for each in read() if each.parent_id and self._own(each) is None
        )
        if not trees:
            return
        owners = {
            trees[each.trajectory_id]: own
            for each in read()
            if each.trajectory_id in trees and (own := self._own(each)) is not None
        }
        self._trees = {name: owners.get(tree, tree) for name, tree in trees.items()}

    def environment_of(self, trajectory: Trajectory) -> str | None:
        """The id of its environment, from its task if it has none itself; of copies that of one of them."""
        environment = self._own_environment_of(trajectory)
        return environment and self._variants.get(environment, environment)

    def _own_environment_of(self, trajectory: Trajectory) -> str | None:
        task = self._tasks.get(trajectory.task_id)
        return trajectory.environment_id or (None if task is None else task.environment_id)

    def of(self, trajectory: Trajectory) -> tuple[str, str] | None:
        """What it is grouped by, and the group; ``None`` if neither that is known nor what it is a branch of."""
        own = self._own(trajectory)
        if own is not None:
            return self._by, own
        tree = self._trees.get(trajectory.trajectory_id)
        return None if tree is None else ("tree", tree)

    def _own(self, trajectory: Trajectory) -> str | None:
        if self._by == "task":
            return self._originals.get(trajectory.task_id or "", trajectory.task_id)
        if self._by == "template":
            return self._template(trajectory)
        if self._by == "environment":
            return self.environment_of(trajectory)
        spec = self._environments.get(self._own_environment_of(trajectory))
        return None if spec is None else spec.family

    def _template(self, trajectory: Trajectory) -> str | None:
        """The skills that the generator gave the task, or else the instruction without its names; if it has none, the
        task."""
        if skills := self._skills(trajectory):
            return ", ".join(sorted(skills))
        return next((self._templates[node][1] for node in _nodes(sample_of(trajectory))), None)

    def _skills(self, trajectory: Trajectory) -> Sequence[str]:
        task = self._tasks.get(trajectory.task_id)
        return task.skills if task is not None else ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_originals": {}, "_templates": {}, "_variants": {}, "_trees": {}}


def _nodes(sample: Sample) -> list[Node]:
    """What attempts have in common that belong to one template: the instruction, word for word, and the task."""
    asked = [("instruction", digest(text.split())) for text in sample.asked[:1] if text.strip()]
    return asked + ([("task", sample.task_id)] if sample.task_id is not None else [])


def related(tasks: Iterable[Task]) -> dict[str, str]:
    """The group of tasks that were made from one another, named by one of their ids, by the id of each task.

    Variants belong together also where the table lacks the task that they were made from, and what was composed of
    several tasks belongs to all of them. Of the examples that an author was shown, only the first counts: all tasks
    would be one otherwise.
    """
    made_from: dict[str, list[str]] = {}
    for task in tasks:
        lineage = task.lineage
        parents = lineage.parents if lineage is not None else []
        written = lineage is not None and lineage.operator == PROPOSE
        made_from[task.task_id] = parents[:1] if written else parents
    return joined((task_id, each) for task_id, parents in made_from.items() for each in (task_id, *parents))


def variants(environments: Iterable[EnvironmentSpec]) -> dict[str, str]:
    """The group of environments of which one was made of the other, under other words or with other tools, by id."""
    lineages = {each.environment_id: each.lineage for each in environments}
    return joined(
        (environment_id, each)
        for environment_id, lineage in lineages.items()
        if lineage is not None and lineage.operator in (WRAPPED, CONTRAST)
        for each in (environment_id, *lineage.parents)
    )


def joined(links: Iterable[tuple[K, K]]) -> dict[K, K]:
    """The group of everything that is linked, named by its first member in order."""
    known = set(links)
    # The order of the tables must not matter.
    members = sorted({member for link in known for member in link})
    numbers = {member: number for number, member in enumerate(members)}
    groups = Groups(len(members))
    for first, second in known:
        groups.join(numbers[first], numbers[second])
    return {member: members[root] for member, root in zip(members, groups.roots().tolist(), strict=True)}
