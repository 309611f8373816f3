"""Runs whose context was shortened on the way, told in parts, each as the agent saw it at the time.

A part begins with what was shown after the context was shortened: the opening, the mark, the turns that stayed. These
were told before, so they carry no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from schemas.context import is_mark, shown_places
from schemas.ids import row_id
from schemas.rows import SftRow, UnpairedRow
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence, Key
from schemas.views.view import Unused, parameters_of

T = TypeVar("T")

TOLD_IN_PARTS = (SftRow, UnpairedRow)
"""Rows that teach an agent to act on what it sees; others may tell more than it saw."""


def rows_of(view: Any, trajectory: Trajectory, evidence: Evidence) -> list[Any]:
    """As ``make_rows`` of a ``View``, but for a run of ours in parts. Raises ``Unused`` if no part gives a row."""
    in_parts = view.record in TOLD_IN_PARTS and trajectory.generation is not None
    if not in_parts or not any(map(is_mark, trajectory.content)):
        made: list[Any] = view.make_rows(trajectory, evidence)
        return made
    rows: list[Any] = []
    why: Unused | None = None
    for part, said, places in parts(trajectory, evidence):
        try:
            rows += [_of_whole(row, places) for row in view.make_rows(part, said)]
        except Unused as error:
            why = why or error
    if not rows and why is not None:
        raise why
    parameters = parameters_of(view)
    return [
        msgspec.structs.replace(row, row_id=row_id(trajectory.trajectory_id, view.name, parameters, index))
        for index, row in enumerate(rows)
    ]


def parts(trajectory: Trajectory, evidence: Evidence) -> Iterator[tuple[Trajectory, Evidence, list[int]]]:
    """Each part of a run, what is said of it and of its items, and at which places of the run these stand."""
    content = trajectory.content
    starts = [place for place, item in enumerate(content) if is_mark(item)]
    for start, end in zip([-1, *starts], [*starts, len(content)], strict=True):
        before = shown_places(content[: start + 1])
        places = [*before, *range(start + 1, end)]
        items = [msgspec.structs.replace(content[place], context_operation="copied") for place in before]
        if start >= 0:
            mark = before.index(start)
            items[mark] = msgspec.structs.replace(content[start], turn=0)
        part = msgspec.structs.replace(trajectory, content=[*items, *content[start + 1 : end]])
        moved = _moved(evidence, {place: number for number, place in enumerate(places)})
        yield part, msgspec.structs.replace(moved, repeated=frozenset(range(len(before)))), places


def _of_whole(row: Any, places: Sequence[int]) -> Any:
    """A row of a part that names its item as other tables do: by its place in the whole run."""
    item = getattr(row, "item", None)
    return row if item is None else msgspec.structs.replace(row, item=places[item])


def _moved(evidence: Evidence, numbers: Mapping[int, int]) -> Evidence:
    return Evidence(
        verdicts=_of_part(evidence.verdicts, numbers),
        labels=_of_part(evidence.labels, numbers),
        values=_of_part(evidence.values, numbers),
    )


def _of_part(said: Mapping[Key, T], numbers: Mapping[int, int]) -> dict[Key, T]:
    return {
        (None if item is None else numbers[item], name): each
        for (item, name), each in said.items()
        if item is None or item in numbers
    }
