"""How long a training takes and how much memory it needs, measured before its first step.

The shortest, the median and the longest of its batches run forward and backward on trial. What they leave behind (the
gradients, the counts, the state of torch's random numbers) is put back, so the training is the same bit by bit. The
seconds of a batch are modelled as a + b·n + c·n² with n the tokens of its longest row; c is the share of attention.
All batches are known beforehand, so their sum follows, with optimizer steps, the reference and what is saved.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.memory import machine_bytes
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.command import say
from agentmill.trainers.peak_memory import PeakMemory, held_bytes, peak_bytes, release_freed, synchronize

SHARE = 0.05
"""The trial takes at most this share of the training; one that is too short for it has no estimate."""

FORWARD = 1 / 3
"""The share of the forward pass in the time of a batch: the backward pass computes twice as much."""

ROUNDS = 3
"""How often each of the batches is timed, where the share allows it."""

TERMS = ((1,), (0, 1), (1, 2), (0,), (0, 2), (2,), (0, 1, 2))
"""Powers of the length that a model of time may consist of, the more plausible first."""

SAMPLE, GPU_SAMPLE = 1 << 22, 1 << 25
"""Parameters on copies of which the optimizer is timed. A GPU spends its time on few of them on starting kernels."""

WRITTEN_BYTES = 1 << 25
"""What is written to measure how fast checkpoints are saved."""

FULL = 0.9
LONG = 0.75
"""On CPU, freed memory is returned to the system before a batch of this share of the longest when this share of the
estimate is held, and before any other batch when all of it is.

Batches of many lengths leave gaps, with which a training held half as much again as it needs after 100 steps. To return
them before every batch would make the training a tenth slower.
"""

GIB = 2**30


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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Called when the model is on its device, or sharded, and a checkpoint is loaded."""
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


def steps_in_backward(trainer: BaseTrainer) -> bool:
    """Whether the backward pass of a batch changes the weights, so that none can be run on trial."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    by_layer = isinstance(optimizer, LayerWiseDummyOptimizer)
    return by_layer or trainer.is_deepspeed_enabled or trainer.args.optim in ("lomo", "adalomo")


def plan_trial(ahead: NDArray[np.int64]) -> tuple[int, list[int]]:
    """How often which batches are run, of those with these lengths; none where that took too long.

    In addition to these rounds each but the shortest runs once, when memory is measured.
    """
    by_length = np.argsort(ahead, kind="stable")
    chosen = {int(ahead[number]): int(number) for number in by_length[[0, len(ahead) // 2, -1]]} if len(ahead) else {}
    room = SHARE * ahead.sum()
    if not chosen or room < sum(chosen):
        return 0, []
    return min(ROUNDS, int(room / sum(chosen)) - 1), list(chosen.values())


class Trial:
    """Runs of some batches, with what they took."""

    def __init__(self, trainer: BaseTrainer) -> None:
        self._trainer = trainer
        self._seconds: dict[int, list[float]] = {}
        self._references: list[float] = []
        self.step_seconds, self._state_bytes = optimizer_cost(trainer.optimizer)
        self.memory_bytes = 0.0

    def run(self, numbers: Sequence[int], rounds: int) -> None:
        """Run the batches ``numbers``, from the shortest to the longest, so often. Raises ``UserError``."""
        *shorter, longest = numbers
        # The first run of all is slow, and loads what later ones use.
        self._batch(numbers[0])
        if shorter:
            with PeakMemory() as memory:
                self._batch(shorter[-1], timed=True)
            # A GPU raises an error; when the machine's memory is full the kernel ends the process without one.
            if not torch.cuda.is_available():
                check_room(self._trainer, longest, self._projected(memory, shorter[-1], longest))
        self._fill_memory(longest)
        for _ in range(rounds):
            for number in numbers:
                self._batch(number, timed=True)

    def points(self) -> tuple[list[int], list[float]]:
        """Lengths, and the median of the seconds of each."""
        return list(self._seconds), [float(np.median(each)) for each in self._steady()]

    @property
    def reference_share(self) -> float:
        """What the reference takes for a batch, as a share of the batch's own time."""
        return float(np.median(self._references))

    def margin(self) -> float:
        """How far runs of one batch are from their median, at least 10 %; 25 % if there was one run of each."""
        spreads = [max(each) / float(np.median(each)) - 1 for each in self._steady() if len(each) > 1]
        return max(0.1, *spreads) if spreads else 0.25

    def _steady(self) -> list[list[float]]:
        """The seconds of each length, without the first run where there are more: it takes memory from the system."""
        return [each[1:] or each for each in self._seconds.values()]

    def _fill_memory(self, longest: int) -> None:
        """Run the longest batch with memory as full as it will be after the first step."""
        trainer = self._trainer
        accumulates = trainer.args.gradient_accumulation_steps > 1
        # What the optimizer will hold is set apart.
        reserved = torch.empty(int(self._state_bytes), dtype=torch.uint8, device=trainer.accelerator.device)
        with PeakMemory() as memory:
            self._batch(longest, timed=True, keep=accumulates)
            if accumulates:
                self._batch(longest)
        # On CPU, memory that nothing was written to is not there yet.
        later = 0 if torch.cuda.is_available() else len(reserved)
        self.memory_bytes = max(peak_bytes(), memory.bytes + later)
        check_room(trainer, longest, self.memory_bytes)

    def _projected(self, memory: PeakMemory, number: int, longest: int) -> float:
        lengths = self._trainer.batch_lengths
        learning = [p for p in self._trainer.model_wrapped.parameters() if p.requires_grad]
        activations = max(0, memory.bytes - memory.before - sum(p.numel() * p.element_size() for p in learning))
        return float(memory.bytes + activations * (lengths[longest] / lengths[number] - 1) + self._state_bytes)

    def _batch(self, number: int, timed: bool = False, keep: bool = False) -> None:
        """Run a batch forward and backward, and ``keep`` its gradients or forget them."""
        trainer = self._trainer
        begun = synchronize()
        batch = trainer.batch_at(number)
        collated = scored = synchronize()
        # Otherwise the reference runs in every step, and counts as a part of it.
        if trainer.pending_batches():
            batch = trainer.with_references(batch)
            scored = synchronize()
        items = trainer._get_num_items_in_batch([batch], trainer.args.device)
        trainer.training_step(trainer.model_wrapped, batch, items)
        spent, reference = synchronize() - begun - (scored - collated), scored - collated
        if not keep:
            trainer.model_wrapped.zero_grad(set_to_none=True)
        if timed:
            self._seconds.setdefault(int(trainer.batch_lengths[number]), []).append(spent)
            self._references.append(reference / spent)


