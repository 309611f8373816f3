"""Long rows, cut at turn boundaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentmill.trainers.tokens import IGNORED, Encoded, blocks


def windows(encoded: Encoded, max_length: int) -> list[Encoded]:
    """``encoded`` itself if it fits in ``max_length`` tokens, else sequences that fit and train each turn once.

    Every window begins with the opening (the system prompt and what else precedes the first assistant message). A
    later one goes on with the latest turns before it as context without loss, in at most half of the room that the
    opening leaves, but always the last one, whose observation its first turn answers. Where this does not fit, the
    window is of one turn and ends with its loss; its context is the last turn, or the last observation, or as many of
    the last tokens before it as there is room for. Only a turn that is longer than ``max_length`` is in no window; the
    list is empty if all are.
    """
    if len(encoded) <= max_length:
        return [encoded]
    (_, opening), *turns = blocks(encoded)
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
    end = start + int(trained[-1]) + 1
    opening = turns[0][0]
    seen = start
    if first > 0:
        previous = turns[first - 1][0]
        if opening + end - previous <= max_length:
            return _window(encoded, np.r_[0:opening, previous:end], start)
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
