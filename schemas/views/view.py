"""The contract of a view: which training rows a trajectory makes, and which of its text carries loss."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from schemas.config import Config
from schemas.ids import row_id
from schemas.record import JsonObject, Record
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence

LATER = frozenset({"copied", "linearize"})
"""Parameters that views got after rows had been released: at their defaults they change no id of a row."""


class Unused(Exception):
    """A trajectory that makes no row; ``reason`` is a short code that is counted, the text says it in words."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class View(Protocol):
    """A pure function with parameters: a ``Config`` whose fields are the parameters, each with a description.

    Observations never carry loss, nor do items that a branch copied from its parent, unless a parameter says so.
    """

    name: ClassVar[str]
    """What it is called in ``VIEWS``."""

    record: ClassVar[type[Record]]
    """The type of the rows."""

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[Record]:
        """The rows of one trajectory, at least one, ids by ``schemas.ids.row_id``. Raises ``Unused``."""


def parameters_of(view: Any) -> JsonObject:
    """The parameters of a view as plain JSON; nested ones as they were given, without their defaults."""
    fields = type(view).model_fields
    told = {name: getattr(view, name) for name in fields}
    return {name: _plain(value) for name, value in told.items() if name not in LATER or value != fields[name].default}


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
