"""A reward model with TRL: ``python -m agentmill.trainers.reward --config FILE [key=value …]``.

Reads a table of ``PreferenceRow`` (what is chosen shall score higher than what is rejected) or of ``ScorerRow`` (the
score shall be the row's value) and writes a model folder for ``AutoModelForSequenceClassification``, alone or under
``accelerate launch -m agentmill.trainers.reward …``. It reads whole conversations and scores them at the last token.
What can be set stands in ``agentmill.schemas.training``. The same command goes on from the last checkpoint after a
stop, and does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import PreferenceRow, ScorerRow
from agentmill.trainers.command import leave, run, say
from agentmill.trainers.models import model_folder
from agentmill.trainers.rows import Made, TrainingRows, open_rows
from agentmill.trainers.scored import Valued, comparison, spread, valued
from agentmill.trainers.settings import RewardSettings
from agentmill.trainers.start import Start, begin, read_rows, tell
from agentmill.trainers.workspace import space_errors

FOR_PAIRS = ("margin", "center_rewards_coefficient")
"""Settings that say something of pairs only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run(train, RewardSettings, "reward", argv)


def train(settings: RewardSettings) -> None:
    """Make the model folder ``settings.output``. Raises ``UserError`` before any time is spent, where it can."""
    table = open_rows(settings.rows, (PreferenceRow, ScorerRow), "trajectory_pairs, step_pairs or scorer_rows")
    pairs = table.record_type is PreferenceRow
    check_settings(settings, pairs)
    start = begin("reward", settings, table, model_folder(settings.model, scores=True))
    if start is None:
        return
    give_padding(start)

    def make(row: Any) -> Made[Any]:
        if pairs:
            return comparison(row, start.tokenizer, start.max_length, settings.margin)
        return valued(row, start.tokenizer, start.max_length)

    rows = read_rows(start, settings, make, masked=False)
    tell(rows, "pairs" if pairs else "conversations")
    if not pairs:
        tell_values(rows)

    from agentmill.trainers.fit import fit
    from agentmill.trainers.reward_loss import comparing, valuing

    method = (comparing if pairs else valuing)(settings, rows, start.tokenizer.pad_token_id)
    with space_errors(start.workspace.folder):
        fit(settings, start, rows, method)
    say(f"the model is in {settings.output}")


def check_settings(settings: RewardSettings, pairs: bool) -> None:
    """Raises ``UserError`` for settings that the rows give no meaning to."""
    given = [name for name in FOR_PAIRS if getattr(settings, name)]
    if given and not pairs:
        raise UserError(
            f"{given[0]} is about pairs, and {settings.rows} holds conversations with values; leave it out,"
            " or export pairs (--to trajectory_pairs)",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def give_padding(start: Start) -> None:
    """See that there is a token to pad with: the model finds the end of a conversation by it.

    Raises ``UserError`` where the tokenizer has none that can serve.
    """
    tokenizer = start.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer in {start.base} has neither a padding nor an end token; give it one",
            ErrorCode.TOKENIZER_UNFIT,
        )


def tell_values(rows: TrainingRows[Valued]) -> None:
    """Say what there is to learn. Raises ``UserError`` where all values are the same."""
    values = [each.value for each in rows.examples]
    mean, deviation = spread(values)
    if deviation == 0:
        raise UserError(
            f"all {len(values)} rows have the value {mean:g}, so there is nothing to tell apart; export good and bad"
            " runs, or another score (--to scorer_rows score=…)",
            ErrorCode.ROWS_ALL_ALIKE,
        )
    say(f"values: {min(values):g} to {max(values):g}; to say {mean:.4g} of all would be {deviation:.4g} off (rms)")


if __name__ == "__main__":
    leave(main())
