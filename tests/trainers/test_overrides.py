"""Where the trainers override TRL, TRL itself still does otherwise. A test that fails names an override to drop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PrinterCallback
from transformers.utils import logging as transformers_logging
from trl.trainer import utils
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from agentmill.schemas.training import TrainConfig
from agentmill.trainers.adapters import ModelFiles
from agentmill.trainers.base_trainer import skip_tokens_without_loss
from agentmill.trainers.command import DpoSettings, KtoSettings, RewardSettings, SftSettings
from agentmill.trainers.dpo import dpo_method
from agentmill.trainers.kto import UnpairedCollator, kto_method
from agentmill.trainers.model_io import load_model
from agentmill.trainers.preference_data import encode_comparison, encode_labelled, encode_pair
from agentmill.trainers.reward import pair_method
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.sft import sequences, sft_method
from agentmill.trainers.trl_config import CONFIGS
from agentmill.trainers.trl_trainer import FIXED, Method, make_trainer, trl_arguments
from tests.trainers.preference import batch_of, loaded, plain, started
from tests.trainers.tables import assistant, pair, row, unpaired, user

torch.set_num_threads(1)
PLACES = {"rows": "r", "model": "m", "output": "o", "max_steps": 1}
WEIGHTED = {
    "sft": [row([user("Go."), assistant("open", weight=0.25), user("Yes."), assistant("push", weight=3.0)])],
    "dpo": [pair("a", 1, weight=0.25), pair("b", 2, weight=3.0)],
    "kto": [unpaired("a", True, weight=0.25), unpaired("b", False, weight=3.0)],
    "reward": [pair("a", 1, weight=0.25), pair("b", 2, weight=3.0)],
}
TRL = {
    "sft": (SFTTrainer, SFTConfig),
    "dpo": (DPOTrainer, DPOConfig),
    "kto": (KTOTrainer, KTOConfig),
    "reward": (RewardTrainer, RewardConfig),
}


def method_of(name: str, setup: TrainingSetup) -> tuple[Any, Method]:
    """The settings of a trainer and its method on the rows of ``setup``."""
    given = {**PLACES, "batch_size": len(WEIGHTED[name])}
    if name == "sft":
        sft = SftSettings.model_validate(given)
        rows, _ = loaded(setup, sft, partial(sequences, long_rows="window"))
        return sft, sft_method(sft, rows, setup)
    if name == "dpo":
        dpo = DpoSettings.model_validate(given)
        return dpo, dpo_method(dpo, loaded(setup, dpo, encode_pair)[0], ModelFiles(setup.base), 0)
    if name == "kto":
        kto = KtoSettings.model_validate(given)
        rows, _ = loaded(setup, kto, encode_labelled)
        return kto, kto_method(kto, rows, ModelFiles(setup.base), UnpairedCollator(0, setup.max_length))
    reward = RewardSettings.model_validate(given)
    rows, _ = loaded(setup, reward, partial(encode_comparison, margin=False), masked=False)
    return reward, pair_method(reward, rows, 0)


def ours(name: str, folder: Path, model: Path) -> Any:
    setup = started(folder, model, WEIGHTED[name])
    settings, method = method_of(name, setup)
    arguments = trl_arguments(settings, setup, method, "fp32")
    reference = load_model(method.reference.base, TrainConfig(), "fp32") if method.reference else None
    models = (load_model(model, TrainConfig(), "fp32", method.task), reference)
    return make_trainer(settings, setup, method, arguments, models)


@pytest.mark.parametrize("name", WEIGHTED)
def test_compute_loss_since_trl_has_no_weights(name: str, tmp_path: Path, model: Path) -> None:
    trainer = ours(name, tmp_path, model)
    batch = batch_of(trainer, range(len(WEIGHTED[name])))
    extra = {"num_items_in_batch": torch.tensor(5)} if name == "sft" else {}
    loss = trainer.compute_loss(trainer.model, dict(batch), **extra).item()
    # TRL then asks its reference itself, as it does by default.
    trainer.precompute_ref_logps = False
    own = TRL[name][0].compute_loss
    try:
        theirs = own(trainer, trainer.model, dict(batch), **extra).item()
    except (TypeError, RuntimeError):
        return  # it cannot make anything of the weights
    assert theirs != pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("name", ["dpo", "kto", "reward"])
def test_prepare_dataset_since_trl_takes_no_rows_of_tokens(
    name: str, tmp_path: Path, model: Path, tokenizer: Any
) -> None:
    if name == "reward":
        examples = Dataset.from_dict({"ids": [[1, 2]], "value": [1.0]})
    else:
        examples = method_of(name, started(tmp_path, model, WEIGHTED[name]))[1].examples
    kind, config = TRL[name]
    loader = AutoModelForSequenceClassification if name == "reward" else AutoModelForCausalLM
    more = {} if name == "reward" else {"ref_model": plain(model)}
    kept = {"num_labels": 1} if name == "reward" else {}
    with pytest.raises((KeyError, ValueError, TypeError)):
        kind(
            model=loader.from_pretrained(model, **kept),
            args=arguments(config, tmp_path),
            train_dataset=examples,
            processing_class=tokenizer,
            **more,
        )


def test_skip_prepare_dataset_since_trl_tokenises_rows_anew() -> None:
    assert SFTConfig("o", use_cpu=True, bf16=False).dataset_kwargs is None


def arguments(config: Any, folder: Path, **given: Any) -> Any:
    return config(output_dir=str(folder / "theirs"), use_cpu=True, bf16=False, **given)


def theirs(folder: Path, model: Path, tokenizer: Any, **given: Any) -> Any:
    """TRL's own SFT trainer on four short sequences."""
    sequence = list(range(1, 9))
    return SFTTrainer(
        model=plain(model),
        args=arguments(SFTConfig, folder, gradient_checkpointing=False, **given),
        train_dataset=Dataset.from_dict({"input_ids": [sequence] * 4, "labels": [sequence] * 4}),
        processing_class=tokenizer,
    )


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory, model: Path, tokenizer: Any) -> Path:
    """The checkpoint of TRL's own trainer after a step."""
    folder = tmp_path_factory.mktemp("plain")
    theirs(folder, model, tokenizer, max_steps=1, save_steps=1, logging_steps=1, disable_tqdm=True).train()
    return folder / "theirs"


