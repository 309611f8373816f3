"""How good a trajectory or one of its steps is, by a criterion that a recipe writes as text.

* ``outcome``: 1 for success, 0 for failure, as the run ended; of a step: that of its trajectory.
* ``reward``: what the environment gave: for the whole run, or in answer to the step.
* ``verdict:NAME``: the score of the verdict of that name on the whole, or on the step. This is progress, such as the
  share of the goal that is met: a run that failed may have a score above 0.
* ``passed:NAME``: 1 where the same verdict says success, 0 where it does not.
* ``value:NAME``: the value of that name.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from schemas.annotation_names import CRITERION
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.turns import answers

KINDS = {"verdict": "verdict", "passed": "verdict", "value": "value"}
"""The annotations that a criterion may name, and which of these each asks for."""


def _known(criterion: str) -> str:
    kind, _, name = criterion.partition(":")
    if criterion not in ("outcome", "reward") and not (kind in KINDS and name):
        expected = "`outcome`, `reward`, `verdict:NAME` (its score), `passed:NAME` (1 or 0) or `value:NAME`"
        raise ValueError(f"{criterion!r} is no score; expected {expected}")
    return criterion


Criterion = Annotated[str, AfterValidator(_known), CRITERION]
"""``outcome``, ``reward``, ``verdict:NAME``, ``passed:NAME`` or ``value:NAME``."""


def score(criterion: str, trajectory: Trajectory, evidence: Evidence, item: int | None = None) -> float | None:
    """The score of ``trajectory``, or of the step whose first action is ``item``; ``None`` where nothing is known."""
    kind, _, name = criterion.partition(":")
    if kind in ("verdict", "passed"):
        verdict = evidence.verdict(name, item)
        if verdict is None or verdict.status != "scored":
            return None
        if kind == "verdict":
            return verdict.score
        return None if verdict.passed is None else float(verdict.passed)
    if kind == "value":
        value = evidence.value(name, item)
        return value.value if value is not None else None
    if kind == "reward":
        if item is None:
            return trajectory.outcome.reward
        rewards = [each.reward for each in answers(trajectory.content, item) if each.reward is not None]
        return sum(rewards) if rewards else None
    return {"success": 1.0, "failure": 0.0}.get(trajectory.outcome.status)
