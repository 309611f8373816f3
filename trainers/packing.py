"""Several short rows in one sequence, so that a batch is full of tokens and not of padding.

The rows of a pack do not see each other: each has positions from 0 on, by which transformers tells them apart.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed
from agentmill.trainers.tokens import IGNORED, Encoded

PROBE = 8
"""Tokens of each of the two rows with which a model is tried."""


@dataclass(frozen=True)
class Pack:
    """Rows one after the other, as arrays of one length; ``position_ids`` begin anew with every row."""

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    position_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.input_ids)


def packed(rows: Sequence[Encoded], capacity: int, seed: int) -> list[Pack]:
    """The rows in packs of at most ``capacity`` tokens; none is longer than that."""
    return [_join([rows[number] for number in numbers]) for numbers in best_fit(list(map(len, rows)), capacity, seed)]


def best_fit(lengths: Sequence[int], capacity: int, seed: int) -> list[list[int]]:
    """Row numbers by pack: the longest first, each where it leaves the least room (best fit decreasing).

    Chance decides between rows of one length. The packs are a function of the arguments alone.
    """
    chance = random.Random(derive_seed("best_fit", seed))
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for row in sorted(chance.sample(range(len(lengths)), len(lengths)), key=lambda row: -lengths[row]):
        place = bisect_left(rooms, (lengths[row], 0))
        if place < len(rooms):
            room, pack = rooms.pop(place)
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(row)
        insort(rooms, (room - lengths[row], pack))
    return packs


def _join(rows: Sequence[Encoded]) -> Pack:
    labels = [each.labels.copy() for each in rows]
    for each in labels:
        # What precedes the first token of a row in the pack is another row.
        each[0] = IGNORED
    return Pack(
        input_ids=np.concatenate([each.input_ids for each in rows]),
        labels=np.concatenate(labels),
        weights=np.concatenate([each.weights for each in rows]),
        position_ids=np.concatenate([np.arange(len(each), dtype=np.int32) for each in rows]),
    )


def check_apart(model: Any) -> None:
    """Raises ``UserError`` for a model in which the second row of a pack sees the first.

    Attention heeds the positions, but not every model consists of attention alone.
    """
    tokens = torch.arange(2 * PROBE, device=model.device).repeat(2, 1)
    tokens[1, :PROBE] = 0
    positions = torch.arange(PROBE, device=model.device).repeat(2, 2)
    training = model.training
    model.eval()
    with torch.no_grad():
        one, other = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, PROBE:]
    model.train(training)
    if (one - other).abs().max() > 0.01 * one.abs().max():
        raise UserError(
            "packing: the rows of a pack would see each other in this model; set packing: false",
            ErrorCode.PACKING_IMPOSSIBLE,
        )
