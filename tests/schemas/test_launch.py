"""In how many processes a training runs, and which accelerate configurations can be used for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentmill.schemas import launch
from agentmill.schemas.config import dump_yaml, validate
from agentmill.schemas.launch import (
    LaunchConfig,
    check_configuration,
    configuration_file,
    planned_launch,
    read_configuration,
    shipped_configurations,
    visible_gpus,
)
from agentmill.schemas.training import DpoConfig, SftConfig
from tests.errors import user_error

SHIPPED = ["ddp", "ddp_cpu", "fsdp2", "fsdp2_cp", "fsdp2_offload", "fsdp_cpu", "zero2", "zero3"]


@pytest.fixture
def with_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: object())


def written(folder: Path, **content: Any) -> str:
    path = folder / "accelerate.yaml"
    path.write_text(dump_yaml({"distributed_type": "MULTI_GPU", **content}))
    return str(path)


def processes(given: dict[str, Any], gpus: int) -> tuple[str, int] | None:
    found = planned_launch(LaunchConfig.model_validate(given), gpus)
    return None if found is None else (found.config, found.processes)


def test_configurations_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(shipped_configurations()) == SHIPPED
    # Also where there is no checkout.
    monkeypatch.chdir(tmp_path)
    assert sorted(shipped_configurations()) == SHIPPED
    own = tmp_path / "configs/accelerate/mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("distributed_type: MULTI_GPU\n")
    assert configuration_file("mine") == Path("configs/accelerate/mine.yaml")


@pytest.mark.parametrize(
    ("given", "gpus", "expected"),
    [
        ({}, 0, None),
        ({}, 1, None),
        ({}, 4, ("ddp", 4)),
        ({"processes": 1}, 4, None),
        ({"processes": 2}, 4, ("ddp", 2)),
        ({"config": "fsdp2"}, 4, ("fsdp2", 4)),
        ({"config": "fsdp2_offload"}, 1, ("fsdp2_offload", 1)),
        ({"processes": 3, "config": "fsdp2"}, 4, ("fsdp2", 3)),
        ({"config": "fsdp_cpu"}, 0, ("fsdp_cpu", 2)),
        ({"config": "ddp_cpu", "processes": 3}, 0, ("ddp_cpu", 3)),
    ],
)
def test_processes_are_as_many_as_asked_for_or_as_gpus(
    given: dict[str, Any], gpus: int, expected: tuple[str, int] | None
) -> None:
    assert processes(given, gpus) == expected


@pytest.mark.parametrize(
    ("content", "gpus", "expected"),
    [
        ({"num_processes": 2}, 4, 2),
        ({"gpu_ids": "0,3"}, 4, 2),
        ({"gpu_ids": 3}, 4, 1),
        ({"gpu_ids": "4,5", "use_cpu": True, "num_processes": 2}, 0, 2),
        ({"num_machines": 2}, 4, 8),
        ({"num_machines": 2, "num_processes": 16}, 8, 16),
        ({"use_cpu": True}, 0, 1),
    ],
)
def test_a_file_may_say_how_many(content: dict[str, Any], gpus: int, expected: int, tmp_path: Path) -> None:
    config = written(tmp_path, **content)
    assert processes({"config": config}, gpus) == (config, expected)
    if "num_processes" in content:
        fewest = content.get("num_machines", 1)
        assert processes({"config": config, "processes": fewest}, gpus) == (config, fewest)


@pytest.mark.parametrize("gpus", [0, 1])
def test_gpus_that_are_named_must_be_there(gpus: int, tmp_path: Path) -> None:
    with user_error("gpus-too-few", f"{gpus} ", "visible"):
        processes({"config": written(tmp_path, gpu_ids="4,5", num_processes=2)}, gpus)


@pytest.mark.parametrize(
    ("given", "gpus"), [({"processes": 2}, 0), ({"processes": 3}, 2), ({"config": "fsdp2"}, 0), ({"processes": 2}, 1)]
)
def test_more_processes_than_gpus_are_refused(given: dict[str, Any], gpus: int) -> None:
    with user_error("gpus-too-few", f"{gpus} ", "visible", "launch.processes", "ddp_cpu"):
        processes(given, gpus)


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    with user_error("unknown-name", "'fdsp2'", "zero3", "Did you mean 'fsdp2'?"):
        validate(LaunchConfig, {"config": "fdsp2"}, "given")
    for wrong in (0, "all", True):
        with user_error("rule-broken", "processes: expected a number of at least 1, or auto", repr(wrong)):
            validate(LaunchConfig, {"processes": wrong}, "given")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    config = LaunchConfig(config=str(tmp_path / "no.yaml"))
    with user_error("no-such-file", "no.yaml", "accelerate config", "fsdp2"):
        planned_launch(config, 2)


def test_deepspeed_is_asked_for_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with user_error("extra-missing", "deepspeed", "pip install 'agentmill[deepspeed]'"):
        processes({"config": "zero3"}, 2)


@pytest.mark.usefixtures("with_deepspeed")
def test_with_deepspeed_its_configurations_are_taken() -> None:
    assert processes({"config": "zero3"}, 2) == ("zero3", 2)


FSDP = {"distributed_type": "FSDP"}
WHOLE = {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"}


@pytest.mark.parametrize(
    ("code", "content", "words"),
    [
        (
            "invalid-value",
            {"distributed_type": "MULTI_NPU"},
            ["distributed_type", "'MULTI_GPU', 'FSDP' or 'DEEPSPEED'"],
        ),
        ("rule-broken", {"distributed_type": "MULTI_CPU"}, ["use_cpu: true", "ddp_cpu"]),
        ("rule-broken", {"distributed_type": "NO"}, ["leave launch.config out", "launch.processes: 1"]),
        ("rule-broken", FSDP, ["fsdp_config is missing"]),
        ("rule-broken", {**FSDP, "fsdp_config": {"fsdp_version": 2}}, ["SHARDED_STATE_DICT", "FULL_STATE_DICT"]),
        # Accelerate reads short names as well.
        ("rule-broken", {**FSDP, "fsdp_config": {"version": 2}}, ["SHARDED_STATE_DICT", "FULL_STATE_DICT"]),
        (
            "rule-broken",
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
            ["zero3_save_16bit_model", "a whole model is saved"],
        ),
        (
            "rule-broken",
            {"parallelism_config": {"parallelism_config_cp_size": 2}},
            ["parallelism_config", "fsdp_version 2"],
        ),
        (
            "rule-broken",
            {**FSDP, "fsdp_config": WHOLE, "parallelism_config": {"parallelism_config_tp_size": 2}},
            ["parallelism_config_tp_size is 2", "parallelism_config_cp_size"],
        ),
    ],
)
def test_what_the_trainers_cannot_do_is_refused(
    code: str, content: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    config = written(tmp_path, **content)
    with user_error(code, config, *words):
        read_configuration(config)


def test_context_parallelism_needs_processes_that_divide() -> None:
    assert processes({"config": "fsdp2_cp"}, 4) == ("fsdp2_cp", 4)
    with user_error("rule-broken", "3 processes", "cp_size 2", "multiple of 2"):
        processes({"config": "fsdp2_cp", "processes": 3}, 4)


def test_context_parallelism_is_for_sft_without_packing() -> None:
    check_configuration("fsdp2_cp", "sft", SftConfig())
    check_configuration("fsdp2", "dpo", DpoConfig())
    for trainer, settings in (("sft", SftConfig(packing=True)), ("dpo", DpoConfig())):
        with user_error("rule-broken", "fsdp2_cp", "without packing, share_prefixes and validation only"):
            check_configuration("fsdp2_cp", trainer, settings)
    assert not SftConfig().needs_whole_sequences
    for given in ({"packing": True}, {"share_prefixes": True}, {"validation": {"share": 0.1}}):
        assert SftConfig.model_validate(given).needs_whole_sequences


@pytest.mark.parametrize(
    ("mixed", "precision", "accepted"),
    [
        ("no", "bf16", True),
        (False, "fp32", True),  # how YAML 1.1 reads no
        ("bf16", "bf16", True),
        ("bf16", "auto", True),
        ("bf16", "fp32", False),
        ("fp16", "auto", False),
    ],
)
def test_precision_is_that_of_the_training(mixed: str | bool, precision: str, accepted: bool, tmp_path: Path) -> None:
    config = written(tmp_path, mixed_precision=mixed)
    settings = SftConfig.model_validate({"precision": precision})
    if accepted:
        check_configuration(config, "sft", settings)
    else:
        with user_error("rule-broken", f"mixed_precision '{mixed}'", f"precision: {precision}"):
            check_configuration(config, "sft", settings)


@pytest.mark.parametrize(
    ("config", "given", "words"),
    [
        ("fsdp2", {"weights": "bf16"}, "no effect under FSDP"),
        ("zero2", {"weights": "bf16"}, "no effect under DeepSpeed"),
        ("fsdp2", {"lora": {"rank": 4, "quantize": "4bit"}}, "does not go with FSDP"),
        ("zero3", {"lora": {"rank": 4, "quantize": "4bit"}}, "does not go with ZeRO stage 3"),
        ("zero3", {"packing": True}, "a part of it only"),
        ("zero3", {"share_prefixes": True}, "a part of it only"),
        ("fsdp2", {"packing": True}, None),
        ("zero2", {"packing": True}, None),
        ("ddp", {"weights": "bf16"}, None),
    ],
)
def test_what_does_not_go_with_a_shared_model(config: str, given: dict[str, Any], words: str | None) -> None:
    settings = SftConfig.model_validate(given)
    if words is None:
        check_configuration(config, "sft", settings)
    else:
        with user_error("key-not-for-this", words):
            check_configuration(config, "sft", settings)


def test_processes_are_divided_among_machines(tmp_path: Path) -> None:
    config = written(tmp_path, num_machines=2)
    assert processes({"config": config, "processes": 4}, 4) == (config, 4)
    with user_error("rule-broken", "3 process(es)", "num_machines 2"):
        processes({"config": config, "processes": 3}, 4)


def test_gpus_are_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert visible_gpus() == ["2", "5"]
    for hidden in ("", "-1", "-1,0", "no"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, GPU-8a6c-1f,-1,3")
    assert visible_gpus() == ["0", "GPU-8a6c-1f"]
