"""From sequences to batches: long rows cut into windows, short ones packed, the order of rows, and padding."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import derive_seed
from agentmill.trainers.tokenization import IGNORED, Encoded, turn_ranges

POOL = 32
"""Groups that are sorted by length together: more means less padding and less chance in the order."""


def row_order(lengths: Sequence[int], group: int, count: int, seed: int) -> list[int]:
    """``count`` row numbers: shuffled pass after shuffled pass, rows of like length in the same group of ``group``.

    No row is twice in a group, unless there are fewer rows than ``group``: a group learns nothing about the
    difference between rows from copies of one. ``count`` is a multiple of ``group``. The order is a function of the
    arguments alone, so a resumed training meets the rows that it would have met.
    """
    chance = random.Random(derive_seed("row_order", seed))
    order: list[int] = []
    left: list[int] = []
    while len(order) < count:
        fresh = chance.sample(range(len(lengths)), len(lengths))
        # What the last pass left over opens the first group; the same rows of this pass come at its end.
        over = set(left)
        stream = left + [row for row in fresh if row not in over] + [row for row in fresh if row in over]
        whole = len(stream) // group * group
        # Sorted by length as well, it could mix rows left from the last pass with the same rows of this one.
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
        # Without it, steps would go from short rows to long ones within every pool.
        chance.shuffle(groups)
        order += [row for rows in groups for row in rows]
    return order


def cut_windows(encoded: Encoded, max_length: int) -> list[Encoded]:
    """``encoded`` itself if it fits in ``max_length`` tokens, else sequences that fit and train each turn once.

    Every window begins with the opening (the system prompt and what else precedes the first assistant message). A
    later one continues with the latest turns before it as context without loss, in at most half of the room that the
    opening leaves, but always the last one, whose observation its first turn answers. Where this does not fit, the
    window is of one turn and ends with its loss; its context is the last turn, or the last observation, or as many of
    the last tokens before it as there is room for. Only a turn that is longer than ``max_length`` is in no window; the
    list is empty if all are, or no token carries loss.
    """
    if len(encoded) <= max_length:
        # Such a batch would have no loss to divide; of a turn whose arguments alone carry loss all may be empty.
        return [encoded] if encoded.loss_tokens else []
    (_, opening), *turns = turn_ranges(encoded)
    room = max_length - opening
    result: list[Encoded] = []
    first = 0
    while first < len(turns):
        last = first
        context = _context(turns, first, room)
        if context is None:
            window = _single(encoded, turns, first, max_length)
        else:
            while last + 1 < len(turns) and turns[last + 1][1] - turns[context][0] <= room:
                last += 1
            kept = np.r_[0:opening, turns[context][0] : turns[last][1]]
            window = _window(encoded, kept, turns[first][0])
        # A window of turns that carry no loss would be a sequence that trains nothing.
        if window is not None and window.loss_tokens:
            result.append(replace(window, row_id=f"{encoded.row_id}#{len(result)}"))
        first = last + 1
    return result


def _context(turns: list[tuple[int, int]], first: int, room: int) -> int | None:
    """The turn with which a window that trains from ``first`` on begins; ``None`` if turn ``first`` does not fit."""
    context = max(first - 1, 0)
    if turns[first][1] - turns[context][0] > room:
        return None
    while (
        context > 0
        and turns[first][0] - turns[context - 1][0] <= room // 2
        and (turns[first][1] - turns[context - 1][0] <= room)
    ):
        context -= 1
    return context


def _single(encoded: Encoded, turns: list[tuple[int, int]], first: int, max_length: int) -> Encoded | None:
    """The turn ``first`` with what fits before it, up to the end of its loss; what it led to carries none.

    ``None`` if it has no loss, or is too long.
    """
    start, end = turns[first]
    trained = np.flatnonzero(encoded.mask[start:end])
    if len(trained) == 0 or trained[-1] + 1 > max_length:
        return None
    # Observations after the last token with loss would only take room from the context.
    end = start + int(trained[-1]) + 1
    opening = turns[0][0]
    seen = start
    if first > 0:
        previous = turns[first - 1][0]
        if opening + end - previous <= max_length:
            return _window(encoded, np.r_[0:opening, previous:end], start)
        # Of the previous turn its assistant message is left out first: this turn responds to the observation.
        seen = int(np.searchsorted(encoded.messages, encoded.messages[previous] + 1))
    left = max_length - (end - start)
    if opening <= left:
        kept = np.r_[0:opening, max(seen, start - (left - opening)) : end]
    else:
        before = np.r_[0:opening, seen:start]
        kept = np.r_[before[len(before) - left :], start:end]
    cut = len(kept) < opening + end - seen
    return replace(_window(encoded, kept, start), cut=cut)


def _window(encoded: Encoded, kept: NDArray[np.int64], trained: int) -> Encoded:
    """The tokens at the places ``kept``, with loss on those from the place ``trained`` on only."""
    silent = kept < trained
    return replace(
        encoded,
        input_ids=encoded.input_ids[kept],
        labels=np.where(silent, np.int32(IGNORED), encoded.labels[kept]),
        weights=np.where(silent, np.float32(0), encoded.weights[kept]),
        messages=encoded.messages[kept],
    )


PROBE = 8
"""Tokens of each of the two rows with which a model is tried."""


def best_fit(lengths: Sequence[int], capacity: int, seed: int) -> list[list[int]]:
    """Row numbers by pack: the longest first, each where it leaves the least room (best fit decreasing).

    Chance decides between rows of one length. The packs are a function of the arguments alone.
    """
    chance = random.Random(derive_seed("best_fit", seed))
    packs: list[list[int]] = []
    # Rooms of one size together, so that the cost of a row depends on the capacity and not on the number of packs.
    sizes: list[int] = []
    packs_of: dict[int, list[int]] = {}
    for row in sorted(chance.sample(range(len(lengths)), len(lengths)), key=lambda row: -lengths[row]):
        # Sizes are sorted, so the first that is large enough leaves the least.
        place = bisect_left(sizes, lengths[row])
        if place < len(sizes):
            room = sizes[place]
            pack = heappop(packs_of[room])
            if not packs_of[room]:
                del sizes[place], packs_of[room]
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(row)
        left = room - lengths[row]
        if left not in packs_of:
            insort(sizes, left)
        heappush(packs_of.setdefault(left, []), pack)
    return packs


def join(rows: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Rows one after the other, as arrays of one length; ``position_ids`` begin anew with every row.

    Rows may be trees (``agentmill.trainers.prefix_sharing``), whose structure then counts from the start of the pack.
    """
    labels = [np.array(each["labels"]) for each in rows]
    for each in labels:
        # What precedes the first token of a row in the pack is another row.
        each[0] = IGNORED
    positions = [each.get("position_ids", np.arange(len(each["input_ids"]))) for each in rows]
    joined = {"labels": np.concatenate(labels), "position_ids": np.concatenate(positions)}
    for name in ("input_ids", "weights", "copies"):
        if name in rows[0]:
            joined[name] = np.concatenate([each[name] for each in rows])
    starts = np.cumsum([0, *(len(each["input_ids"]) for each in rows)])
    for name in ("parents", "ends"):
        if name in rows[0]:
            joined[name] = np.concatenate([each[name] + start for each, start in zip(rows, starts, strict=False)])
    return joined


