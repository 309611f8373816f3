"""The rows of a table once more by split, so that what is held out can be left alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.publish.layout import values_by_split
from pipelines.publish.survey import Survey
from schemas.tables import Counts, Table, write_rows


def split_tables(table: Table, survey: Survey, folder: Path) -> dict[str, Table]:
    """A table of each split, in ``folder/SPLIT``, by split; none where the table is of one split only.

    Files and rows keep their order, and the same table gives the same bytes.
    """
    values = values_by_split(survey)
    if len(values) < 2:
        return {}
    return {split: written(table, survey, each, folder / split) for split, each in values.items()}


def written(table: Table, survey: Survey, values: list[str], folder: Path) -> Table:
    """The rows of ``table`` whose split is one of ``values``, as a table in ``folder``."""
    files = []
    for shard in table.shards():
        if set(values) & set(survey.file_splits[shard.name]):
            rows = pq.ParquetFile(shard).read()
            wanted = pc.is_in(pc.fill_null(rows["split"], ""), value_set=pa.array(values))
            files.append(write_rows(folder / "data" / shard.name, rows.filter(wanted)))
    n = sum(file.rows for file in files)
    counts = Counts(read=n, used=n, dropped=0, written=n)
    return Table(folder, msgspec.structs.replace(table.manifest, files=files, counts=counts, dropped_files=[]))
