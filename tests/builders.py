"""Small records for tests. Every builder takes the fields that matter to the test and fills in the rest."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import (
    ApiAction,
    Generation,
    MessageAction,
    Outcome,
    OutcomeStatus,
    Source,
    TextObservation,
    Tool,
    Trajectory,
    TurnTokens,
)
from agentmill.schemas.records.verdict import Verdict


def instruction(text: str = "Put the ball into the box.") -> TextObservation:
    """What the user asks, turn 0."""
    return TextObservation(content=text, source="user")


def seen(text: str, turn: int = 0, **fields: Any) -> TextObservation:
    """What the environment shows."""
    return TextObservation(content=text, source="environment", turn=turn, **fields)


def agent_message(text: str, turn: int = 1, **fields: Any) -> MessageAction:
    """A message or text command of the agent."""
    return MessageAction(content=text, turn=turn, **fields)


def called(function: str, turn: int = 1, call_id: str | None = "call00100", **kwargs: Any) -> ApiAction:
    """A tool call of the agent."""
    return ApiAction(function=function, kwargs=kwargs, turn=turn, tool_call_id=call_id)


def tool(name: str = "move", **properties: Any) -> Tool:
    """A tool whose parameters are all texts."""
    schema = {"type": "object", "properties": properties or {"to": {"type": "string"}}}
    return Tool(name=name, description=f"{name} something", parameters=schema)


def tokens(*sampled_ids: int, prompt_ids: tuple[int, ...] = (1, 2), segment_start: bool = False) -> TurnTokens:
    """The tokens of one generated turn, every log-probability -0.5."""
    return TurnTokens(
        prompt_ids=list(prompt_ids),
        sampled_ids=list(sampled_ids),
        logprobs=[-0.5] * len(sampled_ids),
        segment_start=segment_start,
        finish_reason="stop",
    )


def generation(**fields: Any) -> Generation:
    """How a sampled trajectory came to be."""
    values: dict[str, Any] = {
        "model": "tiny",
        "revision": "r1",
        "policy": "actor",
        "strategy": "sample",
        "scaffold": "text",
        "sampling": {"temperature": 0.7},
        "seed": 7,
    }
    return Generation(**{**values, **fields})


def outcome(status: OutcomeStatus = "success") -> Outcome:
    """How a run ended, reward 1 for success and 0 for failure."""
    return Outcome(status=status, reward=1.0 if status == "success" else 0.0, terminated=status == "success")


def trajectory(trajectory_id: str = "t1", **fields: Any) -> Trajectory:
    """A run in a text world: two turns, the first one illegal."""
    values: dict[str, Any] = {
        "content": [
            instruction(),
            seen("You are at home."),
            agent_message("fly to box", 1, tokens=tokens(5, 6, segment_start=True)),
            seen("You cannot fly.", 1, error=True),
            agent_message("put ball into box", 2, tokens=tokens(7, 8)),
            seen("Done.", 2, reward=1.0),
        ],
        "task_id": "task1",
        "environment_id": "env1",
        "system_prompt": "Act by commands.",
        "outcome": outcome(),
        "generation": generation(),
        "split": "train",
    }
    return Trajectory(trajectory_id=trajectory_id, **{**values, **fields})


def run_of_source(dataset: str, licence: str | None, trajectory_id: str = "t1") -> Trajectory:
    """A run that was read from a foreign data set."""
    source = Source(dataset=dataset, sha256="0" * 64, converter="openai", converter_version="1", licence=licence)
    return trajectory(trajectory_id, source=source)


def tool_trajectory(trajectory_id: str = "t2", **fields: Any) -> Trajectory:
    """A run with tools: two parallel calls in the first turn, a message in the second."""
    values: dict[str, Any] = {
        "content": [
            instruction("Where is the ball?"),
            called("look", 1, "call00100", where="box"),
            called("look", 1, "call00101", where="floor"),
            seen("empty", 1, tool_call_id="call00100"),
            seen("a ball", 1, tool_call_id="call00101"),
            agent_message("On the floor.", 2),
        ],
        "tools": [tool("look", where={"type": "string"})],
        "system_prompt": "Use tools.",
        "outcome": outcome(),
    }
    return Trajectory(trajectory_id=trajectory_id, **{**values, **fields})


def spec(environment_id: str = "env1", **fields: Any) -> EnvironmentSpec:
    """An environment as data; its source is no real one."""
    values: dict[str, Any] = {"family": "pddl", "name": "boxes", "source": "(define (domain boxes))"}
    return EnvironmentSpec(environment_id=environment_id, **{**values, **fields})


def task(task_id: str = "task1", **fields: Any) -> Task:
    """A task in ``env1``."""
    values: dict[str, Any] = {"environment_id": "env1", "instruction": "Put the ball into the box.", "split": "train"}
    return Task(task_id=task_id, **{**values, **fields})


def verdict(trajectory_id: str = "t1", passed: bool | None = True, **fields: Any) -> Verdict:
    """An outcome verdict, scored."""
    values: dict[str, Any] = {
        "name": "check_outcome",
        "status": "scored",
        "judge": "environment",
        "score": None if passed is None else float(passed),
        "passed": passed,
    }
    return Verdict(trajectory_id=trajectory_id, **{**values, **fields})
