"""TRL's KTO trainer with loss only where the rows have it, and with weights of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

from agentmill.trainers.batches import UnpairedCollator
from agentmill.trainers.distance import MEASURED, Distance, RecordedOutputs, part
from agentmill.trainers.fit import Method
from agentmill.trainers.preferences import Labelled
from agentmill.trainers.rows import TrainingRows
from agentmill.trainers.settings import KtoSettings


class LabelTrainer(Distance, KTOTrainer):
    """Trains on batches of ``UnpairedCollator``.

    TRL scores the tokens that ``completion_mask`` names, so that mask is all that keeps observations from the loss. Its
    loss is a mean over rows; with ``weighted`` it is asked for each row alone and scaled by its weight, while the
    estimate of the distance to the reference (``kl``, in nats per completion) is that of the whole batch either way. A
    point of the loss curve says what share of the rows is on its side of that estimate (``accuracy``).
    """

    counted: ClassVar[tuple[str, ...]] = (*Distance.counted, "batches", "kl")

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
        # TRL asks in this order: about the crossed rows first, where its loss has an estimate of the distance.
        crossed = []
        if self.calculate_KL:
            with torch.no_grad():
                crossed = [self.ask(model, {key[3:]: value for key, value in batch.items() if key.startswith("KL_")})]
        said = self.ask(model, batch)
        batch["ref_logps"], reference = self.compute_ref_log_probs(self.ref_model or self.model, batch)
        if crossed:
            batch["ref_KL_logps"] = reference
        self._count(batch, said.log_probs.detach().sum(1), [each.log_probs.sum(1) for each in crossed])
        loss_of = super().compute_loss
        if not self._weighted:
            loss: torch.Tensor = loss_of(RecordedOutputs([*crossed, said]), batch)
            return loss
        losses = []
        for row in range(len(weights)):
            alone = {name: value if "KL_" in name else value[[row]] for name, value in batch.items()}
            losses.append(loss_of(RecordedOutputs([*crossed, part(said, [row])]), alone))
        return torch.stack(losses) @ weights / len(weights)

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """Also the mean estimate of the distance to the reference."""
        return {**super().measured(sums), "kl": sums["kl"] / sums["batches"]}

    def _count(self, batch: dict[str, torch.Tensor], own: torch.Tensor, crossed: list[torch.Tensor]) -> None:
        gained = own - batch["ref_logps"]
        distance = torch.zeros(())
        for each in crossed:
            distance = self.accelerator.reduce((each - batch["ref_KL_logps"]).mean(), "mean").clamp(min=0)
        good = batch["label"]
        sums = self.count_sides(batch, good, (own, batch["ref_logps"]))
        right = torch.where(good, gained > distance, gained < distance).sum().item()
        sums |= {"right": right, "compared": len(good), "batches": 1, "kl": distance.item()}
        self.count(batch["attention_mask"], batch["completion_mask"], **sums)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def unpaired(
    settings: KtoSettings, rows: TrainingRows[Labelled], reference: Path | None, collator: UnpairedCollator
) -> Method:
    """Kahneman-Tversky optimization; ``reference`` is ``None`` where it is the model under its adapter."""
    examples = rows.examples
    return Method(
        trainer=LabelTrainer,
        config=KTOConfig,
        options={
            "beta": settings.beta,
            "loss_type": settings.loss_type,
            "desirable_weight": settings.desirable_weight,
            "undesirable_weight": settings.undesirable_weight,
            "disable_dropout": not (settings.lora and settings.lora.dropout),
            "router_aux_loss_coef": 0.0,
        },
        columns={
            "ids": [each.sequence.input_ids for each in examples],
            "mask": [each.sequence.mask for each in examples],
            "prompt": [each.prompt for each in examples],
            "label": [each.label for each in examples],
            "weight": [each.weight for each in examples],
        },
        lengths=[len(each.sequence) for each in examples],
        collator=collator,
        measured=(*MEASURED, "kl"),
        reference=reference,
        more={"weighted": any(each.weight != 1 for each in examples)},
    )
