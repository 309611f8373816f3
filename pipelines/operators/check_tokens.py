"""``check_tokens``: stored tokens compared with stored text; how much of it would be tokenised otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.schemas.templates.folder_tokenizer import load_tokenizer
from agentmill.schemas.templates.piece_tokenizer import PieceTokenizer, puts_space
from agentmill.synthesis.token_check import NAME, Codec, check_tokens


class CheckTokens(Operator):
    """A verdict per trajectory: whether its tokens say what its text says, and which share of turns did not drift."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)

    of: TableNames = Field(description="tables of trajectories")
    tokenizer: str = Field(description="folder with the tokenizer.json of the model that sampled them")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories."""
        expect(reads, "of", "Trajectory")
        return "Verdict"

    def annotations(self) -> Sequence[str]:
        """Its verdicts."""
        return [NAME]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts."""
        del inputs, context
        return Retokenising(self.tokenizer)


class Retokenising(RowOperation[Trajectory, Verdict]):
    """One verdict per trajectory."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, folder: str) -> None:
        super().__init__("check_tokens", Trajectory, Verdict)
        self._folder = folder
        self._codec: Codec | None = None

    def open(self) -> None:
        """Load the tokenizer. Raises ``UserError``, also as ``PieceTokenizer``."""
        tokenizer = load_tokenizer(self._folder)
        pieces = PieceTokenizer(tokenizer) if puts_space(tokenizer) else None

        def encode(text: str, before: str) -> list[int]:
            if pieces is not None:
                return pieces.encode(text, before)[0]
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        self._codec = Codec(
            encode=encode,
            decode=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
        )

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdict on a trajectory."""
        assert self._codec is not None
        return [Result(input_id=unit[0], outputs=[check_tokens(record, self._codec)])]

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """Verdicts by what they say, and their counts."""
        counted = ("turns", "drifted", "tokens", "segments", "breaks")
        figures = {name: output.evidence[name] for name in counted if name in output.evidence}
        return {output.status: 1, "passed": int(bool(output.passed)), **figures}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_codec": None}
