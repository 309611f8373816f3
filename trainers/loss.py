"""TRL's SFT trainer with loss weights."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from trainers.batches import Collator, row_order
from trainers.fit import Method
from trainers.loop import Loop
from trainers.rows import TrainingRows
from trainers.tokens import IGNORED, Encoded


class RowTrainer(Loop, SFTTrainer):
    """Trains on ``input_ids``, ``labels`` and ``weights``.

    The loss of a step is the weighted sum over its tokens with loss, divided by their number over all batches and
    processes. A point of the loss curve says for what share of the tokens with loss the model was right (``accuracy``).
    """

    loss_is_scaled_for_ga = True  # type: ignore[assignment]
    counted: ClassVar[tuple[str, ...]] = ("right",)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one batch of a step; see the class."""
        if return_outputs or num_items_in_batch is None:
            raise NotImplementedError("only for training")
        attended, labels = inputs["attention_mask"], inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=attended, labels=labels, fused_lm_head=True)
        self.count(attended, labels[:, 1:] != IGNORED, right=outputs.is_top1.sum().item())
        weighted = -(outputs.log_probs * inputs["weights"][:, 1:]).sum()
        # Gradients are averaged over processes, while the number of tokens is summed over them.
        loss: torch.Tensor = weighted / num_items_in_batch * self.accelerator.num_processes
        return loss

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """The accuracy."""
        return {"accuracy": sums["right"] / sums["loss_tokens"]}


def supervised(rows: TrainingRows[Encoded], pad_token_id: int) -> Method:
    """Supervised fine-tuning on sequences."""
    names = ("input_ids", "labels", "weights")
    return Method(
        trainer=RowTrainer,
        config=SFTConfig,
        options={"dataset_kwargs": {"skip_prepare_dataset": True}},
        columns={name: [getattr(row, name) for row in rows.examples] for name in names},
        lengths=[len(row) for row in rows.examples],
        order=row_order,
        collator=Collator(pad_token_id),
        measured=("accuracy",),
    )
