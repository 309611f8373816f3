"""What other tables say of one trajectory: verdicts, labels and values, of the whole or of one of its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from schemas.verdict import Label, Value, Verdict

T = TypeVar("T")

Key = tuple[int | None, str]
"""(item, name); item ``None`` is the whole trajectory."""


class Evidence(msgspec.Struct, frozen=True):
    """Found by item and name; empty where nothing was said.

    ``repeated`` are the items of a part of a trajectory that an earlier part has shown: they carry loss there.
    """

    verdicts: Mapping[Key, Verdict] = {}
    labels: Mapping[Key, Label] = {}
    values: Mapping[Key, Value] = {}
    repeated: frozenset[int] = frozenset()

    def verdict(self, name: str, item: int | None = None) -> Verdict | None:
        """The verdict ``name`` on an item, or on the whole."""
        return self.verdicts.get((item, name))

    def label(self, name: str, item: int | None = None) -> Label | None:
        """The label ``name`` of an item, or of the whole."""
        return self.labels.get((item, name))

    def value(self, name: str, item: int | None = None) -> Value | None:
        """The value ``name`` at an item, or of the whole."""
        return self.values.get((item, name))

    def with_inherited(self, parent: Evidence, end: int) -> Evidence:
        """This evidence and, on the items before ``end``, that of a parent they were copied from.

        Where both have an annotation of one name on an item, that of the trajectory itself counts.
        """
        return Evidence(
            verdicts={**_before(parent.verdicts, end), **self.verdicts},
            labels={**_before(parent.labels, end), **self.labels},
            values={**_before(parent.values, end), **self.values},
            repeated=self.repeated,
        )


def _before(annotations: Mapping[Key, T], end: int) -> dict[Key, T]:
    return {key: each for key, each in annotations.items() if key[0] is not None and key[0] < end}


NOTHING = Evidence()
"""Where no other table speaks of a trajectory."""