def fit(lengths: Sequence[int], seconds: Sequence[float]) -> NDArray[np.float64]:
    """The coefficients of 1, n and n², none below 0, with which the relative errors of ``seconds`` are least."""
    took = np.array(seconds)
    powers = np.array(lengths, np.float64)[:, None] ** np.arange(3) / took[:, None]
    best, least = np.zeros(3), np.inf
    for terms in TERMS:
        if len(terms) > len(took):
            continue
        found = np.linalg.lstsq(powers[:, terms], np.ones(len(took)), rcond=None)[0]
        error = float(((powers[:, terms] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least - 1e-9:
            best, least = np.zeros(3), error
            best[list(terms)] = found
    return best


def predict(coefficients: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """The seconds of batches of these lengths."""
    powers: NDArray[np.float64] = lengths.astype(np.float64)[:, None] ** np.arange(3)
    return powers @ coefficients


def optimizer_cost(optimizer: Any) -> tuple[float, float]:
    """Seconds of an optimizer step with the clipping of gradients, and bytes that its state will still take.

    Measured on copies of some parameters by an optimizer of the same kind, since the true one must not make a step.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    learning = [p for group in inner.param_groups for p in group["params"] if p.requires_grad]
    sample = GPU_SAMPLE if torch.cuda.is_available() else SAMPLE
    # Of a sharded parameter, the part of this process.
    local = [part for p in learning if (part := p.to_local() if hasattr(p, "to_local") else p).numel()]
    copies: list[torch.nn.Parameter] = []
    taken = 0
    for each in local:
        # Whole rows: some optimizers keep the state of a matrix by rows and columns.
        rows = max(1, (sample - taken) * len(each) // each.numel()) if each.dim() else None
        copies.append(torch.nn.Parameter((each if rows is None else each[:rows]).detach().clone()))
        copies[-1].grad = torch.full_like(copies[-1], 1e-3)
        taken += copies[-1].numel()
        if taken >= sample:
            break
    if not copies:
        return 0.0, 0.0
    known = inspect.signature(type(inner)).parameters
    try:
        made = type(inner)(copies, **{name: value for name, value in inner.defaults.items() if name in known})
        # The first step makes the state, and loads the kernels.
        seconds = [_step_seconds(made, copies) for _ in range(1 + ROUNDS)][1:]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        # One that is made in another way is no reason not to train.
        say(f"estimate: without optimizer steps, which cannot be measured ({type(inner).__name__}: {error})")
        return 0.0, 0.0
    states = [value for state in made.state.values() for value in state.values() if torch.is_tensor(value)]
    held = sum(each.numel() * each.element_size() for each in states)
    scale = sum(each.numel() for each in local) / taken
    return min(seconds) * scale, 0.0 if inner.state else held * scale


def _step_seconds(optimizer: Any, parameters: Sequence[torch.nn.Parameter]) -> float:
    """What the clipping of gradients and a step of the optimizer take."""
    begun = synchronize()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return synchronize() - begun


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


def memory_limit() -> float:
    """Bytes that a process may take: of its GPU, or its share of the machine's memory."""
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[1])
    return machine_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def check_room(trainer: BaseTrainer, number: int, needed: float) -> None:
    """Raises ``UserError`` where a process needs more bytes than there are."""
    if needed > memory_limit():
        raise UserError(too_little_memory(trainer, number, needed), ErrorCode.TRAINING_MEMORY)


def too_little_memory(trainer: BaseTrainer, number: int, needed: float | None) -> str:
    """That the batch ``number`` does not fit, and what to change."""
    args = trainer.args
    size = args.per_device_train_batch_size
    ways = ["train a part of the weights (lora={rank: 16})"] if not hasattr(trainer.model, "peft_config") else []
    if size > 1:
        ways.insert(0, f"batch_size={size // 2} gradient_accumulation={2 * args.gradient_accumulation_steps}")
    if not args.gradient_checkpointing:
        ways.append("gradient_checkpointing=true")
    ways.append("a smaller max_length")
    amount = "more" if needed is None else f"about {needed / GIB:.1f} GiB, more"
    return (
        f"the longest batch ({size} × {trainer.batch_lengths[number]:,} tokens) needs {amount} than the"
        f" {memory_limit() / GIB:.1f} GiB that a process has\nset {', or '.join(ways)}"
        " (estimate=false tries it nevertheless)"
    )


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
