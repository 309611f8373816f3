"""What the steps that train a model share: a trainer in a process of its own makes a model out of training rows.

The step's folder is the tuned model; the trainer lets it appear only when it is complete. ``trainings/STEP/`` in the
run directory holds the trainer's configuration, and what the training goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.provenance import Provenance, changed, provenance
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.run_context import RunContext
from agentmill.pipelines.operators.task_step import StepResult, TaskStep
from agentmill.pipelines.processes.children import run_module
from agentmill.pipelines.serving.model_folders import BUNDLED, model_folder, model_path
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import dump_yaml
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.launch import check_configuration, planned_launch, visible_gpus
from agentmill.schemas.model_hub import hub_model
from agentmill.schemas.models import TRAINING_RECORD
from agentmill.schemas.records.manifest import write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts, remove
from agentmill.schemas.training import (
    BASES,
    WITHOUT_EFFECT,
    DpoConfig,
    KtoConfig,
    RewardConfig,
    SftConfig,
    TrainConfig,
    is_training,
    template_identity,
)

R = TypeVar("R")

MODEL = "Model"
"""What a training writes, in the place of the name of a record."""

REWARD_MODEL = "RewardModel"
"""What the training of a reward model writes: later steps score text with it, and none can act with it."""

VALIDATION_ROWS = "validation_rows"
"""The role of rows that are not trained on, in a table of their own."""

TRAININGS = "trainings"
RECORD = TRAINING_RECORD


class Training(TaskStep, TrainConfig):
    """A training of a model on training rows, with TRL."""

    trainer: ClassVar[str]
    """The name of the trainer."""

    records: ClassVar[Sequence[str]]
    """The records that the rows may be."""

    makes: ClassVar[str] = MODEL
    """What is written, in the place of the name of a record."""

    result: ClassVar[str] = RECORD
    counted: ClassVar[Sequence[str]] = ("max_steps",)
    primary: ClassVar[str] = "rows"
    table_roles: ClassVar[Sequence[str]] = ("rows", VALIDATION_ROWS)
    model_roles: ClassVar[Mapping[str, str]] = {"model": "model"}

    rows: TableNames = Field(max_length=1, description="the table of training rows")
    validation_rows: TableNames | None = Field(
        None, max_length=1, description="a table of rows to validate on and not train on; by default see `validation`"
    )
    model: str = Field(description="the model to start from: an entry of models, @base or @last, or a training")

    @property
    def keeps_adapter(self) -> bool:
        """Whether it writes an adapter of the model that it starts from, and no whole model."""
        return self.lora is not None and not self.lora.merge

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """A model."""
        expect(reads, "rows", *self.records)
        if self.validation_rows:
            expect(reads, VALIDATION_ROWS, expect(reads, "rows", *self.records))
        return self.makes

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: it writes no rows, and asks nothing."""
        del models
        return Bounds(reads=rows["rows"].n, rows=Rows(n=0))

    def provenance_config(self, context: StepContext) -> JsonObject:
        """What is given and decides what is learned, with the seed that holds and the models it uses."""
        seed = self.seed if "seed" in self.model_fields_set else context.seed
        models = {
            role: {"name": model.config.display_name, "revision": model.config.with_adapter(model.revision)}
            for role, model in ((role, context.models[role]) for role in self.policies())
        }
        given = {name: value for name, value in self._given().items() if name not in WITHOUT_EFFECT}
        if self.chat_template is not None:
            given["chat_template"] = template_identity(self.chat_template)
        # The number decides how many rows a step trains; the configuration only how they are divided.
        if given.pop("launch", None) and self.launch.processes != "auto":
            given["launch"] = {"processes": self.launch.processes}
        return {**given, "seed": seed, **models}

    def run(
        self, inputs: Inputs, models: Mapping[str, ModelConfig], context: StepContext, run: RunContext
    ) -> StepResult:
        """Train, or find it trained. A killed training continues from its last checkpoint."""
        site = Site(context.folder, run.run_dir / TRAININGS / context.name)
        config = self.provenance_config(run.with_models(context, models))
        site.prepare(provenance(context.operator, config, inputs), run.replace)
        if site.record.exists():
            run.print_line(f"{context.name}: already done")
        else:
            run.verify(inputs)
            run.begin()
            # Servers hold the memory that the training needs.
            run.pool.stop()
            run.print_line(f"{context.name}: training starts; the lines below are from the trainer")
            settings = {**self._settings(inputs, models, context.folder), "seed": config["seed"], "recipe": run.name}
            write_atomically(site.config, dump_yaml(settings).encode(), site.notes)
            run_module(f"agentmill.trainers.{self.trainer}", ["--config", str(site.config)])
        report = _read(site.record, Report)
        return StepResult(counts=report.counts, reasons=report.reasons, seconds=report.seconds, notes=report.notes)

    def check_machine(self) -> None:
        """Raises ``UserError`` for settings that the installed packages or this machine cannot follow.

        It asks in a process of its own, since importing TRL takes seconds and much memory.
        """
        # Where TRL is missing, the need for the extra says so.
        if find_spec("trl") is not None:
            settings = msgspec.json.encode(self.machine_settings).decode()
            run_module("agentmill.trainers.requirements", [self.trainer, settings])

    def check_launch(self) -> None:
        """Raises ``UserError`` for an accelerate configuration that cannot be used for this training."""
        if self.launch.config is not None:
            check_configuration(self.launch.config, self.trainer, self)

    def check_processes(self) -> None:
        """Raises ``UserError`` where this machine lacks GPUs or a package for the processes that are asked for."""
        planned_launch(self.launch, len(visible_gpus()))

    def _given(self) -> JsonObject:
        """The parameters that the recipe gives, but for tables and models. A null that is the default is left out."""
        given = self.model_dump(
            mode="json", exclude={*self.table_roles, *self.model_roles.values()}, exclude_unset=True
        )
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in given.items() if value is not None or defaults[name] is not None}

    def _settings(self, inputs: Inputs, models: Mapping[str, ModelConfig], output: Path) -> JsonObject:
        """What the trainer reads."""
        tables = {role: str(table.folder) for role in self.table_roles for table in tables_of(inputs, role)}
        starts = {role: start_of(models[role]) for role in self.policies()}
        bases = {BASES[role]: base_of(models[role]) for role in starts if models[role].adapter_path is not None}
        return {**self._given(), **starts, **bases, **tables, "output": str(output)}


