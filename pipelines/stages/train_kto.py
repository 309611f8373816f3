"""``train_kto``: a model tuned on good and bad rows."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipelines.stages.preference import PreferenceTraining
from schemas.training import check_crossed


class TrainKto(PreferenceTraining):
    """Kahneman-Tversky optimization (arXiv:2402.01306) on labelled rows. What is not given is as the trainer has it."""

    trainer: ClassVar[str] = "kto"
    record: ClassVar[str] = "UnpairedRow"

    loss_type: Literal["kto", "apo_zero_unpaired"] | None = Field(None, description="the loss, in TRL's words")
    desirable_weight: Annotated[float, Field(gt=0)] | None = Field(None, description="weight of the loss of good rows")
    undesirable_weight: Annotated[float, Field(gt=0)] | None = Field(None, description="weight of the loss of bad rows")

    @model_validator(mode="after")
    def _crosses_rows(self) -> Self:
        check_crossed(self.loss_type, self.batch_size)
        return self
