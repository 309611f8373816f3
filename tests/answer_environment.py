"""A world with one question: whoever gives the right answer wins, and any other answer loses.

``answer TEXT`` (the tool ``answer`` with ``text``) ends the episode; ``look`` shows ``initial_state["seen"]``. The
answer is ``task.goal["answer"]``, what agents know of it ``task.goal["secrets"]``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction, AnyObservation, ApiAction, TextObservation, Tool
from agentmill.synthesis.environments.environment import Check, Transition

SPEC = EnvironmentSpec(environment_id="answers", family="answers", name="answers", source="")
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def question(answer: str, secrets: Any = None, seen: str = "nothing", **fields: Any) -> Task:
    """The task of finding ``answer``."""
    return Task(
        task_id=f"answer-{answer}",
        environment_id="answers",
        instruction="Find the word.",
        initial_state={"seen": seen},
        goal={"answer": answer, **({} if secrets is None else {"secrets": secrets})},
        **{"max_turns": 20, "split": "train", **fields},
    )


class AnswerEnvironment:
    """Implements ``Environment``."""

    def __init__(self, spec: EnvironmentSpec = SPEC) -> None:
        self.spec = spec
        self.tools = [
            Tool(name="answer", parameters=PARAMETERS),
            Tool(name="look", parameters={"type": "object", "properties": {}}),
        ]
        self.rules = "There is a question. Write: look, or: answer WORD."
        self.task = question("")
        self.answer: str | None = None

    def reset(self, task: Task, seed: int) -> AnyObservation:
        self.task, self.answer = task, None
        return _text("The room is dark.")

    def step(self, action: AnyAction) -> Transition:
        command = self.command(action) if isinstance(action, ApiAction) else getattr(action, "content", "")
        if command == "look":
            return Transition(observation=_text(f"You see {self.task.initial_state['seen']}."))
        if self.answer is not None or not command.startswith("answer "):
            return Transition(observation=_text("Only look and answer are possible."), error=True)
        self.answer = command.removeprefix("answer ")
        return Transition(observation=_text("That was it."), reward=float(self._right), terminated=True)

    def state_digest(self) -> str:
        return f"answer-{self.answer}"

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.answer)

    def restore(self, snapshot: bytes) -> None:
        self.answer = msgspec.json.decode(snapshot)

    def check(self) -> Check:
        return Check(passed=self._right, score=float(self._right))

    def admissible(self) -> list[ApiAction]:
        return [] if self.answer is not None else [ApiAction(function="look", kwargs={})]

    def command(self, action: ApiAction) -> str:
        return f"{action.function} {action.kwargs.get('text', '')}".strip()

    def expert(self) -> ApiAction | None:
        return None if self.answer else ApiAction(function="answer", kwargs={"text": self.task.goal["answer"]})

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _right(self) -> bool:
        return bool(self.answer == self.task.goal["answer"])


def _text(content: str) -> TextObservation:
    return TextObservation(content=content, source="environment")