def start_of(config: ModelConfig) -> str:
    """What a trainer is given to start from: a folder, be it that of an adapter, or a model on the Hub.

    Raises ``UserError`` where there is none.
    """
    named = config.adapter_path or str(config.model)
    if hub_model(named) is not None or config.adapter_path is not None:
        return named
    return str(model_folder(named))


def base_of(config: ModelConfig) -> str:
    """The model that an adapter of ``config`` is trained on, as a trainer is given it."""
    named = str(config.model)
    return named if named.startswith(BUNDLED) or hub_model(named) is not None else str(model_path(named))


class TrainSft(SftConfig, Training):
    """Supervised fine-tuning of a model on training rows, with TRL."""

    trainer: ClassVar[str] = "sft"
    records: ClassVar[Sequence[str]] = ("SftRow",)


class PreferenceTraining(Training):
    """A training against a reference model."""

    model_roles: ClassVar[Mapping[str, str]] = {"model": "model", "reference": "reference"}

    reference: str | None = Field(
        None, description="the model to stay close to: an entry of models, @base or @last; by default the one of model"
    )


class TrainDpo(DpoConfig, PreferenceTraining):
    """Direct preference optimization (arXiv:2305.18290) with TRL."""

    trainer: ClassVar[str] = "dpo"
    records: ClassVar[Sequence[str]] = ("PreferenceRow",)


class TrainKto(KtoConfig, PreferenceTraining):
    """Kahneman-Tversky optimization (arXiv:2402.01306) on labelled rows, with TRL."""

    trainer: ClassVar[str] = "kto"
    records: ClassVar[Sequence[str]] = ("UnpairedRow",)


class TrainReward(RewardConfig, Training):
    """A reward model with TRL, on pairs or on conversations with values."""

    trainer: ClassVar[str] = "reward"
    records: ClassVar[Sequence[str]] = ("PreferenceRow", "ScorerRow")
    makes: ClassVar[str] = REWARD_MODEL


class Validation(msgspec.Struct, frozen=True):
    """What we read of the validation in that record."""

    counts: Counts
    shared_tasks: int
    best_step: int
    best_loss: float | None
    last_loss: float | None
    kept_step: int

    @property
    def notes(self) -> list[str]:
        """What the summary of a run shows."""
        # JSON has no number for a loss that is none.
        last, best = (f"{loss:.4f}" if loss is not None else "nan" for loss in (self.last_loss, self.best_loss))
        note = (
            f"validation loss {last} on {self.counts.used} rows that were not trained on;"
            f" lowest {best} at step {self.best_step}, the model is that of step {self.kept_step}"
        )
        if not self.shared_tasks:
            return [note]
        shared = f"{self.shared_tasks} tasks or trajectories of the validation rows have rows that were trained on"
        return [note, f"warning: {shared}"]


class Report(msgspec.Struct, frozen=True):
    """What we read of the record that the trainer leaves in the model folder."""

    counts: Counts
    reasons: dict[str, int]
    seconds: float
    stopped: str | None = None
    validation: Validation | None = None

    @property
    def notes(self) -> list[str]:
        """What the summary of a run shows: why the training ended early, and the validation loss."""
        ended = [] if self.stopped is None else [f"the training ended early {self.stopped}"]
        return [*ended, *(self.validation.notes if self.validation is not None else [])]


class Site(msgspec.Struct, frozen=True):
    """Where a training takes place: ``output`` is the model folder, ``notes`` what belongs to the training only."""

    output: Path
    notes: Path

    @property
    def record(self) -> Path:
        """The trainer's record, which is there when the model is complete."""
        return self.output / RECORD

    @property
    def config(self) -> Path:
        """The trainer's configuration."""
        return self.notes / "config.yaml"

    def prepare(self, wanted: Provenance, replace: bool) -> None:
        """Make ready for a training that goes by ``wanted``; one that goes by something else gives way if ``replace``.

        Raises ``UserError`` otherwise.
        """
        plan = self.notes / "plan.json"
        changes = changed(_read(plan, Provenance), wanted) if plan.exists() else []
        if changes and not replace:
            raise UserError(
                f"{self.output} was trained differently: {'; '.join(changes[:4])}\n"
                "run again with --replace to train it (and what follows from it) anew, or with another run_dir=…",
                ErrorCode.MADE_DIFFERENTLY,
            )
        if changes:
            remove(self.output, "model", lambda names: RECORD in names)
            remove(self.output.with_name(f".{self.output.name}.work"), "unfinished training", is_training)
        # Written once what gives way is gone: until then the old plan tells what is there.
        self.notes.mkdir(parents=True, exist_ok=True)
        write_atomically(plan, msgspec.json.encode(wanted), self.notes)


def _read(path: Path, wanted: type[R]) -> R:
    """What a training wrote of itself. Raises ``UserError`` for a file that is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=wanted)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{path} is damaged ({error})\ndelete it, and run the same command again",
            ErrorCode.DAMAGED_FILE,
        ) from error
