"""The ``sft`` view: conversations for supervised fine-tuning, loss on assistant messages only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from schemas.chat import grouped, to_functions, to_messages
from schemas.config import Config
from schemas.ids import row_id
from schemas.rows import Message, SftRow
from schemas.trajectory import Action, AnyItem, Trajectory

Loss = Literal["all", "not_error", "source"]


class Sft(Config):
    """``rows``: one row per ``trajectory``, or one per trained ``step`` that ends with it.

    ``loss`` chooses among the assistant messages: ``all``; ``not_error``, without those that were wrong themselves or
    were answered by an error; ``source``, those that the trajectory's source marked as trained. Copied items never
    carry loss. Messages after the last one with loss are left out.
    """

    record: ClassVar[type[SftRow]] = SftRow

    rows: Literal["trajectory", "step"] = "trajectory"
    loss: Loss = "all"

    def make_rows(self, trajectory: Trajectory) -> list[SftRow]:
        """The rows of one trajectory; none if no message carries loss."""
        marked = self._marked(trajectory)
        trained = [index for index, message in enumerate(marked) if message.train]
        if not trained:
            return []
        if self.rows == "trajectory":
            return [self._row(trajectory, marked[: trained[-1] + 1], 0)]
        context = [msgspec.structs.replace(message, train=False) for message in marked]
        return [
            self._row(trajectory, [*context[:place], marked[place]], number) for number, place in enumerate(trained)
        ]

    def _marked(self, trajectory: Trajectory) -> list[Message]:
        system = to_messages(trajectory.system_prompt, [])
        content = trajectory.content
        return system + [
            msgspec.structs.replace(message, train=message.role == "assistant" and _carries(self.loss, content, items))
            for message, items in grouped(content)
        ]

    def _row(self, trajectory: Trajectory, messages: list[Message], index: int) -> SftRow:
        parameters = self.model_dump()
        tools = to_functions(trajectory.tools)
        return SftRow(
            row_id=row_id(trajectory.trajectory_id, "sft", parameters, index),
            trajectory_id=trajectory.trajectory_id,
            view="sft",
            view_parameters=parameters,
            messages=messages,
            tools=msgspec.json.encode(tools).decode() if tools else None,
            task_id=trajectory.task_id,
            environment_id=trajectory.environment_id,
            split=trajectory.split,
        )


def _carries(loss: Loss, content: Sequence[AnyItem], items: list[int]) -> bool:
    """Whether the assistant message made of ``items`` carries loss."""
    actions = [content[index] for index in items]
    if any(action.context_operation == "copied" for action in actions):
        return False
    if loss == "source":
        return all(action.train is True for action in actions)
    return loss == "all" or not any(item.error for item in [*actions, *_answers(content, items[-1])])


def _answers(content: Sequence[AnyItem], last: int) -> list[AnyItem]:
    """The observations of the turn that item ``last`` ends."""
    answers: list[AnyItem] = []
    for item in content[last + 1 :]:
        if isinstance(item, Action) or item.turn != content[last].turn:
            break
        answers.append(item)
    return answers
