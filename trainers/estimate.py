"""How long a training takes and how much memory it needs, measured before its first step.

Some of its batches run on trial (``trial``). What they leave behind (the gradients, the counts, the state of torch's
random numbers) is put back, so the training is the same bit by bit. All batches are known beforehand, so their sum
follows, with optimizer steps, the reference and what is saved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.command import TrainSettings, say
from agentmill.trainers.peak_memory import held_bytes, peak_bytes, release_freed
from agentmill.trainers.trial import (
    GIB,
    Trial,
    fit,
    memory_limit,
    plan_trial,
    predict,
    steps_in_backward,
    too_little_memory,
)

FORWARD = 1 / 3
"""The share of the forward pass in the time of a batch: the backward pass computes twice as much."""

WRITTEN_BYTES = 1 << 25
"""What is written to measure how fast checkpoints are saved."""

FULL = 0.9

LONG = 0.75
"""On CPU, freed memory is returned to the system before a batch of this share of the longest when this share of the
estimate is held, and before any other batch when all of it is.

Batches of many lengths leave gaps, with which a training held half as much again as it needs after 100 steps. To return
them before every batch would make the training a tenth slower.
"""


@dataclass(frozen=True)
class Estimate:
    """Of ``steps`` steps with all that they bring: ``seconds``, give or take the share ``margin``, and peak memory."""

    steps: int
    seconds: float
    margin: float
    memory_bytes: float


class BeforeFirstStep(TrainerCallback):
    """Estimates the training if it is ``wanted``, then lets the trainer prepare its rows.

    ``parameters`` are the numbers of all parameters and of those that learn, by their names in the record of the
    training; checkpoints are written to ``folder``.
    """

    def __init__(self, trainer: BaseTrainer, parameters: Mapping[str, int], folder: Path, wanted: bool) -> None:
        self._trainer, self._parameters, self._folder, self._wanted = trainer, parameters, folder, wanted
        self._estimate: Estimate | None = None
        self._began, self._peak_bytes, self._exceeded = 0.0, 0, False
        self.is_over = False
        """Whether a step was made."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Called when the model is on its device, or sharded, and a checkpoint is loaded."""
        # A checkpoint brings back how often an earlier attempt saved and logged, which may be changed in between.
        state.compute_steps(args, state.max_steps)
        if self._wanted:
            self._estimate = estimate_training(self._trainer, self._parameters, self._folder)
        self._began = time.monotonic()
        self._trainer.prepare_rows()
        self._trainer.start_clock()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep to the estimated memory."""
        if self._estimate is None or torch.cuda.is_available():
            return
        lengths, batches = self._trainer.batch_lengths, args.gradient_accumulation_steps
        next_ones = lengths[state.global_step * batches :][:batches]
        full = FULL if next_ones.max() > LONG * lengths.max() else 1
        held = held_bytes()
        if held > full * self._estimate.memory_bytes:
            release_freed()
        if held > self._estimate.memory_bytes and not self._exceeded:
            self._exceeded = True
            say(
                f"step {state.global_step}: {held / GIB:.1f} GiB are held, more than estimated; freed memory is"
                " returned to the system while this is so, which makes steps slower"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Note that the first step was made."""
        self.is_over = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Note the peak of the training itself: the model is loaded once more to be written."""
        self._peak_bytes = peak_bytes()

    def compared(self) -> dict[str, float]:
        """The estimate and what came of it, once the model is written; empty without an estimate."""
        if self._estimate is None:
            return {}
        return {
            "steps": self._estimate.steps,
            "estimated_seconds": self._estimate.seconds,
            "seconds": time.monotonic() - self._began,
            "estimated_memory_gib": self._estimate.memory_bytes / GIB,
            "memory_gib": self._peak_bytes / GIB,
        }


def estimate_training(trainer: BaseTrainer, parameters: Mapping[str, int], folder: Path) -> Estimate | None:
    """Measure, and print what the steps that are left will take; ``None`` where the training is too short for it.

    Raises ``UserError`` where the longest batch does not fit into memory. Every process takes part.
    """
    args, done = trainer.args, trainer.state.global_step
    first, steps = done * args.gradient_accumulation_steps, trainer.state.max_steps - done
    ahead = trainer.batch_lengths[first:]
    rounds, numbers = (0, list[int]()) if steps_in_backward(trainer) else plan_trial(ahead)
    if not numbers:
        return None
    trial = Trial(trainer)
    # Only set by the loop of the training, and read where a batch is run.
    trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    chosen = [first + number for number in numbers]
    with torch.random.fork_rng(devices), trainer.uncounted():
        try:
            trial.run(chosen, rounds)
        except torch.OutOfMemoryError as error:
            raise UserError(too_little_memory(trainer, chosen[-1], None), ErrorCode.TRAINING_MEMORY) from error
    model = fit(*trial.points())
    per_batch = predict(model, ahead)
    # Also batches before a checkpoint, where the scores of a training that goes on have to be made anew.
    pending = predict(model, trainer.batch_lengths[trainer.pending_batches()]).sum()
    seconds = per_batch.sum() + steps * trial.step_seconds + trial.reference_share * pending
    seconds += validations(trainer, steps) * FORWARD * predict(model, trainer.validation_batch_lengths()).sum()
    saved = saved_bytes(trainer, parameters)
    seconds += saved / write_speed(folder) if saved else 0.0
    found = Estimate(steps, float(seconds), trial.margin(), trial.memory_bytes)
    say(described(found, trainer, float(ahead.mean())))
    return found


def validations(trainer: BaseTrainer, steps: int) -> int:
    """How often the last ``steps`` steps are validated."""
    every = int(trainer.args.eval_steps or 0) if trainer.args.eval_strategy != "no" else 0
    if not every:
        return 0
    last = trainer.state.max_steps
    # The last step is always validated.
    return last // every - (last - steps) // every + bool(last % every)


def saved_bytes(trainer: BaseTrainer, parameters: Mapping[str, int]) -> int:
    """What checkpoints (weights and two moments in single precision) and the model at the end will take, roughly."""
    whole, trained = parameters["parameters"], parameters["trained_parameters"]
    args, done, last = trainer.args, trainer.state.global_step, trainer.state.max_steps
    checkpoints = 0
    if args.save_strategy == "steps":
        every = int(args.save_steps)
        checkpoints = last // every - done // every + (last % every > 0)
    if args.load_best_model_at_end:
        # At most: each validation with the lowest loss so far has one.
        checkpoints += validations(trainer, last - done)
    # At the end the weights are written, read, and written in the type of the model.
    return 12 * trained * checkpoints + 4 * trained + 8 * whole


def needed_bytes(settings: TrainSettings, parameters: int, trained_parameters: int) -> int:
    """Disk that a training takes: checkpoints (weights and at most two moments), what TRL saves, the model."""
    # Adafactor and 8-bit optimizers keep less than two moments.
    size = 2 if settings.weights == "bf16" else 4
    # One more is being written while the two last, and with `keep: best` the best one, are kept.
    kept = 4 if settings.validates is not None and settings.validates.keep == "best" else 3
    checkpoints = kept * 3 * size * trained_parameters if settings.save_steps else 0
    merged = settings.lora is None or settings.lora.merge
    return checkpoints + size * trained_parameters + (4 * parameters if merged else 0)


def write_speed(folder: Path) -> float:
    """Bytes per second that files in ``folder`` are written with."""
    path = folder / f"speed.{os.getpid()}"
    content = torch.ones(WRITTEN_BYTES // 4)
    begun = time.monotonic()
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        # Else it is the speed of memory: a checkpoint is larger than what the system keeps there.
        os.fsync(file.fileno())
    seconds = time.monotonic() - begun
    path.unlink()
    return WRITTEN_BYTES / seconds


def described(found: Estimate, trainer: BaseTrainer, tokens: float) -> str:
    """The line that is printed; ``tokens`` is the mean length of batches."""
    rows = trainer.args.per_device_train_batch_size * trainer.args.world_size * trainer.args.gradient_accumulation_steps
    limit = memory_limit()
    full = "; little is left: a smaller batch_size is safer" if found.memory_bytes > 0.9 * limit else ""
    return (
        f"estimate: {found.steps:,} steps of {rows} × {tokens:,.0f} tokens on average, about"
        f" {timedelta(seconds=round(found.seconds))} (±{found.margin:.0%}); peak memory of a process about"
        f" {found.memory_bytes / GIB:.1f} GiB of {limit / GIB:.0f} GiB{full}"
    )
