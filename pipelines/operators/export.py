"""Rows as documents of a foreign format, one JSON line each, in a folder of their own.

``trajectories.jsonl`` holds what the format can say, ``pairs.jsonl`` if these are pairs; ``dropped.jsonl`` the ids of
what it cannot, with the reason, if there are any; ``metadata.json`` what the format says of a dataset as a whole, if it
has such a thing.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import msgspec

from agentmill.pipelines.engine.errors import describe
from agentmill.pipelines.operators.lookup import check_disjoint
from agentmill.pipelines.terminal.progress import displayed
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.format import Format, FormatError, Written
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.formats.pairs import PairFormat, side_of
from agentmill.schemas.formats.preference import write_row
from agentmill.schemas.records.manifest import disk_errors
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.registry import Registry
from agentmill.schemas.tables import Counts, Table

DOCUMENTS = "trajectories.jsonl"
PAIRS = "pairs.jsonl"
DROPPED = "dropped.jsonl"
METADATA = "metadata.json"

METADATA_WRITERS: Registry[Callable[..., JsonObject]] = Registry(
    "writer of metadata", {"adp": "agentmill.schemas.formats.adp.format:metadata"}
)
"""Formats that describe a dataset as a whole, and the functions of all its trajectories that do it."""


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows. ``losses`` counts, by field, what the format has no place for."""

    file: str
    counts: Counts
    reasons: dict[str, int]
    losses: dict[str, int]


class Entry(NamedTuple):
    """A document to be: the ids of its rows, how many they are, and what writes it or raises ``FormatError``."""

    ids: JsonObject
    rows: int
    write: Callable[[], Written]


def export_documents(
    tables: Sequence[Table], name: str, writer: Format, folder: Path, rejoin: bool = False
) -> Exported:
    """Write the rows of ``tables`` in format ``name`` into ``folder``, which appears when it is complete.

    They are trajectories, or preference rows, which become pairs. ``rejoin``: of trajectories that were read from
    pairs, the two of each become one pair again, and others are dropped.
    Raises ``UserError`` if ``folder`` is there, cannot be written, or a table holds something else.
    """
    for table in tables:
        if table.record_type not in (Trajectory, PreferenceRow):
            raise UserError(
                f"{table.folder} holds {table.manifest.record} records, expected Trajectory",
                ErrorCode.WRONG_RECORD_TYPE,
            )
        if table.record_type is not tables[0].record_type:
            raise UserError(
                f"{tables[0].folder} and {table.folder} hold records of two kinds; export them one by one",
                ErrorCode.KINDS_MIXED,
            )
    check_disjoint(tables)
    if folder.exists():
        raise UserError(
            f"{folder} is there already; choose another folder with --out, or remove it", ErrorCode.OUTPUT_EXISTS
        )
    entries, file = entries_of(tables, name, writer, rejoin)
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, since a rename needs the same device.
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            with displayed(f"export to {name}", sum(table.manifest.counts.written for table in tables)) as advance:
                exported = write_documents(entries, unfinished, file, advance)
            if name in METADATA_WRITERS:
                # The rows are read once more, since holding all of them until here would take their memory.
                metadata = METADATA_WRITERS.load(name)(rows(tables))
                (unfinished / METADATA).write_bytes(msgspec.json.format(msgspec.json.encode(metadata), indent=2))
            # ``mkdtemp`` makes folders that only their owner can read.
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return exported


def entries_of(tables: Sequence[Table], name: str, writer: Format, rejoin: bool) -> tuple[Iterator[Entry], str]:
    """The documents to be, and the name of their file. Raises ``UserError`` if format ``name`` has no rows of pairs."""
    preferred = any(table.record_type is PreferenceRow for table in tables)
    if not preferred and not rejoin:
        return singles(tables, writer), DOCUMENTS
    known = [each for each in FORMATS if hasattr(FORMATS.load(each), "write_pair")]
    if name not in known:
        raise UserError(
            f"{name} has no rows of pairs; for pairs, expected --to {' or '.join(known)}",
            ErrorCode.FORMAT_WITHOUT_PAIRS,
        )
    make = preferences if preferred else rejoined
    return make(tables, cast(PairFormat, writer)), PAIRS


def rows(tables: Iterable[Table]) -> Iterator[Any]:
    """The rows of all tables, one shard in memory at a time."""
    for table in tables:
        yield from table.rows()


def singles(tables: Sequence[Table], writer: Format) -> Iterator[Entry]:
    """Every trajectory as a document."""
    for run in rows(tables):
        yield Entry({"trajectory_id": run.trajectory_id}, 1, functools.partial(writer.write, run))


def preferences(tables: Sequence[Table], writer: PairFormat) -> Iterator[Entry]:
    """Every preference row as a document."""
    for row in rows(tables):
        yield Entry({"row_id": row.row_id}, 1, functools.partial(write_row, row, writer))


def rejoined(tables: Sequence[Table], writer: PairFormat) -> Iterator[Entry]:
    """Every two trajectories that were read from one pair as a document; one waits until the other comes by."""
    waiting: dict[str | None, Trajectory] = {}
    for run in rows(tables):
        side = side_of(run)
        if side is None:
            yield unpaired(run)
            continue
        pair_id = run.trajectory_id if side == "chosen" else run.parent_id
        other = waiting.pop(pair_id, None)
        if other is None or side_of(other) == side:
            waiting[pair_id] = run
            yield from () if other is None else [unpaired(other)]
            continue
        chosen, rejected = (run, other) if side == "chosen" else (other, run)
        ids = {"trajectory_id": chosen.trajectory_id, "rejected_id": rejected.trajectory_id}
        yield Entry(ids, 2, functools.partial(writer.write_pair, chosen, rejected))
    yield from map(unpaired, waiting.values())


def unpaired(run: Trajectory) -> Entry:
    """A trajectory that is dropped: it is no side of a pair, or the other side is not there."""

    def refuse() -> NoReturn:
        raise FormatError("no_pair", "the other run of the pair is not among the trajectories, or it is of none")

    return Entry({"trajectory_id": run.trajectory_id}, 1, refuse)


def write_documents(entries: Iterable[Entry], folder: Path, file: str, advance: Callable[[int], None]) -> Exported:
    """Write documents into ``file``, and dropped ids; there is no file of the latter if there are none.

    ``advance`` is called with rows that have ended.
    """
    losses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    used = written = 0
    with (folder / file).open("wb") as documents, (folder / DROPPED).open("wb") as dropped:
        for entry in entries:
            advance(entry.rows)
            try:
                document = entry.write()
            except (UserError, MemoryError):
                raise
            # A row that a writer fails on must not cost the others.
            except Exception as error:  # noqa: BLE001
                if isinstance(error, FormatError):
                    reason, detail = error.reason, error.detail
                else:
                    reason, detail = "unexpected_error", describe(error)
                reasons[reason] += entry.rows
                write_line(dropped, {**entry.ids, "reason": reason, "detail": detail})
                continue
            losses.update(document.losses)
            used, written = used + entry.rows, written + 1
            write_line(documents, document.document)
    if not reasons:
        (folder / DROPPED).unlink()
    counts = Counts(read=used + reasons.total(), used=used, dropped=reasons.total(), written=written)
    kept = {name: n for name, n in losses.items() if n}
    return Exported(file=file, counts=counts, reasons=dict(reasons), losses=kept)


def write_line(file: BinaryIO, document: Any) -> None:
    """One JSON document and the end of its line."""
    file.write(msgspec.json.encode(document) + b"\n")
