"""A step of a plan: its place, its checked parameters, and the tables and models that it works with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentmill.pipelines.operators.annotations import Names
from agentmill.pipelines.operators.operator import Operator, StepContext
from agentmill.pipelines.serving.models import ModelConfig


class Output(msgspec.Struct, frozen=True):
    """A table that a step may read; ``record`` names the type of its rows.

    ``names`` are those of the annotations it holds, ``families`` those of its environments; ``None``: not known yet.
    ``certain`` is false for that of a round before which ``until`` may end the loop.
    """

    name: str
    folder: Path
    record: str
    names: Names = None
    families: frozenset[str] | None = None
    certain: bool = True


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is ready to run. ``where`` is its place in the recipe, for messages.

    ``context.seed`` is what the step uses unless its parameters have one. ``min_used`` is the least share of its inputs
    that it has to use.
    """

    where: str
    parameters: Operator
    context: StepContext
    inputs: dict[str, list[Output]]
    models: dict[str, ModelConfig]
    min_used: float = 0.0

    @property
    def name(self) -> str:
        """Its name in the run."""
        return self.context.name

    @property
    def folder(self) -> Path:
        """The folder of what it makes."""
        return self.context.folder