def test_create_model_card_since_trl_writes_one_into_each_checkpoint(plain_training: Path) -> None:
    assert list(plain_training.rglob("README.md"))


def test_log_since_trl_counts_neither_tokens_with_loss_nor_padding(plain_training: Path) -> None:
    [state] = plain_training.glob("checkpoint-1/trainer_state.json")
    point = json.loads(state.read_bytes())["log_history"][0]
    assert "loss" in point
    assert not {"loss_tokens", "padding", "seconds", "accuracy"} & point.keys()


def test_the_printer_is_removed_since_transformers_prints_each_point(
    tmp_path: Path, model: Path, tokenizer: Any
) -> None:
    trainer = theirs(tmp_path, model, tokenizer, disable_tqdm=True)
    assert any(isinstance(each, PrinterCallback) for each in trainer.callback_handler.callbacks)


@pytest.fixture
def usual_logging() -> Iterator[None]:
    """The default of ``disable_tqdm`` depends on the level at which transformers logs, which other tests change."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_warning()
    yield
    transformers_logging.set_verbosity(level)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_fields_since_the_default_of_trl_is_another(name: str, usual_logging: None) -> None:
    defaults = [getattr(config("o", use_cpu=True, bf16=False), name) for config in CONFIGS.values()]
    assert any(default != FIXED[name] for default in defaults)


def test_unused_columns_are_kept_since_transformers_would_remove_ours(
    tmp_path: Path, model: Path, tokenizer: Any
) -> None:
    trainer = theirs(tmp_path, model, tokenizer, remove_unused_columns=True)
    mine = Dataset.from_dict({"input_ids": [[1]], "chosen_ids": [[1]], "weight": [1.0]})
    assert {"chosen_ids", "weight"}.isdisjoint(trainer._remove_unused_columns(mine).column_names)


@pytest.mark.parametrize("config", [DPOConfig, KTOConfig])
def test_no_auxiliary_loss_since_trl_takes_the_coefficient_of_the_model(config: Any) -> None:
    assert config("o", use_cpu=True, bf16=False).router_aux_loss_coef is None


@pytest.mark.parametrize("config", [DPOConfig, KTOConfig, RewardConfig])
def test_dropout_of_an_adapter_since_trl_turns_off_all(config: Any) -> None:
    assert config("o", use_cpu=True, bf16=False).disable_dropout
    layers = torch.nn.Sequential(torch.nn.Dropout(0.5))
    utils.disable_dropout_in_model(layers)
    assert layers[0].p == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="bf16 and pinned memory are for GPUs")
def test_the_processor_is_named_since_transformers_does_not_see_that_there_is_no_gpu() -> None:
    with pytest.raises(ValueError, match="bf16"):
        SFTConfig("o", bf16=True, use_cpu=False)
    with pytest.warns(UserWarning, match="pin_memory"):
        next(iter(DataLoader([1], pin_memory=True)))  # type: ignore[arg-type]


def test_one_gpu_since_trl_refuses_several(
    tmp_path: Path, model: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SFTConfig, "n_gpu", property(lambda _: 2))
    with pytest.raises(ValueError, match="DataParallel"):
        theirs(tmp_path, model, tokenizer)


def test_the_head_skips_tokens_without_loss_since_trl_computes_them_on_cpu(
    tmp_path: Path, model: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    apply = utils._ChunkedLogProbFunction.apply

    def count(hidden: torch.Tensor, *rest: Any) -> Any:
        scored.append(len(hidden))
        return apply(hidden, *rest)

    monkeypatch.setattr(utils._ChunkedLogProbFunction, "apply", count)
    trainer = theirs(tmp_path, model, tokenizer)
    ids = torch.arange(1, 9)[None]
    labels = torch.where(ids < 7, -100, ids)
    for change in (lambda _: None, skip_tokens_without_loss):
        change(trainer.model)
        trainer.model(input_ids=ids, labels=labels, fused_lm_head=True)
    assert scored == [7, 2]


def test_fsdp_on_cpu_since_accelerate_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    state: Mapping[str, Any] = {**PartialState()._shared_state, "distributed_type": DistributedType.MULTI_CPU}
    monkeypatch.setattr(PartialState, "_shared_state", dict(state))
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})
    assert Accelerator(cpu=True).distributed_type == DistributedType.MULTI_CPU


def test_rows_are_crossed_in_the_batch_since_trl_crosses_them_once(tmp_path: Path, model: Path) -> None:
    """In a fixed way: the column that TRL's collator reads is part of its data set."""
    trainer = ours("kto", tmp_path, model)
    trainer._signature_columns = None
    KTOTrainer._set_signature_columns_if_needed(trainer)
    assert "KL_completion_ids" in trainer._signature_columns


def test_tokens_of_several_sequences_are_counted_since_transformers_counts_each_once(
    tmp_path: Path, model: Path, tokenizer: Any
) -> None:
    batch = {"labels": torch.tensor([[-100, 3, 4]]), "copies": torch.tensor([[0, 2, 1]])}
    assert theirs(tmp_path, model, tokenizer)._get_num_items_in_batch([batch], torch.device("cpu")) == 2
