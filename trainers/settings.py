"""What a trainer reads from its configuration: where rows and models lie, and what ``agentmill.schemas.training``
declares.

Imports nothing heavy, so that mistakes are reported at once.
"""

from __future__ import annotations

from pydantic import Field

from agentmill.schemas.training import DpoConfig, KtoConfig, Positive, RewardConfig, SftConfig, TrainConfig


class TrainSettings(TrainConfig):
    """Settings of every trainer: the tables and models that a recipe's step knows by name are folders here."""

    rows: str = Field(description="Folder of the table of training rows.")
    model: str = Field(description="Folder of the transformers model to start from, or `bundled:NAME`.")
    output: str = Field(description="Folder to write the tuned model to; it appears when training is complete.")
    recipe: str | None = Field(None, description="Name of the recipe this is a step of, for the model card.")
    resume: bool = Field(True, description="Continue from the checkpoints of the same training; false: start over.")
    log_steps: Positive = Field(1, description="Steps between the points of the recorded loss curve.")


class PreferenceSettings(TrainSettings):
    """Settings of trainers that keep a model close to a reference."""

    reference: str | None = Field(
        None, description="Folder of the model to stay close to, or `bundled:NAME`; `null`: the one to start from."
    )


class SftSettings(SftConfig, TrainSettings):
    """Settings of supervised fine-tuning on a table of ``SftRow``."""


class DpoSettings(DpoConfig, PreferenceSettings):
    """Settings of direct preference optimization on a table of ``PreferenceRow``."""


class KtoSettings(KtoConfig, PreferenceSettings):
    """Settings of Kahneman-Tversky optimization on a table of ``UnpairedRow``."""


class RewardSettings(RewardConfig, TrainSettings):
    """Settings of a reward model on a table of ``PreferenceRow`` or ``ScorerRow``."""
