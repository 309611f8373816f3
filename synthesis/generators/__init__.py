"""Generators by name: of environments by family and backend, of tasks by the family of their environment."""

from __future__ import annotations

from schemas.registry import Registry

_ENVIRONMENTS = {
    "codegym_llm": "synthesis.generators.codegym_llm.generator:LlmGenerator",
    "codegym_procedural": "synthesis.generators.codegym_procedural.generator:ProceduralGenerator",
    "interpreter_llm": "synthesis.generators.interpreter_llm.generator:LlmGenerator",
    "interpreter_procedural": "synthesis.generators.interpreter_procedural.generator:InterpreterGenerator",
    "pddl_llm": "synthesis.generators.pddl_llm.generator:LlmGenerator",
    "pddl_procedural": "synthesis.generators.pddl_procedural.generator:ProceduralGenerator",
    "toolbox_llm": "synthesis.generators.toolbox_llm.generator:LlmGenerator",
    "toolbox_procedural": "synthesis.generators.toolbox_procedural.generator:ProceduralGenerator",
}
_TASKS = {
    "codegym": "synthesis.generators.codegym_tasks.generator:CodegymTaskGenerator",
    "interpreter": "synthesis.generators.interpreter_tasks.generator:InterpreterTaskGenerator",
    "pddl": "synthesis.generators.pddl_tasks.generator:PddlTaskGenerator",
    "toolbox": "synthesis.generators.toolbox_tasks.generator:ToolboxTaskGenerator",
}

ENVIRONMENT_GENERATORS = Registry("environment generator", _ENVIRONMENTS)
TASK_GENERATORS = Registry("task generator", _TASKS)
GENERATORS = Registry("generator", {**_ENVIRONMENTS, **_TASKS})
"""All of them, for listings."""
