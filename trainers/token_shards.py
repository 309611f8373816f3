"""The examples of a training as tokens on disk: made once, by several processes, and memory-mapped by all of them.

A folder holds an Arrow file for each file of the table of rows, and next to it what was counted in it. A file is there
only when it is whole, so a killed training goes on with those that are. Each process of a training makes its share.
"""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from datasets import Dataset, concatenate_datasets

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.machine import OPEN_FILES, allow_open_files
from agentmill.schemas.records.manifest import disk_errors, write_atomically
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Table, remove
from agentmill.trainers.launch import end_with

E = TypeVar("E", bound="Example")
C = TypeVar("C", bound=msgspec.Struct)

BATCH = 256
"""Examples of a record batch: what a process holds while it writes."""

PARALLEL = 10_000
"""Rows from which on several processes make them: below, these would take longer to start than they save."""

LENGTH = "length"
ROW_IDS = "row_ids"
IDENTITY = "tokens.json"
WAIT_S = 0.2
LONG_S = 600.0
"""How long a process waits for the first one to begin. It removes what was made otherwise, which may be large."""

TOKENS, MASK, WEIGHTS = pa.list_(pa.int32()), pa.list_(pa.bool_()), pa.list_(pa.float32())
"""Types of columns with a value for each token, and of weights, which only tokens with loss have."""

Columns = Mapping[str, pa.DataType]


class Example(Protocol):
    """What is trained on: it has a length in tokens, and values for columns."""

    types: ClassVar[Columns]

    def __len__(self) -> int:
        """Tokens, of which the longest example of a batch decides the padding."""

    def columns(self) -> Mapping[str, Any]:
        """A value for each column in which it is stored."""


@dataclass(frozen=True)
class WithRows:
    """An example with the ids of the rows that it was made of."""

    types: ClassVar[Columns] = {ROW_IDS: pa.list_(pa.string())}
    example: Example
    row_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.example)

    def columns(self) -> Mapping[str, Any]:
        """The example as it is stored, and the ids."""
        return {**self.example.columns(), ROW_IDS: self.row_ids}


class FileMaker(ABC, Generic[E, C]):
    """What makes the examples of one file of rows. It is sent to other processes, so it must pickle.

    ``types`` are the columns in which the examples are stored, and ``counts`` is what is counted in a file.
    """

    types: Columns
    counts: ClassVar[type[Any]]

    @abstractmethod
    def make(self, path: Path, keep: Callable[[Sequence[E]], None]) -> C:
        """Give all examples of the file to ``keep``, some at a time, and return what was counted."""


def is_token_folder(names: Sequence[str]) -> bool:
    """Whether files with these paths in their folder are those of rows as tokens."""
    return any(IDENTITY in name for name in names)


