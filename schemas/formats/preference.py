"""A preference row as the two runs that it holds, so that formats can write it as a pair."""

from __future__ import annotations

import msgspec

from agentmill.schemas.chat import to_openai
from agentmill.schemas.format import Losses, Origin, Written
from agentmill.schemas.formats.pairs import Pair, PairFormat
from agentmill.schemas.formats.trl import Trl
from agentmill.schemas.records.rows import Message, PreferenceRow

_TOLD = frozenset({"prompt", "chosen", "rejected", "tools"})


def row_pair(row: PreferenceRow) -> Pair:
    """The better and the worse run of ``row``, with nothing but what they say. Raises ``FormatError``."""
    sides = {name: to_openai([*row.prompt, *getattr(row, name)]) for name in ("chosen", "rejected")}
    tools = {} if row.tools is None else {"tools": row.tools}
    read = Trl().read(msgspec.json.encode({**sides, **tools}), Origin(""))
    return Pair(*(msgspec.structs.replace(run, extra={}) for run in (read.trajectory, *read.others)))


def write_row(row: PreferenceRow, writer: PairFormat) -> Written:
    """``row`` as a document of the format ``writer``. Raises ``FormatError`` if the format cannot say it."""
    written = writer.write_pair(*row_pair(row))
    return Written(written.document, written.losses + row_losses(row))


def row_losses(row: PreferenceRow) -> Losses:
    """What formats have no place for: fields besides the conversations, and which of a side's answers carry loss.

    What trains on a pair puts loss on every answer of both sides.
    """
    fields = msgspec.structs.fields(PreferenceRow)
    unusual = [each.name for each in fields if each.name not in _TOLD and getattr(row, each.name) != usual(each)]
    losses = Losses(dict.fromkeys(unusual, 1))
    losses["chosen.train"] = sum(map(_untrained, row.chosen))
    losses["rejected.train"] = sum(map(_untrained, row.rejected))
    return losses


def usual(field: msgspec.structs.FieldInfo) -> object:
    """The value of a field that says nothing."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _untrained(message: Message) -> bool:
    return message.role == "assistant" and not message.train
