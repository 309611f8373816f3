"""A record with a better and a worse answer to one prompt: two runs, the worse one a branch of the better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import msgspec

from agentmill.schemas.format import Format, FormatError, Losses, Read, Remarks, Written
from agentmill.schemas.formats.differences import differences
from agentmill.schemas.ids import part_id
from agentmill.schemas.messages.calls import link_remarks
from agentmill.schemas.messages.conversation import Conversation, kept
from agentmill.schemas.records.trajectory import Trajectory


class Pair(NamedTuple):
    """The two runs; both hold the prompt, and in the worse one its items are marked as copied."""

    chosen: Trajectory
    rejected: Trajectory


class PairFormat(Format, Protocol):
    """A format with rows of two runs."""

    def write_pair(self, chosen: Trajectory, rejected: Trajectory) -> Written:
        """The two runs as one document. Raises ``FormatError`` if the format cannot say it."""


def paired(chosen: Trajectory, conversation: Conversation, name: str, prompt: int) -> Pair:
    """The pair of ``chosen`` and ``conversation``, which both begin with the first ``prompt`` items."""
    prompt = max(prompt, 0)  # a system prompt, at -1, is no item
    copied = [msgspec.structs.replace(item, context_operation="copied") for item in conversation.content[:prompt]]
    rejected = Trajectory(
        trajectory_id=part_id(chosen.trajectory_id, "rejected"),
        content=[*copied, *conversation.content[prompt:]],
        parent_id=chosen.trajectory_id,
        branch_turn=max((item.turn for item in copied), default=0) + 1,
        system_prompt=conversation.system_prompt,
        tools=chosen.tools,
        source=chosen.source,
        extra=kept(conversation, name, {}),
    )
    return Pair(_on(chosen, "chosen", name), _on(rejected, "rejected", name))


def pair_remarks(conversation: Conversation, pair: Pair) -> Remarks:
    """What is odd about the worse run."""
    return conversation.remarks + link_remarks(pair.rejected.content, pair.rejected.tools)


def common(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """How many messages two conversations begin with in common."""
    same = takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))
    return sum(1 for _ in same)


def prompt_length(chosen: Sequence[Any], rejected: Sequence[Any], answers: Callable[[Any], bool]) -> int:
    """How many messages are the prompt of a pair: up to the first one by the model in which the two may differ.

    ``answers`` says whether a message is by the model. Raises ``FormatError``: ``tied_pair`` for two equal
    conversations, ``no_common_prompt``.
    """
    if chosen == rejected:
        raise FormatError("tied_pair", "the better and the worse run are the same")
    count = common(chosen, rejected)
    # Both sides must go on with an answer of the model: a pair compares answers, not results of tools.
    while count and not (
        count < min(len(chosen), len(rejected)) and answers(chosen[count]) and answers(rejected[count])
    ):
        count -= 1
    if count == 0:
        raise FormatError("no_common_prompt", "the two runs do not begin with the same messages")
    return count


def side_of(run: Trajectory) -> str | None:
    """``chosen`` or ``rejected`` for a run that was read from a pair."""
    sides = (held.get("side") for held in run.extra.values() if isinstance(held, dict))
    return next((side for side in sides if side in Pair._fields), None)


def pair_losses(pair: Pair, back: Read, name: str) -> Losses:
    """What of a pair is gone once it was written and read back; that one is a branch of the other is not."""
    rejected = msgspec.structs.replace(back.others[0], parent_id=pair.rejected.parent_id)
    return differences(pair.chosen, back.trajectory, name) + differences(pair.rejected, rejected, name)


def _on(run: Trajectory, side: str, name: str) -> Trajectory:
    return msgspec.structs.replace(run, extra={name: {**run.extra.get(name, {}), "side": side}})
