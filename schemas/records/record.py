"""The base of every record: a frozen msgspec struct that forbids unknown fields.

Open-ended values are typed ``Any`` or ``dict[str, Any]``; on disk they are JSON text, because type inference changes
the key sets of real call arguments. Everything else has one explicit Arrow type (see
``agentmill.schemas.arrow.convert``).
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, dataclass_transform

import msgspec

SCHEMA_VERSION = "1.0"
"""Version of all records, ``major.minor``. A reader accepts every minor version up to its own of the same major."""

JsonObject = dict[str, Any]

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that a column can hold; foreign records have larger ones."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A row of a table, or a part of one. Records form no cycles, so the garbage collector leaves them out."""


@functools.cache
def defaults(record_type: type[msgspec.Struct]) -> dict[str, Any]:
    """The default of every field of a record, ``msgspec.NODEFAULT`` where it has none or a fresh one each time.

    Cached: to look at the fields of a type takes longer than to write a record.
    """
    return {field.name: field.default for field in msgspec.structs.fields(record_type)}
