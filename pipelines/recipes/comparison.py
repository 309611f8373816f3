"""Two recipes side by side: what of their long forms differs, step by step, by the names of the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentmill.pipelines.recipes.grammar import Recipe, output_name
from agentmill.pipelines.recipes.runner import resolved
from agentmill.pipelines.recipes.short_forms import inner_steps
from agentmill.schemas.config import differences
from agentmill.schemas.records.record import JsonObject

OF_A_RUN = ("name", "run_dir", "paper", "steps")
"""The keys of a recipe that are not compared with the others."""


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A step in both recipes: what of its parameters changes, as ``"n: 8 -> 12"``."""

    step: str
    changes: list[str]


class RecipeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How one recipe differs from another: ``settings`` are the keys outside of steps, such as ``models``.

    ``removed`` steps are in the first only, ``added`` ones in the second; ``moved`` are in both, in another order.
    """

    settings: list[str]
    removed: list[str]
    added: list[str]
    moved: list[str]
    steps: list[StepDifference]

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not (self.settings or self.removed or self.added or self.moved or self.steps)


def compared(first: Recipe, second: Recipe) -> RecipeDifference:
    """How ``second`` differs from ``first``; names, run directories and papers are not looked at."""
    old, new = resolved(first), resolved(second)
    ours, theirs = dict(steps_by_name(old["steps"])), dict(steps_by_name(new["steps"]))
    both = [name for name in ours if name in theirs]
    changed = ((name, differences(ours[name], theirs[name])) for name in both)
    others = [name for name in theirs if name in ours]
    return RecipeDifference(
        settings=differences(without(old, OF_A_RUN), without(new, OF_A_RUN)),
        removed=[name for name in ours if name not in theirs],
        added=[name for name in theirs if name not in ours],
        moved=[] if both == others else moved(both, others),
        steps=[StepDifference(step=name, changes=changes) for name, changes in changed if changes],
    )


def steps_by_name(steps: list[Any], prefix: str = "") -> Iterator[tuple[str, JsonObject]]:
    """The steps by name, those within a loop or a route as ``loop/explored``; without the steps in them.

    The second loop without a name is ``iterate-2``.
    """
    met: Counter[str] = Counter()
    for step in steps:
        inner = list(inner_steps(step))
        name = f"{prefix}{output_name(step)}"
        met[name] += 1
        name = name if met[name] == 1 else f"{name}-{met[name]}"
        yield name, without(step, {path[0] for path, _ in inner})
        for path, each in inner:
            yield from steps_by_name(each, f"{name}/{path[1]}/" if len(path) == 2 else f"{name}/")


def moved(ours: list[str], theirs: list[str]) -> list[str]:
    """The names that follow another name than before."""
    before = dict(zip(ours, ["", *ours], strict=False))
    after = dict(zip(theirs, ["", *theirs], strict=False))
    return [name for name in theirs if before[name] != after[name]]


def without(data: Mapping[str, Any], keys: Any) -> JsonObject:
    """``data`` without some keys."""
    return {key: value for key, value in data.items() if key not in keys}
