"""The rows of a Parquet table as JSON, without pandas. A value that cannot be read makes its row unreadable, no more.

Dates and times become ISO 8601 text, with their nanoseconds. A year that Python has no date for cannot be read.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pyarrow as pa


class EncodedRow(msgspec.Struct, frozen=True, gc=False):
    """The JSON of a row; ``not_finite`` counts its NaN and infinities, which are null there.

    ``fault`` says which columns cannot be read; the JSON is without them.
    """

    data: bytes
    fault: str = ""
    not_finite: int = 0


def encoded_rows(table: pa.Table) -> list[EncodedRow]:
    """Every row of ``table``."""
    rows: list[dict[str, Any]] = [{} for _ in range(table.num_rows)]
    faults = [""] * table.num_rows
    not_finite = [0] * table.num_rows
    for name, column in zip(table.column_names, table.columns, strict=True):
        fractions = any(kind in str(column.type) for kind in ("float", "double"))
        for place, (value, fault) in enumerate(_values(column)):
            if name in rows[place]:
                fault = fault or "it is there twice"
            if fault:
                faults[place] += f"{'; ' if faults[place] else ''}column {name!r} cannot be read ({fault})"
            else:
                rows[place][name] = value
                not_finite[place] += _not_finite(value) if fractions else 0
    encoded = map(msgspec.json.encode, rows)
    return [EncodedRow(*row) for row in zip(encoded, faults, not_finite, strict=True)]


def _values(column: pa.ChunkedArray) -> list[tuple[Any, str]]:
    """Each value of a column, or why it cannot be read."""
    if "[ns" not in str(column.type):  # pyarrow needs pandas for nanoseconds, and cuts those of times
        try:
            values = column.to_pylist()
            # What an extension type becomes in Python may have no JSON; to try all columns takes time.
            return [(value, "") for value in (_written(values) if "extension<" in str(column.type) else values)]
        except Exception:  # noqa: BLE001  of Arrow, Python, a time zone: seen value by value below
            pass
    return [_value_or_fault(scalar) for scalar in column]


def _written(values: list[Any]) -> list[Any]:
    """``values``. Raises what msgspec does for those that have no JSON."""
    msgspec.json.encode(values)
    return values


def _value_or_fault(scalar: pa.Scalar) -> tuple[Any, str]:
    try:
        return _written([_value(scalar)])[0], ""
    except Exception as error:  # noqa: BLE001  as above
        return None, f"{type(error).__name__}: {error}"


def _value(scalar: pa.Scalar) -> Any:
    """A scalar as a value that JSON has a text for."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_map(kind):
        return [[_value(entry["key"]), _value(entry["value"])] for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(each) for each in scalar.values]
    if pa.types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise ValueError("two fields have one name")
        return {name: _value(scalar[name]) for name in names}
    if pa.types.is_temporal(kind):
        return _time(scalar)
    return scalar.as_py()


def _time(scalar: Any) -> Any:
    """A date, a time or a duration: as Python has it where that is exact, else as ISO 8601 text.

    Raises ``OverflowError`` or ``ValueError`` for a year that Python has no date for.
    """
    kind = scalar.type
    if getattr(kind, "unit", None) == "ns":
        return _nanoseconds(scalar)
    try:
        return scalar.as_py()
    except LookupError:  # a time zone that this machine does not know
        return pa.scalar(scalar.value, pa.timestamp(kind.unit)).as_py().isoformat() + "Z"


def _nanoseconds(scalar: Any) -> Any:
    kind, (whole, rest) = scalar.type, divmod(scalar.value, 1000)
    if pa.types.is_duration(kind):
        seconds, part = divmod(abs(scalar.value), 10**9)
        sign = "-" if scalar.value < 0 else ""
        return f"{sign}PT{seconds}.{part:09}S" if rest else pa.scalar(whole, pa.duration("us")).as_py()
    zone = getattr(kind, "tz", None)
    if not rest:
        return _time(pa.scalar(whole, pa.timestamp("us", zone) if pa.types.is_timestamp(kind) else pa.time64("us")))
    known = pa.scalar(whole, pa.timestamp("us") if pa.types.is_timestamp(kind) else pa.time64("us")).as_py()
    return f"{known.isoformat(timespec='microseconds')}{rest:03}{'Z' if zone else ''}"


def _not_finite(value: Any) -> int:
    """How many NaN and infinities are in a value."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return sum(map(_not_finite, value.values()))
    return sum(map(_not_finite, value)) if isinstance(value, list | tuple) else 0
