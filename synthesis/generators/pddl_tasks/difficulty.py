"""How hard a planning task is, and its gold plan."""

from __future__ import annotations

import math

from agentmill.schemas.records.task import Difficulty
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.pddl.domain import Domain
from agentmill.synthesis.environments.pddl.grounding import Grounded

HALF_LEVEL_EFFORT = 10.0
"""The effort at which the level is one half."""


def difficulty_of(plan_length: int, expansions: int | None) -> Difficulty:
    """Effort is the plan's length, weighed up by a quarter for every tenfold of states the planner expanded.

    The level ``effort / (effort + 10)`` is in [0, 1) and grows with both: a plan of 2 actions is at about 0.2, one of
    8 found among 1,000 states at about 0.6. Without a planner ``expansions`` is ``None`` and counts as none.
    """
    effort = plan_length * (1.0 + math.log10(1 + (expansions or 0)) / 4.0)
    level = effort / (effort + HALF_LEVEL_EFFORT)
    return Difficulty(level=round(level, 4), plan_length=plan_length, expansions=expansions)


def gold_actions(domain: Domain, grounded: Grounded, plan: list[int]) -> list[AnyAction]:
    """A plan as calls of the environment's tools."""
    names = {a.name: [parameter.name.removeprefix("?") for parameter in a.parameters] for a in domain.actions}
    calls: list[AnyAction] = []
    for number in plan:
        action = grounded.actions[number]
        calls.append(
            ApiAction(function=action.name, kwargs=dict(zip(names[action.name], action.arguments, strict=True)))
        )
    return calls
