"""TRL's reward trainer: its Bradley-Terry loss with weights of pairs, and the regression of values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from agentmill.trainers.batches import ComparisonCollator, ValueCollator
from agentmill.trainers.distance import RecordedOutputs, pair_by_pair
from agentmill.trainers.fit import Method
from agentmill.trainers.loop import Loop
from agentmill.trainers.rows import TrainingRows
from agentmill.trainers.scored import Comparison, Valued
from agentmill.trainers.settings import RewardSettings

COMPARED = ("accuracy", "margin", "mean_reward", "min_reward", "max_reward")
VALUED = ("accuracy", "error")


class ScoreTrainer(Loop, RewardTrainer):
    """Trains a model with one number for a whole conversation, on batches of tokens."""

    def scores(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """What ``model`` says of each conversation, of shape (conversations, 1)."""
        said: torch.Tensor = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        ).logits
        return said

    def count_scored(self, batch: dict[str, torch.Tensor], **sums: float) -> None:
        """Add a batch to the sums. Of each conversation one token carries loss: the last, where the score is read."""
        attended = batch["attention_mask"]
        self.count(attended, torch.ones(len(attended)), **sums)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


class ComparisonTrainer(ScoreTrainer):
    """Trains on batches of ``ComparisonCollator``.

    The loss is TRL's: the negative log-likelihood that the chosen one wins under the model of Bradley and Terry
    (arXiv:2203.02155, equation 1). It is a mean over pairs; with ``weighted`` TRL is asked for each pair alone and what
    it says scaled by the weight, while the model is asked once. The points of the loss curve are TRL's too: in what
    share of the pairs the chosen one scores higher (``accuracy``) and by how much (``margin``), and the rewards.
    """

    def __init__(self, *args: Any, weighted: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weighted = weighted

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The loss of a batch; see the class."""
        if return_outputs:
            raise NotImplementedError("only for training")
        batch = dict(inputs)
        weights = batch.pop("weights")
        scores = self.scores(model, batch)
        self.count_scored(batch)
        loss_of = super().compute_loss
        if not self._weighted:
            loss: torch.Tensor = loss_of(RecordedOutputs([SimpleNamespace(logits=scores)]), batch)
            return loss
        return pair_by_pair(loss_of, lambda sides: SimpleNamespace(logits=scores[sides]), batch, weights)

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """Nothing: TRL measures it."""
        del sums
        return {}


class ValueTrainer(ScoreTrainer):
    """Trains on batches of ``ValueCollator``; the loss is the mean squared error (as AgentRM's, arXiv:2502.18407).

    A point of the loss curve says how far the scores are from the values (``error``, root mean square), and of the
    pairs of different values in a batch what share is scored in the right order (``accuracy``, ``None`` without any).
    """

    counted: ClassVar[tuple[str, ...]] = ("rows", "squares", "right", "compared")

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The loss of a batch."""
        if return_outputs:
            raise NotImplementedError("only for training")
        values, scores = inputs["values"], self.scores(model, inputs).squeeze(-1).float()
        squares = (scores - values) ** 2
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


def comparing(settings: RewardSettings, rows: TrainingRows[Comparison], pad_token_id: int) -> Method:
    """A reward model from pairs."""
    pairs = rows.examples
    return Method(
        trainer=ComparisonTrainer,
        config=RewardConfig,
        options={**quiet(settings), "center_rewards_coefficient": settings.center_rewards_coefficient},
        columns={
            "chosen_ids": [pair.chosen.input_ids for pair in pairs],
            "rejected_ids": [pair.rejected.input_ids for pair in pairs],
            "margin": [pair.margin for pair in pairs],
            "weight": [pair.weight for pair in pairs],
        },
        lengths=[max(len(pair.chosen), len(pair.rejected)) for pair in pairs],
        collator=ComparisonCollator(pad_token_id),
        measured=COMPARED,
        more={"weighted": any(pair.weight != 1 for pair in pairs)},
        task="SEQ_CLS",
    )


def valuing(settings: RewardSettings, rows: TrainingRows[Valued], pad_token_id: int) -> Method:
    """A reward model from conversations with values."""
    return Method(
        trainer=ValueTrainer,
        config=RewardConfig,
        options=quiet(settings),
        columns={
            "ids": [each.sequence.input_ids for each in rows.examples],
            "value": [each.value for each in rows.examples],
        },
        lengths=[len(each.sequence) for each in rows.examples],
        collator=ValueCollator(pad_token_id),
        measured=VALUED,
        task="SEQ_CLS",
    )


def quiet(settings: RewardSettings) -> dict[str, Any]:
    """Dropout only where an adapter is to have it."""
    return {"disable_dropout": not (settings.lora and settings.lora.dropout)}
