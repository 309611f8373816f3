"""Models that cannot be loaded or need code of their own, and the weights that are loaded and written."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers.integrations import deepspeed

from agentmill.schemas.config import dump_yaml
from agentmill.schemas.lora import LoraConfig
from agentmill.schemas.training import TrainConfig
from agentmill.trainers import train_loop
from agentmill.trainers.chat_template import stop_behind_turns
from agentmill.trainers.command import SftSettings
from agentmill.trainers.merge import main as merge_main
from agentmill.trainers.model_io import kept_dtype, load_model, load_tokenizer, load_weights, save_whole
from agentmill.trainers.run_dir import WorkFolder
from agentmill.trainers.sft import main as sft_main
from tests.errors import codes, shows, user_error
from tests.model import tiny_adapter
from tests.trainers.tables import rows, write_table

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path(__file__).with_name("ran").touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
USER = [{"role": "user", "content": "go"}]


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(model, tmp_path / "copy", ignore=shutil.ignore_patterns("adapter")))


@pytest.fixture
def own(copy: Path) -> Path:
    """A model of a type of its own, with the code for it in its folder."""
    told = json.loads((copy / "config.json").read_text())
    told |= {"model_type": "own", "architectures": ["OwnModel"]}
    told["auto_map"] = {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.OwnModel"}
    (copy / "config.json").write_text(json.dumps(told))
    (copy / "code.py").write_text(CODE)
    return copy


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whatever asks a question on the terminal."""

    def asked(*words: object) -> NoReturn:
        raise AssertionError(f"asked: {words}")

    monkeypatch.setattr(builtins, "input", asked)


@pytest.mark.usefixtures("silent")
def test_a_model_with_code_of_its_own_is_refused_in_one_line(
    own: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sft_main(["--config", str(config), f"model={own}"]) == 2
    merging = [str(tiny_adapter()), "--out", str(tmp_path / "merged"), "--base", str(own)]
    assert merge_main(merging) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("the model ")]
    assert [(str(own) in line, *codes(line)) for line in said] == [(True, "may-run-code")] * 2
    for task in ("CAUSAL_LM", "SEQ_CLS"):
        with user_error("may-run-code"):
            load_model(own, TrainConfig(), "fp32", task)
    assert not (tmp_path / "tuned").exists()
    assert not (tmp_path / "merged").exists()


@pytest.mark.usefixtures("silent")
def test_a_model_with_code_of_its_own_is_loaded_where_it_is_trusted(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert type(load_weights(own, "CAUSAL_LM", torch.float32, trusted=True)).__name__ == "OwnModel"


@pytest.mark.usefixtures("silent")
def test_a_tokenizer_with_code_of_its_own_is_refused(copy: Path) -> None:
    told = json.loads((copy / "tokenizer_config.json").read_text())
    told |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["code.OwnTokenizer", None]}}
    (copy / "tokenizer_config.json").write_text(json.dumps(told))
    (copy / "code.py").write_text("raise SystemExit")
    with user_error("may-run-code"):
        load_tokenizer(copy)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * 100)


@pytest.mark.parametrize("damage", [cut, overwrite, Path.unlink])
def test_damaged_weights_are_told_in_two_lines(copy: Path, damage: Any) -> None:
    damage(copy / "model.safetensors")
    with user_error("model-unreadable") as caught:
        load_weights(copy, "CAUSAL_LM", torch.float32)
    assert len(str(caught.value).splitlines()) == 2
    if damage is overwrite:
        with user_error("model-unreadable"):
            kept_dtype(copy)


