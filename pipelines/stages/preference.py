"""What the steps that train a model on preferences share: a model that it is kept close to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.stages.training import Training


class PreferenceTraining(Training):
    """A training against a reference model."""

    model_roles: ClassVar[Mapping[str, str]] = {"model": "model", "reference": "reference"}

    reference: str | None = Field(
        None, description="the model to stay close to: an entry of models, @base or @last; by default the one of model"
    )
    beta: Annotated[float, Field(gt=0)] | None = Field(None, description="how strongly it is kept close")
