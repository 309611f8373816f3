"""Where the values of steps come from: branches, search trees, steps in the same state, the results of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agentmill.pipelines.engine import stop
from agentmill.pipelines.operators.annotations import AnnotationIndex, score_within_time
from agentmill.pipelines.operators.lookup import Shards
from agentmill.pipelines.operators.selection import TrajectoryFilter
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.trajectory import Outcome, Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.schemas.tables import Table, read_columns
from agentmill.schemas.views.annotations import Annotations, score
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.step_values import Estimate, Group, ScaleName, Step, continued, returns, searched, steps_of
from agentmill.synthesis.strategies.branch import DEPTH

OF_BRANCHES = ("trajectory_id", "parent_id", "branch_turn", "outcome")

Estimates = Mapping[int, Estimate]
"""By the item that stands for the step."""


class Source(Protocol):
    """Where values come from. Pickles as parameters and paths; each worker loads it once."""

    def load(self) -> None:
        """Read what it rests on. Raises ``UserError`` for a file that cannot be read."""

    def estimates(self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations) -> Estimates:
        """What is known of the steps of a trajectory. Raises ``Unused``."""


class BranchResult(msgspec.Struct, frozen=True):
    """What came of a branch of ``turn`` of ``parent_id``; ``score`` is ``None`` where that is not known."""

    branch_id: str
    parent_id: str
    turn: int
    score: float | None


def branch_results(paths: Iterable[str], criterion: str, index: AnnotationIndex) -> Iterator[BranchResult]:
    """The results of all branches in some shards, whose content is not read; other trajectories are passed over.

    Raises ``UserError`` for a file that cannot be read, for a branch that is given twice, and for one that was cut off
    after its first turn.
    """
    seen: set[str] = set()
    for path in paths:
        for row in read_columns(Path(path), Trajectory, OF_BRANCHES).to_pylist():
            outcome = msgspec.convert(row["outcome"], Outcome)
            branch = Trajectory(trajectory_id=row["trajectory_id"], content=[], outcome=outcome)
            note_once(seen, branch.trajectory_id, path)
            if outcome.reason == DEPTH:
                raise unfinished(path)
            if row["parent_id"] is not None and row["branch_turn"] is not None:
                result = score_within_time(criterion, branch, index.of(branch.trajectory_id))
                yield BranchResult(branch.trajectory_id, row["parent_id"], row["branch_turn"], result)


class Continuations:
    """Results of branches, by the trajectory and the turn that they begin with. Their content is not read."""

    def __init__(self, paths: Sequence[str], criterion: str, index: AnnotationIndex) -> None:
        self._paths = paths
        self._criterion = criterion
        self._index = index
        self._results: dict[str, dict[int, list[float]]] = {}

    def load(self) -> None:
        """As ``Source``; a branch without a score counts for nothing. Raises as ``branch_results``, too."""
        self._index.load()
        self._results = defaultdict(lambda: defaultdict(list))
        for branch in branch_results(self._paths, self._criterion, self._index):
            if branch.score is not None:
                self._results[branch.parent_id][branch.turn].append(branch.score)

    def results(self, trajectory_id: str) -> Mapping[int, Sequence[float]]:
        """The scores of the branches of a trajectory, by the turn that they begin with."""
        return self._results.get(trajectory_id, {})

    def estimates(self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations) -> Estimates:
        """As ``Source``."""
        results = self.results(trajectory.trajectory_id)
        return continued(steps, results, score(self._criterion, trajectory, annotations))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_results": {}}


class Trees:
    """Nodes by the run that their turn belongs to."""

    def __init__(self, tables: Sequence[Table], mix: float) -> None:
        self._shards = Shards(tables, Node, ["visits", "q", "extra"])
        self._mix = mix
        self._nodes: dict[str, list[Node]] = {}

    def load(self) -> None:
        """As ``Source``. Raises ``UserError``, too, for two different nodes of one id."""
        nodes: dict[str, Node] = {}
        for node in self._shards:
            self._shards.put(nodes, node.node_id, node, f"node {node.node_id}")
        self._nodes = defaultdict(list)
        for node in nodes.values():
            if node.trajectory_id is not None:
                self._nodes[node.trajectory_id].append(node)

    def estimates(self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations) -> Estimates:
        """As ``Source``."""
        del annotations
        return searched(steps, self._nodes.get(trajectory.trajectory_id, ()), self._mix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_nodes": {}}


class StateGroups:
    """Returns of all steps of chosen trajectories, by task and the state they were taken in."""

    def __init__(
        self, contents: TrajectoryIndex, choice: TrajectoryFilter, criterion: str, discount: float, scale: ScaleName
    ) -> None:
        self._contents = contents
        self._choice = choice
        self._criterion = criterion
        self._discount = discount
        self._scale: ScaleName = scale
        self._groups: dict[tuple[str, str], Group] = {}

    def load(self) -> None:
        """As ``Source``."""
        self._groups = defaultdict(Group)
        for trajectory in self._contents.scan():
            stop.check()
            try:
                annotations = self._choice.annotations(trajectory.trajectory_id)
                found = self._returns(trajectory, steps_of(trajectory), annotations)
            except Unused:
                continue
            # Runs without a task are not of one task: their states are compared with none.
            if trajectory.task_id is None:
                continue
            for step, value in found:
                if step.own and step.state is not None:
                    self._groups[trajectory.task_id, step.state].add(value)

    def estimates(self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations) -> Estimates:
        """As ``Source``."""
        if trajectory.task_id is None:
            raise Unused("no_task", "it has no task, so no other run is in a state of the same one")
        found = {}
        for step, value in self._returns(trajectory, steps, annotations):
            group = self._groups.get((trajectory.task_id, step.state or ""), Group())
            advantage = group.advantage(value, self._scale)
            if advantage is not None:
                found[step.item] = advantage
        return found

    def _returns(
        self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations
    ) -> Iterable[tuple[Step, float]]:
        if self._criterion == "reward":
            return zip(steps, returns(steps, None, self._discount), strict=True)
        return zip(
            steps, returns(steps, result_of(self._criterion, trajectory, annotations), self._discount), strict=True
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_groups": {}}


class Broadcast:
    """The result of a run, for each of its steps."""

    def __init__(self, criterion: str, discount: float) -> None:
        self._criterion = criterion
        self._discount = discount

    def load(self) -> None:
        """Nothing is needed."""

    def estimates(self, trajectory: Trajectory, steps: Sequence[Step], annotations: Annotations) -> Estimates:
        """As ``Source``."""
        found = returns(steps, result_of(self._criterion, trajectory, annotations), self._discount)
        return {step.item: Estimate(value, 1) for step, value in zip(steps, found, strict=True)}


def note_once(seen: set[str], trajectory_id: str, path: object) -> None:
    """Add an id to those ``seen``. Raises ``UserError`` where it is there already: a sample would count twice."""
    if trajectory_id in seen:
        raise UserError(
            f"trajectory {trajectory_id} is given twice, again in {path}: give it once", ErrorCode.RECORD_TWICE
        )
    seen.add(trajectory_id)


def check_finished(branches: Iterable[Table]) -> None:
    """Raises ``UserError`` for branches that were not played to their end."""
    for table in branches:
        if table.manifest.config.get("depth") == 1:
            raise unfinished(str(table.folder))


def unfinished(where: str) -> UserError:
    """What is said of branches of one turn: those that ended by chance would stand for all."""
    return UserError(
        f"{where} holds branches of one turn (`depth: 1`), whose results say nothing of what follows;\n"
        "give `branches` that were played to their end (`depth: end`)",
        ErrorCode.BRANCHES_TOO_SHORT,
    )


def check_replaced(branches: Iterable[Table]) -> None:
    """Raises ``UserError`` for branches that do not begin with a turn in the place of the recorded one."""
    for table in branches:
        edits: Any = table.manifest.config.get("edits", ["replace"])
        if edits != ["replace"]:
            raise UserError(
                f"{table.folder} was made with `edits: [{', '.join(edits)}]`; expected branches whose first turn "
                "replaces the recorded one\nmake branches without `edits`, or with `edits: [replace]`",
                ErrorCode.BRANCHES_UNFIT,
            )


def check_all_kept(branches: Iterable[Table]) -> None:
    """Raises ``UserError`` for branches of which those that repeat what was recorded, or another one, were dropped."""
    for table in branches:
        if table.manifest.config.get("distinct"):
            raise UserError(
                f"{table.folder} was made with `distinct: true`, which drops branches that repeat what was recorded"
                "\nmake branches without `distinct`: here those that repeat it are counted",
                ErrorCode.BRANCHES_DISTINCT,
            )


def result_of(criterion: str, trajectory: Trajectory, annotations: Annotations) -> float:
    """The result of a run. Raises ``Unused`` where it is not known."""
    found = score(criterion, trajectory, annotations)
    if found is None:
        raise Unused("unscored", f"its {criterion} is not known")
    return found
