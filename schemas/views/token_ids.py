"""The tokens of rows that tell what we generated ourselves, so that training sees what was sampled and no other."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from agentmill.schemas.dialects.tool_text import SCAFFOLD_FORMATS
from agentmill.schemas.records.rows import Message, RowTokens, SampledTurn, SftRow
from agentmill.schemas.records.trajectory import Action, Trajectory, TurnTokens
from agentmill.schemas.views.conversation import ConversationTurn, conversation, is_copied
from agentmill.schemas.views.dialogue import with_tool_text
from agentmill.schemas.views.loss_mask import silenced
from agentmill.schemas.views.roles import dialogue_of, perspectives


def with_tokens(rows: list[SftRow], dialogue: Sequence[ConversationTurn], trajectory: Trajectory) -> list[SftRow]:
    """The rows, whose messages are the first of ``dialogue``, with their tokens where these are known."""
    sampled = segments(dialogue, trajectory)
    copied = {place for place, turn in enumerate(dialogue) if is_copied(trajectory.content, turn.items)}
    return [
        msgspec.structs.replace(row, tokens=[_whose(each, row, copied) for each in with_loss(sampled, row.messages)])
        for row in rows
    ]


def without_cut_off(
    messages: Sequence[Message], dialogue: Sequence[ConversationTurn], trajectory: Trajectory
) -> list[Message]:
    """``messages`` of ``dialogue``, without loss on turns that were cut off and of which the row has no tokens.

    As text they would end with the token that ends a turn, and teach the model to stop in the middle of a sentence.
    """
    cut = [place for place, turn in enumerate(dialogue) if messages[place].train and _is_cut_off(turn, trajectory)]
    if not cut:
        return list(messages)
    sampled = {turn.message for segment in segments(dialogue, trajectory) for turn in segment.turns}
    silent = {place for place in cut if place not in sampled}
    return [silenced(message) if place in silent else message for place, message in enumerate(messages)]


def _is_cut_off(turn: ConversationTurn, trajectory: Trajectory) -> bool:
    tokens = _tokens(turn, trajectory)
    return tokens is not None and tokens.finish_reason == "length"


def _whose(segment: RowTokens, row: SftRow, copied: Set[int]) -> RowTokens:
    """The segment, of no model where copied turns carry loss: the run they are from may be another model's."""
    if any(turn.message in copied and row.messages[turn.message].train for turn in segment.turns):
        return msgspec.structs.replace(segment, model=None, revision=None)
    return segment


def segments(dialogue: Sequence[ConversationTurn], trajectory: Trajectory) -> list[RowTokens]:
    """All segments of the run, whole, where their tokens are known.

    They are not where the conversation differs from the one that was played: from a side that no agent had, with
    another system prompt, or with tools written in another way.
    """
    whose = _played_by(list(dialogue), trajectory)
    if whose is None:
        return []
    found: list[RowTokens] = []
    for place, turn in enumerate(dialogue):
        tokens = _tokens(turn, trajectory)
        if tokens is None:
            continue
        if tokens.segment_start:
            found.append(RowTokens(input_ids=[], turns=[], **whose))
        # A run may begin with turns without tokens; what follows them is no segment from its start.
        if not found:
            continue
        ids, turns = found[-1].input_ids, found[-1].turns
        ids += tokens.prompt_ids
        if tokens.sampled_ids:
            turns.append(SampledTurn(message=place, start=len(ids), end=len(ids) + len(tokens.sampled_ids)))
        ids += tokens.sampled_ids
    return found


def _played_by(dialogue: list[ConversationTurn], trajectory: Trajectory) -> dict[str, str | None] | None:
    """The model that had this conversation, as fields of ``RowTokens``; ``None`` if none had."""
    made = trajectory.generation
    agents = perspectives(trajectory)
    tool_format = SCAFFOLD_FORMATS.get(made.scaffold, "native") if made is not None else "native"
    for name, agent in agents.items():
        tools = trajectory.tools if agent.acts else []
        # Compared as a whole: tokens belong to one exact conversation, and any parameter of a view may change it.
        if dialogue == with_tool_text(dialogue_of(trajectory, name), tools, tool_format):
            return {"model": agent.model, "revision": agent.revision}
    if agents or dialogue != with_tool_text(conversation(trajectory), trajectory.tools, tool_format):
        return None
    return {"model": made.model, "revision": made.revision} if made is not None else {}


def _tokens(turn: ConversationTurn, trajectory: Trajectory) -> TurnTokens | None:
    item = trajectory.content[turn.items[0]] if turn.items and turn.message.role == "assistant" else None
    return item.tokens if isinstance(item, Action) else None


def with_loss(sampled: Sequence[RowTokens], messages: Sequence[Message]) -> list[RowTokens]:
    """Of the segments of a run those in which its first ``messages`` carry loss, each up to the last that does."""
    kept = []
    for segment in sampled:
        places = [
            place
            for place, turn in enumerate(segment.turns)
            if turn.message < len(messages) and messages[turn.message].train
        ]
        if places:
            turns = segment.turns[: places[-1] + 1]
            ids = segment.input_ids[: turns[-1].end]
            kept.append(msgspec.structs.replace(segment, input_ids=ids, turns=turns))
    return kept
