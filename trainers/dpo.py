"""Direct preference optimization with TRL: ``python -m agentmill.trainers.dpo --config FILE [key=value …]``.

Reads a table of ``PreferenceRow`` and writes a model folder, alone or under ``accelerate launch -m
agentmill.trainers.dpo …``. Of both sides only the messages that the view marked carry loss, never what the environment
answered. What can be set stands in ``agentmill.schemas.training``. The same command goes on from the last checkpoint
after a stop, and does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.models import model_revision
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.trainers.command import leave, run, say
from agentmill.trainers.models import model_folder
from agentmill.trainers.preferences import Pair, pair, reference_folder
from agentmill.trainers.rows import Made, TrainingRows, open_rows
from agentmill.trainers.settings import DpoSettings
from agentmill.trainers.start import begin, read_rows, tell
from agentmill.trainers.workspace import space_errors

SORTING = {"aot", "aot_unpaired"}
"""Losses that compare all pairs of a batch with each other, so that none of them has a loss of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run(train, DpoSettings, "dpo", argv)


def train(settings: DpoSettings) -> None:
    """Make the model folder ``settings.output``. Raises ``UserError`` before any time is spent, where it can."""
    table = open_rows(settings.rows, PreferenceRow, "trajectory_pairs or step_pairs")
    base = model_folder(settings.model)
    reference = reference_folder(settings.reference, base)
    revision = model_revision(reference)
    start = begin("dpo", settings, table, base, reference_revision=revision)
    if start is None:
        return

    def make(row: PreferenceRow) -> Made[Pair]:
        return pair(row, start.tokenizer, start.max_length)

    rows = read_rows(start, settings, make)
    check_weights(settings, rows)
    tell(rows, "pairs")

    from agentmill.trainers.dpo_loss import paired
    from agentmill.trainers.fit import fit

    # An adapter can be switched off, and what is left is the starting model.
    switched = settings.lora is not None and revision == start.workspace.identity["base_revision"]
    method = paired(settings, rows, None if switched else reference, start.tokenizer.pad_token_id or 0)
    with space_errors(start.workspace.folder):
        fit(settings, start, rows, method)
    say(f"the model is in {settings.output}")


def check_weights(settings: DpoSettings, rows: TrainingRows[Pair]) -> None:
    """Raises ``UserError`` for pairs with weights under a loss that cannot heed them."""
    sorting = sorted(SORTING & set(settings.loss_type))
    if sorting and any(each.weight != 1 for each in rows.examples):
        raise UserError(
            f"loss_type {sorting[0]} sorts the pairs of a batch, so the weights of the rows would mean nothing;"
            " take another loss, or rows without weights",
            ErrorCode.WEIGHTS_NOT_FOR_LOSS,
        )


if __name__ == "__main__":
    leave(main())
