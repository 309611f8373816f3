"""A rollout with a server of its own, for tests that kill its processes: planning worlds, and a simulated model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentmill.pipelines.engine.runner import RunnerConfig
from agentmill.pipelines.operators.make_table import make_table
from agentmill.pipelines.operators.operator import StepContext
from agentmill.pipelines.operators.registry import OPERATORS
from agentmill.pipelines.operators.rollout import Episodes
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.served_model import ServedModel
from agentmill.schemas.config import validate
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.schemas.tables import Table
from agentmill.synthesis.environments.pddl.environment import PddlEnvironment
from tests.pipelines.engine.stages import rows_of, write_table
from tests.simulated.answers import Behaviour
from tests.simulated.server import running

EXPLORED = "rolled"
TASKS = 8
ATTEMPTS = 4
WINDOW = 4
PARAMETERS = {"policy": "actor", "tasks": "tasks", "environments": "environments", "k": ATTEMPTS, "window": WINDOW}
CHOOSING = {"constrain": "admissible", "max_turns": 8}


def make_rollout_input(folder: Path) -> None:
    """Tasks in four chunks, and their worlds."""
    examples = PddlEnvironment.examples()
    tasks = [msgspec.structs.replace(examples[i % 2][1], task_id=f"plan-{i:02d}") for i in range(TASKS)]
    write_table(folder / "tasks", [tasks[start::4] for start in range(4)])
    write_table(folder / "environments", [[spec for spec, _ in examples]], EnvironmentSpec)


def run_rollout(folder: Path, runner: str, workers: int, delay_s: float) -> int:
    """Serve the model, about ``delay_s`` a turn, and let it act."""
    stage: Episodes = validate(OPERATORS.load("sample"), {**PARAMETERS, **CHOOSING}, "sample")
    inputs = {name: [Table.open(folder / name)] for name in ("tasks", "environments")}
    with running(Behaviour(slots=8, prefill_ms=delay_s * 1000), folder / "server", restarts=1000) as endpoint:
        config = ModelConfig(policy="vllm", model=endpoint.model, endpoints=[endpoint.base_url])
        actor = ServedModel(config=config, endpoints=[endpoint])
        context = StepContext(
            operator="sample", name=EXPLORED, folder=folder / EXPLORED, seed=7, models={"actor": actor}
        )
        make_table(stage, inputs, context, runner=RunnerConfig(name=runner, workers=workers))  # type: ignore[arg-type]
    return 0


def timeless_rows(folder: Path) -> list[Any]:
    """The trajectories of a run without the seconds that they took."""
    rows = rows_of(folder / EXPLORED)
    return [msgspec.structs.replace(row, usage=msgspec.structs.replace(row.usage, seconds=None)) for row in rows]
