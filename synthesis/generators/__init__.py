"""Generators by name: of environments by family and backend, of tasks by the family of their environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmill.schemas.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmill.synthesis.generators.composition import Composer
    from agentmill.synthesis.generators.generator import EnvironmentGenerator, TaskGenerator
    from agentmill.synthesis.generators.task_author import TaskForm

_ENVIRONMENTS = {
    "babyai_procedural": "agentmill.synthesis.generators.babyai_procedural.generator:BabyaiGenerator",
    "codegym_llm": "agentmill.synthesis.generators.codegym_llm.generator:LlmGenerator",
    "codegym_procedural": "agentmill.synthesis.generators.codegym_procedural.generator:ProceduralGenerator",
    "interpreter_llm": "agentmill.synthesis.generators.interpreter_llm.generator:LlmGenerator",
    "interpreter_procedural": "agentmill.synthesis.generators.interpreter_procedural.generator:InterpreterGenerator",
    "pddl_llm": "agentmill.synthesis.generators.pddl_llm.generator:LlmGenerator",
    "pddl_procedural": "agentmill.synthesis.generators.pddl_procedural.generator:ProceduralGenerator",
    "search_procedural": "agentmill.synthesis.generators.search_procedural.generator:SearchGenerator",
    "toolbox_llm": "agentmill.synthesis.generators.toolbox_llm.generator:LlmGenerator",
    "toolbox_procedural": "agentmill.synthesis.generators.toolbox_procedural.generator:ProceduralGenerator",
}
_TASKS = {
    "babyai": "agentmill.synthesis.generators.babyai_tasks.generator:BabyaiTaskGenerator",
    "codegym": "agentmill.synthesis.generators.codegym_tasks.generator:CodegymTaskGenerator",
    "interpreter": "agentmill.synthesis.generators.interpreter_tasks.generator:InterpreterTaskGenerator",
    "pddl": "agentmill.synthesis.generators.pddl_tasks.generator:PddlTaskGenerator",
    "search": "agentmill.synthesis.generators.search_tasks.variants:SearchTaskGenerator",
    "toolbox": "agentmill.synthesis.generators.toolbox_tasks.generator:ToolboxTaskGenerator",
}
_COMPOSERS = {
    "pddl": "agentmill.synthesis.generators.pddl_tasks.composition:PddlComposer",
    "search": "agentmill.synthesis.generators.search_tasks.composition:SearchComposer",
    "toolbox": "agentmill.synthesis.generators.toolbox_tasks.composition:ToolboxComposer",
}
_FORMS = {
    "pddl": "agentmill.synthesis.generators.pddl_tasks.written:PddlTaskForm",
    "toolbox": "agentmill.synthesis.generators.toolbox_tasks.written:ToolboxTaskForm",
}

ENVIRONMENT_GENERATORS: Registry[Callable[..., EnvironmentGenerator]] = Registry(
    "environment generator", _ENVIRONMENTS, group="environment_generators"
)
TASK_GENERATORS: Registry[Callable[..., TaskGenerator]] = Registry("task generator", _TASKS, group="task_generators")
TASK_FORMS: Registry[type[TaskForm]] = Registry("form of written tasks", _FORMS, group="task_forms")
"""How a model writes tasks of a family."""
TASK_COMPOSERS: Registry[type[Composer]] = Registry("composer of tasks", _COMPOSERS, group="task_composers")
"""How tasks of a family are made into one."""
GENERATORS: Registry[Any] = Registry("generator", {**_ENVIRONMENTS, **_TASKS})
"""All of them, for listings."""
