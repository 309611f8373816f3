"""Which rows are in a mixture: a share for each table, quotas over values, rows used again where a table is small.

Rows are drawn in an order that depends on the seed and their ids alone, so neither tables nor shards change the result:
first each row once (without replacement), then, up to ``repeat`` times, again in the same order. A row is taken if its
table has not reached its share and every quota that it falls under has room.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import msgspec

from agentmill.schemas.ids import random_key

Value = tuple[int, Hashable]
"""(number of the quota, value of its field)"""


class Pool:
    """The rows that may be drawn, each with its table, its size (1, or its tokens), and the quotas it falls under."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.tables = array("q")
        self.sizes = array("q")
        self.values: list[tuple[Value, ...]] = []
        self._shared: dict[tuple[Value, ...], tuple[Value, ...]] = {}

    def add(self, row_id: str, table: int, size: int, values: Sequence[Value] = ()) -> None:
        """Add a row. Rows of equal values share them in memory."""
        own = tuple(values)
        self.ids.append(row_id)
        self.tables.append(table)
        self.sizes.append(size)
        self.values.append(self._shared.setdefault(own, own))

    def order(self, seed: int) -> list[int]:
        """The rows in the order in which they are drawn."""
        return sorted(range(len(self.ids)), key=lambda row: (random_key(self.ids[row], seed), self.ids[row]))


class Mixture(msgspec.Struct, frozen=True):
    """``copies`` of each row of a pool that are in the mixture, and the size by target.

    ``full`` has the value whose quota kept a row out; without one, enough rows of its table had been drawn.
    """

    copies: Sequence[int]
    full: Mapping[int, Value]
    sizes: Sequence[int]


def shares(weights: Mapping[str, float], size: int) -> dict[str, int]:
    """``size`` divided by ``weights``, which sum to 1, by largest remainders; of equal ones the first name gains."""
    # The sum is 1 but for rounding, which would count in a mixture of millions.
    total = math.fsum(weights.values())
    exact = {name: weight / total * size for name, weight in weights.items()}
    found = {name: math.floor(each + 1e-9) for name, each in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (round(found[name] - exact[name], 9), name))
    for name in by_remainder[: size - sum(found.values())]:
        found[name] += 1
    return found


def draw(pool: Pool, order: Sequence[int], targets: Sequence[float], caps: Mapping[int, float], repeat: int) -> Mixture:
    """The mixture with at most ``targets`` of each table and ``caps`` of each value of a quota.

    A target is reached by the row that reaches or passes it; a cap is never passed. One target is for all tables
    together.
    """
    copies, kept_out = array("q", bytes(8 * len(pool.ids))), dict[int, Value]()
    sizes = [0] * len(targets)
    used: Counter[Value] = Counter()
    for _ in range(repeat):
        taken = False
        for row in order:
            group = pool.tables[row] if len(targets) > 1 else 0
            if sizes[group] >= targets[group]:
                continue
            size, values = pool.sizes[row], pool.values[row]
            full = next((value for value in values if used[value] + size > caps[value[0]]), None)
            if full is not None:
                kept_out[row] = full
                continue
            for value in values:
                used[value] += size
            sizes[group] += size
            copies[row] += 1
            taken = True
        if not taken:
            break
    return Mixture(copies, {row: value for row, value in kept_out.items() if not copies[row]}, sizes)


def largest(
    pool: Pool, order: Sequence[int], weights: Mapping[str, float], caps: Mapping[int, float], repeat: int
) -> Mixture:
    """The mixture of just these ``weights``, by table in their order, that is as large as can be drawn.

    Where quotas leave less than the tables have, the size is found by bisection.
    """

    def of_size(size: int) -> Mixture | None:
        targets = list(shares(weights, size).values())
        mixture = draw(pool, order, targets, caps, repeat)
        reached = all(found >= target for found, target in zip(mixture.sizes, targets, strict=True))
        return mixture if reached else None

    there = [0] * len(weights)
    for table, size in zip(pool.tables, pool.sizes, strict=True):
        there[table] += repeat * size
    most = math.floor(min(each / weight for each, weight in zip(there, weights.values(), strict=True)) + 1e-9)
    if (best := of_size(most)) is not None:
        return best
    best, possible, impossible = of_size(0), 0, most
    while impossible - possible > 1:
        middle = (possible + impossible) // 2
        if (mixture := of_size(middle)) is None:
            impossible = middle
        else:
            best, possible = mixture, middle
    assert best is not None
    return best
