"""The training itself: a trainer of TRL, with our settings in TRL's words, run and recorded."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import row_order
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.estimate import BeforeFirstStep
from agentmill.trainers.model_card import TrainingRecord, summarize, versions, write_record
from agentmill.trainers.model_io import (
    Task,
    check_lora_targets,
    load_merged,
    load_model,
    load_weights,
    lora_config,
    save_adapter,
    save_whole,
)
from agentmill.trainers.monitors import (
    MarkCheckpoints,
    OverOptimisationWarning,
    Progress,
    StopOnDrift,
    TensorBoardCurve,
)
from agentmill.trainers.peak_memory import peak_bytes
from agentmill.trainers.reference_scores import ReferenceScores, needs_no_copy, open_scores
from agentmill.trainers.run_dir import TrainingSetup, space_errors
from agentmill.trainers.trl_config import trl_errors

POINT = ("step", "loss", "learning_rate", "grad_norm", "tokens", "loss_tokens", "padding", "seconds")
"""What is kept of every point of the loss curve, with what the trainer measures."""

FIXED: Mapping[str, Any] = {
    # Batches have names of ours, which transformers would take for columns that the model does not use.
    "remove_unused_columns": False,
    # Longer rows are cut at turns or dropped before; TRL would truncate them anywhere.
    "max_length": None,
    # The rows are in order already; an order of transformers' would know nothing of lengths.
    "train_sampling_strategy": "sequential",
    # The last checkpoint is incomplete when a training is killed while writing it.
    "save_total_limit": 2,
    # Progress is printed by a callback of ours, in lines that also suit a log.
    "disable_tqdm": True,
}
"""Fields of TRL's configuration that are the same for every training."""


