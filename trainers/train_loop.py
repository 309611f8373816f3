"""The training itself: a trainer of TRL, with our settings in TRL's words, run and recorded."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.utils import logging

from agentmill.schemas.models import adapter_base
from agentmill.trainers.adapters import (
    ModelFiles,
    check_all_linear,
    check_lora_targets,
    is_tied,
    load_adapter,
    load_merged,
    lora_config,
)
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import row_order
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.estimate import BeforeFirstStep, needed_bytes
from agentmill.trainers.hub_models import revisions_of
from agentmill.trainers.launch import check_attention, check_environment, context_parallel_size
from agentmill.trainers.model_card import TrainingRecord, summarize, versions, write_record
from agentmill.trainers.model_io import (
    Task,
    attention_of,
    every_process_loads,
    load_model,
    load_weights,
    save_adapter,
    save_whole,
)
from agentmill.trainers.monitors import loss_points
from agentmill.trainers.observers import (
    early_stops,
    end_where_it_ended,
    observers,
    sampling,
    set_validation,
    validation_record,
    why_ended,
)
from agentmill.trainers.peak_memory import peak_bytes
from agentmill.trainers.reference_scores import ReferenceScores, needs_no_copy, open_scores
from agentmill.trainers.requirements import precision_of
from agentmill.trainers.run_dir import TrainingSetup, space_errors
from agentmill.trainers.trl_config import check_optimizer, trl_errors

POINT = ("step", "loss", "learning_rate", "grad_norm", "tokens", "loss_tokens", "padding", "seconds")
"""What is kept of every point of the loss curve, with what the trainer measures."""

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


def train_model(settings: TrainSettings, setup: TrainingSetup, rows: TrainingRows, method: Method) -> None:
    """Train, and put the model folder in its place. Raises ``UserError`` where TRL refuses, or the disk is full."""
    with space_errors(setup.work.folder):
        _train(settings, setup, rows, method)
    say(f"the model is in {settings.output}")


def _train(settings: TrainSettings, setup: TrainingSetup, rows: TrainingRows, method: Method) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    precision = precision_of(settings)
    check_environment(precision, method.trainer.divides_sequences and not settings.needs_whole_sequences)
    with trl_errors(settings.trl):
        arguments = trl_arguments(settings, setup, method, precision)
    # The others must see the folder only after incomplete checkpoints are gone, or processes would start from different
    # ones.
    with arguments.main_process_first(local=False):
        if arguments.process_index == 0:
            setup.work.prepare(settings.resume)
    checkpoint, steps = setup.work.latest_checkpoint(), arguments.max_steps

    trainer = build_trainer(settings, setup, method, arguments, precision, resumed=checkpoint is not None)
    # TRL has put the adapter on by now, so what learns is known.
    parameters = count_parameters(trainer.model)
    guards = early_stops(settings)
    ended = checkpoint is not None and end_where_it_ended(trainer, guards, checkpoint)
    # Where processes share sequences, no batch can be tried by itself.
    estimated = settings.estimate and context_parallel_size() == 1 and not ended
    first_step = BeforeFirstStep(trainer, parameters, setup.work.folder, estimated)
    # Before the others: progress counts from the first step.
    trainer.callback_handler.callbacks.insert(0, first_step)
    setup.work.require_space(needed_bytes(settings, **parameters))
    for callback in [*guards, *sampling(settings, setup, rows)]:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    stopped = why_ended(trainer, guards, steps)
    trainer.save_model(str(setup.work.raw))

    if arguments.process_index == 0:
        write_model(setup, settings, method.task)
        estimate = first_step.compared() if stopped is None else {}
        facts = {"precision": precision, "stopped": stopped, "estimate": estimate, **parameters}
        publish(settings, setup, rows, method, trainer, facts)
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def publish(
    settings: TrainSettings,
    setup: TrainingSetup,
    rows: TrainingRows,
    method: Method,
    trainer: BaseTrainer,
    facts: dict[str, Any],
) -> None:
    """Write what a finished training leaves with its model, and let the folder appear; ``facts`` are of its record."""
    points = loss_points(trainer.state.log_history)
    curve = [{key: point[key] for key in (*POINT, *method.measured)} for point in points]
    facts |= {
        "attention": attention_of(trainer.model),
        "packs": method.packs and len(method.packs),
        "steps": trainer.state.global_step,
        "validation": validation_record(setup, rows, trainer.state, trainer.args),
        **summarize(curve),
    }
    record = make_record(settings, setup, rows, trainer.args, facts)
    made = trainer.order[: record.steps * record.rows_per_step]
    rows.write_seen(setup.work.model, method.packs, made, record.rows_per_step)
    write_record(setup.work.model, record, setup.table.manifest)
    setup.work.publish()


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
    if setup.adapter is None or lora is None:
        check_lora_targets(model, lora)
        return model
    check_all_linear(model, lora, setup.adapter)
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


def make_record(
    settings: TrainSettings,
    setup: TrainingSetup,
    rows: TrainingRows,
    arguments: TrainingArguments,
    facts: dict[str, Any],
) -> TrainingRecord:
    """The content of ``training.json``."""
    found = rows.counted
    return TrainingRecord(
        identity=setup.work.identity,
        settings=settings.model_dump(),
        base_revision=setup.work.identity["base_revision"],
        base_model=settings.base or adapter_base(setup.adapter) if setup.adapter is not None else None,
        revisions=revisions_of(setup.work.output),
        rows_digest=setup.table.digest,
        rows_table=setup.table.manifest.table,
        rows_operator=setup.table.manifest.operator,
        views=found.views,
        counts=rows.counts,
        reasons=found.reasons,
        lost_tokens=found.lost_tokens,
        cut_contexts=found.cut_contexts,
        control_rows=found.control_rows,
        roles=found.roles,
        trees=found.trees,
        tokens_from={"stored": found.stored, "text": found.conversations - found.stored},
        rows_per_step=rows_per_step(settings, data_processes(arguments)),
        peak_memory_gib=peak_bytes() / 2**30,
        device=device_name(),
        processes=arguments.world_size,
        versions=versions(),
        **facts,
    )


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


def write_model(setup: TrainingSetup, settings: TrainSettings, task: Task) -> None:
    """Make ``work.model`` from ``work.raw``: the adapter, or all weights in ``save_dtype``."""
    raw, folder = setup.work.raw, setup.work.model
    # ZeRO stage 3 would read the files together with the other processes, which wait for this one.
    unset_hf_deepspeed_config()
    if settings.lora is None:
        # From the files: in a process of FSDP the trained model is there in part only.
        model = load_weights(raw, task, torch.float32, settings.trust_remote_code)
        save_whole(model, setup.tokenizer, setup.base, folder, settings.save_dtype)
    elif settings.lora.merge:
        merged = load_merged(setup.base, raw, task, settings.trust_remote_code)
        save_whole(merged, setup.tokenizer, setup.base, folder, settings.save_dtype)
    else:
        save_adapter(raw, setup.tokenizer, folder)


def count_parameters(model: Any) -> dict[str, int]:
    """The numbers of the model's parameters and of those that learn."""
    if hasattr(model, "get_nb_trainable_parameters"):
        # PEFT knows how many weights are in a byte of a quantized model.
        trained, total = model.get_nb_trainable_parameters()
    else:
        # ZeRO stage 3 leaves a parameter empty and keeps its size aside.
        sizes = [(getattr(each, "ds_numel", each.numel()), each.requires_grad) for each in model.parameters()]
        trained, total = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    return {"parameters": total, "trained_parameters": trained}


def device_name() -> str:
    """The GPU, or the kind of processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
