"""The texts of a table as columns: every text leaf of every record, with the row that it is in.

One row group (at most 64 MB) is in memory at a time, and no Python object is made of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Rows = npt.NDArray[np.int64]


class Texts(NamedTuple):
    """Texts of one leaf column of one row group; ``rows`` are their row numbers in the file, in ascending order.

    ``path`` is that of the leaf in the record, such as ``messages.tool_calls.arguments``.
    """

    path: str
    values: pl.Series
    rows: Rows


def texts(file: Path) -> Iterator[Texts]:
    """All texts of a Parquet file of ours that are not null or empty."""
    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        columns = text_columns(parquet)
        first = 0
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, columns=columns, use_threads=False)
            for name in table.column_names:
                yield from leaves(name, table.column(name).combine_chunks(), np.arange(first, first + len(table)))
            first += len(table)


def text_columns(parquet: pq.ParquetFile) -> list[str]:
    """The paths, in Parquet's terms, of the columns that hold text."""
    columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
    return [each.path for each in columns if each.logical_type.type == "STRING" and each.path != "schema_version"]


def leaves(path: str, array: pa.Array, rows: Rows) -> Iterator[Texts]:
    """The text leaves of an Arrow array whose element ``i`` is in row ``rows[i]``."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_struct(array.type):
        for field in array.type:
            yield from leaves(f"{path}.{field.name}", pc.struct_field(array, field.name), rows)
    elif pa.types.is_list(array.type):
        yield from leaves(path, pc.list_flatten(array), rows[pc.list_parent_indices(array).to_numpy()])
    elif pa.types.is_large_string(array.type):
        there = pc.fill_null(pc.greater(pc.binary_length(array), 0), False)
        kept = array.filter(there)
        if len(kept):
            yield Texts(path, series(kept), rows[there.to_numpy(zero_copy_only=False)])


def series(array: pa.Array) -> pl.Series:
    """An Arrow array of texts in Polars."""
    found = pl.from_arrow(array)
    assert isinstance(found, pl.Series)
    return found


def cells(file: Path, column: str, rows: Sequence[int]) -> list[Any]:
    """The values of a top-level column in these rows of a file."""
    return list(pq.read_table(file, columns=[column]).column(column).take(pa.array(rows)).to_pylist()) if rows else []


MARKUP = re.compile(
    r"[\\`*\[\]<>|~$&]"  # code, emphasis, links, tags, ends of cells, formulas, entities
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis, which begins and ends at words only
    r"|:(?=//)|(?<=www)\.|@"  # addresses, which become links by themselves
    r"|^[#+=-]",  # headings, lists and rules
    re.IGNORECASE,
)
NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")


def one_line(value: object) -> str:
    """Text on one line, without what cannot be seen."""
    seen = (character for character in str(value) if character.isprintable() or character.isspace())
    return " ".join("".join(seen).split())


def cell(value: object) -> str:
    """Text on one line that reads as it is, in a cell or elsewhere (CommonMark 0.31, GitHub's tables and links)."""
    return NUMBERED.sub(r"\1\\\2", MARKUP.sub(r"\\\g<0>", one_line(value)))


def code(value: object) -> str:
    """Text as code on one line; more backticks are around it than there are in it."""
    text = one_line(value)
    if not text:
        return "–"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    room = " " if len(fence) > 1 else ""
    return f"{fence}{room}{text}{room}{fence}"


def code_cell(value: object) -> str:
    """Text as code in a cell."""
    return code(value).replace("|", "\\|")


def tex(value: object) -> str:
    """Text on one line for a field of BibTeX."""
    braces = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return re.sub(r"[\\{}&%$#_~^]", lambda found: braces.get(found[0], f"\\{found[0]}"), one_line(value))


def number(value: object) -> str:
    """A measure for a cell."""
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else cell(value)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *([number(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
