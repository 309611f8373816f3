"""Before and between the steps of a training: where it begins, keeps its checkpoints, and continues after a stop.

The folder ``.NAME.work`` besides the output ``NAME`` holds ``identity.json``, what the training is, and TRL's
checkpoints. A checkpoint counts only with the mark that is set after its last file was written. ``NAME`` itself
appears in one step, when all is in it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from agentmill.schemas.config import Config, differences
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.extras import require
from agentmill.schemas.models import TRAINING_RECORD, context_length, model_revision, vocabulary_size
from agentmill.schemas.records.manifest import disk_errors, write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table, remove
from agentmill.schemas.training import IDENTITY, WITHOUT_EFFECT, is_training, template_identity
from agentmill.trainers.command import TrainSettings, is_first_process, prepare_environment, say
from agentmill.trainers.hub_models import remove_revisions
from agentmill.trainers.launch import sharding
from agentmill.trainers.model_io import load_errors, load_tokenizer
from agentmill.trainers.requirements import check_requirements, check_whole_weights, precision_of
from agentmill.trainers.token_shards import is_token_folder
from agentmill.trainers.validation import ValidationSource, choose_validation, open_validation_table

NOT_IDENTITY = {
    *("rows", "validation_rows", "model", "base", "reference", "reference_base"),
    *("output", "recipe", "resume", "log_steps"),
    *WITHOUT_EFFECT,
    "launch",  # it counts by the processes that it comes to
}
"""Settings that do not change what comes out (``log_steps`` does with ``stop_when``, and with it ``save_steps``); rows
and models count by what is in them."""

LATER = {"trl", "stop_when", "share_prefixes", "validation", "optimizer", "weights", "attention", "liger"}
LATER_OF_LORA = {"dora", "rslora", "modules_to_save", "quantize"}
"""Settings that came later: trainings from before have no entry for them, and stay the same training without."""

TOKEN_SETTINGS = ("chat_template", "control_tokens", "long_rows", "margin", "share_prefixes")
"""Settings that decide which tokens a row becomes, with ``max_length``."""

TOKEN_METHOD = 2
"""How rows become tokens; another number where that changes, so that tokens on disk are made anew."""


@dataclass(frozen=True)
class TrainingSetup:
    """Where a training begins; ``max_length`` is that of the settings or the model's own, in tokens.

    With an ``adapter`` of ``base`` its matrices are trained on.
    """

    table: Table
    base: Path
    work: WorkFolder
    tokenizer: Any
    max_length: int
    validation: ValidationSource | None = None
    adapter: Path | None = None

    @property
    def token_identity(self) -> JsonObject:
        """What decides how the rows are as tokens."""
        settings = self.work.identity.get("settings", {})
        used = {name: settings[name] for name in TOKEN_SETTINGS if name in settings}
        # An adapter may have another chat template than its model.
        adapter = ("adapter_revision",) if self.adapter is not None else ()
        known = {name: self.work.identity.get(name) for name in ("trainer", "rows_digest", "base_revision", *adapter)}
        return {**known, "method": TOKEN_METHOD, "settings": used, "max_length": self.max_length}


def set_up_training(
    trainer: str, settings: TrainSettings, table: Table, base: Path, adapter: Path | None = None, **revisions: str
) -> TrainingSetup | None:
    """The start of a training, ``None`` if its model is there already; ``revisions`` of other models than ``base``.

    Raises ``UserError`` where the output or the checkpoints are those of another training, or the tokenizer of
    ``base``, or of the ``adapter`` where it has one, cannot serve.
    """
    # Also for callers that did not come by the command line.
    prepare_environment()
    for logger in settings.report_to:
        require(logger)
    check_requirements(trainer, settings)

    validated_on = open_validation_table(settings, table)
    if validated_on is not None and validated_on is not table:
        revisions["validation_digest"] = validated_on.digest
    if adapter is not None:
        revisions["adapter_revision"] = model_revision(adapter)
    revisions = {"rows_digest": table.digest, "base_revision": model_revision(base), **revisions}
    identity = _identity(trainer, settings, revisions)
    work = WorkFolder(Path(settings.output).expanduser().absolute(), identity)
    # Before the tokenizer is loaded, so that a repeated command ends at once.
    if work.finished():
        say(f"{settings.output} is there already, from the same rows and settings: nothing to do")
        return None
    if settings.resume:
        work.check()
    check_whole_weights(base, settings)
    with load_errors(base):
        # A configuration need not say how long the context of its model is.
        max_length = min(settings.max_length, context_length(base) or settings.max_length)
    source = base if adapter is None or not (adapter / "tokenizer_config.json").is_file() else adapter
    tokenizer = load_tokenizer(source, settings.chat_template, settings.trust_remote_code)
    known = vocabulary_size(base)
    if known is not None and len(tokenizer) > known:
        say(
            f"warning: the tokenizer in {source} has {len(tokenizer)} tokens, and the model embeddings for {known}:"
            " a row with one of the others ends the training; resize the embeddings, or take the model's own tokenizer"
        )
    validation = None if validated_on is None else _validation(settings, table, validated_on)
    return TrainingSetup(table, base, work, tokenizer, max_length, validation, adapter)


def _validation(settings: TrainSettings, table: Table, validated_on: Table) -> ValidationSource | None:
    """The rows to validate on; a warning is printed where they share tasks with those that are trained on."""
    if settings.validates is None:
        return None
    chosen = choose_validation(settings.validates, settings.seed, table, validated_on)
    if chosen.shared_tasks:
        say(
            f"warning: {chosen.shared_tasks} tasks or trajectories of the validation rows have rows that are trained on"
        )
    return chosen


def _identity(trainer: str, settings: TrainSettings, revisions: Mapping[str, str]) -> JsonObject:
    """All that decides what comes out of a training; ``revisions`` are those of its rows and models."""
    return {
        "trainer": trainer,
        "settings": _identifying(settings),
        **revisions,
        # The order of the rows depends on how many rows make a batch over all processes.
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "sharding": sharding(),
        # A checkpoint of one machine would go on in the arithmetic of another.
        "precision": precision_of(settings),
    }


def _identifying(settings: TrainSettings) -> JsonObject:
    """The settings in the identity of a training: not ``NOT_IDENTITY``, nor later settings that are not changed."""
    names = NOT_IDENTITY | _unchanged(settings, LATER)
    # The limits of drift are of points of the curve, so how many steps make one decides where the training ends.
    # A point also ends before a checkpoint.
    if getattr(settings, "stop_when", None) is not None and not _unchanged(settings, {"log_steps"}):
        names = names - {"log_steps", "save_steps"}
    left_out: dict[str, Any] = dict.fromkeys(names, True)
    if settings.lora:
        left_out["lora"] = _unchanged(settings.lora, LATER_OF_LORA)
    return settings.model_dump(exclude=left_out) | {"chat_template": template_identity(settings.chat_template)}


def _unchanged(config: Config, names: set[str]) -> set[str]:
    """Those of ``names`` that ``config`` has with their default."""
    fields = type(config).model_fields
    return {name for name in names & set(fields) if getattr(config, name) == fields[name].default}


MARK = "complete"

RECORD = TRAINING_RECORD

LITTLE_BYTES = 1 << 20
"""A device with less than this after a failed write is full."""


class WorkFolder:
    """The place of one training; ``identity`` is all that decides what comes out of it."""

    def __init__(self, output: Path, identity: JsonObject) -> None:
        self.output = output
        self.identity = identity
        self.folder = output.with_name(f".{output.name}.work")
        self.raw = self.folder / "raw"
        """What TRL saved at the end: weights in fp32, or the adapter."""
        self.model = self.folder / "model"
        """What becomes the output."""
        self.tokens = output.with_name(f".{output.name}.tokens")
        """The rows as tokens."""
        self.events = output.with_name(f"{output.name}.tensorboard")
        """The loss curve for TensorBoard."""
        self.samples = output.with_name(f"{output.name}.samples.jsonl")
        """What the model generated at each validation."""

    def finished(self) -> bool:
        """Whether the output is there already. Raises ``UserError`` if something else is in its place."""
        if not self.output.exists():
            return False
        record = self.output / RECORD
        if not record.is_file():
            raise UserError(
                f"{self.output} exists and is no model of ours; choose another `output`", ErrorCode.OUTPUT_NOT_OURS
            )
        # On what a finished model was computed matters no more on a machine that computes otherwise.
        found = identity_in(record, ("identity",), f"delete {self.output}, or choose another `output`")
        machine: JsonObject = {
            name: self.identity[name] for name in ("precision", "processes", "sharding") if name in self.identity
        }
        self._compare({**found, **machine}, self.output)
        if is_first_process():
            self._clear()
        return True

    def check(self) -> None:
        """Raises ``UserError`` if the checkpoints are those of another training."""
        identity = self.folder / IDENTITY
        # Without a complete checkpoint there is no progress to protect, and the folder is made anew.
        if identity.is_file() and self.latest_checkpoint():
            self._compare(identity_in(identity, (), f"delete {self.folder} to start over"), self.folder)

    def prepare(self, resume: bool) -> None:
        """Make the folder and clear what a killed training left incomplete; all of it if the training starts over."""
        if resume:
            for damaged in sorted(mark.parent for mark in self._marks() if not is_whole(mark)):
                say(f"warning: {damaged} is damaged; the training goes on from an earlier checkpoint, or starts over")
        if not (resume and self.latest_checkpoint()):
            remove(self.folder, "unfinished training", is_training)
            remove(self.events, "loss curve", lambda names: all(".tfevents." in name for name in names))
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.raw, self.model):
            shutil.rmtree(folder, ignore_errors=True)
        for checkpoint in self.folder.glob("checkpoint-*"):
            # transformers would count an incomplete one among the two that it keeps.
            if not (checkpoint / MARK).is_file() or not is_whole(checkpoint / MARK):
                shutil.rmtree(checkpoint)
        write_atomically(self.folder / IDENTITY, msgspec.json.encode(self.identity), self.folder)

    def require_space(self, needed_bytes: int) -> None:
        """Raises ``UserError`` unless that much is free, what is here already counted in."""
        here = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if free + here < needed_bytes:
            raise UserError(
                f"{self.folder.parent} has {free / 1e9:.1f} GB free, training needs about {needed_bytes / 1e9:.1f} GB;"
                " free some, choose another `output`, or write no checkpoints (save_steps: null)",
                ErrorCode.NO_SPACE,
            )

    def latest_checkpoint(self) -> Path | None:
        """The last complete checkpoint."""
        complete = [mark.parent for mark in self._marks() if is_whole(mark)]
        # By number: as text, checkpoint-9 would come after checkpoint-10.
        return max(complete, key=lambda checkpoint: int(checkpoint.name.rpartition("-")[2]), default=None)

    def _marks(self) -> Iterator[Path]:
        return self.folder.glob(f"checkpoint-*/{MARK}")

    def mark_complete(self, step: int) -> None:
        """Say that all files of the checkpoint of ``step`` are written, and of how many bytes each is."""
        checkpoint = self.folder / f"checkpoint-{step}"
        write_atomically(checkpoint / MARK, msgspec.json.encode(file_sizes(checkpoint)), checkpoint)

    def publish(self) -> None:
        """Put the finished model folder in its place and remove the rest."""
        # In this order: a kill between the two leaves the finished model, never neither.
        self.model.rename(self.output)
        self._clear()

    def _clear(self) -> None:
        """Remove what a finished training has no more use for; after a kill in between, the next command does."""
        for folder, kind, is_ours in (
            (self.folder, "unfinished training", is_training),
            (self.tokens, "folder of tokens", is_token_folder),
        ):
            with suppress(UserError):  # somebody else's has nothing to do with this training
                remove(folder, kind, is_ours)
        # They are in the record now.
        remove_revisions(self.output)

    def _compare(self, found: JsonObject, where: Path) -> None:
        # Trainings from before they were recorded lack these, and stay the same training.
        later = {"sharding", "precision"} - found.keys()
        wanted = {name: value for name, value in self.identity.items() if name not in later}
        changed = differences(found, wanted)
        if changed:
            listed = "; ".join(changed[:4]) + ("; …" if len(changed) > 4 else "")
            before, now = found.get("processes"), self.identity.get("processes")
            as_before = f" launch: {{processes: {before}}} trains as before." if before not in (None, now) else ""
            raise UserError(
                f"{where} comes from another training ({listed})\n"
                f"Choose another `output`, or delete {where} and run the same command.{as_before}",
                ErrorCode.MADE_DIFFERENTLY,
            )


def identity_in(file: Path, keys: Sequence[str], advice: str) -> JsonObject:
    """The identity of a training, under ``keys`` of a JSON file. Raises ``UserError`` where it is not there."""
    try:
        found = msgspec.json.decode(file.read_bytes())
        for key in keys:
            found = found[key]
        return msgspec.convert(found, JsonObject)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{file} is damaged, or not written by a training of ours ({type(error).__name__}: {error})\n{advice}",
            ErrorCode.DAMAGED_FILE,
        ) from error


def file_sizes(checkpoint: Path) -> dict[str, int]:
    """The bytes of each file of a checkpoint by its path in it.

    Without its mark, and without states of chance, which other processes may still be writing.
    """
    files = (path for path in sorted(checkpoint.rglob("*")) if path.is_file())
    files = (path for path in files if path.name != MARK and not path.name.startswith("rng_state_"))
    return {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}


def is_whole(mark: Path) -> bool:
    """Whether the checkpoint of a mark has all files as they were written; an empty mark of before does not tell."""
    try:
        sizes = msgspec.json.decode(mark.read_bytes() or b"{}", type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    there = file_sizes(mark.parent)
    return all(there.get(name) == size for name, size in sizes.items())


@contextmanager
def space_errors(folder: Path) -> Iterator[None]:
    """``disk_errors``, also where torch and safetensors hide that the device is full."""
    with disk_errors(folder):
        try:
            yield
        except (RuntimeError, SafetensorError) as error:
            # The message alone does not tell a full device from other failures of writing.
            if shutil.disk_usage(folder.parent).free < LITTLE_BYTES:
                raise OSError(errno.ENOSPC, str(error)) from error
            raise
