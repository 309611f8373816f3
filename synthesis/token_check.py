"""Whether stored tokens are those of the stored text, and whether that text would give them back.

A model may sample tokens that its tokenizer would not choose for the same text, so who trains from text trains on other
tokens than were sampled: the drift of re-tokenisation. It may also end a segment, where a server shows a turn in the
next prompt otherwise than it was sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from agentmill.schemas.chat import is_mark
from agentmill.schemas.records.trajectory import Action, Trajectory, TurnTokens
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.templates.message_parts import missing_part
from agentmill.schemas.views.conversation import ConversationTurn, conversation

NAME = "check_tokens"


CONTEXT_TOKENS = 16
"""Tokens before a turn that are decoded with it: what a tokenizer makes of its first word may depend on the last."""


class Codec(msgspec.Struct, frozen=True):
    """A tokenizer as two functions; both keep special tokens, and add none.

    ``encode`` takes a text and the text before it, which is empty at the start of a text.
    """

    encode: Callable[[str, str], list[int]]
    decode: Callable[[Sequence[int]], str]


def check_tokens(trajectory: Trajectory, codec: Codec) -> Verdict:
    """The verdict on all turns whose tokens are known.

    ``passed``: each says what its message says, has no or as many log-probabilities as tokens, and belongs to a
    segment. ``score``: the share of turns whose text, tokenised again, gives the tokens that were sampled. ``evidence``
    counts turns, those that ``drifted``, their tokens, segments, and ``breaks``: segments of an agent that begin
    although nothing was left out of the context. Unscored where no tokens are known.
    """
    verdict = Verdict(trajectory_id=trajectory.trajectory_id, name=NAME, status="unscored", judge="tokenizer")
    turns = [(turn, tokens) for turn in conversation(trajectory) if (tokens := _tokens(turn, trajectory)) is not None]
    if not turns:
        return msgspec.structs.replace(verdict, reason="no_tokens")
    wrong = next((fault for turn, tokens in turns if (fault := _fault(turn, tokens, codec)) is not None), None)
    if not turns[0][1].segment_start:
        wrong = "no_segment"
    drifted = [turn for turn, tokens in turns if _retokenized(tokens, codec) != tokens.sampled_ids]
    segments = Counter(trajectory.content[turn.items[0]].agent for turn, tokens in turns if tokens.segment_start)
    # At each mark the context was shortened, so the next prompt must begin a segment.
    expected = 1 + sum(map(is_mark, trajectory.content))
    evidence = {
        "turns": len(turns),
        "drifted": len(drifted),
        "tokens": sum(len(tokens.sampled_ids) for _, tokens in turns),
        "segments": segments.total(),
        "breaks": sum(max(0, count - expected) for count in segments.values()),
    }
    return msgspec.structs.replace(
        verdict,
        status="scored",
        score=1 - len(drifted) / len(turns),
        passed=wrong is None,
        reason=wrong or ("drifted" if drifted else None),
        evidence={**evidence, **({"first_drifted_item": drifted[0].items[0]} if drifted else {})},
    )


def _tokens(turn: ConversationTurn, trajectory: Trajectory) -> TurnTokens | None:
    item = trajectory.content[turn.items[0]] if turn.items else None
    return item.tokens if isinstance(item, Action) else None


def _retokenized(tokens: TurnTokens, codec: Codec) -> list[int]:
    """The tokens of the sampled text behind its prompt, as the tokenizer chooses them."""
    context = tokens.prompt_ids[-CONTEXT_TOKENS:]
    before = codec.decode(context)
    together = codec.decode([*context, *tokens.sampled_ids])
    if not together.startswith(before):
        # The prompt ends within a character.
        return codec.encode(codec.decode(tokens.sampled_ids), before)
    return codec.encode(together.removeprefix(before), before)


def _fault(turn: ConversationTurn, tokens: TurnTokens, codec: Codec) -> str | None:
    """What is wrong with the tokens of a turn."""
    if tokens.logprobs and len(tokens.logprobs) != len(tokens.sampled_ids):
        return "logprobs"
    return "other_text" if missing_part(turn.message, codec.decode(tokens.sampled_ids)) is not None else None
