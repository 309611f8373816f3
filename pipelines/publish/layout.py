"""How tables become configurations and splits, so that ``load_dataset`` and the Hub's viewer need no code.

Tables go up as they are. Where every file of a table holds rows of one split only, its files are distinguished by
split. Of a table whose files mix splits, the rows go up once more in ``NAME/splits/SPLIT``, and these are what is
loaded. Rows that tell no split are ``unsplit``, for nothing says that they are to be trained on.

Whoever loads a configuration as a whole may train on all of it. So splits other than ``train`` are in a configuration
of their own, ``NAME.held_out``, and none of these is the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentmill.pipelines.publish.bundle import Published
from agentmill.pipelines.publish.scan import Scan
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.tables import Counts, Table, write_rows

UNSPLIT, TRAIN = "unsplit", "train"
HELD_OUT = "held_out"
"""The end of the name of a configuration with what is not to be trained on."""

SPLITS = "splits"
"""The folder of a table with its rows by split, where its own files mix these."""

ORDER = [name for name, kind in RECORD_KINDS.items() if kind.content]
"""Which record is shown first; the first configuration without held-out rows is the default."""

SIZES = [(10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
         (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B")]  # fmt: skip


def in_order(tables: Sequence[Published]) -> list[Published]:
    """The tables in the order of the card: training rows, trajectories, and what they were made of."""
    places = {record: place for place, record in enumerate(ORDER)}
    return sorted(tables, key=lambda each: (places.get(each.table.manifest.record, len(ORDER)), each.name))


def splits(name: str, scan: Scan) -> Mapping[str, str | list[str]]:
    """The files of a table by split, as paths or a pattern; none where it has no rows."""
    values = values_by_split(scan)
    if mixes(scan):
        return {split: f"{name}/{SPLITS}/{split}/*.parquet" for split in values}
    if len(values) == 1:
        return dict.fromkeys(values, f"{name}/data/*.parquet")
    held = [(file, found[0]) for file, found in scan.file_splits.items() if found]
    return {split: [f"{name}/data/{file}" for file, value in held if value in spelt] for split, spelt in values.items()}


def values_by_split(scan: Scan) -> dict[str, list[str]]:
    """The splits that ``load_dataset`` knows, and the values that rows tell; two of these may be spelt as one."""
    values: dict[str, list[str]] = {}
    for value in sorted({value for found in scan.file_splits.values() for value in found}):
        values.setdefault(split_name(value), []).append(value)
    return dict(sorted(values.items()))


def mixes(scan: Scan) -> bool:
    """Whether a file of the table holds rows of several splits."""
    return any(len(set(map(split_name, found))) > 1 for found in scan.file_splits.values())


def split_name(value: str) -> str:
    """A split as ``datasets`` may call it: letters, digits and ``_``, and not its word for all of them."""
    name = re.sub(r"\W+", "_", value).strip("_") or UNSPLIT
    return f"{name}_" if name.lower() == "all" else name


def configs(tables: Sequence[Published], scans: Mapping[str, Scan]) -> list[JsonObject]:
    """The entry ``configs`` of the card's metadata; the first that holds nothing of another split is the default.

    Raises ``UserError`` where two tables would be one configuration.
    """
    owners: dict[str, str] = {}
    for each in tables:
        claim(each.config, each.name, owners)
    found: list[JsonObject] = []
    for each in in_order(tables):
        for config, files in parted(each.config, splits(each.name, scans[each.name])).items():
            claim(config, each.name, owners)
            named = [{"split": split, "path": path} for split, path in files.items()]
            found.append({"config_name": config, "data_files": named})
    default = next((each for each in found if all(is_default(file["split"]) for file in each["data_files"])), None)
    return [{**each, "default": True} if each is default else each for each in found]


def claim(config: str, name: str, owners: dict[str, str]) -> None:
    """Note that ``config`` is of the table ``name``. Raises ``UserError`` if it is of another."""
    if owners.setdefault(config, name) != name:
        both = f"{owners[config]} and {name}"
        raise UserError(
            f"{both} would both be the configuration {config}; give them different names: --table NAME=TABLE",
            ErrorCode.NAME_TAKEN,
        )


def parted(config: str, files: Mapping[str, str | list[str]]) -> dict[str, Mapping[str, str | list[str]]]:
    """The files of a table by configuration and split. One that holds no training rows has its name alone."""
    main = {split: path for split, path in files.items() if is_default(split)}
    apart = {split: path for split, path in files.items() if not is_default(split)}
    if not (main and apart):
        return {config: files} if files else {}
    return {config: main, f"{config}.{HELD_OUT}": apart}


def is_default(split: str) -> bool:
    """Whether rows of a split may be loaded by whoever names none."""
    return split in (TRAIN, UNSPLIT)


def size_category(rows: int) -> str:
    """The Hub's name for a number of rows."""
    return next((name for limit, name in SIZES if rows < limit), "10B<n<100B")


def split_tables(table: Table, scan: Scan, folder: Path) -> dict[str, Table]:
    """A table of each split, in ``folder/SPLIT``, by split; none where the table is of one split only.

    Files and rows keep their order, and the same table gives the same bytes.
    """
    values = values_by_split(scan)
    if len(values) < 2:
        return {}
    return {split: written(table, scan, each, folder / split) for split, each in values.items()}


def written(table: Table, scan: Scan, values: list[str], folder: Path) -> Table:
    """The rows of ``table`` whose split is one of ``values``, as a table in ``folder``."""
    files = []
    for shard in table.shards():
        if set(values) & set(scan.file_splits[shard.name]):
            rows = pq.ParquetFile(shard).read()
            wanted = pc.is_in(pc.fill_null(rows["split"], ""), value_set=pa.array(values))
            files.append(write_rows(folder / "data" / shard.name, rows.filter(wanted)))
    n = sum(file.rows for file in files)
    counts = Counts(read=n, used=n, dropped=0, written=n)
    return Table(folder, msgspec.structs.replace(table.manifest, files=files, counts=counts, dropped_files=[]))
