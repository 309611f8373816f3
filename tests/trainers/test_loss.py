"""The loss and its gradient are those of the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer import utils

from tests.trainers.tables import assistant, row, turns, user
from trainers.batches import Collator
from trainers.tokens import encode

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    weighted = row([user("Go."), assistant("open the door", weight=0.25), user("Yes."), assistant("go", weight=3.0)])
    encoded = [encode(each, tokenizer) for each in (turns(3), weighted)]
    names = ("input_ids", "labels", "weights")
    return Collator(0)([{name: getattr(each, name).tolist() for name in names} for each in encoded])


def row_trainer(model: Path, output: Path, tokenizer: Any, **fields: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig

    from trainers.loss import RowTrainer

    arguments = SFTConfig(
        output_dir=str(output),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    return RowTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": [[1]], "labels": [[1]]}),
        processing_class=tokenizer,
        data_collator=Collator(0),
        order=[0],
        **fields,
    )


def expected_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """From the logits of all positions."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels, weights = batch["labels"][:, 1:], batch["weights"][:, 1:]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return (each * weights).sum() / (labels != -100).sum()


def test_loss_and_gradient(model: Path, tmp_path: Path, tokenizer: Any, batch: dict[str, torch.Tensor]) -> None:
    trainer = row_trainer(model, tmp_path, tokenizer)
    items = (batch["labels"][:, 1:] != -100).sum()
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=items)
    loss.backward()
    gradient = {name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    expected = expected_loss(trainer.model, batch)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-3, atol=1e-6)


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