@dataclass(frozen=True)
class Method:
    """What one way of training adds to what all do.

    ``trainer`` is our subclass of TRL's, which also gets ``trainer_arguments``; ``config`` is TRL's configuration for
    it, which also gets ``options``. ``lengths`` are those of the ``examples``, in tokens; ``measured`` are
    the values in a point of the loss curve with ``POINT``; ``packs`` is the number of packs, if examples are packs;
    ``reference`` is a model to be kept besides the trained one; ``scored`` are the names of the values of the reference
    that are made once, of rows and of places in their order; ``task`` is what the model is for.
    """

    trainer: type[BaseTrainer]
    config: Callable[..., TrainingArguments]
    options: dict[str, Any]
    examples: Dataset
    lengths: list[int]
    collator: Any
    measured: tuple[str, ...]
    packs: int | None = None
    reference: Path | None = None
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
    precision = choose_precision(settings.precision)
    with trl_errors(settings.trl):
        arguments = trl_arguments(settings, setup, method, precision)
    # The others must see the folder only after incomplete checkpoints are gone, or processes would start from different
    # ones.
    with arguments.main_process_first(local=False):
        if arguments.process_index == 0:
            setup.work.prepare(settings.resume)
    checkpoint = setup.work.latest_checkpoint()

    # The head of a reward model is drawn while the model is loaded, before the trainer sets its seed.
    torch.manual_seed(settings.seed)
    trusted = settings.trust_remote_code
    model = load_model(setup.base, settings.lora, precision, method.task, trusted)
    check_lora_targets(model, settings.lora)
    scores = None
    if method.scored is not None:
        order, group = order_of_rows(settings, method, arguments), settings.batch_size * arguments.world_size
        scores = open_scores(settings, setup, precision, method.scored, order, group)
    reference = None
    if method.reference and not (scores and needs_no_copy(scores, setup, bool(checkpoint))):
        reference = load_model(method.reference, settings.lora, precision, trusted=trusted)
    with trl_errors(settings.trl):
        trainer = make_trainer(settings, setup, method, arguments, (model, reference), scores)
    # TRL has put the adapter on by now, so what learns is known.
    parameters = count_parameters(trainer.model)
    first_step = BeforeFirstStep(trainer, parameters, setup.work.folder, settings.estimate)
    # Before the others: progress counts from the first step.
    trainer.callback_handler.callbacks.insert(0, first_step)
    setup.work.require_space(needed_bytes(settings, **parameters))
    guard = StopOnDrift(limits) if (limits := getattr(settings, "stop_when", None)) is not None else None
    if guard is not None:
        trainer.add_callback(guard)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(setup.work.raw))
    points = [point for point in trainer.state.log_history if "loss" in point]
    curve = [{key: point[key] for key in (*POINT, *method.measured)} for point in points]

    if arguments.process_index == 0:
        write_model(setup, settings, method.task)
        # A limit that the last step reaches ends nothing.
        stopped = guard.reason if guard is not None and trainer.state.global_step < arguments.max_steps else None
        facts = {"precision": precision, "packs": method.packs, **parameters, **summarize(curve)}
        facts |= {"steps": trainer.state.global_step, "stopped": stopped}
        facts["estimate"] = first_step.compared() if stopped is None else {}
        record = make_record(settings, setup, rows, arguments, facts)
        write_record(setup.work.model, record, setup.table.manifest)
        setup.work.publish()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def order_of_rows(settings: TrainSettings, method: Method, arguments: TrainingArguments) -> list[int]:
    """The rows of the whole training one after the other: of like length in a group, and the same after a stop."""
    return row_order(
        method.lengths,
        settings.batch_size * arguments.world_size,
        arguments.max_steps * rows_per_step(settings, arguments.world_size),
        settings.seed,
    )


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
    order = scores.order if scores is not None else order_of_rows(settings, method, arguments)
    trainer = method.trainer(
        model=model,
        args=arguments,
        train_dataset=method.examples.select(order),
        processing_class=setup.tokenizer,
        data_collator=method.collator,
        peft_config=lora_config(settings.lora, method.task),
        callbacks=[
            Progress(),
            OverOptimisationWarning(),
            MarkCheckpoints(setup.work),
            *([TensorBoardCurve(setup.work.events)] if settings.tensorboard else []),
        ],
        **({"ref_model": reference} if reference is not None else {}),
        **({"scores": scores, "kept": method.reference is None} if scores is not None else {}),
        **method.trainer_arguments,
    )
    group = settings.batch_size * arguments.world_size
    trainer.batch_lengths = np.take(method.lengths, order).reshape(-1, group).max(1)
    # transformers adds it where tqdm is disabled, and prints each point of the curve.
    trainer.remove_callback(PrinterCallback)
    return trainer


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
        rows_per_step=rows_per_step(settings, arguments.world_size),
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
        **FIXED,
        **method.options,
        **settings.trl,
    )
    one_step = rows_per_step(settings, arguments.world_size)
    # Set afterwards: how many processes there are is known only from the configuration itself.
    arguments.max_steps = settings.max_steps or math.ceil(len(method.lengths) * settings.epochs / one_step)
    arguments.warmup_steps = round(settings.warmup * arguments.max_steps)
    return arguments


def rows_per_step(settings: TrainSettings, processes: int) -> int:
    """Examples that go into one optimizer step."""
    return settings.batch_size * settings.gradient_accumulation * processes


def write_model(setup: TrainingSetup, settings: TrainSettings, task: Task) -> None:
    """Make ``work.model`` from ``work.raw``: the adapter, or all weights in ``save_dtype``."""
    raw, folder = setup.work.raw, setup.work.model
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
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "trained_parameters": sum(size for size, learns in sizes if learns),
    }


def needed_bytes(settings: TrainSettings, parameters: int, trained_parameters: int) -> int:
    """Disk that a training takes: three checkpoints (weights and two moments in fp32), what TRL saves, the model."""
    # The third is the one being written while the two last are kept.
    checkpoints = 3 * 12 * trained_parameters if settings.save_steps else 0
    merged = settings.lora is None or settings.lora.merge
    return checkpoints + 4 * trained_parameters + (4 * parameters if merged else 0)


def choose_precision(wanted: str) -> str:
    """``bf16`` or ``fp32``: as wanted, or what the processor is made for (emulated bf16 is four times slower)."""
    if wanted != "auto":
        return wanted
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    has = torch.cpu.get_capabilities()
    return "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "fp32"


def device_name() -> str:
    """The GPU, or the kind of processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
