"""Small levels with a mission each, for the conformance checks and as examples of the format."""

from __future__ import annotations

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task


def _example(name: str, source: str, options: JsonObject, seed: int, mission: str) -> tuple[EnvironmentSpec, Task]:
    environment_id = f"babyai-{name}"
    spec = EnvironmentSpec(
        environment_id=environment_id, family="babyai", name=name, source=source, parameters={"options": options}
    )
    task = Task(
        task_id=f"{environment_id}-{seed}",
        environment_id=environment_id,
        instruction=mission,
        initial_state={"seed": seed},
        max_turns=30,
    )
    return spec, task


EXAMPLES: list[tuple[EnvironmentSpec, Task]] = [
    _example("local", "BabyAI-GoToLocal-v0", {"room_size": 6, "num_dists": 3}, 1, "Goal: go to the red key."),
    _example(
        "put", "BabyAI-PutNextLocal-v0", {"room_size": 5, "num_objs": 3}, 1, "put the blue key next to the yellow key"
    ),
    _example("unlock", "BabyAI-UnlockLocal-v0", {}, 1, "Goal: open the door."),
]
