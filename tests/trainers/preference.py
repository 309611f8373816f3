"""Trainers of preferences on a handful of rows, and what the plain model says of the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentmill.schemas.records.record import Record
from agentmill.schemas.tables import Table
from agentmill.trainers.batching import pad
from agentmill.trainers.command import PreferenceSettings, TrainSettings
from agentmill.trainers.data import TrainingRows, read_rows
from agentmill.trainers.model_io import load_model, load_tokenizer
from agentmill.trainers.run_dir import TrainingSetup, WorkFolder
from agentmill.trainers.trl_trainer import Method, make_trainer, trl_arguments
from tests.model import TEMPLATE
from tests.trainers.tables import write_table


def started(folder: Path, model: Path, records: Sequence[Record], **tokenizer: Any) -> TrainingSetup:
    """The start of a training on ``records``; fields of ``tokenizer`` are set on the model's own."""
    own = load_tokenizer(model)
    for name, value in tokenizer.items():
        setattr(own, name, value)
    return started_on(folder, write_table(folder / "rows", records, type(records[0])), own, 512, model)


def started_on(folder: Path, rows: Path, tokenizer: Any, max_length: int, model: Path = Path("model")) -> TrainingSetup:
    """The start of a training on a table, which writes to ``folder``."""
    table = Table.open(rows)
    work = WorkFolder(folder / "tuned", {"base_revision": "one", "rows_digest": table.digest})
    return TrainingSetup(table, model, work, tokenizer, max_length)


def loaded(
    start: TrainingSetup, settings: TrainSettings, make: Callable[..., Any], masked: bool = True
) -> tuple[TrainingRows, list[Any]]:
    """The rows of ``start`` as tokens, and the examples themselves."""
    encode = partial(make, tokenizer=start.tokenizer, max_length=start.max_length)
    examples = [each for row in start.table.rows() for each in encode(row).examples]
    return read_rows(start, settings, encode, type(examples[0]), masked), examples


def trainer_of(settings: PreferenceSettings, start: TrainingSetup, method: Method) -> Any:
    """A trainer in fp32 whose model is already some way from its reference."""
    arguments = trl_arguments(settings, start, method, "fp32")
    model = load_model(start.base, settings, "fp32")
    reference = load_model(start.base, settings, "fp32") if method.reference else None
    trainer: Any = make_trainer(settings, start, method, arguments, (model, reference))
    move(trainer.model)
    return trainer


def move(model: Any) -> None:
    """Change every weight that learns, always in the same way."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def logps(model: Any, ids: Sequence[Any], masks: Sequence[Any]) -> torch.Tensor:
    """Log-probability of the masked tokens of each sequence, from the logits of the plain model."""
    tokens, kept = pad([each.tolist() for each in ids], 0), pad([each.tolist() for each in masks], 0).bool()
    attended = pad([[1] * len(each) for each in ids], 0)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]
    each = logits.log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
    return (each * kept[:, 1:]).sum(1)


def batch_of(trainer: Any, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
    """Some rows of the trainer's table, collated."""
    batch: dict[str, torch.Tensor] = trainer.data_collator([trainer.train_dataset[number] for number in numbers])
    return batch


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of every parameter that learns."""
    model.zero_grad()
    loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def plain(model: Path) -> Any:
    """The model as it is on disk, in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def without_observations() -> str:
    """The template of the tiny model with nothing after the end of a turn, where TRL would put loss too."""
    template = TEMPLATE.replace("<|im_end|>\n{% endif -%}\n{% endfor", "<|im_end|>{% endif -%}\n{% endfor")
    assert template != TEMPLATE
    return template
