"""Token deltas add up to the sequences that the model saw and sampled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.records.trajectory import AnyItem, MessageAction, TextObservation
from agentmill.synthesis.policies.completion import token_delta, token_sequence

IDS = st.lists(st.integers(0, 5), max_size=6)


def acted(content: list[AnyItem], prompt: list[int], sampled: list[int], logprobs: list[float]) -> list[AnyItem]:
    tokens = token_delta(content, prompt, sampled, logprobs, "stop")
    seen = TextObservation(content="", source="environment")
    return [*content, MessageAction(content="", tokens=tokens), seen]


@given(st.lists(st.tuples(st.integers(0, 30), IDS, IDS), min_size=1, max_size=6))
def test_any_prompts_come_back_whole(turns: list[tuple[int, list[int], list[int]]]) -> None:
    """Each prompt keeps some of the sequence before it and adds to that; keeping less than all starts a segment."""
    content: list[AnyItem] = []
    sequence: list[int] = []
    for kept, grown, sampled in turns:
        prompt = sequence[:kept] + grown
        content = acted(content, prompt, sampled, [-1.0] * len(sampled))
        sequence = prompt + sampled
        assert token_sequence(content) == sequence


def test_an_extension_is_a_delta_and_anything_else_a_new_segment() -> None:
    content = acted([], [1, 2], [3, 4], [-0.1, -0.2])
    extended = token_delta(content, [1, 2, 3, 4, 5], [6], [-0.3], "stop")
    assert (extended.prompt_ids, extended.sampled_ids, extended.segment_start) == ([5], [6], False)
    retold = token_delta(content, [1, 2, 9, 5], [6], [-0.3], "length")
    assert (retold.prompt_ids, retold.segment_start, retold.finish_reason) == ([1, 2, 9, 5], True, "length")


def test_log_probabilities_that_do_not_match_are_left_out() -> None:
    assert token_delta([], [1], [2, 3], [-0.1], "stop").logprobs == []
    assert token_delta([], [1], [2, 3], [-0.1, -0.2], "stop").logprobs == [-0.1, -0.2]
