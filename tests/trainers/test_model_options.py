"""Attention, weights, optimizers and kinds of LoRA: what each setting changes in a training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentmill.schemas.training import TrainConfig
from agentmill.trainers import trl_trainer
from agentmill.trainers.adapters import check_lora_targets, is_tied, load_merged, lora_config
from agentmill.trainers.model_io import load_model, load_weights, quantization
from agentmill.trainers.sft import SftCollator, main
from tests.errors import shows, user_error

torch.set_num_threads(1)
SHORT = ["max_steps=2", "save_steps=null"]
IDS = torch.arange(3, 33)[None]

needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs agentmill[bitsandbytes]")


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trainers that are made."""
    made: list[Any] = []
    make = trl_trainer.make_trainer

    def record(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    monkeypatch.setattr(trl_trainer, "make_trainer", record)
    return made


@pytest.fixture
def tied(model: Path, tmp_path: Path) -> Path:
    """The tiny model with one matrix for its embedding and its head."""
    folder = Path(shutil.copytree(model, tmp_path / "tied", ignore=shutil.ignore_patterns("adapter")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def trained(config: Path, *overrides: str) -> dict[str, Any]:
    """The record of a training of two steps."""
    assert main(["--config", str(config), *SHORT, *overrides]) == 0
    record: dict[str, Any] = json.loads((config.parent / "tuned" / "training.json").read_bytes())
    shutil.rmtree(config.parent / "tuned")
    return record


def logits(model: Any, **given: Any) -> torch.Tensor:
    # Compiling flex attention for a CPU takes minutes.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        found: torch.Tensor = model.eval()(input_ids=IDS, use_cache=False, **given).logits
    return found


def settings(**given: Any) -> TrainConfig:
    return TrainConfig.model_validate(given)


def moved(model: Path, **lora: Any) -> Any:
    """The model with an adapter whose weights are no longer those of the start."""
    given = settings(lora={"rank": 4, **lora})
    base = load_model(model, given, "fp32")
    check_lora_targets(base, given.lora)
    adapted: Any = peft.get_peft_model(base, lora_config(given.lora, "CAUSAL_LM", is_tied(base)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return adapted


# Attention


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
def test_each_attention_gives_the_same_logits_and_keeps_rows_of_a_pack_apart(attention: str, model: Path) -> None:
    positions = torch.cat([torch.arange(10), torch.arange(20)])[None]
    found, wanted = (load_model(model, settings(attention=each), "fp32") for each in (attention, "sdpa"))
    assert found.config._attn_implementation == attention
    torch.testing.assert_close(logits(found), logits(wanted), rtol=1e-4, atol=1e-4)
    packed = logits(found, position_ids=positions)
    torch.testing.assert_close(packed, logits(wanted, position_ids=positions), rtol=1e-4, atol=1e-4)
    assert (packed - logits(found)).abs().max() > 0.01


def test_eager_and_sdpa_train_alike_and_are_recorded(config: Path) -> None:
    # In bf16 both round differently.
    eager, auto = (trained(config, "precision=fp32", *more) for more in (["attention=eager"], []))
    assert (eager["attention"], auto["attention"]) == ("eager", "sdpa")
    assert eager["identity"]["settings"]["attention"] == "eager"
    losses = [[point["loss"] for point in each["loss_curve"]] for each in (eager, auto)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_model_without_the_attention_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_supports_flex_attn", False)
    with user_error("model-of-wrong-kind", "attention", "LlamaForCausalLM", "take sdpa"):
        load_model(model, settings(attention="flex_attention"), "fp32")


def test_another_kernel_in_the_place_of_the_one_asked_for_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_check_and_adjust_attn_implementation", lambda *_, **__: "eager")
    with user_error("model-of-wrong-kind", "would use eager in the place of flash_attention_2"):
        load_model(model, settings(attention="flash_attention_2"), "bf16")


def test_packs_of_a_flat_batch_have_the_loss_of_the_padded_ones(model: Path) -> None:
    def pack(lengths: list[int], first: int) -> dict[str, Any]:
        ids = np.arange(first, first + sum(lengths))
        labels = ids.copy()
        labels[np.cumsum([0, *lengths[:-1]])] = -100
        positions = np.concatenate([np.arange(length) for length in lengths])
        return {"input_ids": ids, "labels": labels, "weights": np.ones(len(ids)), "position_ids": positions}

    packs = [pack([5, 9], 3), pack([12, 4, 7], 40)]
    padded, flat = (SftCollator(0, packed=True, flat=each)(packs) for each in (False, True))
    assert flat["input_ids"].shape == flat["attention_mask"].shape == (1, 14 + 23)
    assert flat["attention_mask"].all()
    loaded = load_model(model, settings(), "fp32").eval()

    def losses(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            found = loaded(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        targets = batch["labels"][:, 1:].reshape(-1)
        each = torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), targets, reduction="none")
        return each[targets != -100]

    torch.testing.assert_close(losses(flat), losses(padded), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("attention", "rows"), [("flash_attention_2", 1), ("auto", 4)])
def test_packs_are_flat_for_flash_attention_only(
    attention: str, rows: int, config: Path, trainers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel itself needs a GPU; sdpa, in its place, is given the same batches.
    monkeypatch.setattr("agentmill.trainers.run_dir.check_requirements", lambda *_: None)
    load = trl_trainer.load_model
    monkeypatch.setattr(
        trl_trainer,
        "load_model",
        lambda base, given, *more: load(base, given.model_copy(update={"attention": "auto"}), *more),
    )
    record = trained(config, f"attention={attention}", "packing=true", "max_length=64", "precision=bf16")
    assert record["attention"] == "sdpa"
    (trainer,) = trainers
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape[0] == rows


# Weights, optimizers, checkpointing


def test_weights_in_bf16_have_gradients_and_moments_in_bf16(config: Path, trainers: list[Any]) -> None:
    record = trained(config, "weights=bf16")
    trained(config)
    for trainer, dtype in zip(trainers, (torch.bfloat16, torch.float32), strict=True):
        assert {each.dtype for each in trainer.model.parameters()} == {dtype}
        state = list(trainer.optimizer.state.values())
        assert {each[name].dtype for each in state for name in ("exp_avg", "exp_avg_sq")} == {dtype}
    assert (record["precision"], record["settings"]["weights"]) == ("bf16", "bf16")
    assert record["identity"]["settings"]["weights"] == "bf16"


def test_an_optimizer_is_taken_by_its_name(config: Path, trainers: list[Any]) -> None:
    record = trained(config, "optimizer=adafactor")
    (trainer,) = trainers
    assert any("exp_avg_sq_row" in each for each in trainer.optimizer.state.values())
    assert not any("exp_avg" in each for each in trainer.optimizer.state.values())
    assert record["identity"]["settings"]["optimizer"] == "adafactor"


@needs_bitsandbytes
def test_an_optimizer_in_8_bits_keeps_its_state_in_them(config: Path, trainers: list[Any]) -> None:
    trained(config, "optimizer=adamw_8bit")
    (trainer,) = trainers
    names = {weight: name for name, weight in trainer.model.named_parameters()}
    state = {names[weight]: each["state1"].dtype for weight, each in trainer.optimizer.state.items()}
    assert state["model.layers.0.mlp.up_proj.weight"] == state["lm_head.weight"] == torch.uint8
    # transformers leaves embeddings at 32 bits, and bitsandbytes tensors of fewer than 4096 values.
    assert state["model.embed_tokens.weight"] == state["model.norm.weight"] == torch.float32


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """The sizes of the tensors that are kept for the backward pass."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["lora={rank: 4}"],
        ["packing=true", "max_length=160"],
        ["weights=bf16"],
        ["lora={rank: 4}", "precision=bf16", "packing=true", "max_length=160"],
    ],
)
def test_gradient_checkpointing_keeps_less_and_trains_the_same(
    options: list[str], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentmill.trainers.sft import MaskedSFTTrainer

    compute, kept = MaskedSFTTrainer.compute_loss, []

    def measure(self: Any, *args: Any, **kwargs: Any) -> Any:
        with saved_bytes() as sizes:
            loss = compute(self, *args, **kwargs)
        kept.append(sum(sizes))
        return loss

    monkeypatch.setattr(MaskedSFTTrainer, "compute_loss", measure)
    plain, less = (trained(config, f"gradient_checkpointing={each}", *options) for each in ("false", "true"))
    assert sum(kept[2:]) < 0.7 * sum(kept[:2])
    assert less["last_loss"] == pytest.approx(plain["last_loss"], rel=1e-3)
    norms = [[point["grad_norm"] for point in each["loss_curve"]] for each in (less, plain)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    assert min(norms[0]) > 0


# LoRA


def test_dora_learns_a_length_for_each_output(config: Path, tmp_path: Path) -> None:
    assert main(["--config", str(config), *SHORT, "lora={rank: 4, dora: true, merge: false}"]) == 0
    weights = load_file(tmp_path / "tuned" / "adapter_model.safetensors")
    lengths = [each for name, each in weights.items() if "lora_magnitude_vector" in name]
    assert len(lengths) == 2 * 7
    assert all(each.dim() == 1 for each in lengths)


@pytest.mark.parametrize(("rslora", "scale"), [(True, 32 / 4**0.5), (False, 32 / 4)])
def test_rslora_scales_by_the_root_of_the_rank(rslora: bool, scale: float, model: Path, tmp_path: Path) -> None:
    adapted = moved(model, rslora=rslora)
    adapted.save_pretrained(tmp_path / "adapter")
    name = "model.layers.0.self_attn.q_proj"
    parts = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    down, up = (parts[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
    merged = load_merged(model, tmp_path / "adapter", "CAUSAL_LM").get_submodule(name).weight
    before = load_weights(model, "CAUSAL_LM", torch.float32).get_submodule(name).weight
    torch.testing.assert_close(merged - before, scale * up @ down, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "lora", [{"dora": True}, {"modules_to_save": ["embed_tokens"]}, {"modules_to_save": ["embed_tokens", "lm_head"]}]
)
@pytest.mark.parametrize("is_one", [True, False])
def test_a_merged_model_is_what_the_adapter_was(
    lora: dict[str, Any], is_one: bool, model: Path, tied: Path, tmp_path: Path
) -> None:
    base = tied if is_one else model
    adapted = moved(base, **lora)
    wanted = logits(adapted)
    adapted.save_pretrained(tmp_path / "adapter")
    load_merged(base, tmp_path / "adapter", "CAUSAL_LM").save_pretrained(tmp_path / "whole")
    whole = load_weights(tmp_path / "whole", "CAUSAL_LM", torch.float32)
    assert is_tied(whole) == is_one
    torch.testing.assert_close(logits(whole), wanted, rtol=1e-3, atol=1e-3)


def test_a_layer_in_full_is_trained_in_fp32_and_kept_with_the_adapter(
    config: Path, tied: Path, tmp_path: Path, trainers: list[Any]
) -> None:
    lora = "lora={rank: 4, merge: false, modules_to_save: [embed_tokens]}"
    assert main(["--config", str(config), *SHORT, lora, f"model={tied}", "precision=bf16"]) == 0
    learning = {name: each for name, each in trainers[0].model.named_parameters() if each.requires_grad}
    assert {each.dtype for each in learning.values()} == {torch.float32}
    saved = load_file(tmp_path / "tuned" / "adapter_model.safetensors")["base_model.model.model.embed_tokens.weight"]
    before = load_file(tied / "model.safetensors")["model.embed_tokens.weight"].float()
    assert (saved.float() - before).abs().max() > 1e-4


def test_layers_that_cannot_be_trained_in_full_are_refused(model: Path, tied: Path) -> None:
    def check(base: Path, *names: str) -> None:
        given = settings(lora={"modules_to_save": list(names)})
        check_lora_targets(load_model(base, given, "fp32"), given.lora)

    with user_error("unknown-name", "lora.modules_to_save", "embed_tokns", "Did you mean 'embed_tokens'?"):
        check(model, "embed_tokns")
    with user_error("needs-another-key", "lm_head", "embed_tokens"):
        check(tied, "lm_head")
    check(model, "lm_head")
    check(tied, "norm")


def test_settings_of_lora_that_are_not_given_leave_the_training_the_same(config: Path) -> None:
    assert trained(config, "lora={rank: 4}")["identity"]["settings"]["lora"].keys() == {
        *("rank", "alpha", "dropout", "target_modules", "merge")
    }
    more = trained(config, "lora={rank: 4, rslora: true}")
    assert more["identity"]["settings"]["lora"]["rslora"] is True
    assert not {"weights", "attention", "liger", "optimizer"} & more["identity"]["settings"].keys()


def test_four_bits_are_those_of_qlora() -> None:
    found = quantization("4bit", torch.bfloat16)
    assert (found.load_in_4bit, found.bnb_4bit_quant_type, found.bnb_4bit_use_double_quant) == (True, "nf4", True)
    assert found.bnb_4bit_compute_dtype == torch.bfloat16
    assert quantization("8bit", torch.float32).load_in_8bit


@needs_bitsandbytes
@pytest.mark.parametrize(("bits", "dtype"), [("4bit", torch.uint8), ("8bit", torch.int8)])
def test_a_quantized_base_is_trained_on_and_merged_whole(
    bits: str, dtype: torch.dtype, config: Path, model: Path, tmp_path: Path, trainers: list[Any]
) -> None:
    lora = f"lora={{rank: 4, quantize: {bits}}}"
    assert main(["--config", str(config), *SHORT, lora, "precision=bf16", "gradient_checkpointing=true"]) == 0
    base = trainers[0].model.get_base_model()
    assert base.model.layers[0].self_attn.q_proj.base_layer.weight.dtype == dtype
    record = json.loads((tmp_path / "tuned" / "training.json").read_bytes())
    plain = load_weights(model, "CAUSAL_LM", torch.float32)
    assert record["parameters"] == plain.num_parameters() + record["trained_parameters"]
    whole = load_weights(tmp_path / "tuned", "CAUSAL_LM", torch.float32)
    moved_by = (whole.model.layers[0].mlp.up_proj.weight - plain.model.layers[0].mlp.up_proj.weight).abs().max()
    # The steps of 4 bits are far larger than what two steps of training move.
    assert 0 < moved_by < 0.01


# Liger


def test_liger_is_asked_for_layers_and_not_for_the_loss(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module: Any = ModuleType("liger_kernel.transformers.monkey_patch")
    module.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    asked: list[tuple[str, dict[str, bool]]] = []
    monkeypatch.setattr(
        "agentmill.trainers.model_io.apply_liger_kernel", lambda of, given: asked.append((type(of).__name__, given))
    )
    load_model(model, settings(liger=True), "fp32")
    assert asked == [("LlamaForCausalLM", {"cross_entropy": False, "fused_linear_cross_entropy": False})]
    module.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen3": None}
    with user_error("model-of-wrong-kind", "liger", "llama"):
        load_model(model, settings(liger=True), "fp32")


@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="needs agentmill[liger]")
def test_liger_replaces_layers_and_leaves_our_head(model: Path) -> None:
    plain, patched = (load_model(model, settings(liger=each), "fp32") for each in (False, True))
    assert type(patched).forward is type(plain).forward
    assert "forward" not in vars(patched)
    assert "Liger" in repr(patched.model.norm)
    assert "Liger" not in repr(plain.model.norm)


def test_liger_needs_a_gpu(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmill.trainers.requirements.require", lambda extra: None)
    assert main(["--config", str(config), "liger=true"]) == 2
    assert shows(capsys.readouterr().err, "gpu-missing", "liger")
