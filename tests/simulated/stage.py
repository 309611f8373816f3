"""The real ``sample`` stage on a simulated server and in simulated worlds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentmill.pipelines.engine.chunks import seed_table
from agentmill.pipelines.engine.stage_run import Job
from agentmill.pipelines.operators.sample import Sample
from agentmill.pipelines.operators.stage import Model, StageContext
from agentmill.pipelines.serving.endpoints import Endpoint
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import validate
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import Task
from tests.simulated.world import SPECS

SEED = 5


def sampling(folder: Path, tasks: Sequence[Task], endpoint: Endpoint, parameters: JsonObject, **config: Any) -> Job:
    """``sample`` over ``tasks`` into ``folder/explored``. ``parameters`` are its own, ``config`` is the model's."""
    table, worlds = seed_table(folder / "tasks", tasks), seed_table(folder / "environments", SPECS)
    given = {"policy": "actor", "tasks": "tasks", "environments": "environments", **parameters}
    stage: Sample = validate(Sample, given, "sample")
    config = {"policy": "vllm", "model": endpoint.model, "endpoints": [endpoint.base_url], **config}
    actor = Model(config=ModelConfig(**config), endpoints=[endpoint])
    return Job(
        operator="sample",
        name="explored",
        stage=stage,
        inputs={"tasks": [table], "environments": [worlds]},
        folder=folder / "explored",
        context=StageContext(seed=SEED, models={"actor": actor}),
    )
