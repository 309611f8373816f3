"""TRL's preference losses over our masks, with weights of rows, and how far the model goes from its reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from trl.trainer.utils import FusedCausalLMOutput

from agentmill.trainers.loop import Loop
from agentmill.trainers.tokens import IGNORED

SIDES = ("chosen", "rejected")
MEASURED = (
    "accuracy",
    "margin",
    *(f"{side}_{what}" for side in SIDES for what in ("reward", "logp", "change")),
)
"""What the points of the loss curve say beside the loss.

``logp`` is the mean log-probability of the tokens with loss of a side, in nats per sequence; ``change`` is what of it
came since the reference, in nats per token; ``reward`` is beta times that, per sequence, and ``margin`` is the
difference of the rewards. ``None`` where no row of the side came.
"""


class RecordedOutputs:
    """Takes the place of a model in TRL's loss and returns, in this order, outputs that the model gave before."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers: Iterator[Any] = iter(answers)

    def __call__(self, **_: Any) -> Any:
        """The next output, whatever the arguments are."""
        return next(self._answers)


class Distance(Loop):
    """What DPO and KTO measure: sums over sequences, by side."""

    beta: float
    counted: ClassVar[tuple[str, ...]] = (
        "right",
        "compared",
        *(f"{side}_{what}" for side in SIDES for what in ("rows", "tokens", "logp", "moved")),
    )

    def ask(self, model: Any, batch: dict[str, torch.Tensor]) -> Any:
        """What ``model`` says of the tokens with loss, in the form of TRL's fused head."""
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)
        return model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=labels,
            use_cache=False,
            fused_lm_head=True,
        )

    def count_sides(
        self, batch: dict[str, torch.Tensor], chosen: torch.Tensor, logps: tuple[torch.Tensor, torch.Tensor]
    ) -> dict[str, float]:
        """The sums of a batch; ``logps`` of its sequences are those of the model and of the reference."""
        own, reference = logps
        tokens = batch["completion_mask"].sum(1)
        sums: dict[str, float] = {}
        for side, rows in zip(SIDES, (chosen, ~chosen), strict=True):
            sums[f"{side}_rows"] = int(rows.sum())
            sums[f"{side}_tokens"] = int(tokens[rows].sum())
            sums[f"{side}_logp"] = own[rows].sum().item()
            sums[f"{side}_moved"] = (own - reference)[rows].sum().item()
        return sums

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """See ``MEASURED``."""
        found: dict[str, Any] = {"accuracy": sums["right"] / sums["compared"], "margin": None}
        rewards = []
        for side in SIDES:
            rows, tokens, moved = (sums[f"{side}_{what}"] for what in ("rows", "tokens", "moved"))
            reward = self.beta * moved / rows if rows else None
            found |= {
                f"{side}_reward": reward,
                f"{side}_logp": sums[f"{side}_logp"] / rows if rows else None,
                f"{side}_change": moved / tokens if rows else None,
            }
            rewards.append(reward)
        if rewards[0] is not None and rewards[1] is not None:
            found["margin"] = rewards[0] - rewards[1]
        return found


def part(said: FusedCausalLMOutput, rows: Sequence[int]) -> FusedCausalLMOutput:
    """What was said of some rows."""
    return type(said)(**{name: value[list(rows)] if value.dim() else value for name, value in said.items()})


def pair_by_pair(
    loss_of: Callable[..., torch.Tensor],
    said_of: Callable[[list[int]], Any],
    batch: dict[str, torch.Tensor],
    weights: torch.Tensor,
) -> torch.Tensor:
    """The mean over the pairs of a batch of a loss of TRL, asked for each pair alone and scaled by its weight.

    ``said_of`` tells what the model said of two rows: chosen ones come first in a batch, then the rejected ones.
    """
    number = len(weights)
    losses = []
    for one in range(number):
        sides = [one, one + number]
        alone = {name: value[[one] if len(value) == number else sides] for name, value in batch.items()}
        losses.append(loss_of(RecordedOutputs([said_of(sides)]), alone))
    return torch.stack(losses) @ weights / number
