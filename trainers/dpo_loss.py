"""TRL's DPO trainer with loss only where the rows have it, and with weights of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from agentmill.trainers.batches import PairCollator
from agentmill.trainers.distance import MEASURED, Distance, RecordedOutputs, pair_by_pair, part
from agentmill.trainers.fit import Method
from agentmill.trainers.preferences import Pair
from agentmill.trainers.rows import TrainingRows
from agentmill.trainers.settings import DpoSettings


class PairTrainer(Distance, DPOTrainer):
    """Trains on batches of ``PairCollator``.

    TRL scores the tokens that ``completion_mask`` names, so that mask is all that keeps observations from the loss. A
    loss of TRL is a mean over pairs; with ``weighted`` it is asked for each pair alone and scaled by its weight. The
    model and the reference are asked once for the whole batch either way. A point of the loss curve says in what share
    of the pairs the chosen side gained more on the reference than the rejected one (``accuracy``).
    """

    def __init__(self, *args: Any, weighted: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weighted = weighted
        # TRL then takes what the reference says from the batch, where we put it.
        self.precompute_ref_logps = True

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
        said = self.ask(model, batch)
        references = self.compute_ref_log_probs(self.ref_model or self.model, batch)
        own = said.log_probs.detach().sum(1)
        if self.ld_alpha is not None:
            # TRL weighs the tokens by which the longer side is longer; both terms of a difference must be so weighed.
            own = torch.cat(self.compute_ref_log_probs(RecordedOutputs([said]), batch))
        self._count(batch, own, torch.cat(references))
        batch["ref_chosen_logps"], batch["ref_rejected_logps"] = references
        loss_of = super().compute_loss
        if not self._weighted:
            loss: torch.Tensor = loss_of(RecordedOutputs([said]), batch)
            return loss
        return pair_by_pair(loss_of, lambda sides: part(said, sides), batch, weights)

    def _count(self, batch: dict[str, torch.Tensor], own: torch.Tensor, reference: torch.Tensor) -> None:
        mask = batch["completion_mask"]
        chosen = torch.arange(len(mask), device=mask.device) < len(mask) // 2
        gained, lost = (own - reference).chunk(2)
        sums = self.count_sides(batch, chosen, (own, reference))
        right, compared = (gained > lost).sum().item(), len(gained)
        self.count(batch["attention_mask"], mask, right=right, compared=compared, **sums)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def paired(settings: DpoSettings, rows: TrainingRows[Pair], reference: Path | None, pad_token_id: int) -> Method:
    """Direct preference optimization on pairs; ``reference`` is ``None`` where it is the model under its adapter."""
    pairs = rows.examples
    return Method(
        trainer=PairTrainer,
        config=DPOConfig,
        options={
            "beta": settings.beta,
            "loss_type": settings.loss_type,
            "loss_weights": settings.loss_weights,
            "label_smoothing": settings.label_smoothing,
            "disable_dropout": not (settings.lora and settings.lora.dropout),
            "router_aux_loss_coef": 0.0,
        },
        columns={
            "chosen_ids": [pair.chosen.input_ids for pair in pairs],
            "chosen_mask": [pair.chosen.mask for pair in pairs],
            "rejected_ids": [pair.rejected.input_ids for pair in pairs],
            "rejected_mask": [pair.rejected.mask for pair in pairs],
            "weight": [pair.weight for pair in pairs],
        },
        lengths=[max(len(pair.chosen), len(pair.rejected)) for pair in pairs],
        collator=PairCollator(pad_token_id),
        measured=MEASURED,
        reference=reference,
        more={"weighted": any(pair.weight != 1 for pair in pairs)},
    )
