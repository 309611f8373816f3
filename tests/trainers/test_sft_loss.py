"""The loss and its gradient are those of the plain model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.trainer import utils

from agentmill.trainers.sft import SftCollator
from agentmill.trainers.tokenization import encode
from tests.trainers.preference import gradients
from tests.trainers.tables import assistant, row, turns, user

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    weighted = row([user("Go."), assistant("open the door", weight=0.25), user("Yes."), assistant("go", weight=3.0)])
    encoded = [encode(each, tokenizer) for each in (turns(3), weighted)]
    names = ("input_ids", "labels", "weights")
    return SftCollator(0)([{name: getattr(each, name).tolist() for name in names} for each in encoded])


def row_trainer(model: Path, output: Path, tokenizer: Any, packing: bool = False, loss_type: str = "nll") -> Any:
    from agentmill.trainers.sft import MaskedSFTTrainer

    collator = SftCollator(0, packing)
    return trainer_of(MaskedSFTTrainer, model, output, tokenizer, loss_type, data_collator=collator, packing=packing)


def trainer_of(kind: Any, model: Path, output: Path, tokenizer: Any, loss_type: str, **more: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig

    arguments = SFTConfig(
        output_dir=str(output),
        loss_type=loss_type,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    return kind(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": [[1]], "labels": [[1]]}),
        processing_class=tokenizer,
        **more,
    )


def expected_loss(model: Any, batch: dict[str, torch.Tensor], loss_type: str) -> torch.Tensor:
    """From the logits of all positions."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels, weights = batch["labels"][:, 1:], batch["weights"][:, 1:]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    if loss_type == "dft":
        each = each * (-each).exp().detach()
    return (each * weights).sum() / (labels != -100).sum()


def learnt(trainer: Any, batch: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a batch and the gradients."""
    items = (batch["labels"][:, 1:] != -100).sum()
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=items)
    return loss.item(), gradients(trainer.model, loss)


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
def test_loss_and_gradient(
    loss_type: str, model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor]
) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer, loss_type=loss_type)
    loss, gradient = learnt(trainer, batch)
    expected = expected_loss(trainer.model, batch, loss_type)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, each in gradients(trainer.model, expected).items():
        torch.testing.assert_close(gradient[name], each, rtol=1e-3, atol=1e-6)


def test_labels_and_weights_are_shifted_before_a_sequence_is_divided(
    model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer)
    expected = expected_loss(trainer.model, batch, "nll")
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    divided = SimpleNamespace(cp_enabled=True, cp_backend="torch")
    monkeypatch.setattr(type(trainer.accelerator), "parallelism_config", divided)
    context, inputs = trainer._prepare_context_parallel_inputs(trainer.model, dict(batch))
    # Whatever has a place for each token is divided in the same way.
    assert {id(each) for each in context.keywords["buffers"]} == {id(each) for each in inputs.values()}
    assert context.keywords["buffer_seq_dims"] == [1] * len(inputs)
    items = (batch["labels"][:, 1:] != -100).sum()
    loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    gradient = gradients(trainer.model, loss)
    for name, each in gradients(trainer.model, expected).items():
        torch.testing.assert_close(gradient[name], each, rtol=1e-3, atol=1e-6)


def test_dynamic_fine_tuning_is_that_of_trl(
    model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor]
) -> None:
    from trl import SFTTrainer

    even = {**batch, "weights": (batch["labels"] != -100).float()}
    ours = learnt(row_trainer(model, tmp_path, tokenizer, loss_type="dft"), even)
    plain = {name: even[name] for name in ("input_ids", "attention_mask", "labels")}
    theirs = learnt(trainer_of(SFTTrainer, model, tmp_path, tokenizer, "dft"), plain)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[0] < learnt(row_trainer(model, tmp_path, tokenizer), even)[0] / 2
    for name, each in theirs[1].items():
        torch.testing.assert_close(ours[1][name], each, rtol=1e-4, atol=1e-7)


def test_the_model_answers_as_before_outside_the_loss(
    model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor]
) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer)
    logits = trainer.model(input_ids=batch["input_ids"]).logits
    assert logits.shape == (*batch["input_ids"].shape, trainer.model.config.vocab_size)


def test_the_head_works_on_tokens_with_loss_only(
    model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer)
    kernel, seen = utils._ChunkedLogProbFunction, []

    class Watched:
        @staticmethod
        def apply(hidden: torch.Tensor, *rest: Any) -> Any:
            seen.append(tuple(hidden.shape))
            return kernel.apply(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", Watched)
    items = (batch["labels"][:, 1:] != -100).sum()
    trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=items)
    assert seen == [(int(items), 128)]
