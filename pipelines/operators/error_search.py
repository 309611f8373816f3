"""Where the first error of a trajectory is: by branches that corrected its turns, by verdicts on its steps, by both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentmill.pipelines.calibration import Confusion, kappa, kappa_text
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.step_estimates import BranchResult, branch_results
from agentmill.schemas.conditions import reaches
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Annotations
from agentmill.synthesis.step_values import Step

Search = Literal["earliest", "last"]


class Correction(msgspec.Struct, frozen=True):
    """What is searched in branches: the ``earliest`` or the ``last`` turn of which ``least`` branches have a result of
    ``pass_at`` or more, by the criterion ``score``."""

    search: Search
    least: int
    score: str
    pass_at: float


class Located(msgspec.Struct, frozen=True):
    """The step of the first error, or the ``reason`` why it is not known; ``misplaced`` records name no step."""

    step: Step | None
    reason: str | None
    evidence: JsonObject
    misplaced: int = 0


class Corrections:
    """Results of branches by trajectory and turn. Pickles as paths; each worker loads it once."""

    def __init__(self, tables: Iterable[Table], wanted: Correction, index: AnnotationIndex) -> None:
        self._paths = [str(path) for table in tables for path in table.shards()]
        self._wanted = wanted
        self._index = index
        self._results: dict[str, dict[int, list[BranchResult]]] = {}

    def load(self) -> None:
        """Read the branches. Raises ``UserError``, as ``branch_results``."""
        self._index.load()
        self._results = defaultdict(lambda: defaultdict(list))
        for branch in branch_results(self._paths, self._wanted.score, self._index):
            self._results[branch.parent_id][branch.turn].append(branch)

    def locate(self, trajectory: Trajectory, steps: Sequence[Step]) -> Located:
        """The first error by the corrections of a trajectory."""
        results = self._results.get(trajectory.trajectory_id, {})
        by_turn = {step.turn: step for step in steps}
        misplaced = sum(len(found) for turn, found in results.items() if turn not in by_turn)
        every = [branch for turn, found in results.items() if turn in by_turn for branch in found]
        scored = [branch for branch in every if branch.score is not None]
        succeeded: dict[int, list[str]] = defaultdict(list)
        for branch in scored:
            if branch.score is not None and reaches(branch.score, self._wanted.pass_at):
                succeeded[branch.turn].append(branch.branch_id)
        turns = sorted(turn for turn, ids in succeeded.items() if len(ids) >= self._wanted.least)
        tried: JsonObject = {
            "search": self._wanted.search,
            "turns_tried": len({branch.turn for branch in scored}),
            "branches_tried": len(scored),
        }
        if not turns:
            reason = "none_succeeds" if scored else "branches_unscored" if every else "no_branches"
            return Located(None, reason, tried, misplaced)
        turn = turns[0 if self._wanted.search == "earliest" else -1]
        return Located(by_turn[turn], None, {**tried, "branches": sorted(succeeded[turn])}, misplaced)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_results": {}}


def located_by_judge(steps: Sequence[Step], annotations: Annotations, name: str) -> Located:
    """The first step whose verdict of this name did not pass."""
    items = {step.item for step in steps}
    judged = [(step, annotations.verdict(name, step.item)) for step in steps]
    known = [(step, verdict) for step, verdict in judged if verdict is not None and verdict.passed is not None]
    failed = [step for step, verdict in known if verdict.passed is False]
    misplaced = sum(item is not None and item not in items for item, other in annotations.verdicts if other == name)
    evidence: JsonObject = {"verdict": name, "steps_judged": len(known)}
    if not failed:
        return Located(None, "none_failed" if known else "no_verdicts", evidence, misplaced)
    return Located(failed[0], None, evidence, misplaced)


def agreed(located: Mapping[str, Located], steps: int, counts: Counter[str]) -> Located:
    """The step that all ways found; ``counts`` gets the cells of their agreement, over trajectories and steps."""
    evidence: JsonObject = {
        way: {**found.evidence, **({"reason": found.reason} if found.step is None else {"turn": found.step.turn})}
        for way, found in located.items()
    }
    one, other = (found.step for found in located.values())
    if one is None or other is None:
        return Located(None, "one_unknown" if one is not other else "both_unknown", evidence)
    same = one == other
    counts.update({"compared": 1, "agree": int(same), "steps_compared": steps})
    return Located(one, None, evidence) if same else Located(None, "disagree", evidence)


def agreement_note(metrics: Mapping[str, float]) -> str:
    """How often branches and judge name the same step, and kappa of which steps both name."""
    compared, same = int(metrics.get("compared", 0)), int(metrics.get("agree", 0))
    if not compared:
        return "branches and judge both name a step in no trajectory, so there is nothing to compare"
    differ = compared - same
    neither = int(metrics["steps_compared"]) - same - 2 * differ
    table = Confusion(same, differ, differ, neither)
    return (
        f"branches and judge name the same step in {same:,} of {compared:,} trajectories ({same / compared:.1%}); "
        f"kappa over {table.n:,} steps {kappa_text(kappa(table))}"
    )
