"""Progress and warnings while a training runs, what ends it early, and the marks of checkpoints.

A preference loss can fall while the model unlearns what it should say: Rafailov et al. (arXiv:2406.02900) and Pal et
al. (arXiv:2402.13228) show that DPO widens the margin between chosen and rejected even where both become unlikely.
``chosen_change`` and ``rejected_change`` are log-probability per token with loss against the reference model, in nats;
``kl`` is KTO's estimate of the distance to it, in nats per completion.
"""

# ruff: noqa: ARG002 (the arguments of a callback have the names that transformers gives them)
from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from transformers import TrainerCallback

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.monitoring import DriftLimits
from agentmill.trainers.command import say
from agentmill.trainers.run_dir import WorkFolder

TERMINAL_S = 5.0

LOG_S = 30.0

T = TypeVar("T")


class Eta:
    """When the next line is due, and the time left, estimated from the time since this was made.

    Lines are frequent on a terminal and rare in a log.
    """

    def __init__(self) -> None:
        self._began = self._printed = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for a line; the interval to the next one then begins."""
        now = time.monotonic()
        if now - self._printed < (TERMINAL_S if sys.stderr.isatty() else LOG_S):
            return False
        self._printed = now
        return True

    def left(self, done: int, remaining: int) -> str:
        """``", 0:02:10 left"`` if the ``remaining`` ones take as long as those ``done``; nothing at the end."""
        if not done or not remaining:
            return ""
        return f", {timedelta(seconds=round((time.monotonic() - self._began) / done * remaining))} left"


def with_eta(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """``items``, with a line now and then on how many of the ``total`` there have been."""
    eta = Eta()
    for number, item in enumerate(items):
        if eta.due():
            say(f"{what}: {number:,} of {total:,}{eta.left(number, total - number)}")
        yield item


class Progress(TrainerCallback):
    """Prints a line now and then, and one at the end."""

    def __init__(self) -> None:
        self._eta = Eta()
        self._first_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the step at which a resumed training begins."""
        # Steps before a stop were not made in the time since this process began.
        self._eta, self._first_step = Eta(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print a point of the loss curve."""
        logs = kwargs["logs"]
        if not state.is_world_process_zero or "loss" not in logs:
            return
        # The last step always has its line.
        if not self._eta.due() and state.global_step < state.max_steps:
            return
        left = self._eta.left(state.global_step - self._first_step, state.max_steps - state.global_step)
        accuracy = f", accuracy {logs['accuracy']:.3f}" if logs["accuracy"] is not None else ""
        say(f"step {state.global_step} of {state.max_steps}: loss {logs['loss']:.4f}{accuracy}{left}")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print a point of the validation, and which was the best before."""
        if not state.is_world_process_zero:
            return
        *before, last = validation_curve(state.log_history)
        best = lowest(before) if before else None
        compared = "" if best is None else f", lowest before {best['loss']:.4f} at step {best['step']}"
        accuracy = f", accuracy {last['accuracy']:.3f}" if last["accuracy"] is not None else ""
        say(f"validation at step {last['step']}: loss {last['loss']:.4f}{accuracy}{compared}")


class EndWithoutNumbers(TrainerCallback):
    """Ends a training whose loss or gradients are infinite or no numbers, before such a model has a checkpoint."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at a point of the loss curve, the same in every process. Raises ``UserError``."""
        logs = kwargs["logs"]
        for name, called in (("loss", "loss"), ("grad_norm", "norm of the gradients")):
            found = logs.get(name) if "loss" in logs else None
            if found is not None and not math.isfinite(found):
                raise UserError(
                    f"step {state.global_step} of {state.max_steps}: the {called} is {found}: the model has diverged,"
                    " and is not written\ntrain into another output, or anew, with a lower learning_rate or"
                    " max_grad_norm, or a longer warmup",
                    ErrorCode.TRAINING_DIVERGED,
                )


class OverOptimisationWarning(TrainerCallback):
    """Prints the first warning about the loss curve, as soon as there is reason for it."""

    def __init__(self) -> None:
        self._warned = False

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the last points."""
        warning = None if self._warned else over_optimisation_warning(loss_points(state.log_history))
        if warning is not None and state.is_world_process_zero:
            self._warned = True
            say(f"warning: {warning}")


class LogLastSteps(TrainerCallback):
    """Has the curve hold all steps, whatever ``log_steps`` is: also those before a checkpoint and before the end.

    After these nothing is left of what the steps since the last point measured. ``at_validations``: a validation, too,
    may be followed by a checkpoint or the end.
    """

    def __init__(self, at_validations: bool) -> None:
        self._at_validations = at_validations

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after transformers has decided what follows the step."""
        control.should_log |= control.should_save or control.should_training_stop
        control.should_log |= control.should_evaluate and self._at_validations


class StopOnDrift(TrainerCallback):
    """Ends a training at the first limit that is reached, and says so; ``reason`` is why, once it has."""

    def __init__(self, limits: DriftLimits, log_steps: int) -> None:
        self._limits = limits
        self._log_steps = log_steps
        self.reason: str | None = None

    def reason_to_stop(self, log_history: Sequence[dict[str, Any]]) -> str | None:
        """Why a training ends after these points, if it does."""
        points = whole_points(loss_points(log_history), self._log_steps, self._limits.window)
        return limit_reached(points, self._limits)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the last points, which are the same in every process."""
        if self.reason is None:
            self.reason = self.reason_to_stop(state.log_history)
        if self.reason is not None and not control.should_training_stop:
            control.should_training_stop = True
            # The last model is validated, too.
            control.should_evaluate = args.eval_strategy != "no"
            if state.is_world_process_zero and state.global_step < state.max_steps:
                say(f"the training ends {self.reason}")


class MarkCheckpoints(TrainerCallback):
    """Marks a checkpoint once TRL has written all of it."""

    def __init__(self, work: WorkFolder) -> None:
        self._work = work

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after the last file of a checkpoint."""
        if state.is_world_process_zero:
            self._work.mark_complete(state.global_step)


class SaveBest(TrainerCallback):
    """Asks for a checkpoint after each validation whose loss is the lowest so far."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the best checkpoint where the others are: transformers knows it by the path that it had."""
        del control, kwargs
        path = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and path.is_dir():
            state.best_model_checkpoint = str(path)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the losses, which are the same in every process."""
        if waited(validation_curve(state.log_history)) == 0:
            control.should_save = True


class StopWithoutImprovement(TrainerCallback):
    """Ends a training after ``patience`` validations without a loss lower by ``min_delta``; ``reason`` is why."""

    def __init__(self, patience: int, min_delta: float) -> None:
        self._patience = patience
        self._min_delta = min_delta
        self.reason: str | None = None

    def reason_to_stop(self, log_history: Sequence[dict[str, Any]]) -> str | None:
        """Why a training ends after these points, if it does."""
        curve = validation_curve(log_history)
        if waited(curve, self._min_delta) < self._patience:
            return None
        return f"at step {curve[-1]['step']}: {self._patience} validations without a lower loss (validation.patience)"

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the losses, which are the same in every process."""
        self.reason = self.reason_to_stop(state.log_history)
        if self.reason is None:
            return
        control.should_training_stop = True
        if state.is_world_process_zero and state.global_step < state.max_steps:
            say(f"the training ends {self.reason}")


OF_TRANSFORMERS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
"""What transformers adds to each validation, and which the curve leaves out."""


def loss_points(log_history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of the loss curve, without those of the validation."""
    return [point for point in log_history if "loss" in point]


def validation_curve(log_history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of the validation: step, loss, what the trainer measures, and seconds."""
    prefix = "eval_"
    return [
        {
            "step": point["step"],
            **{
                name.removeprefix(prefix): value
                for name, value in point.items()
                if name.startswith(prefix) and name.removeprefix(prefix) not in OF_TRANSFORMERS
            },
        }
        for point in log_history
        if f"{prefix}loss" in point
    ]


def lowest(curve: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first point of the lowest loss; a loss that is not a number is higher than all others."""
    return min(curve, key=lambda point: math.inf if math.isnan(point["loss"]) else point["loss"])


def waited(curve: Sequence[dict[str, Any]], min_delta: float = 0.0) -> int:
    """How many points there have been since the last whose loss was lower by ``min_delta`` than any before."""
    best, since = math.inf, 0
    for point in curve:
        lower = point["loss"] < best - min_delta
        best, since = (point["loss"], 0) if lower else (best, since + 1)
    return since


FAR = 0.5
"""Nats per token; a fall by so much leaves each token of the chosen side three fifths of its probability."""

WINDOW = 10
"""Points of the curve over which a fall is averaged."""

LEAST = ("chosen_change", "entropy")
"""Measures of which ``stop_when`` sets the least value; of others it sets the largest."""

WATCHED = ("chosen_change", "rejected_change", "margin", "error", "kl", "entropy")
"""Measures that the record has of the end of a training; ``error`` and a ``margin`` alone are of reward models."""


def drift(curve: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The measures of ``WATCHED`` over the last tenth of the curve; empty for supervised training."""
    tail = curve[-max(1, len(curve) // 10) :]
    means = {name: mean_of(tail, name) for name in WATCHED}
    return {name: value for name, value in means.items() if value is not None}


def over_optimisation_warning(points: Sequence[dict[str, Any]]) -> str | None:
    """A warning if the chosen side became far less likely over the last ``WINDOW`` of ``points``."""
    last = points[-WINDOW:]
    change = mean_of(last, "chosen_change")
    if change is None or change >= -FAR:
        return None
    return (
        f"at step {last[-1]['step']} the chosen side is {-change:.2f} nats per token less likely than under the"
        " reference; train fewer steps, with a lower learning_rate or a higher beta, or (DPO) with the loss sft added"
    )


def whole_points(points: Sequence[dict[str, Any]], log_steps: int, last: int) -> list[dict[str, Any]]:
    """The ``last`` points of ``log_steps`` steps each, in which those in between are merged, weighed by their steps.

    There are some in between before a checkpoint. What is a mean over tokens is then only nearly that of all steps, so
    how often a training is saved may decide where a limit ends it.
    """
    whole: list[dict[str, Any]] = []
    parts: list[tuple[int, dict[str, Any]]] = []
    before = max(0, (points[-1]["step"] // log_steps - last) * log_steps) if points else 0
    # From the end: this is called at every point.
    recent = list(takewhile(lambda point: point["step"] > before, reversed(points)))
    for point in reversed(recent):
        parts.append((point["step"] - before, point))
        before = point["step"]
        if before % log_steps:
            continue
        merged: dict[str, Any] = {"step": before}
        for name in WATCHED:
            known = [(steps, part[name]) for steps, part in parts if part.get(name) is not None]
            if known:
                merged[name] = sum(steps * value for steps, value in known) / sum(steps for steps, _ in known)
        whole.append(merged)
        parts = []
    return whole


def limit_reached(points: Sequence[dict[str, Any]], limits: DriftLimits) -> str | None:
    """Why a training ends after these ``points``; ``None`` if no limit is reached, or there are too few points."""
    last = points[-limits.window :]
    if len(last) < limits.window:
        return None
    for name, limit in limits.limits.items():
        value = mean_of(last, name)
        if value is not None and (value < limit if name in LEAST else value > limit):
            side = "below" if name in LEAST else "above"
            return f"at step {last[-1]['step']}: {name} is {value:.4g}, {side} {limit:g} (stop_when)"
    return None


def curve_warnings(curve: Sequence[dict[str, Any]]) -> list[str]:
    """The first warning that a training gave, if any."""
    # Found anew from the curve: the process that printed the warning may have been killed since.
    given = (over_optimisation_warning(curve[max(0, end - WINDOW) : end]) for end in range(1, len(curve) + 1))
    return [warning for warning in given if warning is not None][:1]


def mean_of(points: Sequence[dict[str, Any]], name: str) -> float | None:
    """The mean of a value over some points of a curve, ``None`` if no point has it."""
    values = [point[name] for point in points if point.get(name) is not None]
    return sum(values) / len(values) if values else None
