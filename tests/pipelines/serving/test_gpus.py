"""Models that are served together have GPUs of their own, or parts of one where they say how much."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.pipelines.serving import vllm_command
from agentmill.pipelines.serving.gpus import Groups, deal_gpus, memory_share
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.serving.server_config import ServerConfig
from agentmill.pipelines.serving.vllm_command import server_gpus, vllm_environment
from agentmill.schemas.launch import visible_gpus
from tests.errors import user_error

HALF = {"arguments": ["--gpu-memory-utilization", "0.5"]}


def model(name: str = "m", **server: Any) -> ModelConfig:
    return ModelConfig(policy="vllm", model=name, server=ServerConfig(**server))


def dealt(gpus: int, *servers: dict[str, Any]) -> list[Groups]:
    models = {str(number): model(f"m{number}", **server) for number, server in enumerate(servers)}
    return list(deal_gpus(models, [str(number) for number in range(gpus)], {}).values())


def test_gpus_are_dealt_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_command, "on_cpu", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    assert server_gpus({"a": model()}) == {"a": [["4"], ["5"], ["6"], ["7"], ["8"]]}
    assert server_gpus({"a": model(tensor_parallel_size=2)}) == {"a": [["4", "5"], ["6", "7"]]}
    assert server_gpus({"a": model(tensor_parallel_size=2, replicas=1)}) == {"a": [["4", "5"]]}
    with user_error("gpus-too-few", "3", "2", "5"):
        server_gpus({"a": model(tensor_parallel_size=2, replicas=3)})
    assert vllm_environment(ServerConfig(), ["4", "5"])["CUDA_VISIBLE_DEVICES"] == "4,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


@pytest.mark.parametrize(
    ("gpus", "servers", "wanted"),
    [
        (2, [{}, {}], [[["0"]], [["1"]]]),
        (5, [{}, {}], [[["0"], ["2"], ["4"]], [["1"], ["3"]]]),
        (4, [{}, {"replicas": 1}], [[["0"], ["2"], ["3"]], [["1"]]]),
        (4, [{"tensor_parallel_size": 2}, {}], [[["0", "1"]], [["2"], ["3"]]]),
        (1, [HALF, HALF], [[["0"]], [["0"]]]),
        # A whole GPU is kept for the one that names no share.
        (2, [HALF, HALF, {}], [[["1"]], [["1"]], [["0"]]]),
        (2, [{**HALF, "replicas": 3}, {**HALF, "replicas": 1}], [[["0"], ["1"], ["0"]], [["1"]]]),
    ],
)
def test_models_divide_the_gpus(gpus: int, servers: list[dict[str, Any]], wanted: list[Groups]) -> None:
    assert dealt(gpus, *servers) == wanted


@pytest.mark.parametrize(
    ("gpus", "servers"),
    [
        (1, [{}, {}]),
        (1, [HALF, {}]),
        (1, [HALF, HALF, HALF]),
        (3, [{"replicas": 3}, {}]),
        (2, [{"tensor_parallel_size": 2}, {}]),
        (0, [{}, {}]),
    ],
)
def test_models_that_would_not_start_side_by_side_are_refused(gpus: int, servers: list[dict[str, Any]]) -> None:
    advice = ("server.replicas", "server.arguments", '--gpu-memory-utilization, "0.45"')
    with user_error("gpus-too-few", "m0", "m1", f"on {gpus} GPU(s)", *advice):
        dealt(gpus, *servers)


def test_what_others_have_is_not_dealt() -> None:
    held = {"x": (model(), [["0"], ["2"]]), "y": (model(**HALF), [["1"]])}
    assert deal_gpus({"a": model(**HALF)}, ["0", "1", "2"], held) == {"a": [["1"]]}
    with user_error("gpus-too-few"):
        deal_gpus({"a": model()}, ["0", "1", "2"], held)


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ([], 1.0),
        (["--gpu-memory-utilization", "0.3"], 0.3),
        (["--x", "1", "--gpu_memory_utilization=0.25"], 0.25),
    ],
)
def test_the_share_of_the_memory_is_what_vllm_is_given(arguments: list[str], share: float) -> None:
    assert memory_share(ServerConfig(arguments=arguments)) == share


@pytest.mark.parametrize("given", ["half", "0", "1.5", "nan"])
def test_a_share_that_is_none_is_refused(given: str) -> None:
    with user_error("value-malformed", "--gpu-memory-utilization", given, "0.45"):
        memory_share(ServerConfig(arguments=["--gpu-memory-utilization", given]))
    with user_error("value-malformed"):
        memory_share(ServerConfig(arguments=["--gpu-memory-utilization"]))
