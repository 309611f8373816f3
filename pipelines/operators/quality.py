"""``quality``: a row of counts per trajectory, from which the quality report of a data set is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.quality import Count, quality
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Quality as QualityRow
from agentmill.schemas.templates.folder_tokenizer import load_tokenizer


class Quality(Operator):
    """Counts of turns, calls, links, misfits, endings, lengths and languages, for each trajectory."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)

    of: TableNames = Field(description="tables of trajectories")
    tokenizer: str | None = Field(default=None, description="folder with the tokenizer.json that counts tokens")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Rows of counts."""
        expect(reads, "of", "Trajectory")
        return "Quality"

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The counting."""
        del inputs, context
        return Counting(self.tokenizer)


class Counting(RowOperation[Trajectory, QualityRow]):
    """One row per trajectory."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, tokenizer: str | None) -> None:
        super().__init__("quality", Trajectory, QualityRow)
        self._tokenizer = tokenizer

    def open(self) -> None:
        """Load the tokenizer and the language identifier. Raises ``UserError``."""
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
        self._count = counter(self._tokenizer) if self._tokenizer is not None else None

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The counts of a trajectory."""
        row = quality(record, self._count, lambda text: str(self._identifier.classify(text)[0]))
        return [Result(input_id=unit[0], outputs=[row])]


def counter(folder: str) -> Count:
    """A function that counts the tokens of texts. Raises ``UserError`` if there is no tokenizer in ``folder``."""
    tokenizer = load_tokenizer(folder)

    def count(texts: Sequence[str]) -> int:
        return sum(len(each.ids) for each in tokenizer.encode_batch(list(texts), add_special_tokens=False))

    return count
