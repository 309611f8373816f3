"""The settings of an adapter are those of a training that goes on from it; what disagrees with them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.lora import CHANGEABLE, PEFT_NAMES, LoraConfig, check_lora_agrees, lora_of_adapter
from tests.errors import user_error

HELD = {"r": 4, "lora_alpha": 12, "lora_dropout": 0.1, "target_modules": ["v_proj", "q_proj"], "use_dora": True}


def test_every_setting_is_of_the_adapter_or_may_be_changed() -> None:
    assert LoraConfig.model_fields.keys() == {*PEFT_NAMES, *CHANGEABLE}


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 4, "alpha": 12.0},
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": "all-linear"},
        {"dora": True, "rslora": False, "modules_to_save": None},
        {"dropout": 0.5, "merge": False, "quantize": "4bit"},
    ],
)
def test_what_agrees_or_may_be_changed_is_taken(given: dict[str, Any]) -> None:
    lora = LoraConfig(**given)
    check_lora_agrees(lora, HELD, "runs/a")
    found = lora_of_adapter(lora, HELD, "runs/a")
    assert (found.rank, found.alpha, found.dora, found.rslora) == (4, 12.0, True, False)
    assert found.target_modules == given.get("target_modules", ["q_proj", "v_proj"])
    assert (found.dropout, found.quantize) == (given.get("dropout", 0.1), given.get("quantize"))
    assert found.merge is given.get("merge", True)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"rank": 16}, ("lora.rank is 16", "has 4")),
        ({"dora": False}, ("lora.dora is False", "has True")),
        ({"rslora": True}, ("lora.rslora is True", "has False")),
        ({"modules_to_save": ["embed_tokens"]}, ("lora.modules_to_save is ['embed_tokens']", "has None")),
        ({"target_modules": ["q_proj"]}, ("lora.target_modules is ['q_proj']", "has ['v_proj', 'q_proj']")),
    ],
)
def test_what_disagrees_is_refused_with_both_values(given: dict[str, Any], parts: tuple[str, ...]) -> None:
    with user_error("lora-differs", "the adapter runs/a", "agentmill merge runs/a --out", *parts):
        check_lora_agrees(LoraConfig(**given), HELD, "runs/a")


def test_an_adapter_on_parameters_alone_is_refused_by_name() -> None:
    held = {**HELD, "target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj"]}
    with user_error("lora-differs", "runs/moe", "target_parameters", "target_modules"):
        lora_of_adapter(None, held, "runs/moe")


def test_the_head_of_a_reward_model_is_no_setting() -> None:
    held = {**HELD, "modules_to_save": ["classifier", "score"]}
    assert lora_of_adapter(None, held, "runs/a").modules_to_save is None
    short = {name: value for name, value in held.items() if name not in ("r", "lora_alpha")}
    found = lora_of_adapter(None, short, "runs/a")
    assert (found.rank, found.alpha) == (8, 8), "what PEFT takes where the file does not say"
    check_lora_agrees(LoraConfig(rank=8, alpha=8), short, "runs/a")
    assert lora_of_adapter(None, {**held, "modules_to_save": ["norm", "score"]}, "runs/a").modules_to_save == ["norm"]
