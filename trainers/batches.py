"""Which rows make a batch, in which order, and how they become tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from schemas.ids import derive_seed
from trainers.tokens import IGNORED

POOL = 32
"""Groups that are sorted by length together: more means less padding and less chance in the order."""


def row_order(lengths: Sequence[int], group: int, count: int, seed: int) -> list[int]:
    """``count`` row numbers: shuffled pass after shuffled pass, rows of like length in the same group of ``group``.

    ``count`` is a multiple of ``group``. The order is a function of the arguments alone, so a training that goes on
    after a stop meets the rows it would have met.
    """
    chance = random.Random(derive_seed("row_order", seed))
    stream: list[int] = []
    while len(stream) < count:
        stream += chance.sample(range(len(lengths)), len(lengths))
    order: list[int] = []
    for start in range(0, count, group * POOL):
        pool = sorted(stream[start : min(start + group * POOL, count)], key=lambda row: lengths[row])
        groups = [pool[first : first + group] for first in range(0, len(pool), group)]
        chance.shuffle(groups)
        order += [row for rows in groups for row in rows]
    return order


class FixedOrder(Sampler[int]):
    """A sampler that gives the row numbers as they are."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


class Collator:
    """Pads sequences to the longest of the batch, on the right: ``input_ids``, ``attention_mask``, labels, weights."""

    def __init__(self, pad_token_id: int) -> None:
        self.padding: dict[str, float] = {"input_ids": pad_token_id, "labels": IGNORED, "weights": 0.0}

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A tensor of shape (rows, longest) for each."""
        batch = {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.as_tensor(row[name]) for row in rows], batch_first=True, padding_value=value
            )
            for name, value in self.padding.items()
        }
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return batch
