"""A user who knows what the agent does not: the tool ``ask_user`` or a person tells it, and rows hold the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.schemas.views.view import rows_of
from agentmill.synthesis.environments import make
from agentmill.synthesis.environments.toolbox.examples import EXAMPLES
from agentmill.synthesis.environments.toolbox.user import Request, reply
from agentmill.synthesis.generators.toolbox_wrap.wrap import wrap_environment, wrap_task
from agentmill.synthesis.generators.wrapping import Wrapping
from agentmill.synthesis.policies.policy import Conversation
from tests.synthesis.strategies.talking import Speaker, heard, last, lines, own, secret, talk

USER = {"name": "user", "person": True, "sees": "dialogue", "knows": "goal.user", "stop": "###STOP###"}
AGENT = {"name": "agent", "acts": True, "told": False}
HIDDEN = "Joe Stern"


def solving(task: Task, first: str | None = None) -> Speaker:
    """Says ``first`` if it is given, then plays the gold solution."""
    script: list[str | AnyAction] = [*([first] if first is not None else []), *(task.gold or [])]
    return Speaker(lambda conversation: script[own(conversation)])


def texts(trajectory: Trajectory, **side: Any) -> list[str]:
    """The messages of the training row of one side."""
    (row,) = rows_of(Sft(**side), trajectory, NOTHING)
    return [message.content or str([call.arguments for call in message.tool_calls]) for message in row.messages]


@pytest.mark.parametrize("side", [{"role": "agent"}, {"linearize": ["agent"]}])
async def test_an_agent_that_is_not_told_the_instruction_sees_what_ask_user_answers(side: dict[str, Any]) -> None:
    spec, task = EXAMPLES[1]
    agent = solving(task)
    roles = [{"name": "user", "person": True, "stop": "BYE"}, AGENT]
    run = await talk(task, roles, lambda: make(spec), user=lines("Please help."), agent=agent, scaffold="tools")
    assert run.outcome.status == "success"
    assert HIDDEN in heard(agent.asked[1])[-1], "the policy was shown the answer"
    row = texts(run, **side)
    assert task.instruction not in row
    answered = next(place for place, text in enumerate(row) if text == f"The name is {HIDDEN}.")
    assert not any(HIDDEN in text for text in row[:answered])
    assert any(HIDDEN in text for text in row[answered + 1 :])


@pytest.fixture
def wrapped() -> tuple[EnvironmentSpec, Task]:
    """The library, in which a person tells the name."""
    spec, task = EXAMPLES[0]
    wrapping = Wrapping(hidden=1, user="person")
    made = wrap_environment(spec, wrapping, 0)
    found = wrap_task(task, made, wrapping, 0)
    assert isinstance(found, Task)
    return made, found


def person(task: Task) -> Speaker:
    """Says the instruction, and what it knows of a detail when it is asked for that."""

    def said(conversation: Conversation) -> str:
        if own(conversation) == 0:
            return task.instruction
        request = msgspec.convert(task.initial_state["request"], Request)
        answer, _ = reply(request, last(conversation))
        assert request.slots[request.hidden[0]].text in secret(conversation)
        return answer

    return Speaker(said)


async def test_a_person_with_goal_user_tells_a_toolbox_detail_when_asked(wrapped: tuple[EnvironmentSpec, Task]) -> None:
    spec, task = wrapped
    assert HIDDEN in task.goal["user"]
    assert HIDDEN not in task.instruction
    policies = {"user": person(task), "agent": solving(task, "What is the name of the member?")}
    run = await talk(task, [USER, AGENT], lambda: make(spec), scaffold="tools", **policies)
    assert run.outcome.status == "success"
    row = texts(run, role="agent")
    first = next(place for place, text in enumerate(row) if HIDDEN in text)
    assert row[first] == f"The name is {HIDDEN}."
    assert first < next(place for place, text in enumerate(row) if HIDDEN in text and place != first)
    assert HIDDEN not in (run.system_prompt or "")


def test_what_a_person_tells_is_asked_in_words_and_no_expert_knows_it(wrapped: tuple[EnvironmentSpec, Task]) -> None:
    spec, task = wrapped
    environment = make(spec)
    environment.reset(task, 0)
    assert "ask_user" not in [tool.name for tool in environment.tools]
    assert environment.expert() is None
    for action in task.gold or []:
        assert isinstance(action, ApiAction)
        environment.step(action)
    assert environment.check().passed
    environment.close()
