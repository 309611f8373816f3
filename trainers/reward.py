"""A reward model with TRL: ``python -m agentmill.trainers.reward --config FILE [key=value …]``.

Reads a table of ``PreferenceRow`` (what is chosen shall score higher than what is rejected) or of ``ScorerRow`` (the
score shall be the row's value) and writes a model folder for ``AutoModelForSequenceClassification``, alone or under
``accelerate launch -m agentmill.trainers.reward …``. It reads whole conversations and scores them at the last token.
``agentmill.schemas.training`` lists the settings. The same command continues from the last checkpoint after a stop, and
does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from agentmill.trainers.command import RewardSettings, exit_process, say
from agentmill.trainers.launch import check_command_line, run_trainer

if __name__ == "__main__":
    # Importing torch and TRL takes seconds, in which a user need not wait to read of a misspelt setting.
    check_command_line(RewardSettings, "reward")

import torch
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import PreferenceRow, ScorerRow
from agentmill.trainers.adapters import starting_point
from agentmill.trainers.base_trainer import BaseTrainer
from agentmill.trainers.batching import attention_mask, pad
from agentmill.trainers.chat_template import control_tokens, last_token
from agentmill.trainers.data import TrainingRows, open_rows, read_rows, report_rows
from agentmill.trainers.preference_data import Comparison, Valued, encode_comparison, encode_valued
from agentmill.trainers.reference_kl import RecordedOutputs, weighted_pair_loss
from agentmill.trainers.run_dir import set_up_training
from agentmill.trainers.train_loop import train_model
from agentmill.trainers.trl_trainer import Method, validation_examples

FOR_PAIRS = ("margin", "center_rewards_coefficient")
"""Settings that have a meaning for pairs only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run_trainer(train, RewardSettings, "reward", argv)


def train(settings: RewardSettings) -> None:
    """Write the model folder ``settings.output``. Raises ``UserError`` before the first step, where it can."""
    table = open_rows(settings.rows, (PreferenceRow, ScorerRow), "trajectory_pairs, step_pairs or scorer_rows")
    pairs = table.record_type is PreferenceRow
    # Before the tokenizer is loaded and the rows are read, which may take minutes.
    check_settings(settings, pairs)
    settings, start = starting_point(settings, scores=True)
    setup = set_up_training("reward", settings, table, *start)
    if setup is None:
        return
    ensure_padding_token(setup.tokenizer, setup.base)

    given = {"tokenizer": setup.tokenizer, "max_length": setup.max_length}
    if pairs:
        compare = partial(encode_comparison, **given, margin=settings.margin)
        rows = read_rows(setup, settings, compare, Comparison, masked=False)
    else:
        rows = read_rows(setup, settings, partial(encode_valued, **given), Valued, masked=False)
    report_rows(rows, "pairs" if pairs else "conversations")
    if not pairs:
        report_values(rows)
    method = (pair_method if pairs else value_method)(settings, rows, setup.tokenizer.pad_token_id)
    train_model(settings, setup, rows, method)


def check_settings(settings: RewardSettings, pairs: bool) -> None:
    """Raises ``UserError`` for settings that the rows give no meaning to."""
    given = [name for name in FOR_PAIRS if getattr(settings, name)]
    if given and not pairs:
        raise UserError(
            f"{given[0]} is about pairs, and {settings.rows} holds conversations with values; leave it out,"
            " or export pairs (--to trajectory_pairs)",
            ErrorCode.KEY_NOT_FOR_THIS,
        )


def ensure_padding_token(tokenizer: Any, base: Path) -> None:
    """See that there is a token to pad with: a reward model finds the end of a conversation by it.

    It is none that ends a conversation, which would be scored at the token before. Raises ``UserError`` where the
    tokenizer has none that can serve.
    """
    if tokenizer.pad_token is None:
        # Padding is masked, so the end token can serve for both.
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer in {base} has neither a padding nor an end token; give it one", ErrorCode.TOKENIZER_UNFIT
        )
    last = last_token(tokenizer)
    if tokenizer.pad_token_id == last:
        others = [each for each in control_tokens(tokenizer) if tokenizer.convert_tokens_to_ids(each) != last]
        if not others:
            raise UserError(
                f"the tokenizer in {base} pads with {tokenizer.pad_token}, which ends conversations; give it another"
                " pad_token",
                ErrorCode.TOKENIZER_UNFIT,
            )
        say(f"the padding token is {others[0]}, since {tokenizer.pad_token} ends conversations")
        tokenizer.pad_token = others[0]


def report_values(rows: TrainingRows) -> None:
    """Print the range of the values. Raises ``UserError`` where all are the same."""
    values = rows.column("value").tolist()
    # The deviation is the error of a model that always says the mean, which a reward model has to beat.
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    if deviation == 0:
        raise UserError(
            f"all {len(values)} rows have the value {mean:g}, so there is nothing to compare; export good and bad"
            " runs, or another score (--to scorer_rows score=…)",
            ErrorCode.ROWS_ALL_ALIKE,
        )
    say(f"values: {min(values):g} to {max(values):g}; to say {mean:.4g} of all would be {deviation:.4g} off (rms)")


class ComparisonCollator:
    """Pads the sides of pairs as TRL's reward trainer expects them: first all chosen ones, then the rejected."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (2 × rows, longest), and ``margin`` and ``weights`` of shape (rows)."""
        ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
        return {
            "input_ids": pad(ids, self.pad_token_id),
            "attention_mask": attention_mask(ids),
            "margin": torch.tensor([row["margin"] for row in rows]),
            "weights": torch.tensor([row["weight"] for row in rows]),
        }


