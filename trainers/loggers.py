"""The curves of a training for loggers of others, by name: ``tensorboard``, ``wandb`` and ``trackio``.

Each gets the points of the loss curve as ``train/NAME`` and those of the validation as ``eval/NAME``. What is sent of
the settings holds no path of this machine. Where points go is decided as the packages have it: ``WANDB_MODE=offline``
keeps them here, ``TRACKIO_SPACE_ID`` sends them to a Space.
"""

# ruff: noqa: ARG002 (the arguments of a callback have the names that transformers gives them)
from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol, cast

from transformers import TrainerCallback
from transformers.integrations.integration_utils import TensorBoardCallback, rewrite_logs

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.trainers.command import TrainSettings
from agentmill.trainers.model_card import shown_settings
from agentmill.trainers.run_dir import TrainingSetup

PROJECT = "agentmill"
"""The project of a training that is no step of a recipe."""


def logger_callbacks(settings: TrainSettings, setup: TrainingSetup) -> list[TrainerCallback]:
    """A callback for each logger in ``report_to``, once for each name."""
    return [
        TensorBoardCurve(setup.work.events) if name == "tensorboard" else RunCurves(name, settings, setup)
        for name in dict.fromkeys(settings.report_to)
    ]


class TensorBoardCurve(TensorBoardCallback):
    """Writes the points of the curves for TensorBoard to ``folder``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a file; what a killed training wrote of the steps that are now made again no longer counts."""
        from torch.utils.tensorboard import SummaryWriter

        if state.is_world_process_zero:
            # The base class makes a writer of its own, for another folder, only where there is none yet.
            self.tb_writer = SummaryWriter(str(self._folder), purge_step=state.global_step + 1)
        super().on_train_begin(args, state, control, **kwargs)


class LoggedRun(Protocol):
    """A run as the packages wandb and trackio have it."""

    def log(self, metrics: dict[str, float], step: int) -> object:
        """Add the values of a step."""

    def finish(self) -> object:
        """Wait until all is written."""


class RunCurves(TrainerCallback):
    """Logs the points of the curves to a run of the package ``module``: ``wandb``, or ``trackio`` with its interface.

    The project is the recipe and the run the step. A resumed training goes on with its run, in which steps that are
    made again may be twice.
    """

    def __init__(self, module: str, settings: TrainSettings, setup: TrainingSetup) -> None:
        self._module = module
        self._run: LoggedRun | None = None
        work = setup.work
        shown = shown_settings(settings.model_dump(mode="json"))
        self._options: dict[str, Any] = {
            "project": settings.recipe or PROJECT,
            "name": work.output.name,
            "config": shown | {name: work.identity[name] for name in ("trainer", "rows_digest", "base_revision")},
            "resume": "allow",
        }
        if module == "wandb":
            # By what the training is, since names are not unique there.
            self._options["id"] = digest(str(work.output), work.identity)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the run, or go on with it. Raises ``UserError`` where the package cannot."""
        if not state.is_world_process_zero:
            return
        try:
            self._run = cast(LoggedRun, importlib.import_module(self._module).init(**self._options))
        except Exception as error:
            # Both packages have errors of their own, of which some are no mistake of a type that could be named here.
            raise UserError(
                f"{self._module} does not start a run: {' '.join(str(error).split())[:300]}\n"
                "log in to it, let it log on this machine (wandb: WANDB_MODE=offline), or leave it out of report_to",
                ErrorCode.LOGGER_REFUSES,
            ) from error

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log a point."""
        if self._run is not None:
            values = {name: value for name, value in kwargs["logs"].items() if isinstance(value, int | float)}
            self._run.log(rewrite_logs(values), step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
