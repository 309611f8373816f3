"""``tool_need``: whether a task needs tools, by closed-book attempts at it (SMART, arXiv:2502.11435).

The attempts are made without tools (``sample`` with ``tools: none``) and scored, for example by ``answer_match``. Where
they seldom succeed, tools are needed; where they often do, the steps that use tools could have been spared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine import stop
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.difficulty_band import Tally, TaskRate
from agentmill.pipelines.operators.labelling import ROLES, Labeller, Source
from agentmill.pipelines.operators.lookup import ATTEMPTS, Relation
from agentmill.pipelines.operators.operator import Inputs, TableNames, tables_of
from agentmill.pipelines.operators.step_estimates import note_once
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.conditions import exceeds
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.synthesis.step_labels import tool_steps
from agentmill.synthesis.step_values import steps_of
from agentmill.synthesis.verifiers.verifier import Finding

NEEDED, NOT_NEEDED = "needed", "not_needed"
COLUMNS = ("trajectory_id", "content", "task_id", "outcome")


class ToolNeed(Labeller):
    """Whether the task of each trajectory needs tools, by the pass rate of attempts at it without any."""

    table_roles: ClassVar[Sequence[str]] = ("of", "attempts", *ROLES)
    relation: ClassVar[Relation] = ATTEMPTS

    attempts: TableNames = Field(description="tables of attempts at the same tasks without tools")
    score: Criterion = Field(description="the score of an attempt, from 0 to 1, such as passed:answer_match")
    pass_rate_at_most: float = Field(
        default=0.25, ge=0, lt=1, description="the mean score without tools up to which tools are needed"
    )
    min_attempts: int = Field(
        default=4, ge=1, description="scored attempts at a task; with fewer its need is not known"
    )
    name: str = Field(default="tool_need", min_length=1, description="the name of its verdicts and labels")

    def source(self, inputs: Inputs) -> Source:
        """The scores of the attempts."""
        paths = [path for table in tables_of(inputs, "attempts") for path in table.shards()]
        return ClosedBook(self, paths, AnnotationIndex(inputs))


class ClosedBook:
    """Scores of attempts without tools, by task."""

    def __init__(self, parameters: ToolNeed, paths: Sequence[Path], index: AnnotationIndex) -> None:
        self._parameters = parameters
        self._paths = paths
        self._index = index
        self._rates: dict[str, TaskRate] = {}

    def load(self) -> None:
        """As ``Source``. Raises ``UserError``, too, for an attempt that is given twice, and for one that used tools."""
        self._index.load()
        tallies: dict[str, Tally] = defaultdict(Tally)
        seen: set[str] = set()
        for path in self._paths:
            for _, attempt in stream([path], COLUMNS):
                stop.check()
                note_once(seen, attempt.trajectory_id, path)
                _check_closed_book(attempt, path)
                if attempt.task_id is not None:
                    annotations = self._index.of(attempt.trajectory_id)
                    tallies[attempt.task_id].add_score(score(self._parameters.score, attempt, annotations))
        self._rates = {task_id: tally.rate() for task_id, tally in tallies.items()}

    def findings(self, trajectory: Trajectory, annotations: Annotations) -> Sequence[Finding]:
        """A verdict on the whole, a label of it, and one of each own step that uses a tool.

        The verdict passes where tools are needed; its score is the failure rate without them. Unscored (``no_task``,
        ``too_few_attempts``) where too little is known.
        """
        del annotations
        given, task_id = self._parameters, trajectory.task_id
        if task_id is None:
            return [given.new_verdict(trajectory, reason="no_task")]
        rate = self._rates.get(task_id, TaskRate())
        evidence: JsonObject = {"attempts": rate.n, "unscored": rate.unscored}
        if rate.value is None or rate.n < given.min_attempts:
            return [given.new_verdict(trajectory, reason="too_few_attempts", evidence=evidence)]
        needed = not exceeds(rate.value, given.pass_rate_at_most)
        items = tool_steps(trajectory.content, [step for step in steps_of(trajectory) if step.own])
        evidence |= {"pass_rate": rate.value, "tool_steps": len(items)}
        value = NEEDED if needed else NOT_NEEDED
        return [
            given.new_verdict(trajectory, status="scored", score=1 - rate.value, passed=needed, evidence=evidence),
            given.new_label(trajectory, value, None),
            *(given.new_label(trajectory, value, item) for item in items),
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rates": {}}


def _check_closed_book(attempt: Trajectory, path: Path) -> None:
    used = tool_steps(attempt.content, steps_of(attempt))
    if used:
        raise UserError(
            f"trajectory {attempt.trajectory_id} in {path} used a tool (item {used[0]}), so it was not without tools\n"
            "make `attempts` by `sample` with `tools: none`",
            ErrorCode.ATTEMPT_WITH_TOOLS,
        )
