"""Long rows, cut at turn boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentmill.trainers.tokens import IGNORED, Encoded, blocks, encode
from agentmill.trainers.windows import windows
from tests.trainers.tables import assistant, row, system, tool_row, turns, user


def trained_turns(encoded: Encoded, tokenizer: Any) -> list[str]:
    """Which commands of ``turns`` carry loss."""
    text = tokenizer.decode(encoded.labels[encoded.labels != IGNORED].tolist())
    return [part.split()[3] for part in text.split("<|im_end|>") if part]


def test_a_row_that_fits_stays_as_it_is(tokenizer: Any) -> None:
    encoded = encode(turns(3), tokenizer)
    assert windows(encoded, len(encoded)) == [encoded]


@pytest.mark.parametrize("room", [2.5, 3, 4, 7.5])
def test_each_turn_is_trained_once_and_every_window_fits(room: float, tokenizer: Any) -> None:
    encoded = encode(turns(12), tokenizer)
    (_, opening), (start, end), *_ = blocks(encoded)
    max_length = opening + round(room * (end - start + 1))
    cut = windows(encoded, max_length)
    assert len(cut) > 1
    assert all(len(window) <= max_length for window in cut)
    assert [turn for window in cut for turn in trained_turns(window, tokenizer)] == [str(turn) for turn in range(12)]
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    for window in cut:
        assert window.input_ids[:opening].tolist() == encoded.input_ids[:opening].tolist()
    assert [window.row_id for window in cut] == [f"r1#{index}" for index in range(len(cut))]


def test_a_later_window_shows_what_its_first_turn_answers(tokenizer: Any) -> None:
    encoded = encode(turns(12), tokenizer)
    cut = windows(encoded, len(encoded) // 3)
    assert len(cut) > 3
    for window in cut[1:]:
        first = int(trained_turns(window, tokenizer)[0])
        start = int(np.flatnonzero(window.labels != IGNORED)[0])
        assert tokenizer.decode(window.input_ids[:start]).endswith(
            f"You are at {first - 1}.<|im_end|>\n<|im_start|>assistant\n"
        )


def test_a_call_is_never_cut(tokenizer: Any) -> None:
    encoded = encode(tool_row(), tokenizer)
    (_, opening), (_, call), (_, end) = blocks(encoded)
    assert opening < call
    for max_length in range(call - opening, end):
        cut = windows(encoded, max_length)
        assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
        assert all(len(window) <= max_length for window in cut)


def observed(words: list[int], said: int = 4) -> Any:
    """Turns of ``said`` words after observations of so many ``words``."""
    messages = [system(), user("Move.")]
    for turn, number in enumerate(words):
        messages += [assistant(f"move the box {turn} " + "push " * said), user(f"at {turn} " + "wall " * number)]
    return row([*messages, assistant("move the box end")])


def test_a_turn_that_does_not_fit_with_the_last_turn_follows_the_last_observation(tokenizer: Any) -> None:
    encoded = encode(observed([40, 40, 40]), tokenizer)
    (_, opening), *parts = blocks(encoded)
    max_length = opening + max(end - start for start, end in parts) + 8
    cut = windows(encoded, max_length)
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    assert all(len(window) <= max_length for window in cut)
    assert not any(window.cut for window in cut)
    for turn, window in enumerate(cut[1:]):
        first = int(np.flatnonzero(window.mask)[0])
        assert window.input_ids[:opening].tolist() == encoded.input_ids[:opening].tolist()
        assert f"at {turn} wall" in tokenizer.decode(window.input_ids[opening:first])


@pytest.mark.parametrize("beyond", [0, 1, 10, 30])
def test_every_turn_that_fits_alone_is_trained_with_what_fits_before_it(beyond: int, tokenizer: Any) -> None:
    encoded = encode(observed([60, 60, 60], said=20), tokenizer)
    places = [np.flatnonzero(encoded.mask & (encoded.messages == index)) for index in (2, 4, 6, 8)]
    starts = [int(np.searchsorted(encoded.messages, index)) for index in (2, 4, 6, 8)]
    max_length = beyond + max(int(here[-1]) + 1 - start for here, start in zip(places, starts, strict=True))
    cut = windows(encoded, max_length)
    assert sum(window.loss_tokens for window in cut) == encoded.loss_tokens
    assert max(map(len, cut)) == max_length
    assert cut[1].cut
    first = int(np.flatnonzero(cut[1].mask)[0])
    context = tokenizer.decode(cut[1].input_ids[:first])
    assert context.endswith("<|im_start|>assistant\n")


def test_a_turn_that_is_too_long_alone_is_in_no_window(tokenizer: Any) -> None:
    encoded = encode(row([system(), user("Go."), assistant("push " * 99), user("Well."), assistant("stop")]), tokenizer)
    (window,) = windows(encoded, 60)
    assert tokenizer.decode(window.labels[window.mask].tolist()) == "stop<|im_end|>"
    assert windows(encode(row([user("Go."), assistant("push " * 99)]), tokenizer), 60) == []
