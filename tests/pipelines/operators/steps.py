"""Running one step of a recipe in a folder, for tests of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.progress import StageProgress
from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.make_table import find_table, make_table, served
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.config import validate
from agentmill.schemas.tables import Manifest, Table

SEED = 5


def model(policy: str = "expert", **fields: Any) -> ServedModel:
    """A model that needs no server."""
    return ServedModel.of(ModelConfig(policy=policy, **fields))


def stage(operator: str, **parameters: Any) -> Operator:
    """The checked parameters of a step."""
    checked: Operator = validate(OPERATORS.load(operator), parameters, operator)
    return checked


class StepRun(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a recipe, ready to be made."""

    parameters: Operator
    inputs: Inputs
    context: StepContext
    runner: RunnerConfig = RunnerConfig()

    @property
    def folder(self) -> Path:
        """The folder of its table."""
        return self.context.folder

    def finished(self, replace: bool = False) -> Manifest | None:
        """The manifest if the table is there."""
        return find_table(self.parameters, self.inputs, self.context, replace)

    def run(
        self,
        endpoints: Mapping[str, Sequence[Endpoint]] | None = None,
        progress: StageProgress | None = None,
        **options: Any,
    ) -> Manifest:
        """Make the table; ``endpoints`` are those of its models by role."""
        context = served(self.context, endpoints or {})
        return make_table(self.parameters, self.inputs, context, runner=self.runner, progress=progress, **options)


def job(
    folder: Path, operator: str, name: str, models: dict[str, ServedModel] | None = None, /, **parameters: Any
) -> StepRun:
    """A step whose tables lie side by side in ``folder``."""
    step = stage(operator, **parameters)
    inputs = {role: [Table.open(folder / table) for table in tables] for role, tables in step.tables().items()}
    step.writes({role: [table.manifest.record for table in tables] for role, tables in inputs.items()})
    context = StepContext(operator=operator, name=name, folder=folder / name, seed=SEED, models=models or {})
    return StepRun(parameters=step, inputs=inputs, context=context)


def run(
    folder: Path, operator: str, name: str, models: dict[str, ServedModel] | None = None, /, **parameters: Any
) -> Manifest:
    """Run a step."""
    return job(folder, operator, name, models, **parameters).run()
