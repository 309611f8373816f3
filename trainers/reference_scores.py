"""Log-probabilities of the rows under the reference model, made once before the first step and kept on disk.

Batches are those of the training, so in its first pass a row has exactly the log-probability that it would have if the
reference ran in every step; in a later pass it differs by rounding. The reference has no dropout. What KTO needs of a
prompt with the completion of another row depends on the batch, and is kept for each place in the order of rows.

The folder holds ``rows.npy`` and ``places.npy``, single precision, and ``reference.json``, with the number of
batches that are written: a stopped training goes on after these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray

from agentmill.schemas.ids import digest
from agentmill.schemas.records.manifest import disk_errors, write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import remove
from agentmill.trainers.command import TrainSettings
from agentmill.trainers.model_card import versions
from agentmill.trainers.run_dir import TrainingSetup

PROGRESS = "reference.json"

SAVE_S = 10.0
"""Seconds between two notes of the progress: what a killed process has to do again."""


class ReferenceScores:
    """The values in ``folder`` for rows in the order ``order``, of which ``group`` make a batch over all processes.

    ``of_rows`` are the names of values that a row has by itself, ``of_places`` of those that depend on the batch.
    ``identity`` is everything else that decides the values.
    """

    def __init__(
        self,
        folder: Path,
        identity: JsonObject,
        order: Sequence[int],
        group: int,
        of_rows: Sequence[str],
        of_places: Sequence[str],
    ) -> None:
        self.folder, self.group = folder, group
        self.of_rows, self.of_places = tuple(of_rows), tuple(of_places)
        self.order = np.asarray(order, np.int64)
        rows, first = np.unique(self.order, return_index=True)
        self._n_rows = int(rows[-1]) + 1
        # Whether the row at a place comes there for the first time.
        self._is_first = np.zeros(len(self.order), bool)
        self._is_first[first] = True
        known = {**identity, "order": sha256(self.order.tobytes()).hexdigest(), "group": group}
        self.identity = digest({**known, "values": [self.of_rows, self.of_places]})

    @cached_property
    def batches(self) -> list[int]:
        """The numbers of the batches that are scored: those with a row that came in none before, or all."""
        return [number for number in range(len(self.order) // self.group) if self.names(number)]

    def names(self, batch: int) -> tuple[str, ...]:
        """The values that are to be made for a batch."""
        new = self._is_first[batch * self.group : (batch + 1) * self.group].any()
        return (*(self.of_rows if new else ()), *self.of_places)

    def done(self) -> int:
        """How many of ``batches`` are scored."""
        try:
            found = msgspec.json.decode((self.folder / PROGRESS).read_bytes(), type=tuple[str, int])
        except (FileNotFoundError, msgspec.MsgspecError):
            return 0
        return found[1] if found[0] == self.identity else 0

    @property
    def finished(self) -> bool:
        """Whether the reference is no longer needed."""
        return self.done() == len(self.batches)

    def begin(self) -> None:
        """Make the files, unless they are begun; values of other rows or another reference are removed."""
        with disk_errors(self.folder):
            if self.done():
                return
            remove(self.folder, "folder of reference scores", lambda names: any(PROGRESS in name for name in names))
            # First, since by it the folder is known as ours.
            self._note(0)
            for name, shape in self._shapes().items():
                np.lib.format.open_memmap(self.folder / name, mode="w+", dtype=np.float32, shape=shape).flush()
                # Else a device that fills later would end this process by a signal, without a word.
                with (self.folder / name).open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)

    def write(self, done: int, batch: int, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Keep the values of a batch, of shape (group,), with which ``done`` of ``batches`` are scored."""
        places = slice(batch * self.group, (batch + 1) * self.group)
        new = self._is_first[places]
        for name, found in values.items():
            if name in self.of_rows:
                self._writable["rows.npy"][self.of_rows.index(name), self.order[places][new]] = found[new]
            else:
                self._writable["places.npy"][self.of_places.index(name), places] = found
        if done == len(self.batches) or time.monotonic() - self._noted >= SAVE_S:
            with disk_errors(self.folder):
                for each in self._writable.values():
                    each.flush()
                self._note(done)

    def at(self, place: int) -> dict[str, float]:
        """The values of the row at a place in the order; none before all are there."""
        if self._values is None:
            return {}
        rows, places = self._values
        row = self.order[place]
        found = {name: float(rows[number, row]) for number, name in enumerate(self.of_rows)}
        return found | {name: float(places[number, place]) for number, name in enumerate(self.of_places)}

    def open(self) -> None:
        """Map the values into memory, once they are ``finished``."""
        rows, places = (np.load(self.folder / name, mmap_mode="r") for name in self._shapes())
        self._values = rows, places

    _values: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
    _noted = 0.0

    @cached_property
    def _writable(self) -> dict[str, Any]:
        return {name: np.load(self.folder / name, mmap_mode="r+") for name in self._shapes()}

    def _shapes(self) -> dict[str, tuple[int, int]]:
        # A map of no bytes is an error.
        return {
            "rows.npy": (len(self.of_rows), self._n_rows),
            "places.npy": (max(1, len(self.of_places)), len(self.order) if self.of_places else 1),
        }

    def _note(self, done: int) -> None:
        write_atomically(self.folder / PROGRESS, msgspec.json.encode((self.identity, done)), self.folder)
        self._noted = time.monotonic()


def open_scores(
    settings: TrainSettings,
    setup: TrainingSetup,
    precision: str,
    scored: tuple[Sequence[str], Sequence[str]],
    order: Sequence[int],
    group: int,
) -> ReferenceScores:
    """What there is of the scores of a training; ``scored`` are the names of values of rows, and of places."""
    identity = {
        **setup.token_identity,
        "reference_revision": setup.work.identity["reference_revision"],
        # All that decides how the reference is computed.
        "arithmetic": [
            precision,
            settings.weights,
            settings.attention,
            settings.liger,
            settings.lora is not None,
            settings.lora and settings.lora.quantize,
            settings.trl,
        ],
        "versions": versions(),
    }
    return ReferenceScores(setup.work.tokens / "reference", identity, order, group, *scored)


def needs_no_copy(scores: ReferenceScores, setup: TrainingSetup, resumed: bool) -> bool:
    """Whether no second model has to be loaded: all is scored, or the model to be trained is still the reference."""
    if scores.finished:
        return True
    sharded = {os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() for name in ("FSDP", "DEEPSPEED")}
    same = setup.work.identity["reference_revision"] == setup.work.identity["base_revision"] and setup.adapter is None
    # TRL loads a reference of its own where the model is sharded.
    return same and not resumed and sharded == {"false"}


class ScoredRows(torch.utils.data.Dataset[dict[str, Any]]):
    """The rows of a training in their order, each with what ``scores`` has of its place."""

    def __init__(self, rows: Dataset, scores: ReferenceScores) -> None:
        self.rows, self.scores = rows, scores

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {**self.rows[place], **self.scores.at(place)}

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        # One access to the memory-mapped rows for a whole batch.
        rows = self.rows.__getitems__(places)
        return [{**row, **self.scores.at(place)} for row, place in zip(rows, places, strict=True)]
