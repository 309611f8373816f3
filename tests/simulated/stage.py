"""The real ``sample`` stage on a simulated server and in simulated worlds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.engine.endpoints import Endpoint
from pipelines.engine.job import Job
from pipelines.engine.seeds import seed_table
from pipelines.models import ModelConfig
from pipelines.stages.sample import Sample
from pipelines.stages.stage import Model, StageContext
from schemas.config import validate
from schemas.record import JsonObject
from schemas.task import Task
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
