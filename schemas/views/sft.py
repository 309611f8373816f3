"""The ``sft`` view: conversations for supervised fine-tuning, loss on assistant messages only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field

from schemas.config import Config
from schemas.ids import row_id
from schemas.rows import Message, SftRow
from schemas.trajectory import AnyItem, Trajectory
from schemas.views.evidence import Evidence
from schemas.views.turns import conversation, is_copied, tools_text, went_wrong
from schemas.views.view import Unused

Loss = Literal["all", "not_error", "source"]


class Sft(Config):
    """One row per trajectory, or one per trained step that ends with it.

    Copied items never carry loss. Messages after the last one with loss are left out.
    """

    name: ClassVar[str] = "sft"
    record: ClassVar[type[SftRow]] = SftRow

    rows: Literal["trajectory", "step"] = Field("trajectory", description="one row per trajectory, or per step")
    loss: Loss = Field(
        "all",
        description="which assistant turns carry loss: all, those that met no error, or those the source marked",
    )

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[SftRow]:
        """The rows of one trajectory. Raises ``Unused`` if no message carries loss."""
        del evidence
        messages = [
            msgspec.structs.replace(
                said.message, train=said.step is not None and carries(self.loss, trajectory.content, said.items)
            )
            for said in conversation(trajectory)
        ]
        trained = [index for index, message in enumerate(messages) if message.train]
        if not trained:
            raise Unused("no_loss", "no message carries loss")
        if self.rows == "trajectory":
            return [self._row(trajectory, messages[: trained[-1] + 1], 0)]
        context = [msgspec.structs.replace(message, train=False) for message in messages]
        return [
            self._row(trajectory, [*context[:place], messages[place]], number) for number, place in enumerate(trained)
        ]

    def _row(self, trajectory: Trajectory, messages: list[Message], index: int) -> SftRow:
        parameters = {name: getattr(self, name) for name in Sft.model_fields}
        return SftRow(
            row_id=row_id(trajectory.trajectory_id, self.name, parameters, index),
            trajectory_id=trajectory.trajectory_id,
            view=self.name,
            view_parameters=parameters,
            messages=messages,
            tools=tools_text(trajectory),
            task_id=trajectory.task_id,
            environment_id=trajectory.environment_id,
            split=trajectory.split,
        )


def carries(loss: Loss, content: Sequence[AnyItem], items: Sequence[int]) -> bool:
    """Whether the assistant message made of ``items`` carries loss."""
    if is_copied(content, items):
        return False
    if loss == "source":
        return all(content[item].train is True for item in items)
    return loss == "all" or not went_wrong(content, items)
