"""When an ``iterate`` ends before its last round, and which of its rounds is the best.

Whether it ends is a function of the evaluations that its rounds have left on the disk, so a run that is started again
comes to the same decision, and no state is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.operators.evaluate import RESULT, Evaluate
from agentmill.schemas.config import Config
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match

LESS_IS_BETTER = ("invalid_action_rate", "loop_rate", "truncation_rate")
MEASURES = ("success", *LESS_IS_BETTER)
"""What may be watched."""


class Until(Config):
    """Ends an ``iterate`` once a measure of an ``evaluate`` step in it gets worse.

    The loop ends when the measure has been worse than the best so far by more than ``falls`` for ``patience`` rounds in
    a row.
    """

    metric: str = Field(
        pattern=r"^([A-Za-z0-9_-]+/)?[A-Za-z0-9_-]+\.[a-z_]+$",
        description=f"what is watched, as STEP.MEASURE: {', '.join(MEASURES)}",
    )
    falls: float = Field(
        default=0.0, ge=0, le=1, description="how much worse than in the best round the measure may be, from 0 to 1"
    )
    patience: int = Field(default=1, ge=1, description="rounds in a row that are worse than that, and end the loop")
    split: str | None = Field(
        default=None,
        description="the split that is watched, none that results are reported on; null: the mean over all splits",
    )
    model: str | None = Field(default=None, description="the model that is watched; null: the last one of the step")

    @model_validator(mode="after")
    def _a_measure(self) -> Until:
        if self.measure not in MEASURES:
            raise ValueError(
                f"unknown measure {self.measure!r}; known: {', '.join(MEASURES)}.{near_match(self.measure, MEASURES)}"
            )
        return self

    @property
    def step(self) -> str:
        """The step whose evaluation is watched."""
        return self.metric.rpartition(".")[0].rpartition("/")[2]

    @property
    def measure(self) -> str:
        """What of it is watched."""
        return self.metric.rpartition(".")[2]

    def worse(self, value: float, than: float) -> bool:
        """Whether ``value`` is worse by more than ``falls``."""
        loss = value - than if self.measure in LESS_IS_BETTER else than - value
        # Shares of a few tasks are equal but for rounding.
        return loss > self.falls + 1e-9


class Decision(msgspec.Struct, frozen=True):
    """What the evaluations so far say: the measure of each finished round, the best round, and whether to stop.

    A measure is ``None`` where no episode of the round could be scored; ``best`` is ``None`` before the first one.
    """

    values: Sequence[float | None]
    best: int | None
    stops: bool


def check_watched(until: Until, evaluation: Evaluate, where: str) -> None:
    """Raises ``UserError`` unless ``evaluation`` plays the split and the model that are watched."""
    plays = list(evaluation.runs())
    for what, given, known in (
        ("split", until.split, {play.split for play in plays}),
        ("model", until.model, {play.label for play in plays}),
    ):
        if given is not None and given not in known:
            raise UserError(
                f"{where}: until.{what} is {given!r}, which {until.step} does not play; "
                f"known: {', '.join(sorted(known))}.{near_match(given, known)}",
                ErrorCode.UNKNOWN_NAME,
            )


def decide(until: Until, folders: Sequence[Path]) -> Decision:
    """The decision after the rounds in ``folders``, in their order, as far as their evaluations are there.

    An evaluation without what is watched is of an earlier recipe and will be made anew, so it counts as not made.
    A round whose measure is not known is neither good nor bad. Raises ``UserError`` for a damaged evaluation.
    """
    values: list[float | None] = []
    best: int | None = None
    highest, bad = math.nan, 0
    for number, folder in enumerate(folders, 1):
        file = folder / until.step / RESULT
        found = measured(until, file) if file.is_file() else None
        if found is None:
            break
        known = [each for each in found if each is not None]
        value = sum(known) / len(known) if len(known) == len(found) else None
        values.append(value)
        if value is None:
            continue
        if best is None or better(until, value, highest):
            best, highest = number, value
        bad = bad + 1 if until.worse(value, highest) else 0
        if bad >= until.patience:
            return Decision(values, best, True)
    return Decision(values, best, False)


def better(until: Until, value: float, than: float) -> bool:
    """Whether ``value`` is better at all; of equal rounds the first is the best."""
    return value < than if until.measure in LESS_IS_BETTER else value > than


def measured(until: Until, file: Path) -> list[float | None] | None:
    """The watched measure of each split in an ``evaluation.json``; ``None`` if it is of other splits or models.

    Raises ``UserError`` for a damaged file.
    """
    try:
        found = msgspec.json.decode(file.read_bytes())
        splits: Mapping[str, Mapping[str, Any]] = found["splits"]
        # Those of the step: a split also has them with legal commands only.
        model = until.model or found["models"][-1]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"{file} is damaged ({error}); remove it and run the recipe again", ErrorCode.DAMAGED_FILE
        ) from error
    names = list(splits) if until.split is None else [until.split]
    rows = [splits.get(name, {}).get(str(model), {}) for name in names]
    if not rows or any(until.measure not in row for row in rows):
        return None
    values = [row[until.measure] for row in rows]
    return [None if value is None else float(value) for value in values]
