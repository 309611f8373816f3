"""Direct preference optimization with TRL: ``python -m agentmill.trainers.dpo --config FILE [key=value …]``.

Reads a table of ``PreferenceRow`` and writes a model folder, alone or under ``accelerate launch -m
agentmill.trainers.dpo …``. Of both sides only the messages that the view marked carry loss, never what the environment
answered. ``agentmill.schemas.training`` lists the settings. The same command continues from the last checkpoint after a
stop, and does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentmill.trainers.command import DpoSettings, exit_process
from agentmill.trainers.launch import check_command_line, run_trainer

if __name__ == "__main__":
    # Importing torch and TRL takes seconds, in which a user need not wait to read of a misspelt setting.
    check_command_line(DpoSettings, "dpo")

import torch
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import PreferenceRow
from agentmill.trainers.adapters import ModelFiles, starting_point
from agentmill.trainers.data import TrainingRows, open_rows, read_rows, report_rows
from agentmill.trainers.preference_data import Pair, encode_pair
from agentmill.trainers.reference_kl import (
    MEASURED,
    RecordedOutputs,
    ReferenceTrainer,
    is_within,
    preference_batch,
    reference_files,
    reference_tensors,
    scores_once,
    select_rows,
    weighted_pair_loss,
)
from agentmill.trainers.run_dir import set_up_training
from agentmill.trainers.train_loop import train_model
from agentmill.trainers.trl_trainer import Method, validation_examples

SORTING = {"aot", "aot_unpaired"}
"""Losses that compare all pairs of a batch with each other, so that none of them has a loss of its own."""

REFERENCE_VALUES = ("ref_chosen_logps", "ref_rejected_logps")
"""What the loss needs of the reference, by TRL's names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run_trainer(train, DpoSettings, "dpo", argv)


def train(settings: DpoSettings) -> None:
    """Write the model folder ``settings.output``. Raises ``UserError`` before the first step, where it can."""
    table = open_rows(settings.rows, PreferenceRow, "trajectory_pairs or step_pairs")
    settings, start = starting_point(settings)
    reference = reference_files(settings, start)
    setup = set_up_training("dpo", settings, table, *start, reference_revision=reference.revision)
    if setup is None:
        return

    encode = partial(encode_pair, tokenizer=setup.tokenizer, max_length=setup.max_length)
    rows = read_rows(setup, settings, encode, Pair)
    check_weights(settings, rows)
    report_rows(rows, "pairs")
    separate = None if is_within(setup, settings) else reference
    method = dpo_method(settings, rows, separate, setup.tokenizer.pad_token_id or 0)
    train_model(settings, setup, rows, method)


def check_weights(settings: DpoSettings, rows: TrainingRows) -> None:
    """Raises ``UserError`` for pairs with weights under a loss that cannot use them."""
    sorting = sorted(SORTING & set(settings.loss_type))
    # After the rows are read: only then it is known whether one has a weight.
    if sorting and any(rows.weighted):
        raise UserError(
            f"loss_type {sorting[0]} sorts the pairs of a batch, so the weights of the rows would mean nothing;"
            " take another loss, or rows without weights",
            ErrorCode.WEIGHTS_NOT_FOR_LOSS,
        )


class PairCollator:
    """Pads the sides of pairs as TRL's DPO trainer expects them: first the chosen ones of all pairs, then the rejected.

    ``completion_mask``, where TRL puts the loss, is our mask: tokens of the prompt and of observations are 0.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (2 × rows, longest), and ``weights`` of shape (rows)."""
        ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
        masks = [row[f"{side}_mask"] for side in ("chosen", "rejected") for row in rows]
        batch = preference_batch(ids, masks, self.pad_token_id)
        weights = torch.tensor([row["weight"] for row in rows])
        return {**batch, **reference_tensors(rows, REFERENCE_VALUES), "weights": weights}


