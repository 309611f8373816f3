"""Shares of a sequence or a set, the same in every run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from agentmill.pipelines.operators.bounds import Rows
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import derive_seed
from agentmill.schemas.tables import Table, read_columns


def falls_in(number: int, share: float) -> bool:
    """Whether the ``number``-th thing (from 0) falls into ``share``: of the first n things, ``floor(n * share)`` do."""
    # As it is written: the float 0.1 is no tenth, and the floor of a product may fall below.
    exact = Fraction(str(share))
    return math.floor((number + 1) * exact) > math.floor(number * exact)


def check_held_out(n: int, share: float, things: str, more: str = "a larger n") -> None:
    """Raises ``UserError`` if a ``share`` above 0 of ``n`` things, of which there are some, sets none aside.

    ``more`` is what would make more of them.
    """
    if n and share and not any(falls_in(number, share) for number in range(n)):
        least = math.ceil(1000 / n) / 1000
        raise UserError(
            f"held_out: {share} of {n} {things} sets none aside; expected at least one\n"
            f"give {f'held_out: {least:g} or more, or ' if least < 1 else ''}{more}, or leave held_out out",
            ErrorCode.SHARE_SETS_NONE_ASIDE,
        )


def chosen(identifier: str, share: float) -> bool:
    """Whether the thing of that id falls into a random ``share`` of all; a larger share holds a smaller one."""
    # ``derive_seed`` gives 31 bits.
    return derive_seed("share", identifier) < share * 2**31


def check_split(rows: Rows, split: str | None) -> None:
    """Raises ``UserError`` for a ``split`` that has none of the ``rows``, as far as that is known."""
    known = [name for name, n in (rows.splits or {}).items() if n and name is not None]
    if split is not None and known and not rows.of_split(split):
        raise UserError(
            f"there are no tasks of split {split!r} to play; known: {', '.join(known)}.{near_match(split, known)}\n"
            "choose another split, or set some tasks aside: `held_out` of propose, of environments that of spec_env",
            ErrorCode.SPLIT_EMPTY,
        )


def check_chosen(tables: Sequence[Table], splits: Sequence[str | None], share: float) -> None:
    """Raises ``UserError`` for one of ``splits`` of which ``share`` chooses no row; ``None`` is all of them."""
    found: Counter[str | None] = Counter()
    for table in tables:
        for shard in table.shards():
            columns = read_columns(shard, table.record_type, ["task_id", "split"]).to_pydict()
            rows = zip(columns["task_id"], columns["split"], strict=True)
            found.update(split for task_id, split in rows if chosen(str(task_id), share))
    for split in splits:
        if not (found[split] if split is not None else found.total()):
            known = ", ".join(f"{name or 'no split'} {n}" for name, n in found.items()) or "none"
            wanted = "no tasks" if split is None else f"no tasks of split {split!r}"
            raise UserError(
                f"there are {wanted} to play, with share: {share}; by split: {known}\n"
                "choose another split, a larger share, or make more tasks and environments, or hold more of them out",
                ErrorCode.SPLIT_EMPTY,
            )


def assign_groups(sizes: Mapping[str, int], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """The split of each group, so that the splits have about these ``shares`` of all things; the same in any order.

    The largest groups come first, each into the split that lacks the most; ``seed`` orders groups of one size. Raises
    ``UserError`` where a split would be empty.
    """
    total = sum(sizes.values())
    lacks = {name: share * total for name, share in shares.items()}
    found: dict[str, str] = {}
    order = sorted(sizes, key=lambda group: (-sizes[group], derive_seed("split", seed, group), group))
    empty = set(shares)
    for place, group in enumerate(order):
        # Where only so many groups are left as there are empty splits, each of these gets one.
        names = [name for name in shares if len(order) - place > len(empty) or name in empty]
        found[group] = max(names, key=lambda name: lacks[name])
        lacks[found[group]] -= sizes[group]
        empty.discard(found[group])
    if empty:
        named = ", ".join(name for name in shares if name in empty)
        raise UserError(
            f"{len(sizes)} groups of {total:,} trajectories cannot fill {len(shares)} splits: {named} would be empty\n"
            "name fewer splits in `shares`, split by something finer, or give more trajectories",
            ErrorCode.SPLIT_EMPTY,
        )
    return found