class ValueCollator:
    """Pads conversations that have a value."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (rows, longest), and ``values`` of shape (rows)."""
        ids = [row["ids"] for row in rows]
        values = torch.tensor([row["value"] for row in rows])
        return {"input_ids": pad(ids, self.pad_token_id), "attention_mask": attention_mask(ids), "values": values}


class ScoreTrainer(BaseTrainer, RewardTrainer):
    """TRL's reward trainer on batches of tokens: the model gives one number for a whole conversation."""

    def scores(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The score of each conversation, of shape (conversations, 1)."""
        logits: torch.Tensor = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        ).logits
        return logits

    def count_scored(self, batch: dict[str, torch.Tensor], **sums: float) -> None:
        """Add a batch to the sums. Of each conversation one token carries loss: the last, where the score is read."""
        attended = batch["attention_mask"]
        self.count(attended, torch.ones(len(attended)), **sums)


class PairRewardTrainer(ScoreTrainer):
    """Trains on batches of ``ComparisonCollator``.

    The loss is TRL's: the negative log-likelihood that the chosen one wins under the model of Bradley and Terry
    (arXiv:2203.02155, equation 1). It is a mean over pairs; where some have weights TRL computes it for each pair
    alone, and it is scaled by the weight, while the model runs once. The loss curve has the share of the pairs in which
    the chosen one scores higher (``accuracy``), by how much (``margin``), and TRL's rewards.
    """

    counted: ClassVar[tuple[str, ...]] = ("pairs", "right", "ahead")

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The loss of a batch; see the class. TRL's own has no weights."""
        if return_outputs:
            raise NotImplementedError("it gives losses alone")
        batch = dict(inputs)
        weights = batch.pop("weights")
        scores = self.scores(model, batch)
        chosen, rejected = scores.detach().squeeze(-1).float().chunk(2)
        right = (chosen > rejected).sum().item()
        self.count_scored(batch, pairs=len(chosen), right=right, ahead=(chosen - rejected).sum().item())
        trl_loss = super().compute_loss
        if not self.weighted:
            loss: torch.Tensor = trl_loss(RecordedOutputs([SimpleNamespace(logits=scores)]), batch)
            return loss
        loss = weighted_pair_loss(trl_loss, lambda sides: SimpleNamespace(logits=scores[sides]), batch, weights)
        # TRL has noted the extremes of each pair alone.
        noted = self._metrics["train" if cast(torch.nn.Module, self.model).training else "eval"]
        for name, extreme in (("min_reward", min), ("max_reward", max)):
            noted[name][-len(weights) :] = [extreme(noted[name][-len(weights) :])]
        return loss

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """Of all pairs; the loss curve has TRL's rewards besides."""
        return {"accuracy": sums["right"] / sums["pairs"], "margin": sums["ahead"] / sums["pairs"]}


class ValueRewardTrainer(ScoreTrainer):
    """Trains on batches of ``ValueCollator``; the loss is the mean squared error (as AgentRM's, arXiv:2502.18407).

    The loss curve has the distance of the scores from the values (``error``, root mean square), and of the pairs of
    different values in a batch the share that is scored in the right order (``accuracy``, ``None`` without any).
    """

    counted: ClassVar[tuple[str, ...]] = ("rows", "squares", "right", "compared")

    def loss_units(self, batch: dict[str, torch.Tensor]) -> int:
        """Conversations."""
        return len(batch["values"])

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The loss of a batch. TRL has none on values."""
        if return_outputs:
            raise NotImplementedError("it gives losses alone")
        values, scores = inputs["values"], self.scores(model, inputs).squeeze(-1).float()
        squares = (scores - values) ** 2
        # The upper triangle has each pair once.
        above, scored = (torch.triu(each[:, None] - each[None]) for each in (values, scores.detach()))
        self.count_scored(
            inputs,
            rows=len(values),
            squares=squares.sum().item(),
            right=(above * scored > 0).sum().item(),
            compared=(above != 0).sum().item(),
        )
        return squares.mean()

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """See the class."""
        accuracy = sums["right"] / sums["compared"] if sums["compared"] else None
        return {"accuracy": accuracy, "error": (sums["squares"] / sums["rows"]) ** 0.5}

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        # TRL knows rows of pairs only; pairs of tokens it leaves as they are.
        return dataset


def pair_method(settings: RewardSettings, rows: TrainingRows, pad_token_id: int) -> Method:
    """A reward model from pairs."""
    return Method(
        trainer=PairRewardTrainer,
        config=RewardConfig,
        options={**dropout_options(settings), "center_rewards_coefficient": settings.center_rewards_coefficient},
        examples=rows.examples,
        lengths=rows.lengths,
        validation=validation_examples(rows),
        collator=ComparisonCollator(pad_token_id),
        measured=("accuracy", "margin", "mean_reward", "min_reward", "max_reward"),
        trainer_arguments={"weighted": rows.weighted},
        task="SEQ_CLS",
    )


def value_method(settings: RewardSettings, rows: TrainingRows, pad_token_id: int) -> Method:
    """A reward model from conversations with values."""
    return Method(
        trainer=ValueRewardTrainer,
        config=RewardConfig,
        options=dropout_options(settings),
        examples=rows.examples,
        lengths=rows.lengths,
        validation=validation_examples(rows),
        collator=ValueCollator(pad_token_id),
        measured=("accuracy", "error"),
        task="SEQ_CLS",
    )


def dropout_options(settings: RewardSettings) -> dict[str, Any]:
    """Keep TRL from turning off the dropout of an adapter that was given one."""
    return {"disable_dropout": not (settings.lora and settings.lora.dropout)}


if __name__ == "__main__":
    exit_process(main())
