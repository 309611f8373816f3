"""Long rows, cut at turn boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainers.tables import tool_row, turns
from trainers.tokens import IGNORED, Encoded, blocks, encode
from trainers.windows import windows


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
    for max_length in (call, end - 1):
        (window,) = windows(encoded, max_length)
        assert window.input_ids.tolist() == encoded.input_ids[:call].tolist()
    assert windows(encoded, call - 1) == []
    assert opening < call


def test_an_opening_that_fills_the_window_leaves_nothing(tokenizer: Any) -> None:
    assert windows(encode(turns(3), tokenizer), 20) == []
