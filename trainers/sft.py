"""Supervised fine-tuning with TRL: ``python -m agentmill.trainers.sft --config FILE [key=value …]``.

Reads a table of ``SftRow`` and writes a model folder, alone or under ``accelerate launch -m agentmill.trainers.sft …``.
What can be set stands in ``agentmill.schemas.training``. The same command goes on from the last checkpoint after a
stop, and does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentmill.schemas.records.rows import SftRow
from agentmill.trainers.command import leave, run, say
from agentmill.trainers.models import model_folder
from agentmill.trainers.rows import Made, open_rows
from agentmill.trainers.settings import SftSettings
from agentmill.trainers.start import begin, read_rows, tell
from agentmill.trainers.stored import encode_row
from agentmill.trainers.tokens import Encoded, RowError
from agentmill.trainers.windows import windows
from agentmill.trainers.workspace import space_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run(train, SftSettings, "sft", argv)


def train(settings: SftSettings) -> None:
    """Make the model folder ``settings.output``. Raises ``UserError`` before any time is spent, where it can."""
    table = open_rows(settings.rows, SftRow, "sft")
    start = begin("sft", settings, table, model_folder(settings.model))
    if start is None:
        return

    def make(row: SftRow) -> Made[Encoded]:
        return sequences(row, start.tokenizer, settings.long_rows, start.max_length)

    rows = read_rows(start, settings, make)
    tell(rows, "sequences")

    from agentmill.trainers.fit import fit
    from agentmill.trainers.loss import supervised

    method = supervised(settings, rows, start)
    if method.packs:
        say(f"packing: {rows.counts.written} sequences in {method.packs} packs of up to {start.max_length} tokens")
    with space_errors(start.workspace.folder):
        fit(settings, start, rows, method)
    say(f"the model is in {settings.output}")


def sequences(row: SftRow, tokenizer: Any, long_rows: str, max_length: int) -> Made[Encoded]:
    """The row as it is, or cut into windows where it is too long. Raises ``RowError``."""
    whole = encode_row(row, tokenizer)
    longest = max(len(each) for _, each in whole)
    cut = long_rows == "window" or longest <= max_length
    parts = [part for _, each in whole for part in windows(each, max_length)] if cut else []
    if not parts:
        reason = ", and no turn fits alone" if cut else ""
        lost = sum(each.loss_tokens for _, each in whole)
        raise RowError("too_long", f"{longest} tokens, more than max_length {max_length}{reason}", lost)
    return Made(parts, parts, whole)


if __name__ == "__main__":
    leave(main())
