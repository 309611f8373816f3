"""What a training tells while it runs.

Lines with an ETA and warnings on stderr, the marks of checkpoints, and the loss curve for TensorBoard.
"""

# ruff: noqa: ARG002 (the arguments of a callback have the names that transformers gives them)
from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback

from agentmill.trainers.command import say
from agentmill.trainers.pace import Pace
from agentmill.trainers.watch import WINDOW, fallen
from agentmill.trainers.workspace import Workspace


class Progress(TrainerCallback):
    """Prints a line now and then, and one at the end."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._first_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note where a training that goes on begins."""
        self._pace, self._first_step = Pace(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print a point of the loss curve."""
        logs = kwargs["logs"]
        if not state.is_world_process_zero or "loss" not in logs:
            return
        if not self._pace.due() and state.global_step < state.max_steps:
            return
        left = self._pace.left(state.global_step - self._first_step, state.max_steps - state.global_step)
        accuracy = f", accuracy {logs['accuracy']:.3f}" if logs["accuracy"] is not None else ""
        say(f"step {state.global_step} of {state.max_steps}: loss {logs['loss']:.4f}{accuracy}{left}")


class Watch(TrainerCallback):
    """Prints the first warning about the loss curve, as soon as there is reason for it."""

    def __init__(self) -> None:
        self._warned = False

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the last points."""
        warning = None if self._warned else fallen(state.log_history[-WINDOW:])
        if warning is not None and state.is_world_process_zero:
            self._warned = True
            say(f"warning: {warning}")


class MarkCheckpoints(TrainerCallback):
    """Marks a checkpoint once TRL has written all of it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after the last file of a checkpoint."""
        if state.is_world_process_zero:
            self._workspace.mark_complete(state.global_step)


class Events(TensorBoardCallback):
    """Writes the points of the loss curve for TensorBoard to ``folder``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a file; what a killed training wrote of the steps that are now made again no longer counts."""
        from torch.utils.tensorboard import SummaryWriter

        if state.is_world_process_zero:
            self.tb_writer = SummaryWriter(str(self._folder), purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)
