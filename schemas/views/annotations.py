"""What other tables say of one trajectory: verdicts, labels and values, of the whole or of one of its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from pydantic import AfterValidator

from agentmill.schemas.annotation_names import CRITERION
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Quality, Value, Verdict
from agentmill.schemas.views.conversation import answers

T = TypeVar("T")

Key = tuple[int | None, str]
"""(item, name); item ``None`` is the whole trajectory."""


class Annotations(msgspec.Struct, frozen=True):
    """Found by item and name; empty where there are no annotations.

    ``quality`` are the counts of the whole trajectory. ``repeated`` are the items of a part of a trajectory that an
    earlier part has shown: they carry loss there.
    """

    verdicts: Mapping[Key, Verdict] = {}
    labels: Mapping[Key, Label] = {}
    values: Mapping[Key, Value] = {}
    quality: Quality | None = None
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

    def outside(self, items: int) -> int:
        """How many annotations name an item that a trajectory of so many items does not have."""
        keys = (key for each in (self.verdicts, self.labels, self.values) for key in each)
        return sum(item is not None and not 0 <= item < items for item, _ in keys)

    def with_inherited(self, parent: Annotations, end: int) -> Annotations:
        """This evidence and, on the items before ``end``, that of a parent they were copied from.

        Where both have an annotation of one name on an item, that of the trajectory itself counts.
        """
        return msgspec.structs.replace(
            self,
            verdicts={**_before(parent.verdicts, end), **self.verdicts},
            labels={**_before(parent.labels, end), **self.labels},
            values={**_before(parent.values, end), **self.values},
        )


def _before(annotations: Mapping[Key, T], end: int) -> dict[Key, T]:
    return {key: each for key, each in annotations.items() if key[0] is not None and key[0] < end}


NOTHING = Annotations()
"""Where no other table speaks of a trajectory."""


KINDS = {"verdict": "verdict", "passed": "verdict", "value": "value"}
"""The annotations that a criterion may name, and which of these each asks for."""


def _known(criterion: str) -> str:
    kind, _, name = criterion.partition(":")
    if criterion not in ("outcome", "reward") and not (kind in KINDS and name):
        expected = "`outcome`, `reward`, `verdict:NAME` (its score), `passed:NAME` (1 or 0) or `value:NAME`"
        raise ValueError(f"{criterion!r} is no score; expected {expected}")
    return criterion


Criterion = Annotated[str, AfterValidator(_known), CRITERION]
"""``outcome``, ``reward``, ``verdict:NAME``, ``passed:NAME`` or ``value:NAME``."""


def score(criterion: str, trajectory: Trajectory, annotations: Annotations, item: int | None = None) -> float | None:
    """The score of ``trajectory``, or of the step whose first action is ``item``; ``None`` where nothing is known."""
    kind, _, name = criterion.partition(":")
    if kind in ("verdict", "passed"):
        verdict = annotations.verdict(name, item)
        # An unscored verdict says nothing; to count it as 0 would be a judgement.
        if verdict is None or verdict.status != "scored":
            return None
        if kind == "verdict":
            return verdict.score
        return None if verdict.passed is None else float(verdict.passed)
    if kind == "value":
        value = annotations.value(name, item)
        return value.value if value is not None else None
    if kind == "reward":
        if item is None:
            return trajectory.outcome.reward
        rewards = [each.reward for each in answers(trajectory.content, item) if each.reward is not None]
        return sum(rewards) if rewards else None
    return {"success": 1.0, "failure": 0.0}.get(trajectory.outcome.status)
