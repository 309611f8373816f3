"""Which rows make a batch, and the tensors they become."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentmill.trainers.batches import Collator, row_order

lengths = st.lists(st.integers(1, 500), min_size=1, max_size=60)


@given(lengths, st.integers(1, 8), st.integers(1, 30), st.integers(0, 3))
def test_rows_come_equally_often_and_none_meets_itself_in_a_group(
    lengths: list[int], group: int, steps: int, seed: int
) -> None:
    order = row_order(lengths, group, group * steps, seed)
    seen = np.bincount(order, minlength=len(lengths))
    assert len(order) == group * steps
    assert seen.max() - seen.min() <= 1
    if len(lengths) >= group:
        groups = [order[start : start + group] for start in range(0, len(order), group)]
        assert all(len(set(rows)) == group for rows in groups)


def test_the_order_is_a_function_of_the_seed() -> None:
    sizes = list(range(100))
    assert row_order(sizes, 4, 100, 1) == row_order(sizes, 4, 100, 1)
    assert row_order(sizes, 4, 100, 1) != row_order(sizes, 4, 100, 2)


def test_rows_of_like_length_share_a_batch() -> None:
    sizes = [10 * (1 + index % 16) for index in range(512)]
    order = row_order(sizes, 8, 512, 0)
    longest = sum(8 * max(sizes[row] for row in order[start : start + 8]) for start in range(0, 512, 8))
    assert longest <= 1.05 * sum(sizes)
    first = [sizes[order[start]] for start in range(0, 512, 8)]
    assert first != sorted(first)


def test_padding_is_on_the_right_and_without_loss() -> None:
    batch = Collator(pad_token_id=7)(
        [
            {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "weights": [0.0, 1.0, 0.5]},
            {"input_ids": [4], "labels": [4], "weights": [1.0]},
        ]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["labels"].tolist() == [[-100, 2, 3], [4, -100, -100]]
    assert batch["weights"].tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].dtype == torch.int64