@pytest.mark.parametrize("task", ["CAUSAL_LM", "SEQ_CLS"])
def test_weights_that_are_not_there_are_not_made_up(copy: Path, task: Any) -> None:
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in sorted(weights) if "layers.1" in name)
    del weights[name]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with user_error("model-incomplete", "1", name):
        load_weights(copy, task, torch.float32)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[" * 5_000, '"x"'])
def test_damaged_files_of_a_model_are_told_in_two_lines(
    copy: Path, config: Path, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / name).write_text(content)
    assert sft_main(["--config", str(config), f"model={copy}"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2


def test_a_damaged_adapter_is_told_in_two_lines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        adapter = Path(shutil.copytree(tiny_adapter(), tmp_path / name))
        cut(adapter / name) if name.endswith("tensors") else overwrite(adapter / name)
        assert merge_main([str(adapter), "--out", str(tmp_path / "merged"), "--base", str(model)]) == 2
        said = capsys.readouterr().err
        assert shows(said, "damaged-file" if name.endswith("json") else "model-unreadable", adapter)
        assert len(said.strip().splitlines()) <= 4
        assert not (tmp_path / "merged").exists()


def test_a_chat_template_that_is_too_long_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "long.jinja").write_text("x" * (2**20 + 1))
    with user_error("file-too-large", "1,048,576"):
        load_tokenizer(model, str(tmp_path / "long.jinja"))
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with user_error("not-utf8"):
        load_tokenizer(model, str(tmp_path / "latin.jinja"))


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


@pytest.mark.parametrize("given", [{"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "do_sample": False}])
def test_settings_of_sampling_without_its_switch_do_not_stop_a_training_that_ends(
    given: dict[str, Any], copy: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers reads such files, which many models have, and refuses to write them."""
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], **given}))
    loaded = load_weights(copy, "CAUSAL_LM", torch.float32)
    assert "do_sample is set to true" in capsys.readouterr().err
    loaded.config.use_cache = False
    save_whole(loaded, tokenizer, copy, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {"eos_token_id": [2, 0], **given, "do_sample": True}.items() <= found.items()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_cache"] is True
    load_weights(tmp_path / "out", "CAUSAL_LM", torch.float32)
    assert capsys.readouterr().err == ""


def test_a_model_stops_at_the_token_that_ends_turns(
    copy: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base model knows the end of a document only, and would go on behind its first answer."""
    for name in ("generation_config.json", "config.json"):
        found = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
        (copy / name).write_text(json.dumps({**found, "eos_token_id": 0}))
    given = {"rows": str(write_table(tmp_path / "rows", rows())), "model": str(copy), "output": str(tmp_path / "tuned")}
    (tmp_path / "train.yaml").write_text(dump_yaml({**given, "max_steps": 1, "save_steps": None}))
    assert sft_main(["--config", str(tmp_path / "train.yaml")]) == 0
    assert "the model will stop at <|im_end|>" in capsys.readouterr().err
    written_config = json.loads((tmp_path / "tuned" / "generation_config.json").read_text())
    assert written_config["eos_token_id"] == [tokenizer.convert_tokens_to_ids("<|im_end|>"), 0]
    again = load_weights(tmp_path / "tuned", "CAUSAL_LM", torch.float32)
    assert stop_behind_turns(again, tokenizer) is None
    apart = ["--config", str(tmp_path / "train.yaml"), f"output={tmp_path / 'apart'}", "lora={merge: false}"]
    assert sft_main(apart) == 0
    assert "have its server stop there" in capsys.readouterr().err
    assert merge_main([str(tmp_path / "apart"), "--out", str(tmp_path / "merged")]) == 0
    assert json.loads((tmp_path / "merged" / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_other_settings_that_cannot_be_written_again_are_refused_before_the_training(copy: Path) -> None:
    (copy / "generation_config.json").write_text(json.dumps({"pad_token_id": -1, "temperature": 0.6}))
    with user_error("model-unreadable", "generation_config.json", "pad_token_id"):
        load_weights(copy, "CAUSAL_LM", torch.float32)


def test_an_adapter_has_no_type_to_be_asked_for() -> None:
    given = {"rows": "r", "model": "m", "output": "o", "save_dtype": "fp32"}
    assert SftSettings(**given, lora=LoraConfig(merge=True)).save_dtype == "fp32"
    with pytest.raises(ValidationError, match="save_dtype is of whole models"):
        SftSettings(**given, lora=LoraConfig(merge=False))


def test_zero_stage_3_is_over_when_the_model_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise the process that writes would read the weights together with those that wait for it."""

    class ZeroStage3:
        def is_zero3(self) -> bool:
            return True

    zero3: Any = ZeroStage3()
    deepspeed.set_hf_deepspeed_config(zero3)
    monkeypatch.setattr(deepspeed, "is_deepspeed_available", lambda: True)
    seen: list[bool] = []

    def load(*_: Any) -> None:
        seen.append(deepspeed.is_deepspeed_zero3_enabled())

    monkeypatch.setattr(train_loop, "load_weights", load)
    monkeypatch.setattr(train_loop, "save_whole", load)
    setup: Any = SimpleNamespace(work=WorkFolder(tmp_path / "tuned", {}), tokenizer=None, base=tmp_path)
    assert deepspeed.is_deepspeed_zero3_enabled()
    train_loop.write_model(setup, SftSettings(rows="r", model="m", output="o"), "CAUSAL_LM")
    assert seen == [False, False]
