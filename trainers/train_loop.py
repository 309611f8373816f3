"""The training itself: a trainer of TRL, with our settings in TRL's words, run and recorded."""

from __future__ import annotations

import platform
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.utils import logging

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import adapter_base
from agentmill.trainers.adapters import (
    load_merged,
)
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.chat_template import stop_behind_turns
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.estimate import BeforeFirstStep, needed_bytes
from agentmill.trainers.hub_models import revisions_of
from agentmill.trainers.launch import check_environment, context_parallel_size
from agentmill.trainers.model_card import TrainingRecord, summarize, versions, write_record
from agentmill.trainers.model_io import Task, attention_of, load_weights, save_adapter, save_whole
from agentmill.trainers.monitors import loss_points
from agentmill.trainers.observers import (
    early_stops,
    end_where_it_ended,
    sampling,
    validation_record,
    why_ended,
)
from agentmill.trainers.peak_memory import peak_bytes
from agentmill.trainers.requirements import precision_of
from agentmill.trainers.run_dir import TrainingSetup, space_errors
from agentmill.trainers.trl_config import trl_errors
from agentmill.trainers.trl_trainer import Method, build_trainer, data_processes, rows_per_step, trl_arguments

POINT = ("step", "loss", "learning_rate", "grad_norm", "tokens", "loss_tokens", "padding", "seconds")
"""What is kept of every point of the loss curve, with what the trainer measures."""


def train_model(settings: TrainSettings, setup: TrainingSetup, rows: TrainingRows, method: Method) -> None:
    """Train, and put the model folder in its place. Raises ``UserError`` where TRL refuses, or the disk is full."""
    with space_errors(setup.work.folder):
        _train(settings, setup, rows, method)
    say(f"the model is in {settings.output}")


def _train(settings: TrainSettings, setup: TrainingSetup, rows: TrainingRows, method: Method) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    check_any_weight(rows)
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
    # The optimizer and the batches are made only now; what fails after the first step is no matter of a field.
    with trl_errors(settings.trl, lambda: not first_step.is_over):
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


def check_any_weight(rows: TrainingRows) -> None:
    """Raises ``UserError`` where every row, or all that carries loss in them, has the weight 0."""
    table = rows.examples.data.table
    # Of fine-tuning the weights are those of tokens; values of scores have none.
    name = next((name for name in ("weights", "weight") if name in table.column_names), None)
    if name is None:
        return
    for chunk in table.column(name).chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        # The first is mostly enough, and all would be read for each start.
        if pc.any(pc.not_equal(values, 0)).as_py():
            return
    raise UserError(
        f"all {table.num_rows:,} rows have the weight 0, so nothing would be learnt; make rows with other weights",
        ErrorCode.ROWS_ALL_ALIKE,
    )


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
        if task == "CAUSAL_LM":
            stop_behind_turns(merged, setup.tokenizer)
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
