"""What observes a training: the callbacks that its settings ask for, and the record of the validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import context_length
from agentmill.schemas.monitoring import ValidationConfig
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.data import TrainingRows
from agentmill.trainers.loggers import logger_callbacks
from agentmill.trainers.model_card import ValidationRecord
from agentmill.trainers.monitors import (
    EndWithoutNumbers,
    LogLastSteps,
    MarkCheckpoints,
    OverOptimisationWarning,
    Progress,
    SaveBest,
    StopOnDrift,
    StopWithoutImprovement,
    lowest,
    validation_curve,
)
from agentmill.trainers.run_dir import TrainingSetup
from agentmill.trainers.samples import SampleGenerations, validation_prompts

VALIDATIONS = 10
"""Validations of a training, where `validation.every` does not say after how many steps."""


def observers(settings: TrainSettings, setup: TrainingSetup, arguments: TrainingArguments) -> list[TrainerCallback]:
    """What prints, marks and logs."""
    validation = settings.validates
    decisive = validation is not None and (validation.keep == "best" or validation.patience is not None)
    return [
        LogLastSteps(at_validations=decisive),
        EndWithoutNumbers(),
        Progress(),
        OverOptimisationWarning(),
        MarkCheckpoints(setup.work),
        *([SaveBest()] if arguments.load_best_model_at_end else []),
        *logger_callbacks(settings, setup),
    ]


EarlyStop = StopOnDrift | StopWithoutImprovement


def early_stops(settings: TrainSettings) -> list[EarlyStop]:
    """What may end the training before its last step."""
    guards: list[EarlyStop] = []
    if (limits := getattr(settings, "stop_when", None)) is not None:
        guards.append(StopOnDrift(limits, settings.log_steps))
    if (validation := settings.validates) is not None and validation.patience is not None:
        guards.append(StopWithoutImprovement(validation.patience, validation.min_delta))
    return guards


def end_where_it_ended(trainer: BaseTrainer, guards: Sequence[EarlyStop], checkpoint: Path) -> bool:
    """Have a training that ended early with this checkpoint, and was killed then, make no further step.

    Returns whether it is such a training.
    """
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    for guard in guards:
        guard.reason = guard.reason_to_stop(state.log_history)
        if guard.reason is not None:
            trainer.end_after(state.global_step)
            return True
    return False


def why_ended(trainer: BaseTrainer, guards: Sequence[EarlyStop], steps: int) -> str | None:
    """Which limit ended the training before the last of its ``steps``; a limit that the last step reaches ends nothing.

    Raises ``UserError`` where none did: then the model is not the one that was asked for.
    """
    made = trainer.state.global_step
    if made >= steps:
        return None
    for guard in guards:
        if guard.reason is not None:
            return guard.reason
    raise UserError(
        f"the training was ended at step {made} of {steps}, and by none of its settings; no model is written\n"
        "run the same command again: it goes on from the last checkpoint",
        ErrorCode.TRAINING_UNFINISHED,
    )


def sampling(settings: TrainSettings, setup: TrainingSetup, rows: TrainingRows) -> list[SampleGenerations]:
    """What has the model continue prompts at each validation, if that is wanted."""
    wanted = settings.validates.samples if settings.validates is not None else None
    if wanted is None or rows.validation is None:
        return []
    most = context_length(setup.base)
    # A model with learned positions has none beyond, and breaks.
    prompts = validation_prompts(rows.validation, wanted.n, None if most is None else most - wanted.max_tokens)
    if len(prompts) < wanted.n:
        fits = "" if most is None else f" that leaves {wanted.max_tokens} of the model's {most:,} tokens to be sampled"
        say(f"validation.samples: {len(prompts)} rows to validate on have a prompt{fits}, fewer than n={wanted.n}")
    return [SampleGenerations(wanted, prompts, setup.tokenizer, setup.work.samples)]


def set_validation(config: ValidationConfig | None, arguments: TrainingArguments) -> None:
    """Have the trainer validate, and keep the best model if ``config`` asks for it."""
    if config is None:
        return
    # Set afterwards, as transformers would refuse steps of validation that are no multiple of those of checkpoints:
    # here each validation with the lowest loss has a checkpoint of its own.
    arguments.eval_strategy = IntervalStrategy.STEPS
    arguments.eval_steps = config.every or math.ceil(arguments.max_steps / VALIDATIONS)
    if config.keep == "best":
        arguments.load_best_model_at_end = True
        arguments.metric_for_best_model, arguments.greater_is_better = "loss", False
        # The best one and the two last.
        arguments.save_total_limit = 3


def validation_record(
    setup: TrainingSetup, rows: TrainingRows, state: TrainerState, arguments: TrainingArguments
) -> ValidationRecord | None:
    """The record of the rows that were validated on. Prints the step whose model is kept, if it is chosen."""
    found, source = rows.validation, setup.validation
    if found is None or source is None:
        return None
    curve, kept = validation_curve(state.log_history), state.global_step
    best = lowest(curve)
    if arguments.load_best_model_at_end:
        # transformers keeps the last model where it finds no checkpoint of the best.
        if state.best_model_checkpoint is not None and Path(state.best_model_checkpoint).is_dir():
            kept = int(Path(state.best_model_checkpoint).name.rpartition("-")[2])
        if kept == best["step"]:
            why = "its validation loss is the lowest"
        else:
            lower = curve[-1]["loss"] > best["loss"]
            why = "the one of a lower validation loss is gone" if lower else "there is none of a lower validation loss"
        say(f"the model of step {kept} of {state.global_step} is kept; {why}")
    return ValidationRecord(
        counts=found.counts,
        reasons=found.counted.reasons,
        rows_digest=source.table.digest,
        shared_tasks=source.shared_tasks,
        best_step=best["step"],
        best_loss=best["loss"],
        last_loss=curve[-1]["loss"],
        kept_step=kept,
        curve=curve,
    )
