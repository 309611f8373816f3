"""``quality``: a row of counts per trajectory, from which the quality report of a data set is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.quality import Count, quality, texts_of
from agentmill.pipelines.sensitive.findings import counts, findings
from agentmill.pipelines.sensitive.patterns import Sort
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Quality as QualityRow
from agentmill.schemas.templates.folder_tokenizer import load_tokenizer
from agentmill.synthesis.language import identify


class Quality(Operator):
    """Counts of turns, calls, misfits, lengths, languages, refusals and sensitive data, for each trajectory."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)

    of: TableNames = Field(description="tables of trajectories")
    tokenizer: str | None = Field(default=None, description="folder with the tokenizer.json that counts tokens")

    sensitive: bool = Field(default=False, description="count secrets, personal data and local paths, too")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Rows of counts."""
        expect(reads, "of", "Trajectory")
        return "Quality"

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The counting."""
        del inputs, context
        return Counting(self.tokenizer, self.sensitive)


class Counting(RowOperation[Trajectory, QualityRow]):
    """One row per trajectory."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, tokenizer: str | None, sensitive: bool) -> None:
        super().__init__("quality", Trajectory, QualityRow)
        self._tokenizer = tokenizer
        self._sensitive = sensitive
        self._found: dict[str, Counter[Sort]] = {}

    def open(self) -> None:
        """Load the tokenizer. Raises ``UserError``."""
        self._count = counter(self._tokenizer) if self._tokenizer is not None else None

    def begin_chunk(self, records: Sequence[Trajectory]) -> None:
        """Look for what is sensitive in all of them together."""
        if self._sensitive:
            texts = ([*texts_of(each), msgspec.json.encode(each.tools).decode()] for each in records)
            found = map(counts, findings(texts))
            self._found = {each.trajectory_id: own for each, own in zip(records, found, strict=True)}

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The counts of a trajectory."""
        sensitive = self._found[record.trajectory_id] if self._sensitive else None
        row = quality(record, self._count, identify, sensitive)
        return [Result(input_id=unit[0], outputs=[row])]


def counter(folder: str) -> Count:
    """A function that counts the tokens of each text. Raises ``UserError`` if there is no tokenizer in ``folder``."""
    tokenizer = load_tokenizer(folder)

    def count(texts: Sequence[str]) -> list[int]:
        return [len(each.ids) for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    return count
