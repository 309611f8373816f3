"""What a machine lacks is reported before the rows are read, with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import trainer_optimizer

from agentmill.schemas.training import BITSANDBYTES_OPTIMIZERS, SftConfig, TrainConfig
from agentmill.trainers import command, requirements
from agentmill.trainers.requirements import check_requirements, precision_of
from agentmill.trainers.requirements import main as requirements_main
from agentmill.trainers.sft import main
from tests.errors import shows, user_error


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every package were there, on a machine without a GPU."""
    monkeypatch.setattr(requirements, "require", lambda extra: None)
    monkeypatch.setattr(requirements, "FLASH", {name: (lambda: True, "") for name in requirements.FLASH})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def settings(**given: Any) -> TrainConfig:
    return TrainConfig.model_validate(given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"attention": "flash_attention_2"}, ["flash_attention_2", "pip install flash-attn", "sdpa"]),
        ({"attention": "flash_attention_3"}, ["flash_attention_3", "hopper", "sdpa"]),
        ({"liger": True}, ["liger_kernel", "agentmill[liger]"]),
        ({"optimizer": "paged_adamw_8bit"}, ["bitsandbytes", "agentmill[bitsandbytes]"]),
        ({"lora": {"quantize": "4bit"}}, ["bitsandbytes", "agentmill[bitsandbytes]"]),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    given: dict[str, Any], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentmill.schemas.extras.find_spec", lambda module: None)
    flash = {name: (lambda: False, install) for name, (_, install) in requirements.FLASH.items()}
    monkeypatch.setattr(requirements, "FLASH", flash)
    with user_error("extra-missing", *named):
        check_requirements("sft", settings(**given))


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"attention": "flash_attention_2"}, ["flash_attention_2", "take sdpa"]),
        ({"attention": "flex_attention"}, ["flex_attention", "take sdpa"]),
        ({"liger": True}, ["liger"]),
        ({"optimizer": "paged_adamw_8bit"}, ["paged_adamw_8bit", "take adamw_8bit"]),
        ({"trl": {"activation_offloading": True}}, ["activation_offloading", "leave it out"]),
    ],
)
def test_what_only_a_gpu_can_do_is_refused_without_one(given: dict[str, Any], named: list[str]) -> None:
    with user_error("gpu-missing", *named):
        check_requirements("sft", settings(**given))


@pytest.mark.usefixtures("all_installed")
def test_what_a_cpu_can_do_is_taken() -> None:
    check_requirements("sft", settings(attention="eager", optimizer="adamw_8bit", lora={"quantize": "8bit"}))


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize(
    ("given", "warned"), [("3,9", True), ("GPU-1f", True), ("", False), ("-1", False), (None, False)]
)
def test_gpus_that_are_named_and_not_there_are_warned_of(
    given: str | None, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "GIVEN_GPUS", given)
    check_requirements("sft", settings())
    assert (f"warning: CUDA_VISIBLE_DEVICES={given} names GPUs" in capsys.readouterr().err) == warned


@pytest.mark.usefixtures("all_installed")
def test_flash_attention_is_refused_where_the_gpu_has_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with user_error("key-not-for-this", "flash_attention_2", "bf16"):
        check_requirements("sft", settings(attention="flash_attention_2"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    check_requirements("sft", settings(attention="flash_attention_2"))


@pytest.mark.usefixtures("all_installed")
@pytest.mark.parametrize("given", [{"weights": "bf16"}, {"lora": {"quantize": "4bit"}}])
def test_what_fsdp_would_undo_is_refused(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_requirements("sft", settings(**given))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with user_error("key-not-for-this", "FSDP"):
        check_requirements("sft", settings(**given))


def test_an_unknown_optimizer_ends_the_command_with_the_nearest_name(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(config), "optimizer=adamw_torhc"]) == 2
    printed = capsys.readouterr().err
    assert shows(printed, "invalid-value", "optimizer: expected one of", "Did you mean 'adamw_torch'?")
    assert "rows: read" not in printed


def test_an_optimizer_of_another_package_says_what_it_needs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "optimizer=galore_adamw"]) == 2
    assert shows(capsys.readouterr().err, "trl-refuses", "optimizer: galore_adamw", "galore")


def test_a_recipe_asks_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    asked = settings(attention="flex_attention", trl={"adam_beta2": 0.9}, batch_size=2, lora={"rank": 4})
    assert asked.machine_settings == {"attention": "flex_attention", "trl": {"adam_beta2": 0.9}}
    assert settings(lora={"quantize": "4bit"}).machine_settings == {"lora": {"quantize": "4bit"}}
    assert requirements_main(["dpo", json.dumps(asked.machine_settings)]) == 2
    assert shows(capsys.readouterr().err, "gpu-missing", "flex_attention")
    assert requirements_main(["dpo", '{"trl": {"use_weighting": true}}']) == 0


def test_the_optimizers_of_bitsandbytes_are_those_that_transformers_takes_from_it() -> None:
    handlers = trainer_optimizer._OPTIMIZER_HANDLERS
    ours = {str(getattr(name, "value", name)) for name, make in handlers.items() if "bitsandbytes" in make.__name__}
    assert ours == set(BITSANDBYTES_OPTIMIZERS)


def test_weights_in_bf16_are_computed_with_in_bf16() -> None:
    assert precision_of(settings(weights="bf16")) == "bf16"
    assert precision_of(settings(precision="fp32")) == "fp32"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": "bf16", "lora": {}}, "lora keeps the others in bf16"),
        ({"weights": "bf16", "precision": "fp32"}, "cannot be computed with in fp32"),
        ({"attention": "flash_attention_2", "precision": "fp32"}, "computes in bf16 only"),
        ({"lora": {"modules_to_save": []}}, "at least 1"),
        ({"share_prefixes": True, "attention": "flash_attention_2"}, "takes no mask of a tree"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SftConfig.model_validate(given)
