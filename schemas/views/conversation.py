"""The turns of a trajectory as training sees them: an assistant message, the items it is made of, and its answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentmill.schemas.chat import grouped, to_functions, to_messages
from agentmill.schemas.dialects.tool_text import with_text
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Action, AnyItem, Trajectory

PROPOSER = "proposer"
"""The role of an action that waits for a review, or was prevented by one."""


class ConversationTurn(msgspec.Struct, frozen=True):
    """One message of a conversation and the indices of the items it is made of; the system prompt is made of none.

    An ``aside`` are words in another role before the first turn, as a reflection: it was sampled from another prompt.
    """

    message: Message
    items: tuple[int, ...] = ()
    aside: bool = False

    @property
    def step(self) -> int | None:
        """The item that stands for the step in tables of verdicts, labels and values: the first action of the turn."""
        return self.items[0] if self.message.role == "assistant" and not self.aside else None


def conversation(trajectory: Trajectory) -> list[ConversationTurn]:
    """The messages of a trajectory, system prompt first if there is one; none is marked for training."""
    opening = [ConversationTurn(message) for message in to_messages(trajectory.system_prompt, [])]
    content = trajectory.content
    return opening + [
        ConversationTurn(message, tuple(items), _is_aside(content[items[0]])) for message, items in grouped(content)
    ]


def _is_aside(item: AnyItem) -> bool:
    return isinstance(item, Action) and item.turn == 0 and item.role not in (None, "actor")


def with_system(dialogue: Sequence[ConversationTurn], text: str) -> list[ConversationTurn]:
    """The conversation with ``text`` at the end of its system prompt, or as one."""
    if not dialogue or dialogue[0].message.role != "system":
        return [ConversationTurn(Message(role="system", content=text)), *dialogue]
    return [ConversationTurn(with_text(dialogue[0].message, text)), *dialogue[1:]]


def answers(content: Sequence[AnyItem], item: int) -> list[AnyItem]:
    """The observations that answer the turn of the action ``item``; a reviewer may have spoken before them."""
    found: list[AnyItem] = []
    for each in content[item:]:
        if (
            not found
            and isinstance(each, Action)
            and each.role not in (None, "actor")
            and each.turn > content[item].turn
        ):
            continue
        if each.turn != content[item].turn or (found and isinstance(each, Action)):
            break
        if not isinstance(each, Action):
            found.append(each)
    return found


def own_places(dialogue: Sequence[ConversationTurn], content: Sequence[AnyItem]) -> list[int]:
    """The places in a conversation of the assistant's messages that no branch copied from its parent."""
    return [
        place for place, turn in enumerate(dialogue) if turn.step is not None and not is_copied(content, turn.items)
    ]


def is_copied(content: Sequence[AnyItem], items: Sequence[int]) -> bool:
    """Whether a branch took any of ``items`` over from its parent."""
    return any(content[item].context_operation == "copied" for item in items)


def went_wrong(content: Sequence[AnyItem], items: Sequence[int]) -> bool:
    """Whether the actions ``items`` of one message are marked as errors, or were answered by one.

    A message that only proposes went wrong, since it was not done; of one that does more, the rest is asked.
    """
    done = [item for item in items if content[item].role != PROPOSER]
    return not done or any(each.error for each in [*(content[item] for item in done), *answers(content, items[-1])])


def tools_text(trajectory: Trajectory) -> str | None:
    """The tools as rows hold them: JSON text of OpenAI function schemas, or ``None``."""
    tools = to_functions(trajectory.tools)
    return msgspec.json.encode(tools).decode() if tools else None
