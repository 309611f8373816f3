"""``redact``: training rows with placeholders in the place of secrets, personal data and local paths.

It works on rows, since trajectories are never rewritten, and one operator serves every view. The rows that it lets
through are scanned again: what publishing would still find is dropped, not passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit, identity, key_of
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.row_texts import UNCHANGED, map_texts, texts_of, without_tokens
from agentmill.pipelines.sensitive.findings import Placeholders, findings
from agentmill.pipelines.sensitive.patterns import Sort
from agentmill.schemas.record_kinds import RECORD_KINDS, TRAINING_ROWS
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.verdict import Dropped

JSON_TEXTS = frozenset({"arguments", "tools"})
"""Fields of rows and messages that hold JSON as text."""

VALUES = "redacted."
"""Before a kind: how many values of it were replaced."""


class Redact(Operator):
    """Training rows in which secrets, personal data or paths are replaced by placeholders such as [EMAIL_ADDRESS_1]."""

    primary: ClassVar[str] = "from"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("from_",)

    from_: TableNames = Field(alias="from", description="tables of training rows of one kind")
    redact: list[Sort] = Field(
        default=["secret", "personal"],
        min_length=1,
        description="what is replaced: secret, personal (e-mail addresses, telephone numbers), path (local paths)",
    )

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Rows of the same kind."""
        return expect(reads, "from", *TRAINING_ROWS)

    def notes(self, manifest: Manifest) -> list[str]:
        """What was replaced, and how many rows are tokenised anew for it."""
        values = {name.removeprefix(VALUES): n for name, n in manifest.metrics.items() if name.startswith(VALUES)}
        if not values:
            # In a dropped row something was found, or nothing was looked for.
            return [] if manifest.counts.dropped else ["nothing to redact was found"]
        counts = ", ".join(f"{n:,.0f} {kind}" for kind, n in sorted(values.items()))
        tokens = manifest.metrics.get("without_tokens", 0)
        notes = [f"redacted in {manifest.metrics['rows_redacted']:,.0f} of {manifest.counts.read:,} rows: {counts}"]
        return [*notes, f"{tokens:,.0f} of them lose their sampled token ids"] if tokens else notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The redaction."""
        del context
        tables = tables_of(inputs, "from")
        record = tables[0].record_type if tables else RECORD_KINDS[TRAINING_ROWS[0]].type
        return Redaction(record, sorted(set(self.redact)))


class Redacted(msgspec.Struct, frozen=True):
    """A row after its redaction, or the ``reason`` for which it is dropped; ``measures`` count what was replaced."""

    row: Record | None
    reason: str = ""
    detail: str = ""
    measures: Mapping[str, float] = {}


class Redaction(RowOperation[Record, Record]):
    """One row for each row. One that cannot be redacted is dropped (``still_sensitive``, ``broken_json``)."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, record: type[Record], sorts: Sequence[Sort]) -> None:
        super().__init__("redact", record, record)
        self._sorts = list(sorts)
        self._redacted: dict[str, Redacted] = {}

    def begin_chunk(self, records: Sequence[Record]) -> None:
        """Redact those in which something is found, and scan them again."""
        self._redacted = {}
        found = findings((texts_of(each) for each in records), self._sorts)
        for row, own in zip(records, found, strict=True):
            if own:
                self._redacted[identity(row)] = redacted(row, Placeholders(texts_of(row), own))
        again = [each.row for each in self._redacted.values() if each.row is not None]
        for row, left in zip(again, findings(map(texts_of, again), self._sorts), strict=True):
            if left:
                self._redacted[identity(row)] = Redacted(None, "still_sensitive", left[0].kind)

    def process(self, record: Record, unit: Unit) -> Iterable[Result]:
        """The redacted row, or the row as it is."""
        (input_id,) = unit
        made = self._redacted.get(input_id, Redacted(record))
        if made.row is not None:
            return [Result(input_id=input_id, outputs=[made.row], measures=made.measures)]
        dropped = Dropped(
            input_id=input_id,
            stage=self.name,
            reason=made.reason,
            blamed="curation",
            detail=made.detail,
            # Without the row itself, which would keep the secret among the dropped records.
            input={key_of(self.reads): input_id},
        )
        return [Result(input_id=input_id, dropped=dropped)]


def redacted(row: Record, placeholders: Placeholders) -> Redacted:
    """``row`` with placeholders in all its texts, and without token ids, which would spell out what was there.

    All ids go, since those of a turn follow the whole conversation before it; a trainer tokenises the texts.
    """
    broken: list[str] = []

    def change(name: str, text: str) -> str:
        new = text if name in UNCHANGED else placeholders.replace(text)
        if name in JSON_TEXTS and new != text and _is_json(text) and not _is_json(new):
            broken.append(name)
        return new

    bare = without_tokens(row)
    made = map_texts(msgspec.to_builtins(bare), change)
    if broken:
        return Redacted(None, "broken_json", f"`{broken[0]}` would be no JSON any more")
    measures = {f"{VALUES}{kind}": float(n) for kind, n in placeholders.kinds.items()}
    without = {} if bare is row else {"without_tokens": 1.0}
    return Redacted(msgspec.convert(made, type(row)), measures={**measures, **without, "rows_redacted": 1.0})


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        # Of values that are nested too deeply nothing is known, so that nothing is broken in them.
        return False
    return True
