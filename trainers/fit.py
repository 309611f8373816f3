"""The training itself: TRL's SFT trainer, set up, run and recorded. Everything heavy is imported here."""

from __future__ import annotations

import math
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, PrinterCallback
from transformers.utils import logging
from trl.trainer.sft_config import SFTConfig

from schemas.errors import UserError, near_match
from schemas.tables import Table
from trainers.batches import Collator, row_order
from trainers.card import TrainingRecord, summarize, versions
from trainers.finish import write_model, write_record
from trainers.loss import RowTrainer
from trainers.progress import MarkCheckpoints, Progress
from trainers.rows import TrainingRows
from trainers.settings import LoraSettings, SftSettings
from trainers.workspace import Workspace

POINT = (
    "step",
    "loss",
    "accuracy",
    "learning_rate",
    "grad_norm",
    "tokens",
    "loss_tokens",
    "padding",
    "seconds",
)
"""What is kept of a point of the loss curve."""


@dataclass(frozen=True)
class Job:
    """All that a training needs beside its settings."""

    rows: TrainingRows
    table: Table
    base: Path
    revision: str
    tokenizer: Any
    workspace: Workspace


def fit(settings: SftSettings, job: Job) -> None:
    """Train, and put the model folder in its place."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    precision = choose_precision(settings.precision)
    arguments = trl_arguments(settings, job, precision)
    with arguments.main_process_first(local=False):
        if arguments.process_index == 0:
            job.workspace.prepare(settings.resume)
    checkpoint = job.workspace.latest_checkpoint()

    model = load_model(job.base, settings.lora, precision)
    check_targets(model, settings.lora)
    trainer = make_trainer(settings, job, arguments, model)
    parameters = count_parameters(trainer.model)
    job.workspace.require_space(needed_bytes(settings, **parameters))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(job.workspace.raw))
    curve = [{key: point[key] for key in POINT} for point in trainer.state.log_history if "loss" in point]

    if arguments.process_index == 0:
        write_model(job.workspace, job.base, settings.lora, job.tokenizer)
        facts = {"precision": precision, **parameters, **summarize(curve)}
        write_record(job.workspace.model, make_record(settings, job, arguments, facts), job.table.manifest)
        job.workspace.publish()
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def make_trainer(settings: SftSettings, job: Job, arguments: SFTConfig, model: Any) -> RowTrainer:
    """TRL's trainer over the sequences, in the order of the whole training."""
    sequences = job.rows.sequences
    columns = {name: [getattr(row, name) for row in sequences] for name in ("input_ids", "labels", "weights")}
    trainer = RowTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=job.tokenizer,
        data_collator=Collator(job.tokenizer.pad_token_id or 0),
        peft_config=lora_config(settings.lora),
        callbacks=[Progress(), MarkCheckpoints(job.workspace)],
        order=row_order(
            [len(row) for row in sequences],
            settings.batch_size * arguments.world_size,
            arguments.max_steps * rows_per_step(settings, arguments.world_size),
            settings.seed,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def make_record(settings: SftSettings, job: Job, arguments: SFTConfig, facts: dict[str, Any]) -> TrainingRecord:
    """What ``training.json`` says."""
    return TrainingRecord(
        identity=job.workspace.identity,
        settings=settings.model_dump(),
        base_revision=job.revision,
        rows_digest=job.table.digest,
        rows_table=job.table.manifest.table,
        rows_operator=job.table.manifest.operator,
        views=job.rows.views,
        counts=job.rows.counts,
        reasons=job.rows.reasons,
        lost_tokens=job.rows.lost_tokens,
        roles=job.rows.roles,
        steps=arguments.max_steps,
        rows_per_step=rows_per_step(settings, arguments.world_size),
        peak_memory_gib=peak_memory_gib(),
        device=device_name(),
        processes=arguments.world_size,
        versions=versions(),
        **facts,
    )


def trl_arguments(settings: SftSettings, job: Job, precision: str) -> SFTConfig:
    """Our settings in TRL's words."""
    arguments = SFTConfig(
        output_dir=str(job.workspace.folder),
        max_steps=1,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.scheduler if settings.scheduler != "constant" else "constant_with_warmup",
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=settings.seed,
        bf16=precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        logging_steps=settings.log_steps,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 1,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
    )
    one_step = rows_per_step(settings, arguments.world_size)
    arguments.max_steps = settings.max_steps or math.ceil(len(job.rows.sequences) * settings.epochs / one_step)
    arguments.warmup_steps = round(settings.warmup * arguments.max_steps)
    return arguments


def rows_per_step(settings: SftSettings, processes: int) -> int:
    """Sequences that go into one optimizer step."""
    return settings.batch_size * settings.gradient_accumulation * processes


def load_model(base: Path, lora: LoraSettings | None, precision: str) -> Any:
    """The base model, its weights in fp32; in bf16 where they do not learn and are computed with in bf16 anyway."""
    frozen = lora is not None and precision == "bf16"
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16 if frozen else torch.float32)


def check_targets(model: Any, lora: LoraSettings | None) -> None:
    """Raises ``UserError`` for a layer in ``lora.target_modules`` that the model does not have."""
    head = model.get_output_embeddings()
    layers = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    layers -= {name for name, layer in model.named_modules() if layer is head}
    for target in lora.target_modules if lora and not isinstance(lora.target_modules, str) else ():
        if target not in layers:
            known = ", ".join(sorted(layers))
            raise UserError(f"lora.target_modules: no layer {target!r}; known: {known}.{near_match(target, layers)}")


def lora_config(lora: LoraSettings | None) -> LoraConfig | None:
    """Our LoRA settings in PEFT's words."""
    if lora is None:
        return None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


def count_parameters(model: Any) -> dict[str, int]:
    """The numbers of the model's parameters and of those that learn."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "trained_parameters": sum(size for size, learns in sizes if learns),
    }


def needed_bytes(settings: SftSettings, parameters: int, trained_parameters: int) -> int:
    """Disk that a training takes: three checkpoints (weights and two moments in fp32), what TRL saves, the model."""
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


def peak_memory_gib() -> float:
    """The most memory this process held: of the GPU, where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
