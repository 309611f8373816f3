"""How a trainer of TRL is made: our settings in TRL's words, the models, and the examples in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainingArguments

from agentmill.trainers.adapters import (
    ModelFiles,
    check_adapted,
    check_lora_targets,
    is_tied,
    load_adapter,
    lora_config,
)
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import row_order
from agentmill.trainers.chat_template import WILL_STOP, stop_behind_turns
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.launch import check_attention, context_parallel_size
from agentmill.trainers.model_io import Task, every_process_loads, load_model
from agentmill.trainers.observers import observers, set_validation
from agentmill.trainers.reference_scores import ReferenceScores, needs_no_copy, open_scores
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.trl_config import check_optimizer, trl_errors

FIXED: Mapping[str, Any] = {
    # Batches have names of ours, which transformers would take for columns that the model does not use.
    "remove_unused_columns": False,
    # Longer rows are cut at turns or dropped before; TRL would truncate them anywhere.
    "max_length": None,
    # The rows are in order already; an order of transformers' would know nothing of lengths.
    "train_sampling_strategy": "sequential",
    # It would show a loss that is no number as 0.
    "logging_nan_inf_filter": False,
    # Progress is printed by a callback of ours, in lines that also suit a log.
    "disable_tqdm": True,
}
"""Fields of TRL's configuration that are the same for every training."""


@dataclass(frozen=True)
class Examples:
    """Examples of a method, as its collator takes them, with their lengths in tokens."""

    dataset: Dataset
    lengths: list[int]


def validation_examples(rows: TrainingRows) -> Examples | None:
    """The rows to validate on, as they are on disk."""
    return None if rows.validation is None else Examples(rows.validation.examples, rows.validation.lengths)


@dataclass(frozen=True)
class Method:
    """What one way of training adds to what all do.

    ``trainer`` is our subclass of TRL's, which also gets ``trainer_arguments``; ``config`` is TRL's configuration for
    it, which also gets ``options``. ``lengths`` are those of the ``examples``, in tokens; ``validation`` are examples
    that are not trained on. ``measured`` are the values in a point of the loss curve with ``POINT``; ``packs`` are the
    sequences of each, if they are packs. ``reference`` is a model that is kept in addition to the trained one, and
    ``scored`` are the names of its values that are made once, of rows and of places in their order. ``task`` is what
    the model is for.
    """

    trainer: type[BaseTrainer]
    config: Callable[..., TrainingArguments]
    options: dict[str, Any]
    examples: Dataset
    lengths: list[int]
    collator: Any
    measured: tuple[str, ...]
    validation: Examples | None = None
    packs: list[list[int]] | None = None
    reference: ModelFiles | None = None
    scored: tuple[Sequence[str], Sequence[str]] | None = None
    trainer_arguments: dict[str, Any] = field(default_factory=dict)
    task: Task = "CAUSAL_LM"


def trl_arguments(settings: TrainSettings, setup: TrainingSetup, method: Method, precision: str) -> TrainingArguments:
    """Our settings in TRL's words."""
    arguments = method.config(
        output_dir=str(setup.work.folder),
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        optim=settings.optimizer,
        # The plain constant schedule of transformers ignores the warm-up.
        lr_scheduler_type=settings.scheduler if settings.scheduler != "constant" else "constant_with_warmup",
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=settings.seed,
        bf16=precision == "bf16",
        # TRL takes bf16 for impossible, and pinned memory for wanted, where there is no GPU.
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=settings.log_steps,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 1,
        # The last checkpoint is incomplete when a training is killed while writing it.
        save_total_limit=2,
        **FIXED,
        **method.options,
        **settings.trl,
    )
    one_step = rows_per_step(settings, data_processes(arguments))
    # Set afterwards: how many processes there are is known only from the configuration itself.
    arguments.max_steps = settings.max_steps or steps_in(settings.epochs, len(method.lengths), one_step)
    arguments.warmup_steps = round(settings.warmup * arguments.max_steps)
    set_validation(settings.validates, arguments)
    return arguments


def data_processes(arguments: TrainingArguments) -> int:
    """The processes that get different rows; those that divide a sequence between them get the same."""
    return int(arguments.world_size) // context_parallel_size()


def steps_in(epochs: float, rows: int, one_step: int) -> int:
    """The optimizer steps that ``epochs`` of so many rows take, the last of them perhaps of fewer than ``one_step``."""
    # Rounded, so that 0.07 epochs of 100 rows are 7 steps of one, and not 8.
    return math.ceil(round(rows * epochs / one_step, 9))


