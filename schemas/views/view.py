"""The contract of a view: which training rows a trajectory makes, and which of its text carries loss."""

from __future__ import annotations

from typing import ClassVar, Protocol

from schemas.record import Record
from schemas.trajectory import Trajectory


class View(Protocol):
    """A pure function with parameters: a ``Config`` whose fields are the parameters.

    Observations never carry loss, nor do items that a branch copied from its parent.
    """

    record: ClassVar[type[Record]]
    """The type of the rows."""

    def make_rows(self, trajectory: Trajectory) -> list[Record]:
        """The rows of one trajectory, ids by ``schemas.ids.row_id``; none if nothing in it would carry loss."""