def check_rows_stay_apart(model: Any, flat: bool = False) -> None:
    """Raises ``UserError`` for a model in which the second row of a pack sees the first; ``flat``: in batches of one.

    Attention heeds the positions, but not every model consists of attention alone.
    """
    tokens = torch.arange(2 * PROBE, device=model.device).repeat(2, 1)
    # Both packs end with the same row and begin with different ones.
    tokens[1, :PROBE] = 0
    positions = torch.arange(PROBE, device=model.device).repeat(2, 2)
    # Dropout alone would make the two outputs differ.
    training = model.training
    model.eval()
    with torch.no_grad():
        batches = zip(tokens.split(1), positions.split(1), strict=True) if flat else [(tokens, positions)]
        outputs = [model(input_ids=ids, position_ids=places, use_cache=False).logits for ids, places in batches]
        one, other = torch.cat(outputs)[:, PROBE:]
    model.train(training)
    # Not exactly equal: kernels round differently, most of all in bf16.
    if (one - other).abs().max() > 0.01 * one.abs().max():
        raise UserError(
            "packing: the rows of a pack would see each other in this model; set packing: false",
            ErrorCode.PACKING_IMPOSSIBLE,
        )


def pad(rows: Sequence[Sequence[float]], value: float) -> torch.Tensor:
    """A tensor of shape (rows, longest), filled with ``value`` on the right."""
    tensors = [torch.as_tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def attention_mask(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """1 where ``pad`` has a value of a row, 0 where it fills."""
    lengths = torch.tensor([len(row) for row in rows])
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()
