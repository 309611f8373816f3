"""Running one step of a recipe in a folder, for tests of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmill.pipelines.engine.stage_run import Job
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.stage import Model, Stage, StageContext
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import validate
from agentmill.schemas.tables import Manifest, Table

SEED = 5


def model(policy: str = "expert", **fields: Any) -> Model:
    """A model that needs no server."""
    return Model.of(ModelConfig(policy=policy, **fields))


def stage(operator: str, **parameters: Any) -> Stage:
    """The checked parameters of a step."""
    checked: Stage = validate(OPERATORS.load(operator), parameters, operator)
    return checked


def job(folder: Path, operator: str, name: str, models: dict[str, Model] | None = None, /, **parameters: Any) -> Job:
    """A step whose tables lie side by side in ``folder``."""
    step = stage(operator, **parameters)
    inputs = {role: [Table.open(folder / table) for table in tables] for role, tables in step.tables().items()}
    step.writes({role: [table.manifest.record for table in tables] for role, tables in inputs.items()})
    context = StageContext(seed=SEED, models=models or {})
    return Job(operator=operator, name=name, stage=step, inputs=inputs, folder=folder / name, context=context)


def run(
    folder: Path, operator: str, name: str, models: dict[str, Model] | None = None, /, **parameters: Any
) -> Manifest:
    """Run a step."""
    return job(folder, operator, name, models, **parameters).run()
