"""``train_dpo``: a model tuned on pairs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipelines.stages.preference import PreferenceTraining
from schemas.training import check_losses

PairLoss = Literal[
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "aot",
    "aot_unpaired",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
]


class TrainDpo(PreferenceTraining):
    """Direct preference optimization (arXiv:2305.18290) with TRL. What is not given is as the trainer has it."""

    trainer: ClassVar[str] = "dpo"
    record: ClassVar[str] = "PreferenceRow"

    loss_type: list[PairLoss] | None = Field(
        None, min_length=1, description="losses that are added, in TRL's words: sigmoid, ipo, sft, …"
    )
    loss_weights: list[float] | None = Field(None, description="the weight of each loss")
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = Field(
        None, description="share of pairs taken to be in the wrong order"
    )

    @model_validator(mode="after")
    def _losses_fit(self) -> Self:
        check_losses(self.loss_type, self.loss_weights, self.label_smoothing)
        return self
