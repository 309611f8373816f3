"""Kahneman-Tversky optimization with TRL: ``python -m agentmill.trainers.kto --config FILE [key=value …]``.

Reads a table of ``UnpairedRow`` and writes a model folder, alone or under ``accelerate launch -m agentmill.trainers.kto
…``. Of a completion only the messages that the view marked carry loss, never what the environment answered.
``agentmill.schemas.training`` lists the settings. The same command continues from the last checkpoint after a stop, and
does nothing once the model is there. Exit codes: 0 done, 2 a mistake to correct, 130 interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from agentmill.trainers.command import KtoSettings, exit_process, say
from agentmill.trainers.launch import check_command_line, run_trainer

if __name__ == "__main__":
    # Importing torch and TRL takes seconds, in which a user need not wait to read of a misspelt setting.
    check_command_line(KtoSettings, "kto")

import torch
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.rows import UnpairedRow
from agentmill.trainers.adapters import ModelFiles, starting_point
from agentmill.trainers.data import TrainingRows, open_rows, read_rows, report_rows
from agentmill.trainers.preference_data import Labelled, encode_labelled
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
)
from agentmill.trainers.run_dir import set_up_training
from agentmill.trainers.train_loop import train_model
from agentmill.trainers.trl_trainer import Method, validation_examples


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` and return the exit code."""
    return run_trainer(train, KtoSettings, "kto", argv)


def train(settings: KtoSettings) -> None:
    """Write the model folder ``settings.output``. Raises ``UserError`` before the first step, where it can."""
    table = open_rows(settings.rows, UnpairedRow, "unpaired")
    settings, start = starting_point(settings)
    reference = reference_files(settings, start)
    setup = set_up_training("kto", settings, table, *start, reference_revision=reference.revision)
    if setup is None:
        return

    encode = partial(encode_labelled, tokenizer=setup.tokenizer, max_length=setup.max_length)
    rows = read_rows(setup, settings, encode, Labelled)
    check_labels(settings, rows)
    report_rows(rows, "rows")
    report_balance(settings, rows)
    separate = None if is_within(setup, settings) else reference
    collator = UnpairedCollator(setup.tokenizer.pad_token_id or 0, setup.max_length)
    train_model(settings, setup, rows, kto_method(settings, rows, separate, collator))


def check_labels(settings: KtoSettings, rows: TrainingRows) -> None:
    """Raises ``UserError`` for rows that are all good or all bad, or too few to be crossed with each other."""
    labels = rows.column("label")
    good, number = int(labels.sum()), len(labels)
    if good in (0, number):
        raise UserError(
            f"all {number} rows of {settings.rows} have the label {str(good > 0).lower()}; KTO learns from the"
            " difference between good and bad ones, so export both"
            " (for good ones alone there is `agentmill train sft`)",
            ErrorCode.ROWS_ALL_ALIKE,
        )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    validation = rows.validation.counts.used if rows.validation else None
    if settings.loss_type == "kto" and validation is not None and validation < 2 * processes:
        raise UserError(
            f"{validation} rows to validate on are too few; KTO crosses rows of a batch, so set aside {2 * processes}"
            " or more (validation.share, or more in validation_rows)",
            ErrorCode.ROWS_TOO_FEW,
        )
    group = settings.batch_size * processes
    if settings.loss_type == "kto" and number < group:
        fitting = number // processes
        smaller = f"set batch_size to {fitting}" if fitting > 1 else "train in fewer processes"
        raise UserError(
            f"{number} rows are fewer than go into a batch ({group}); KTO estimates the distance to the reference by"
            f" crossing different rows of a batch, so {smaller} or export more rows",
            ErrorCode.ROWS_TOO_FEW,
        )


def report_balance(settings: KtoSettings, rows: TrainingRows) -> None:
    """Print how much good and bad rows weigh, and what to set where one side outweighs the other.

    The paper advises that their weights, times their numbers, be as 1 to 4/3 (its equation 8).
    """
    labels, given = rows.column("label"), rows.column("weight")
    weights = {side: float(given[labels == side].sum()) for side in (True, False)}
    good, bad = settings.desirable_weight * weights[True], settings.undesirable_weight * weights[False]
    counts = {side: int((labels == side).sum()) for side in (True, False)}
    say(f"labels: {counts[True]} good, weighing {good:,.1f}, and {counts[False]} bad, weighing {bad:,.1f}")
    if good and bad and not 3 / 4 <= good / bad <= 4 / 3:
        balanced = settings.desirable_weight * bad / good
        say(f"one side outweighs the other; desirable_weight={balanced:.3g} would balance them")


REFERENCE_VALUES = ("ref_logps", "ref_KL_logps")
"""What the loss needs of the reference, by TRL's names: of rows, and of the crossed ones."""