def rows_per_step(settings: TrainSettings, processes: int) -> int:
    """Examples that go into one optimizer step, with as many ``processes`` that get different rows."""
    return settings.batch_size * settings.gradient_accumulation * processes


def build_trainer(
    settings: TrainSettings,
    setup: TrainingSetup,
    method: Method,
    arguments: TrainingArguments,
    precision: str,
    resumed: bool,
) -> BaseTrainer:
    """The trainer with the model and its reference loaded, as far as one is needed beyond what is scored already."""
    # The head of a reward model is drawn while the model is loaded, before the trainer sets its seed.
    torch.manual_seed(settings.seed)
    model = load_start(setup, settings, precision, method.task)
    check_attention(model.config)
    check_optimizer(arguments, model)
    scores = None
    if method.scored is not None:
        order, group = example_order(settings, method, arguments), settings.batch_size * data_processes(arguments)
        scores = open_scores(settings, setup, precision, method.scored, order, group)
    reference = None
    if method.reference and not (scores and needs_no_copy(scores, setup, resumed)):
        # TRL divides a reference as each process has it, and does not send it from the first.
        with every_process_loads():
            reference = load_reference(method.reference, settings, precision)
    with trl_errors(settings.trl):
        return make_trainer(settings, setup, method, arguments, (model, reference), scores)


def load_start(setup: TrainingSetup, settings: TrainSettings, precision: str, task: Task) -> Any:
    """The model to train, with the adapter that is trained on. Raises ``UserError`` for layers it does not have."""
    lora = settings.lora
    model = load_model(setup.base, settings, precision, task)
    token = stop_behind_turns(model, setup.tokenizer) if task == "CAUSAL_LM" else None
    if token is not None and lora is not None and not lora.merge:
        say(f"warning: {setup.base} does not stop at {token}, which ends turns here; have its server stop there")
    elif token is not None:
        say(WILL_STOP.format(token=token))
    if setup.adapter is None or lora is None:
        check_lora_targets(model, lora)
        return model
    check_adapted(model, lora, setup.adapter)
    return load_adapter(model, setup.adapter, lora.dropout)


def load_reference(files: ModelFiles, settings: TrainSettings, precision: str) -> Any:
    """A reference that is not within the trained model; an adapter is added to its weights."""
    if files.adapter is None:
        return load_model(files.base, settings, precision)
    whole = load_model(files.base, settings.model_copy(update={"lora": None}), precision)
    return load_adapter(whole, files.adapter, dropout=0.0).merge_and_unload()


def make_trainer(
    settings: TrainSettings,
    setup: TrainingSetup,
    method: Method,
    arguments: TrainingArguments,
    models: tuple[Any, Any],
    scores: ReferenceScores | None = None,
) -> BaseTrainer:
    """TRL's trainer over the examples, in the order of the whole training; ``models`` are the model and a reference.

    ``scores`` are those of the reference, where it runs before the first step only.
    """
    model, reference = models
    order = scores.order.tolist() if scores is not None else example_order(settings, method, arguments)
    validation = method.validation
    of_reference: dict[str, Any] = {"ref_model": reference} if reference is not None else {}
    if scores is not None:
        of_reference |= {"scores": scores, "kept": method.reference is None}
    trainer = method.trainer(
        model=model,
        args=arguments,
        train_dataset=method.examples.select(order),
        eval_dataset=validation.dataset if validation is not None else None,
        validation_lengths=validation.lengths if validation is not None else (),
        processing_class=setup.tokenizer,
        data_collator=method.collator,
        # TRL makes a new adapter of it; one that is trained on is there already.
        peft_config=lora_config(settings.lora, method.task, is_tied(model)) if setup.adapter is None else None,
        callbacks=observers(settings, setup, arguments),
        **of_reference,
        **method.trainer_arguments,
    )
    trainer.order, group = order, settings.batch_size * data_processes(arguments)
    trainer.batch_lengths = np.take(method.lengths, order).reshape(-1, group).max(1)
    # transformers adds it where tqdm is disabled, and prints each point of the curve.
    trainer.remove_callback(PrinterCallback)
    return trainer


def example_order(settings: TrainSettings, method: Method, arguments: TrainingArguments) -> list[int]:
    """The examples of the whole training one after the other: of like length in a group, and the same after a stop."""
    return row_order(
        method.lengths,
        settings.batch_size * data_processes(arguments),
        arguments.max_steps * rows_per_step(settings, data_processes(arguments)),
        settings.seed,
    )
