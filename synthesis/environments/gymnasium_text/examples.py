"""One small instance of every describer, two of the frozen lake."""

from __future__ import annotations

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Task


def _example(
    name: str, source: str, parameters: JsonObject, instruction: str, state: JsonObject | None
) -> tuple[EnvironmentSpec, Task]:
    environment_id = f"gymnasium-{name}"
    spec = EnvironmentSpec(
        environment_id=environment_id, family="gymnasium", name=name, source=source, parameters=parameters
    )
    task = Task(
        task_id=f"{environment_id}-1",
        environment_id=environment_id,
        instruction=instruction,
        initial_state={} if state is None else {"state": state},
        max_turns=200,
    )
    return spec, task


EXAMPLES: list[tuple[EnvironmentSpec, Task]] = [
    _example(
        "frozen-lake",
        "FrozenLake-v1",
        {"describer": "frozen_lake", "kwargs": {"map_name": "4x4", "is_slippery": False}},
        "Reach the goal.",
        {"s": 0},
    ),
    _example(
        "slippery-lake",
        "FrozenLake-v1",
        {"describer": "frozen_lake", "kwargs": {"map_name": "4x4", "is_slippery": True}},
        "Reach the goal on slippery ice.",
        {"s": 0},
    ),
    _example("cliff", "CliffWalking-v1", {"describer": "cliff_walking"}, "Reach the goal.", {"s": 36}),
    _example("taxi", "Taxi-v4", {"describer": "taxi"}, "Bring the passenger to its destination.", {"s": 252}),
    _example("blackjack", "Blackjack-v1", {"describer": "blackjack"}, "Win against the dealer.", None),
]
