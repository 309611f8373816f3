"""The type of the weights that a training writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from agentmill.schemas.training import LoraConfig
from agentmill.trainers.settings import SftSettings
from agentmill.trainers.weights import kept_dtype, load_weights, save_whole


def copied(model: Path, folder: Path, dtype: torch.dtype | None, config: dict[str, str]) -> Path:
    """A copy of the model with other weights, and ``config`` in the place of its ``dtype``."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("adapter"))
    told = json.loads((folder / "config.json").read_text())
    told.pop("dtype")
    (folder / "config.json").write_text(json.dumps(told | config))
    if dtype is not None:
        weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def written(folder: Path) -> tuple[set[torch.dtype], str]:
    """The types in a model's files, and the one that its configuration names."""
    config = json.loads((folder / "config.json").read_text())
    return {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()}, config["dtype"]


@pytest.mark.parametrize(
    ("dtype", "config", "kept"),
    [
        (torch.bfloat16, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        (torch.bfloat16, {}, torch.bfloat16),
        (torch.float16, {"dtype": "float32"}, torch.float16),
        (torch.float32, {"dtype": "float32"}, torch.float32),
    ],
)
def test_the_type_of_the_base_is_kept(
    dtype: torch.dtype, config: dict[str, str], kept: torch.dtype, model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    base = copied(model, tmp_path / "base", dtype, config)
    save_whole(load_weights(base, "CAUSAL_LM", torch.float32), tokenizer, base, tmp_path / "out")
    assert written(tmp_path / "out") == ({kept}, str(kept).removeprefix("torch."))


def test_a_model_without_safetensors_has_the_type_that_its_configuration_names(model: Path, tmp_path: Path) -> None:
    base = copied(model, tmp_path / "base", None, {"torch_dtype": "bfloat16"})
    (base / "model.safetensors").unlink()
    assert kept_dtype(base) == torch.bfloat16


@pytest.mark.parametrize(
    ("asked", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_the_type_that_was_asked_for_is_written(
    asked: str, dtype: torch.dtype, model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    save_whole(load_weights(model, "CAUSAL_LM", torch.float32), tokenizer, model, tmp_path / "out", asked)
    assert written(tmp_path / "out") == ({dtype}, str(dtype).removeprefix("torch."))


def test_an_adapter_has_no_type_to_be_asked_for() -> None:
    given = {"rows": "r", "model": "m", "output": "o", "save_dtype": "fp32"}
    assert SftSettings(**given, lora=LoraConfig(merge=True)).save_dtype == "fp32"
    with pytest.raises(ValidationError, match="save_dtype is of whole models"):
        SftSettings(**given, lora=LoraConfig(merge=False))
