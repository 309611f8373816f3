"""The contract of a view: which training rows a trajectory makes, and which of its text carries loss."""

from __future__ import annotations

from typing import ClassVar, Protocol

from schemas.record import Record
from schemas.trajectory import Trajectory
from schemas.views.evidence import Evidence


class Unused(Exception):
    """A trajectory that makes no row; ``reason`` is a short code that is counted, the text says it in words."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class View(Protocol):
    """A pure function with parameters: a ``Config`` whose fields are the parameters, each with a description.

    Observations never carry loss, nor do items that a branch copied from its parent.
    """

    name: ClassVar[str]
    """What it is called in ``VIEWS``."""

    record: ClassVar[type[Record]]
    """The type of the rows."""

    def make_rows(self, trajectory: Trajectory, evidence: Evidence) -> list[Record]:
        """The rows of one trajectory, at least one, ids by ``schemas.ids.row_id``. Raises ``Unused``."""
