"""The base of every record: a frozen msgspec struct that forbids unknown fields.

Open-ended values are typed ``Any`` or ``dict[str, Any]``; on disk they are JSON text, because type inference changes
the key sets of real call arguments. Everything else has one explicit Arrow type (see
``agentmill.schemas.arrow.convert``).
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, dataclass_transform

import msgspec

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

SCHEMA_VERSION = "1.1"
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


def check_version(version: str, what: str) -> None:
    """Raises ``UserError`` unless ``version`` is of our major version and not newer than ours."""
    ours = tuple(map(int, SCHEMA_VERSION.split(".")))
    try:
        major, minor = map(int, version.split("."))
    except ValueError:
        raise UserError(
            f"{what} has no readable schema version ({version!r}); expected one like {SCHEMA_VERSION}",
            ErrorCode.SCHEMA_BROKEN,
        ) from None
    if major < ours[0]:
        raise UserError(
            f"{what} written by schema {version}, this agentmill reads {ours[0]}.x only", ErrorCode.SCHEMA_TOO_OLD
        )
    if (major, minor) > ours:
        raise UserError(
            f"{what} written by schema {version}, this agentmill reads up to {SCHEMA_VERSION}:"
            " upgrade agentmill (pip install -U agentmill)",
            ErrorCode.SCHEMA_TOO_NEW,
        )
