"""``train_sft``: a model tuned on conversations."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pipelines.stages.training import Training


class TrainSft(Training):
    """Supervised fine-tuning of a model on training rows, with TRL. What is not given is as the trainer has it."""

    trainer: ClassVar[str] = "sft"
    record: ClassVar[str] = "SftRow"

    long_rows: Literal["window", "drop"] | None = Field(None, description="what becomes of longer rows")
    objective: Literal["nll", "dft"] | None = Field(None, description="likelihood, or dynamic fine-tuning")
    packing: bool | None = Field(None, description="put short rows together; batch_size then counts packs")
