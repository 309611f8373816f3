"""Generators by name: of environments by backend, of tasks by the family of their environment."""

from __future__ import annotations

from schemas.registry import Registry

_ENVIRONMENTS = {
    "llm": "synthesis.generators.pddl_llm.generator:LlmGenerator",
    "procedural": "synthesis.generators.pddl_procedural.generator:ProceduralGenerator",
}
_TASKS = {"pddl": "synthesis.generators.pddl_tasks.generator:PddlTaskGenerator"}

ENVIRONMENT_GENERATORS = Registry("environment generator", _ENVIRONMENTS)
TASK_GENERATORS = Registry("task generator", _TASKS)
GENERATORS = Registry("generator", {**_ENVIRONMENTS, **_TASKS})
"""All of them, for listings."""
