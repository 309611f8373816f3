"""Long rows, cut at turn boundaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainers.tokens import IGNORED, Encoded, blocks


def windows(encoded: Encoded, max_length: int) -> list[Encoded]:
    """``encoded`` itself if it fits in ``max_length`` tokens, else sequences that fit and train each turn once.

    Every window begins with the opening (the system prompt and what else precedes the first assistant message). A
    later one goes on with the latest turns before it as context without loss, in at most half of the room that the
    opening leaves, but always the last one, whose observation its first turn answers. A turn that does not fit
    together with that is in no window; the list is empty if none fits.
    """
    if len(encoded) <= max_length:
        return [encoded]
    (_, opening), *turns = blocks(encoded)
    room = max_length - opening
    result: list[Encoded] = []
    first = 0
    while first < len(turns):
        context = _context(turns, first, room)
        if context is None:
            first += 1
            continue
        last = first
        while last + 1 < len(turns) and turns[last + 1][1] - turns[context][0] <= room:
            last += 1
        window = _window(encoded, opening, (turns[context][0], turns[first][0], turns[last][1]))
        if window.loss_tokens:
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


def _window(encoded: Encoded, opening: int, bounds: tuple[int, int, int]) -> Encoded:
    """The opening and the tokens from ``bounds[0]`` to ``bounds[2]``, with loss from ``bounds[1]`` on only."""
    begin, trained, end = bounds
    kept = np.r_[0:opening, begin:end]
    silent = kept < trained
    return replace(
        encoded,
        input_ids=encoded.input_ids[kept],
        labels=np.where(silent, np.int32(IGNORED), encoded.labels[kept]),
        weights=np.where(silent, np.float32(0), encoded.weights[kept]),
        messages=encoded.messages[kept],
    )
