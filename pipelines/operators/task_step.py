"""Operators that make something other than one table: a model, an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did, counted as for a table. ``evaluation`` and ``notes`` go into the summary of the run."""

    counts: Counts
    reasons: dict[str, int]
    seconds: float
    evaluation: JsonObject = {}
    notes: list[str] = []


class TaskStep(Operator):
    """Parameters of an operator that runs by itself, and not as an operation over the rows of a table."""

    def run(
        self, inputs: Inputs, models: Mapping[str, ModelConfig], context: StepContext, run: RunContext
    ) -> StepResult:
        """Do it, or find it done; ``inputs`` and ``models`` are by role. It writes into ``context.folder`` only.

        A step that is killed continues at the next call. Raises ``UserError`` and the errors of ``RunContext.make``.
        """
        raise NotImplementedError