@dataclass(frozen=True)
class TokenShards(Generic[E, C]):
    """What ``maker`` makes of the files of ``table``, in ``folder``; ``identity`` is all that decides what it is."""

    folder: Path
    table: Table
    maker: FileMaker[E, C]
    identity: JsonObject

    def make(self) -> list[C]:
        """Make what is not there yet, and return what was counted in each file. Raises as the maker does."""
        rank, processes = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        with disk_errors(self.folder):
            self._begin(rank)
            files = list(enumerate(self.table.shards()))
            # By their numbers: what is missing changes while other processes work.
            own = [file for file in files[rank::processes] if not self._is_made(file[0])]
            self._make(own, max(1, len(os.sched_getaffinity(0)) // processes))
            # A process that fails ends the others, too: their launcher sees to it.
            missing = [number for number, _ in files]
            while missing := [number for number in missing if not self._is_made(number)]:
                time.sleep(WAIT_S)
        return [
            msgspec.json.decode(self._counts_file(number).read_bytes(), type=self.maker.counts) for number, _ in files
        ]

    def open(self) -> Dataset:
        """The examples in the order of their rows, memory-mapped."""
        files = len(self.table.shards())
        # A map holds its file open, and those of the rows to validate on are opened, too.
        allow_open_files(OPEN_FILES + 2 * files)
        parts = [_mapped(self._file(number)) for number in range(files)]
        return concatenate_datasets([part for part in parts if len(part)])

    def _begin(self, rank: int) -> None:
        """Make the folder; what was made otherwise is removed."""
        mark, wanted = self.folder / IDENTITY, msgspec.json.encode(digest(self.identity))
        if rank == 0 and not (mark.exists() and mark.read_bytes() == wanted):
            remove(self.folder, "folder of tokens", is_token_folder)
            write_atomically(mark, wanted, self.folder)
        begun = time.monotonic()
        while not (mark.exists() and mark.read_bytes() == wanted):
            if time.monotonic() - begun > LONG_S:
                raise UserError(
                    f"the first process of this training made no {mark} within {LONG_S:g} s that fits this one's"
                    " settings, rows and models\nrun the same command again; on several machines, give all the same"
                    " files and settings",
                    ErrorCode.MADE_DIFFERENTLY,
                )
            time.sleep(WAIT_S)

    def _make(self, files: Sequence[tuple[int, Path]], processes: int) -> None:
        rows = sum(self.table.manifest.files[number].rows for number, _ in files)
        if processes < 2 or len(files) < 2 or rows < PARALLEL:
            for number, path in files:
                self._make_file(number, path)
            return
        # Not forked: the threads of torch and tokenizers do not survive that.
        workers = min(processes, len(files))
        with ProcessPoolExecutor(workers, get_context("spawn"), end_with, (os.getpid(),)) as pool:
            made = [pool.submit(self._make_file, number, path) for number, path in files]
            try:
                for each in as_completed(made):
                    each.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _make_file(self, number: int, path: Path) -> None:
        schema, waiting = pa.schema({**self.maker.types, LENGTH: pa.int32()}), list[E]()
        unfinished = self._file(number).with_suffix(f".{os.getpid()}")
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:

            def keep(examples: Sequence[E]) -> None:
                waiting.extend(examples)
                if len(waiting) >= BATCH:
                    stream.write_batch(record_batch(waiting, schema))
                    waiting.clear()

            counts = self.maker.make(path, keep)
            stream.write_batch(record_batch(waiting, schema))
        # In this order, and on the disk: what is counted is there only if the examples are, also after a crash.
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(self._file(number))
        write_atomically(self._counts_file(number), msgspec.json.encode(counts), self.folder)

    def _is_made(self, number: int) -> bool:
        """Whether a file of rows was made, and can be read; one that is damaged its process makes anew."""
        try:
            msgspec.json.decode(self._counts_file(number).read_bytes(), type=self.maker.counts)
            _mapped(self._file(number))
        except (OSError, ValueError, pa.ArrowException, msgspec.MsgspecError):
            return False
        return True

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:05}.arrow"

    def _counts_file(self, number: int) -> Path:
        return self.folder / f"{number:05}.json"


def _mapped(path: Path) -> Dataset:
    """A file of examples, of which only the heads of its record batches and the lengths are read now."""
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Arrow's own map asks the system to load all that it opens, and by itself the system reads on behind each head.
    held.madvise(mmap.MADV_RANDOM)
    table = pa.ipc.open_stream(pa.py_buffer(held)).read_all()
    place = table.schema.get_field_index(LENGTH)
    table = table.set_column(place, LENGTH, pa.concat_arrays(table[LENGTH].chunks or [pa.array([], pa.int32())]))
    held.madvise(mmap.MADV_NORMAL)
    # Without a name it would be the digest of all its data.
    return Dataset(table, fingerprint=path.stem)


def record_batch(examples: Sequence[Example], schema: pa.Schema) -> pa.RecordBatch:
    """Some examples as rows of Arrow."""
    found = [{**each.columns(), LENGTH: len(each)} for each in examples]
    return pa.record_batch(
        [pa.array([each[field.name] for each in found], field.type) for field in schema], schema=schema
    )
