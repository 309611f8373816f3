"""What watches a training while it runs: rows to validate on, loggers, and limits that end it early."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentmill.schemas.config import Config

Positive = Annotated[int, Field(ge=1)]


class SampleConfig(Config):
    """What the model continues at each validation, greedily, for people to read."""

    n: Positive = Field(4, description="Prompts: those of the first validation rows that have one.")
    max_tokens: Positive = Field(64, description="Longest continuation in tokens.")


class ValidationConfig(Config):
    """Rows that are not trained on, and what their loss decides. They are a ``share`` of the rows, those of a
    ``split``, or the table ``validation_rows``."""

    share: Annotated[float, Field(gt=0, le=0.5)] | None = Field(
        None, description="Share of the rows that is set aside, by whole tasks, drawn by the seed: 0.05."
    )
    split: str | None = Field(None, description="The rows of this split of the table are set aside.")
    every: Positive | None = Field(None, description="Steps between validations; `null`: a tenth of the steps.")
    keep: Literal["last", "best"] = Field(
        "last", description="The model that is written: of the last step, or of the lowest validation loss."
    )
    patience: Positive | None = Field(
        None, description="Ends the training after so many validations without a lower loss; `null`: never."
    )
    min_delta: Annotated[float, Field(ge=0)] = Field(
        0.0, description="For `patience`, how much lower a loss must be to count as lower."
    )
    samples: SampleConfig | None = Field(
        None, description="Continuations of validation prompts at each validation, `{n: 4, max_tokens: 64}`."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.share is not None and self.split is not None:
            raise ValueError("`share` and `split` both choose the rows that are set aside; give one of the two")
        if self.min_delta and self.patience is None:
            raise ValueError("`min_delta` is for what `patience` counts; set `patience` too")
        return self


Logger = Literal["tensorboard", "wandb", "trackio"]
"""The loggers that a training can report to, by the names of their packages."""


class DriftLimits(Config):
    """Ends a training early, once the mean of a measure over the last ``window`` points of the loss curve is beyond a
    limit. The model of that step is the result."""

    kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description="KTO: largest estimate of the KL divergence from the reference, in nats per completion."
    )
    margin: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Largest difference of the rewards of chosen and rejected."
    )
    chosen_change: Annotated[float, Field(lt=0)] | None = Field(
        None, description="Least change of the chosen side against the reference, in nats per token: -0.5."
    )
    entropy: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Least entropy of the model's tokens with loss, in nats."
    )
    window: Positive = Field(10, description="Points of the curve; before there are so many nothing is decided.")

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.limits:
            raise ValueError("it sets no limit; give one of kl, margin, chosen_change, entropy")
        return self

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by measure."""
        given = {name: getattr(self, name) for name in ("kl", "margin", "chosen_change", "entropy")}
        return {name: limit for name, limit in given.items() if limit is not None}
