"""What a training sees of the machine."""

from __future__ import annotations

import pytest

from agentmill.trainers.command import use_one_gpu


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a6c"}, "GPU-8a6c"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),  # by which all are hidden
        ({"CUDA_VISIBLE_DEVICES": "2,3", "WORLD_SIZE": "2"}, "2,3"),
        ({"WORLD_SIZE": "2"}, None),
    ],
)
def test_one_process_takes_one_gpu(given: dict[str, str], seen: str | None) -> None:
    environment = dict(given)
    use_one_gpu(environment)
    assert environment.get("CUDA_VISIBLE_DEVICES") == seen
