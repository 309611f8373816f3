"""How good a trajectory or one of its steps is, by a criterion that a recipe writes as text.

* ``outcome``: 1 for success, 0 for failure, as the run ended; of a step: that of its trajectory.
* ``reward``: what the environment gave: for the whole run, or in answer to the step.
* ``verdict:NAME``, ``value:NAME``: the score or value of that name on the whole, or on the step.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence
from schemas.views.turns import answers

Criterion = Annotated[str, StringConstraints(pattern=r"^(outcome|reward|(verdict|value):.+)$")]
"""``outcome``, ``reward``, ``verdict:NAME`` or ``value:NAME``."""


def score(criterion: str, trajectory: Trajectory, evidence: Evidence, item: int | None = None) -> float | None:
    """The score of ``trajectory``, or of the step whose first action is ``item``; ``None`` where nothing is known."""
    kind, _, name = criterion.partition(":")
    if kind == "verdict":
        verdict = evidence.verdict(name, item)
        return verdict.score if verdict is not None and verdict.status == "scored" else None
    if kind == "value":
        value = evidence.value(name, item)
        return value.value if value is not None else None
    if kind == "reward":
        if item is None:
            return trajectory.outcome.reward
        rewards = [each.reward for each in answers(trajectory.content, item) if each.reward is not None]
        return sum(rewards) if rewards else None
    return {"success": 1.0, "failure": 0.0}.get(trajectory.outcome.status)
