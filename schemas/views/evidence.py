"""What other tables say of one trajectory: verdicts, labels and values, of the whole or of one of its items."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schemas.verdict import Label, Value, Verdict

Key = tuple[int | None, str]
"""(item, name); item ``None`` is the whole trajectory."""


class Evidence(msgspec.Struct, frozen=True):
    """Found by item and name; empty where nothing was said."""

    verdicts: Mapping[Key, Verdict] = {}
    labels: Mapping[Key, Label] = {}
    values: Mapping[Key, Value] = {}

    def verdict(self, name: str, item: int | None = None) -> Verdict | None:
        """The verdict ``name`` on an item, or on the whole."""
        return self.verdicts.get((item, name))

    def label(self, name: str, item: int | None = None) -> Label | None:
        """The label ``name`` of an item, or of the whole."""
        return self.labels.get((item, name))

    def value(self, name: str, item: int | None = None) -> Value | None:
        """The value ``name`` at an item, or of the whole."""
        return self.values.get((item, name))


NOTHING = Evidence()
"""Where no other table speaks of a trajectory."""