class UnpairedCollator:
    """Pads rows as TRL's KTO trainer expects them; ``completion_mask``, where it puts the loss, is our mask.

    The ``KL_`` tensors are each prompt with the completion of the row before it in the batch, from which TRL estimates
    how far the model is from the reference; they are cut at ``max_length``.
    """

    def __init__(self, pad_token_id: int, max_length: int) -> None:
        self.pad_token_id = pad_token_id
        self.max_length = max_length

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Tensors of shape (rows, longest), and ``label`` and ``weights`` of shape (rows)."""
        whole = preference_batch([row["ids"] for row in rows], [row["mask"] for row in rows], self.pad_token_id)
        # TRL crosses the rows once, before they are shuffled. Crossing them in the batch pairs a row with others in
        # every pass, and never with itself.
        crossed = preference_batch(self._crossed(rows, "ids"), self._crossed(rows, "mask"), self.pad_token_id)
        return {
            **whole,
            **{f"KL_{name}": tensor for name, tensor in crossed.items()},
            **reference_tensors(rows, REFERENCE_VALUES),
            "label": torch.tensor([row["label"] for row in rows]),
            "weights": torch.tensor([row["weight"] for row in rows]),
        }

    def _crossed(self, rows: Sequence[dict[str, Any]], name: str) -> list[list[int]]:
        # A rotation pairs every row with another one as long as the batch holds two or more.
        before = [rows[-1], *rows[:-1]]
        joined = [
            row[name][: row["prompt"]] + other[name][other["prompt"] :] for row, other in zip(rows, before, strict=True)
        ]
        return [values[: self.max_length] for values in joined]


class MaskedKTOTrainer(ReferenceTrainer, KTOTrainer):
    """TRL's KTO trainer on batches of ``UnpairedCollator``: loss only where the rows have it, and weights of rows.

    TRL scores the tokens that ``completion_mask`` names, so that mask is all that keeps observations from the loss.
    TRL's loss is a mean over rows; where some have weights it is computed for each row alone and scaled by its weight,
    while the estimate of the distance to the reference (``kl``, in nats per completion) is that of the whole batch
    either way. The loss curve has the share of the rows on their side of that estimate (``accuracy``).
    """

    counted: ClassVar[tuple[str, ...]] = (*ReferenceTrainer.counted, "batches", "kl")

    def value_names(self) -> Sequence[str]:
        """A log-probability for each row, and one for its prompt with another row's completion."""
        return REFERENCE_VALUES if self.calculate_KL else REFERENCE_VALUES[:1]

    def reference_values(self, batch: dict[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """As ``ReferenceTrainer.reference_values``; only what is asked for runs."""
        wanted, self.calculate_KL = self.calculate_KL, False
        try:
            found = {}
            for name in names:
                start = "KL_" if "KL_" in name else ""
                tokens = {key: batch[start + key] for key in ("input_ids", "attention_mask", "completion_mask")}
                found[name], _ = self.compute_ref_log_probs(self.ref_model or self.model, tokens)
            return found
        finally:
            self.calculate_KL = wanted

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
        # In the order in which TRL runs the model: first the crossed rows, if its loss estimates the distance.
        crossed = []
        if self.calculate_KL:
            # The estimate of the distance only shifts the loss: in the paper no gradient flows through it.
            with torch.no_grad():
                rows = {key[3:]: value for key, value in batch.items() if key.startswith("KL_")}
                crossed = [self.forward_masked(model, rows)]
        outputs = self.forward_masked(model, batch)
        batch = self.with_references(batch)
        own, entropy = outputs.log_probs.detach().sum(1), outputs.entropy.sum().item()
        self._count(batch, own, [each.log_probs.sum(1) for each in crossed], entropy)
        trl_loss = super().compute_loss
        if not self.weighted:
            loss: torch.Tensor = trl_loss(RecordedOutputs([*crossed, outputs]), batch)
            return loss
        losses = []
        for row in range(len(weights)):
            # TRL estimates the distance anew in each call, so every row sees the crossed rows of the whole batch.
            alone = {name: value if "KL_" in name else value[[row]] for name, value in batch.items()}
            losses.append(trl_loss(RecordedOutputs([*crossed, select_rows(outputs, [row])]), alone))
        return torch.stack(losses) @ weights / len(weights)

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """Also the mean estimate of the distance to the reference, ``None`` where the loss needs none."""
        return {**super().measured(sums), "kl": sums["kl"] / sums["batches"] if self.calculate_KL else None}

    def _count(
        self, batch: dict[str, torch.Tensor], own: torch.Tensor, crossed: list[torch.Tensor], entropy: float
    ) -> None:
        gained = own - batch["ref_logps"]
        distance = torch.zeros(())
        for log_probs in crossed:
            # As TRL computes it: over all processes, and never below 0 as a true distance is.
            distance = self.accelerator.reduce((log_probs - batch["ref_KL_logps"]).mean(), "mean").clamp(min=0)
        good = batch["label"]
        sums = self.count_sides(batch, good, (own, batch["ref_logps"]))
        right = torch.where(good, gained > distance, gained < distance).sum().item()
        sums |= {"right": right, "compared": len(good), "batches": 1, "kl": distance.item(), "entropy": entropy}
        self.count(batch["attention_mask"], batch["completion_mask"], **sums)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        # TRL would tokenise the rows anew, with loss on all that follows the prompt.
        return dataset


def kto_method(
    settings: KtoSettings, rows: TrainingRows, reference: ModelFiles | None, collator: UnpairedCollator
) -> Method:
    """Kahneman-Tversky optimization; ``reference`` is ``None`` where it is within the trained model."""
    once = scores_once(settings, reference is None, len(rows.examples))
    return Method(
        trainer=MaskedKTOTrainer,
        config=KTOConfig,
        options={
            "beta": settings.beta,
            "loss_type": settings.loss_type,
            "desirable_weight": settings.desirable_weight,
            "undesirable_weight": settings.undesirable_weight,
            # TRL also turns off the dropout of an adapter that was given one.
            "disable_dropout": not (settings.lora and settings.lora.dropout),
            # RecordedOutputs hold the scores of tokens, and no router logits to make an auxiliary loss of.
            "router_aux_loss_coef": 0.0,
            "precompute_ref_log_probs": once,
        },
        examples=rows.examples,
        lengths=rows.lengths,
        validation=validation_examples(rows),
        collator=collator,
        measured=(*MEASURED, "kl"),
        reference=reference,
        scored=(REFERENCE_VALUES[:1], REFERENCE_VALUES[1:] if settings.loss_type == "kto" else ()) if once else None,
        trainer_arguments={"weighted": rows.weighted},
    )


if __name__ == "__main__":
    exit_process(main())
