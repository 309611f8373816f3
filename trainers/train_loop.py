"""The training itself: a trainer of TRL, with our settings in TRL's words, run and recorded."""

from __future__ import annotations

import math
import platform
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import row_order
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.model_card import TrainingRecord, summarize, versions, write_record
from agentmill.trainers.model_io import (
    Task,
    attention_of,
    check_lora_targets,
    is_tied,
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
    ``reference`` is a model to be kept besides the trained one; ``task`` is what the model is for.
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
    model = load_model(setup.base, settings, precision, method.task)
    check_lora_targets(model, settings.lora)
    check_optimizer(arguments, model)
    reference = load_model(method.reference, settings, precision) if method.reference else None
    with trl_errors(settings.trl):
        trainer = make_trainer(settings, setup, method, arguments, (model, reference))
    # TRL has put the adapter on by now, so what learns is known.
    parameters = count_parameters(trainer.model)
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
        facts = {
            "precision": precision,
            "attention": attention_of(model),
            "packs": method.packs,
            **parameters,
            **summarize(curve),
        }
        facts |= {"steps": trainer.state.global_step, "stopped": stopped}
        record = make_record(settings, setup, rows, arguments, facts)
        write_record(setup.work.model, record, setup.table.manifest)
        setup.work.publish()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def make_trainer(
    settings: TrainSettings, setup: TrainingSetup, method: Method, arguments: TrainingArguments, models: tuple[Any, Any]
) -> BaseTrainer:
    """TRL's trainer over the examples, in the order of the whole training; ``models`` are the model and a reference."""
    model, reference = models
    # The rows of the whole training one after the other: of like length in a group, and the same after a stop.
    order = row_order(
        method.lengths,
        settings.batch_size * arguments.world_size,
        arguments.max_steps * rows_per_step(settings, arguments.world_size),
        settings.seed,
    )
    trainer = method.trainer(
        model=model,
        args=arguments,
        train_dataset=method.examples.select(order),
        processing_class=setup.tokenizer,
        data_collator=method.collator,
        peft_config=lora_config(settings.lora, method.task, is_tied(model)),
        callbacks=[
            Progress(),
            OverOptimisationWarning(),
            MarkCheckpoints(setup.work),
            *([TensorBoardCurve(setup.work.events)] if settings.tensorboard else []),
        ],
        **({"ref_model": reference} if reference is not None else {}),
        **method.trainer_arguments,
    )
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
        peak_memory_gib=peak_memory_gib(),
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
    if hasattr(model, "get_nb_trainable_parameters"):
        # PEFT knows how many weights are in a byte of a quantized model.
        trained, total = model.get_nb_trainable_parameters()
    else:
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
        trained, total = sum(size for size, learns in sizes if learns), sum(size for size, _ in sizes)
    return {"parameters": total, "trained_parameters": trained}


def needed_bytes(settings: TrainSettings, parameters: int, trained_parameters: int) -> int:
    """Disk that a training takes: three checkpoints (weights and at most two moments), what TRL saves, the model."""
    # Adafactor and 8-bit optimizers keep less than two moments.
    size = 2 if settings.weights == "bf16" else 4
    # The third is the one being written while the two last are kept.
    checkpoints = 3 * 3 * size * trained_parameters if settings.save_steps else 0
    merged = settings.lora is None or settings.lora.merge
    return checkpoints + size * trained_parameters + (4 * parameters if merged else 0)


def device_name() -> str:
    """The GPU, or the kind of processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"


def peak_memory_gib() -> float:
    """The most memory this process held: of the GPU, where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    # Linux counts it in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
