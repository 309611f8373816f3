"""Kahneman-Tversky optimization with TRL: ``python -m agentmill.trainers.kto --config FILE [key=value …]``.

Reads a table of ``UnpairedRow`` and writes a model folder, alone or under ``accelerate launch -m agentmill.trainers.kto
…``. Of a completion only the messages that the view marked carry loss, never what the environment answered. What can be
set stands in ``agentmill.schemas.training``. The same command goes on from the last checkpoint after a stop, and does
nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.rows import UnpairedRow
from agentmill.trainers.command import leave, run, say
from agentmill.trainers.models import model_folder
from agentmill.trainers.preferences import Labelled, labelled, reference_folder
from agentmill.trainers.rows import Made, TrainingRows, open_rows
from agentmill.trainers.settings import KtoSettings
from agentmill.trainers.start import begin, read_rows, tell
from agentmill.trainers.workspace import space_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run(train, KtoSettings, "kto", argv)


def train(settings: KtoSettings) -> None:
    """Make the model folder ``settings.output``. Raises ``UserError`` before any time is spent, where it can."""
    table = open_rows(settings.rows, UnpairedRow, "unpaired")
    base = model_folder(settings.model)
    reference = reference_folder(settings.reference, base)
    revision = model_revision(reference)
    start = begin("kto", settings, table, base, reference_revision=revision)
    if start is None:
        return

    def make(row: UnpairedRow) -> Made[Labelled]:
        return labelled(row, start.tokenizer, start.max_length)

    rows = read_rows(start, settings, make)
    check_labels(settings, rows)
    tell(rows, "rows")
    tell_balance(settings, rows)

    from agentmill.trainers.batches import UnpairedCollator
    from agentmill.trainers.fit import fit
    from agentmill.trainers.kto_loss import unpaired

    # An adapter can be switched off, and what is left is the starting model.
    switched = settings.lora is not None and revision == start.workspace.identity["base_revision"]
    collator = UnpairedCollator(start.tokenizer.pad_token_id or 0, start.max_length)
    with space_errors(start.workspace.folder):
        fit(settings, start, rows, unpaired(settings, rows, None if switched else reference, collator))
    say(f"the model is in {settings.output}")


def check_labels(settings: KtoSettings, rows: TrainingRows[Labelled]) -> None:
    """Raises ``UserError`` for rows that are all good or all bad, or too few to be crossed with each other."""
    good = sum(each.label for each in rows.examples)
    number = len(rows.examples)
    if good in (0, number):
        raise UserError(
            f"all {number} rows of {settings.rows} have the label {str(good > 0).lower()}; KTO learns from the"
            " difference between good and bad ones, so export both"
            " (for good ones alone there is `agentmill train sft`)",
            ErrorCode.ROWS_ALL_ALIKE,
        )
    group = settings.batch_size * int(os.environ.get("WORLD_SIZE", "1"))
    if settings.loss_type == "kto" and number < group:
        raise UserError(
            f"{number} rows are fewer than go into a batch ({group}); KTO estimates the distance to the reference by"
            f" crossing different rows of a batch, so set batch_size to {max(2, number // 2)} or export more rows",
            ErrorCode.ROWS_TOO_FEW,
        )


def tell_balance(settings: KtoSettings, rows: TrainingRows[Labelled]) -> None:
    """Say how much good and bad rows weigh, and what to set where one side outweighs the other.

    The paper advises that their weights, times their numbers, be as 1 to 4/3 (its equation 8).
    """
    weights = {side: sum(each.weight for each in rows.examples if each.label is side) for side in (True, False)}
    good, bad = settings.desirable_weight * weights[True], settings.undesirable_weight * weights[False]
    counts = {side: sum(each.label is side for each in rows.examples) for side in (True, False)}
    say(f"labels: {counts[True]} good, weighing {good:,.1f}, and {counts[False]} bad, weighing {bad:,.1f}")
    if good and bad and not 3 / 4 <= good / bad <= 4 / 3:
        fitting = settings.desirable_weight * bad / good
        say(f"one side outweighs the other; desirable_weight={fitting:.3g} would balance them")


if __name__ == "__main__":
    leave(main())
