"""Toolboxes for tests: the library of the examples, with parts replaced."""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction
from agentmill.synthesis.environments.environment import Check, Transition
from agentmill.synthesis.environments.toolbox.environment import ToolboxEnvironment
from agentmill.synthesis.environments.toolbox.examples import EXAMPLES, LIBRARY
from agentmill.synthesis.environments.toolbox.toolbox import Tool, Toolbox, write_toolbox

(LIBRARY_SPEC, LIBRARY_TASK), (WRAPPED_SPEC, WRAPPED_TASK) = EXAMPLES


def with_tool(name: str, **fields: Any) -> Toolbox:
    """The library with fields of one tool replaced."""
    tools = tuple(msgspec.structs.replace(tool, **fields) if tool.name == name else tool for tool in LIBRARY.tools)
    assert name in {tool.name for tool in tools}
    return msgspec.structs.replace(LIBRARY, tools=tools)


def and_tool(tool: Tool) -> Toolbox:
    """The library with one more tool."""
    return msgspec.structs.replace(LIBRARY, tools=(*LIBRARY.tools, tool))


def spec_of(toolbox: Toolbox, **parameters: Any) -> EnvironmentSpec:
    """A spec of a toolbox."""
    return EnvironmentSpec(
        environment_id="toolbox-library",
        family="toolbox",
        name="library",
        source=write_toolbox(toolbox),
        parameters=parameters,
    )


def started(task: Task = LIBRARY_TASK, toolbox: Toolbox = LIBRARY, **parameters: Any) -> ToolboxEnvironment:
    """A live toolbox, reset."""
    environment = ToolboxEnvironment(spec_of(toolbox, **parameters))
    environment.reset(task, 0)
    return environment


def call(function: str, **arguments: Any) -> ApiAction:
    """A call."""
    return ApiAction(function=function, kwargs=arguments)


def play(environment: ToolboxEnvironment, *actions: AnyAction) -> list[Transition]:
    """Take actions."""
    return [environment.step(action) for action in actions]


def outcome(actions: list[AnyAction], task: Task = LIBRARY_TASK) -> Check:
    """What the checker says after actions in the library."""
    environment = started(task)
    play(environment, *actions)
    return environment.check()


def told(transition: Transition) -> str:
    """The text of an observation."""
    return str(getattr(transition.observation, "content", ""))
