"""Exact tokens as deltas: what a turn adds to the token sequence of the turns before it."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.trajectory import Action, AnyItem, TurnTokens


def token_sequence(content: Iterable[AnyItem]) -> list[int]:
    """The tokens of the current segment: all that prompts and answers added since its start, in order.

    None if the start of the segment is not among ``content``, as when the agent is shown its last turns only.
    """
    sequence: list[int] = []
    started = False
    for item in content:
        if not isinstance(item, Action) or item.tokens is None:
            continue
        if item.tokens.segment_start:
            sequence, started = [], True
        if not started:
            continue
        sequence += item.tokens.prompt_ids
        sequence += item.tokens.sampled_ids
    return sequence


def token_delta(
    content: Iterable[AnyItem],
    prompt_ids: list[int],
    sampled_ids: list[int],
    logprobs: list[float],
    finish_reason: str | None,
) -> TurnTokens:
    """The tokens of a turn that follows ``content``, given its whole prompt.

    A prompt that does not begin with the sequence before it (a model's own tokens need not be those that its text
    maps back to) starts a new segment. Log-probabilities that do not match the sampled tokens in number are left out.
    """
    before = token_sequence(content)
    extends = bool(before) and prompt_ids[: len(before)] == before
    return TurnTokens(
        prompt_ids=prompt_ids[len(before) :] if extends else prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=logprobs if len(logprobs) == len(sampled_ids) else [],
        segment_start=not extends,
        finish_reason=finish_reason,
    )