class MaskedDPOTrainer(ReferenceTrainer, DPOTrainer):
    """TRL's DPO trainer on batches of ``PairCollator``: loss only where the rows have it, and weights of pairs.

    TRL scores the tokens that ``completion_mask`` names, so that mask is all that keeps observations from the loss.
    TRL's losses are means over pairs, and ``sft`` over the tokens of the chosen sides; where some pairs have weights,
    they are computed for each pair alone and scaled by its weight. The model and the reference run once for the whole
    batch either way. The loss curve has the share of pairs in which the chosen side gained more on the reference than
    the rejected one (``accuracy``).
    """

    def value_names(self) -> Sequence[str]:
        """A log-probability for each side."""
        return REFERENCE_VALUES

    def reference_values(self, batch: dict[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """As ``ReferenceTrainer.reference_values``; both sides run together."""
        tokens = {name: batch[name] for name in ("input_ids", "attention_mask", "completion_mask")}
        found = dict(
            zip(REFERENCE_VALUES, self.compute_ref_log_probs(self.ref_model or self.model, tokens), strict=True)
        )
        return {name: found[name] for name in names}

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
        outputs = self.forward_masked(model, batch)
        batch = self.with_references(batch)
        # Positions without loss hold 0, so a plain sum is that over the mask.
        own = outputs.log_probs.detach().sum(1)
        if self.ld_alpha is not None:
            # TRL weighs the tokens by which the longer side is longer; both terms of a difference must be so weighed.
            own = torch.cat(self.compute_ref_log_probs(RecordedOutputs([outputs]), batch))
        reference = torch.cat([batch[name] for name in REFERENCE_VALUES])
        self._count(batch, own, reference, outputs.entropy.sum().item())
        trl_loss = super().compute_loss
        if not self.weighted:
            loss: torch.Tensor = trl_loss(RecordedOutputs([outputs]), batch)
            return loss
        tokens = chosen_tokens(batch)

        def loss_of_pair(one: Any, alone: dict[str, torch.Tensor]) -> torch.Tensor:
            with self._sft_scaled(chosen_tokens(alone) * len(weights) / tokens):
                of_pair: torch.Tensor = trl_loss(one, alone)
                return of_pair

        return weighted_pair_loss(loss_of_pair, lambda sides: select_rows(outputs, sides), batch, weights)

    @contextmanager
    def _sft_scaled(self, factor: float) -> Iterator[None]:
        """TRL's ``sft`` is a mean over the tokens of its batch: by this factor that of a pair is its part in a mean."""
        whole = self.loss_weights
        self.loss_weights = [
            weight * factor if name == "sft" else weight for name, weight in zip(self.loss_types, whole, strict=True)
        ]
        try:
            yield
        finally:
            self.loss_weights = whole

    def _count(
        self, batch: dict[str, torch.Tensor], own: torch.Tensor, reference: torch.Tensor, entropy: float
    ) -> None:
        mask = batch["completion_mask"]
        chosen = torch.arange(len(mask), device=mask.device) < len(mask) // 2
        gained, lost = (own - reference).chunk(2)
        sums = self.count_sides(batch, chosen, (own, reference))
        right, compared = (gained > lost).sum().item(), len(gained)
        self.count(batch["attention_mask"], mask, right=right, compared=compared, entropy=entropy, **sums)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        # TRL would tokenise the rows anew, with loss on all that follows the prompt.
        return dataset


def chosen_tokens(batch: dict[str, torch.Tensor]) -> float:
    """The tokens with loss on the chosen sides of a batch."""
    mask = batch["completion_mask"]
    return mask[: len(mask) // 2, 1:].sum().item()


def dpo_method(settings: DpoSettings, rows: TrainingRows, reference: ModelFiles | None, pad_token_id: int) -> Method:
    """Direct preference optimization on pairs; ``reference`` is ``None`` where it is within the trained model."""
    once = scores_once(settings, reference is None, len(rows.examples))
    return Method(
        trainer=MaskedDPOTrainer,
        config=DPOConfig,
        options={
            "beta": settings.beta,
            "loss_type": settings.loss_type,
            "loss_weights": settings.loss_weights,
            "label_smoothing": settings.label_smoothing,
            # TRL also turns off the dropout of an adapter that was given one.
            "disable_dropout": not (settings.lora and settings.lora.dropout),
            # RecordedOutputs hold the scores of tokens, and no router logits to make an auxiliary loss of.
            "router_aux_loss_coef": 0.0,
            "precompute_ref_log_probs": once,
        },
        examples=rows.examples,
        lengths=rows.lengths,
        validation=validation_examples(rows),
        collator=PairCollator(pad_token_id),
        measured=MEASURED,
        reference=reference,
        scored=(REFERENCE_VALUES, ()) if once else None,
        trainer_arguments={"weighted": rows.weighted},
    )


if __name__ == "__main__":
    exit_process(main())
