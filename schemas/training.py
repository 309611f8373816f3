"""Settings of a training that recipes and trainers share. Each default is declared here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.config import Config


class LoraSettings(Config):
    """Low-rank adaptation (arXiv:2106.09685): the base weights stay as they are, small matrices beside them learn."""

    rank: Annotated[int, Field(ge=1)] = Field(16, description="Rank of the matrices.")
    alpha: Annotated[float, Field(gt=0)] = Field(32.0, description="What they add is scaled by alpha / rank.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of their inputs that is dropped while training."
    )
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the layers that get them; `all-linear` is every one but the output head."
    )
    # A training makes a model: merged, it can be served, evaluated and trained further without its base.
    merge: bool = Field(
        True, description="Write a whole model, the matrices added to the base weights; false: the adapter alone."
    )
