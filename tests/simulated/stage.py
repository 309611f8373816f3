"""The real ``sample`` stage on a simulated server and in simulated worlds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.rollout import Episodes
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.config import validate
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from tests.pipelines.operators.steps import StepRun
from tests.simulated.environment import SPECS

SEED = 5


def sampling(folder: Path, tasks: Sequence[Task], endpoint: Endpoint, parameters: JsonObject, **config: Any) -> StepRun:
    """``sample`` over ``tasks`` into ``folder/explored``. ``parameters`` are its own, ``config`` is the model's."""
    table, worlds = seed_table(folder / "tasks", tasks), seed_table(folder / "environments", SPECS)
    given = {"policy": "actor", "tasks": "tasks", "environments": "environments", **parameters}
    stage: Episodes = validate(OPERATORS.load("sample"), given, "sample")
    config = {"policy": "vllm", "model": endpoint.model, "endpoints": [endpoint.base_url], **config}
    actor = ServedModel(config=ModelConfig(**config), endpoints=[endpoint])
    context = StepContext(
        operator="sample", name="explored", folder=folder / "explored", seed=SEED, models={"actor": actor}
    )
    return StepRun(parameters=stage, inputs={"tasks": [table], "environments": [worlds]}, context=context)
