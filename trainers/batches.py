"""Which rows make a batch, in which order, and how they become tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from agentmill.schemas.ids import derive_seed
from agentmill.trainers.tokens import IGNORED

POOL = 32
"""Groups that are sorted by length together: more means less padding and less chance in the order."""


def row_order(lengths: Sequence[int], group: int, count: int, seed: int) -> list[int]:
    """``count`` row numbers: shuffled pass after shuffled pass, rows of like length in the same group of ``group``.

    No row stands twice in a group, unless there are fewer rows than ``group``: a group learns nothing about the
    difference between rows from copies of one. ``count`` is a multiple of ``group``. The order is a function of the
    arguments alone, so a training that goes on after a stop meets the rows it would have met.
    """
    chance = random.Random(derive_seed("row_order", seed))
    order: list[int] = []
    left: list[int] = []
    while len(order) < count:
        fresh = chance.sample(range(len(lengths)), len(lengths))
        # What the last pass left over opens the first group; the same rows of this pass come at its end.
        stream = left + [row for row in fresh if row not in left] + [row for row in fresh if row in left]
        whole = len(stream) // group * group
        first = min(group, whole) if left else 0
        order += stream[:first] + _alike(stream[first:whole], lengths, group, chance)
        left = stream[whole:]
    return order[:count]


def _alike(stream: Sequence[int], lengths: Sequence[int], group: int, chance: random.Random) -> list[int]:
    """The rows of ``stream``, those of like length in the same group, in so many groups as ``POOL`` at a time."""
    order: list[int] = []
    for start in range(0, len(stream), group * POOL):
        pool = sorted(stream[start : start + group * POOL], key=lambda row: lengths[row])
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
    """Pads sequences to the longest of the batch, on the right: ``input_ids``, ``attention_mask``, labels, weights.

    Those of packs also have ``position_ids``, of which the padding gets 0, as if each place of it were a row.
    """

    def __init__(self, pad_token_id: int, packed: bool = False) -> None:
        self.padding: dict[str, float] = {"input_ids": pad_token_id, "labels": IGNORED, "weights": 0.0}
        if packed:
            self.padding["position_ids"] = 0

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A tensor of shape (rows, longest) for each."""
        batch = {name: padded([row[name] for row in rows], value) for name, value in self.padding.items()}
        return {**batch, "attention_mask": attended([row["input_ids"] for row in rows])}


class PairCollator:
    """Pads the sides of pairs as TRL's DPO trainer wants them: first the chosen ones of all pairs, then the rejected.

    ``completion_mask``, where TRL puts the loss, is our mask: tokens of the prompt and of observations are 0.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (2 × rows, longest), and ``weights`` of shape (rows)."""
        ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
        masks = [row[f"{side}_mask"] for side in ("chosen", "rejected") for row in rows]
        return {**masked(ids, masks, self.pad_token_id), "weights": torch.tensor([row["weight"] for row in rows])}


class UnpairedCollator:
    """Pads rows as TRL's KTO trainer wants them, with ``completion_mask``, where it puts the loss, being our mask.

    The ``KL_`` tensors are each prompt with the completion of the row before it in the batch, from which TRL estimates
    how far the model is from the reference. TRL makes them once for all batches, before its rows are shuffled; here
    they are made for each batch, since a row stands in another one in every pass. They are cut at ``max_length``.
    """

    def __init__(self, pad_token_id: int, max_length: int) -> None:
        self.pad_token_id = pad_token_id
        self.max_length = max_length

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (rows, longest), and ``label`` and ``weights`` of shape (rows)."""
        whole = masked([row["ids"] for row in rows], [row["mask"] for row in rows], self.pad_token_id)
        crossed = masked(self._crossed(rows, "ids"), self._crossed(rows, "mask"), self.pad_token_id)
        return {
            **whole,
            **{f"KL_{name}": tensor for name, tensor in crossed.items()},
            "label": torch.tensor([row["label"] for row in rows]),
            "weights": torch.tensor([row["weight"] for row in rows]),
        }

    def _crossed(self, rows: Sequence[dict[str, Any]], name: str) -> list[list[int]]:
        before = [rows[-1], *rows[:-1]]
        joined = [
            row[name][: row["prompt"]] + other[name][other["prompt"] :] for row, other in zip(rows, before, strict=True)
        ]
        return [values[: self.max_length] for values in joined]


class ComparisonCollator:
    """Pads the sides of pairs as TRL's reward trainer wants them: first all chosen ones, then the rejected."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (2 × rows, longest), and ``margin`` and ``weights`` of shape (rows)."""
        ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
        return {
            "input_ids": padded(ids, self.pad_token_id),
            "attention_mask": attended(ids),
            "margin": torch.tensor([row["margin"] for row in rows]),
            "weights": torch.tensor([row["weight"] for row in rows]),
        }


class ValueCollator:
    """Pads conversations that have a value."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (rows, longest), and ``values`` of shape (rows)."""
        ids = [row["ids"] for row in rows]
        return {
            "input_ids": padded(ids, self.pad_token_id),
            "attention_mask": attended(ids),
            "values": torch.tensor([row["value"] for row in rows]),
        }


def masked(ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Sequences in TRL's words for preferences."""
    return {
        "input_ids": padded(ids, pad_token_id),
        "attention_mask": attended(ids),
        "completion_mask": padded(masks, 0).long(),
    }


def padded(rows: Sequence[Sequence[float]], value: float) -> torch.Tensor:
    """A tensor of shape (rows, longest), filled with ``value`` on the right."""
    tensors = [torch.as_tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def attended(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """1 where ``padded`` has a value of a row, 0 where it fills."""
    lengths = torch.tensor([len(row) for row in rows])
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()
