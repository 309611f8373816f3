"""From marked messages to rows for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from schemas.config import Config
from schemas.rows import Message, SftRow
from schemas.trajectory import Trajectory
from schemas.views.view import Unused, origin

Per = Literal["trajectory", "step"]


def sft_rows(
    view: Config, trajectory: Trajectory, messages: Sequence[Message], tools: str | None, per: Per
) -> list[SftRow]:
    """One row with all messages up to the last marked one, or one per marked message that ends with it.

    Raises ``Unused`` if none is marked.
    """
    places = [place for place, message in enumerate(messages) if message.train]
    if not places:
        raise Unused("no_loss", "no message carries loss")
    if per == "trajectory":
        conversations = [list(messages[: places[-1] + 1])]
    else:
        silent = [silenced(message) for message in messages]
        conversations = [[*silent[:place], messages[place]] for place in places]
    return [
        SftRow(**origin(view, trajectory, index), messages=conversation, tools=tools)
        for index, conversation in enumerate(conversations)
    ]


def silenced(message: Message) -> Message:
    """The message without loss."""
    return msgspec.structs.replace(message, train=False, weight=1.0)
