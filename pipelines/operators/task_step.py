"""The contract of a procedure: an operator that makes something other than one table, and runs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from agentmill.pipelines.operators.stage import Inputs, Stage
from agentmill.pipelines.recipes.context import RunContext
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts

MODEL = "Model"
"""What a training writes, in the place of the name of a record."""

REWARD_MODEL = "RewardModel"
"""What the training of a reward model writes: it scores text, so no later step can act with it."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a procedure gets from the run it is part of, by role; it may write into ``folder`` only."""

    recipe: str
    operator: str
    name: str
    folder: Path
    inputs: Inputs
    models: Mapping[str, ModelConfig]
    seed: int
    round: int = 0


class Achievement(msgspec.Struct, frozen=True, kw_only=True):
    """What a procedure did, counted as for a table; ``evaluation`` goes into the summary of the run."""

    counts: Counts
    reasons: dict[str, int]
    seconds: float
    evaluation: JsonObject = {}


class Procedure(Stage):
    """Parameters of an operator that runs by itself."""

    def run(self, assignment: Assignment, workbench: RunContext) -> Achievement:
        """Do it, or find it done. What is killed in the middle goes on at the next call.

        Raises ``UserError`` and the errors of a stage.
        """
        raise NotImplementedError
