"""An agent training data pipeline: environments, tasks, trajectories, training rows and tuned models.

What programs need most is found here by name; the rest is in ``agentmill.schemas`` (records, tables, formats, views),
``agentmill.synthesis`` (environments, policies, strategies, verifiers), ``agentmill.pipelines`` (recipes, the engine,
commands) and ``agentmill.trainers``. A name is imported when it is first used, so ``import agentmill`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentmill.pipelines.recipes.grammar import read_recipe as read_recipe
    from agentmill.pipelines.recipes.plan import make_plan as make_plan
    from agentmill.pipelines.recipes.runner import run_plan as run_plan
    from agentmill.schemas.errors import UserError as UserError
    from agentmill.schemas.records.rows import PreferenceRow as PreferenceRow
    from agentmill.schemas.records.rows import SftRow as SftRow
    from agentmill.schemas.records.rows import UnpairedRow as UnpairedRow
    from agentmill.schemas.records.task import EnvironmentSpec as EnvironmentSpec
    from agentmill.schemas.records.task import Task as Task
    from agentmill.schemas.records.trajectory import Trajectory as Trajectory
    from agentmill.schemas.records.verdict import Verdict as Verdict
    from agentmill.schemas.tables import Table as Table
    from agentmill.synthesis.environments.environment import Environment as Environment
    from agentmill.synthesis.policies.policy import Policy as Policy
    from agentmill.synthesis.rollouts.strategy import Strategy as Strategy
    from agentmill.synthesis.verifiers.verifier import Verifier as Verifier

_MODULES = {
    "agentmill.pipelines.recipes.grammar": ("read_recipe",),
    "agentmill.pipelines.recipes.plan": ("make_plan",),
    "agentmill.pipelines.recipes.runner": ("run_plan",),
    "agentmill.schemas.errors": ("UserError",),
    "agentmill.schemas.records.rows": ("PreferenceRow", "SftRow", "UnpairedRow"),
    "agentmill.schemas.records.task": ("EnvironmentSpec", "Task"),
    "agentmill.schemas.records.trajectory": ("Trajectory",),
    "agentmill.schemas.records.verdict": ("Verdict",),
    "agentmill.schemas.tables": ("Table",),
    "agentmill.synthesis.environments.environment": ("Environment",),
    "agentmill.synthesis.policies.policy": ("Policy",),
    "agentmill.synthesis.rollouts.strategy": ("Strategy",),
    "agentmill.synthesis.verifiers.verifier": ("Verifier",),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'agentmill' has no attribute {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
