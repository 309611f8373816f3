"""``train_reward``: a model that scores runs, tuned on pairs or on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.stages.procedure import REWARD_MODEL
from pipelines.stages.stage import expect
from pipelines.stages.training import Training


class TrainReward(Training):
    """A reward model with TRL, on pairs or on conversations with values. What is not given is as the trainer has it."""

    trainer: ClassVar[str] = "reward"

    margin: bool | None = Field(None, description="chosen is to be ahead by the difference of the scores; pairs only")
    center_rewards_coefficient: Annotated[float, Field(ge=0)] | None = Field(
        None, description="pulls the mean reward to 0; pairs only"
    )

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """A reward model."""
        expect(reads, "rows", "PreferenceRow", "ScorerRow")
        return REWARD_MODEL
