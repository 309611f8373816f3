"""The contract of a view: which training rows a trajectory makes, and which of its text carries loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from agentmill.schemas.chat import is_mark, shown_places
from agentmill.schemas.config import Config
from agentmill.schemas.ids import row_id
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.rows import PromptRow, ScorerRow, SftRow, UnpairedRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import Annotations, Key

LATER = frozenset({"arguments", "copied", "linearize", "thoughts", "thoughts_as"})
"""Parameters that views got after rows had been released: at their defaults they change no id of a row."""


class Unused(Exception):
    """A trajectory that makes no row; ``reason`` is a short code that is counted, the text says it in words."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class UnusableWeight(Unused):
    """The step at ``item`` has loss that cannot be weighed, since its score is unknown or negative."""

    def __init__(self, reason: str, detail: str, item: int) -> None:
        super().__init__(reason, f"item {item}: {detail}")
        self.detail = detail
        self.item = item


class View(Protocol):
    """A pure function with parameters: a ``Config`` whose fields are the parameters, each with a description.

    Observations never carry loss, nor do items that a branch copied from its parent, unless a parameter says so.
    """

    name: ClassVar[str]
    """What it is called in ``VIEWS``."""

    record: ClassVar[type[Record]]
    """The type of the rows."""

    def make_rows(self, trajectory: Trajectory, annotations: Annotations) -> Sequence[Record]:
        """The rows of one trajectory, at least one, ids by ``agentmill.schemas.ids.row_id``. Raises ``Unused``."""


def parameters_of(view: Any) -> JsonObject:
    """The parameters of a view as plain JSON; nested ones as they were given, without their defaults."""
    fields = type(view).model_fields
    dialogue = {name: getattr(view, name) for name in fields}
    return {
        name: _plain(value) for name, value in dialogue.items() if name not in LATER or value != fields[name].default
    }


def origin(view: Any, trajectory: Trajectory, index: int) -> dict[str, Any]:
    """What the ``index``-th row of a trajectory says of where it is from: the fields that all such rows share."""
    parameters = parameters_of(view)
    return {
        "row_id": row_id(trajectory.trajectory_id, view.name, parameters, index),
        "trajectory_id": trajectory.trajectory_id,
        "view": view.name,
        "view_parameters": parameters,
        "task_id": trajectory.task_id,
        "environment_id": trajectory.environment_id,
        "split": trajectory.split,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.model_dump(mode="json", exclude_unset=True)
    return [_plain(each) for each in value] if isinstance(value, list) else value


T = TypeVar("T")

TOLD_IN_PARTS = (SftRow, UnpairedRow)
"""Rows that teach an agent to act on what it sees; others may tell more than it saw."""
STEPS_IN_PARTS = (PromptRow, ScorerRow)
"""Rows that are so where there is one for each step."""


def rows_of(view: Any, trajectory: Trajectory, annotations: Annotations) -> list[Any]:
    """As ``make_rows`` of a ``View``, but for a run of ours in parts.

    Raises ``Unused`` if no part gives a row, and ``UnusableWeight`` if one has such a step, as for an undivided run.
    """
    by_step = view.record in STEPS_IN_PARTS and view.rows == "step"
    in_parts = (view.record in TOLD_IN_PARTS or by_step) and trajectory.generation is not None
    if not in_parts or not any(map(is_mark, trajectory.content)):
        made: list[Any] = view.make_rows(trajectory, annotations)
        return made
    rows: list[Any] = []
    why: Unused | None = None
    for part, found, places in parts(trajectory, annotations):
        try:
            rows += [_of_whole(row, places) for row in view.make_rows(part, found)]
        except UnusableWeight as error:
            raise UnusableWeight(error.reason, error.detail, places[error.item]) from None
        except Unused as error:
            why = why or error
    if not rows and why is not None:
        raise why
    parameters = parameters_of(view)
    return [
        msgspec.structs.replace(row, row_id=row_id(trajectory.trajectory_id, view.name, parameters, index))
        for index, row in enumerate(rows)
    ]


def parts(trajectory: Trajectory, annotations: Annotations) -> Iterator[tuple[Trajectory, Annotations, list[int]]]:
    """Each part of a run, its annotations and those of its items, and the places of these items in the run."""
    content = trajectory.content
    starts = [place for place, item in enumerate(content) if is_mark(item)]
    for start, end in zip([-1, *starts], [*starts, len(content)], strict=True):
        before = shown_places(content[: start + 1])
        places = [*before, *range(start + 1, end)]
        # What an earlier part has shown carries loss there, and copied items carry none.
        items = [msgspec.structs.replace(content[place], context_operation="copied") for place in before]
        if start >= 0:
            mark = before.index(start)
            # The summary precedes the first turn of the part, as an instruction does.
            items[mark] = msgspec.structs.replace(content[start], turn=0)
        part = msgspec.structs.replace(trajectory, content=[*items, *content[start + 1 : end]])
        moved = _moved(annotations, {place: number for number, place in enumerate(places)})
        yield part, msgspec.structs.replace(moved, repeated=frozenset(range(len(before)))), places


def _of_whole(row: Any, places: Sequence[int]) -> Any:
    """A row of a part that names its item as other tables do: by its place in the whole run."""
    item = getattr(row, "item", None)
    return row if item is None else msgspec.structs.replace(row, item=places[item])


def _moved(annotations: Annotations, numbers: Mapping[int, int]) -> Annotations:
    return msgspec.structs.replace(
        annotations,
        verdicts=_of_part(annotations.verdicts, numbers),
        labels=_of_part(annotations.labels, numbers),
        values=_of_part(annotations.values, numbers),
    )


def _of_part(found: Mapping[Key, T], numbers: Mapping[int, int]) -> dict[Key, T]:
    return {
        (None if item is None else numbers[item], name): each
        for (item, name), each in found.items()
        if item is None or item in numbers
    }
