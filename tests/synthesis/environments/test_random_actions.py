"""Random actions, sensible and senseless, in every family: nothing crashes, and no episode leaves a trace in the next.

``AGENTMILL_SEQUENCES`` says how many sequences per example (``make soak`` asks for many).
"""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, TextObservation, Tool
from agentmill.synthesis.environments import make
from tests.synthesis.environments.test_conformance import EXAMPLES

SEQUENCES = int(os.environ.get("AGENTMILL_SEQUENCES", "20"))
LONGEST = 6
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3, 2.0, 1.5, 10**25, float("inf"), float("nan"), 10**4000),
    *("", "a", "open", "x'; DROP TABLE loans; --", "\0", "\ud800", "é" * 50, [1], {"a": 1}, [[[]]], {"": None}),
]
"""Arguments as a confused agent might give them; no integer has more digits than JSON is read with."""
WORDS = (
    "",
    " ",
    "look",
    "submit(answer=1)",
    "(((",
    "tool(argument=",
    '{"a": ',
    "x" * 5000,
    "\ud800",
    "1 / 0",
    "import os",
)

pytestmark = pytest.mark.timeout(3600)


def anything(tools: list[Tool], legal: list[ApiAction], chance: random.Random) -> AnyAction:
    """A legal action, a call with odd arguments, or words."""
    kind = chance.random()
    if legal and kind < 0.4:
        return chance.choice(legal)
    if tools and kind < 0.8:
        tool = chance.choice(tools)
        names = [*tool.parameters.get("properties", {}), "foreign"]
        given = {name: chance.choice(ODD) for name in names if chance.random() < 0.7}
        return ApiAction(function=chance.choice([tool.name, tool.name, "foreign"]), kwargs=given)
    if kind < 0.9:
        return CodeAction(language=chance.choice(["python", "bash"]), content=chance.choice(WORDS))
    return MessageAction(content=chance.choice(WORDS))


@pytest.mark.parametrize(("spec", "task"), EXAMPLES, ids=[spec.environment_id for spec, _ in EXAMPLES])
def test_random_actions_crash_nothing_and_leak_nothing(spec: EnvironmentSpec, task: Task) -> None:
    environment, chance = make(spec), random.Random(spec.environment_id)
    seen: list[str] = []
    environment.reset(task, 0)
    start, score = environment.state_digest(), environment.check().score
    for _ in range(SEQUENCES):
        environment.reset(task, 0)
        assert (environment.state_digest(), environment.check().score) == (start, score)
        legal = environment.admissible()
        for _ in range(chance.randint(1, LONGEST)):
            transition = environment.step(anything(environment.tools, legal, chance))
            assert isinstance(transition.observation, TextObservation)
            seen.append(transition.observation.content)
            if transition.terminated or transition.truncated:
                break
        environment.check()
    environment.close()
    assert msgspec.json.encode(seen)
