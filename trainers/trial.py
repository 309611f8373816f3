"""Batches of a training that run on trial before its first step: what they take, and how much memory.

The shortest, the median and the longest batch run forward and backward. The seconds of a batch are modelled as
a + b·n + c·n² with n the tokens of its longest row; c is the share of attention.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.machine import machine_bytes
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.command import say
from agentmill.trainers.peak_memory import PeakMemory, peak_bytes, synchronize

SHARE = 0.05
"""The trial takes at most this share of the training; one that is too short for it has no estimate."""

ROUNDS = 3
"""How often each of the batches is timed, where the share allows it."""

TERMS = ((1,), (0, 1), (1, 2), (0,), (0, 2), (2,), (0, 1, 2))
"""Powers of the length that a model of time may consist of, the more plausible first."""

SAMPLE, GPU_SAMPLE = 1 << 22, 1 << 25
"""Parameters on copies of which the optimizer is timed. A GPU spends its time on few of them on starting kernels."""

GIB = 2**30


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
