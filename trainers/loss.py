"""TRL's SFT trainer with loss weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from agentmill.trainers.batches import Collator
from agentmill.trainers.fit import Method
from agentmill.trainers.loop import Loop
from agentmill.trainers.packing import Pack, check_apart, packed
from agentmill.trainers.rows import TrainingRows
from agentmill.trainers.settings import SftSettings
from agentmill.trainers.start import Start
from agentmill.trainers.tokens import IGNORED, Encoded


class RowTrainer(Loop, SFTTrainer):
    """Trains on ``input_ids``, ``labels`` and ``weights``, and with ``packing`` on ``position_ids``.

    The loss of a step is the weighted sum over its tokens with loss, divided by their number over all batches and
    processes; with ``loss_type`` ``dft`` a token also weighs as much as it is likely. A point of the loss curve says
    for what share of the tokens with loss the model was right (``accuracy``).
    """

    loss_is_scaled_for_ga = True  # type: ignore[assignment]
    args: SFTConfig
    counted: ClassVar[tuple[str, ...]] = ("right",)

    def __init__(self, *args: Any, packing: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._packing = packing
        # Under FSDP the other processes may have no weights yet.
        if packing and self.args.process_index == 0:
            check_apart(self.model)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one batch of a step; see the class."""
        if return_outputs or num_items_in_batch is None:
            raise NotImplementedError("only for training")
        attended, labels = inputs["attention_mask"], inputs["labels"]
        # Where a mask is given, transformers does not tell rows apart by their positions.
        seen = {"position_ids": inputs["position_ids"]} if self._packing else {"attention_mask": attended}
        outputs = model(input_ids=inputs["input_ids"], labels=labels, fused_lm_head=True, **seen)
        self.count(attended, labels[:, 1:] != IGNORED, right=outputs.is_top1.sum().item())
        each = outputs.log_probs * inputs["weights"][:, 1:]
        if self.args.loss_type == "dft":
            each = each * outputs.log_probs.detach().exp()
        weighted = -each.sum()
        # Gradients are averaged over processes, while the number of tokens is summed over them.
        loss: torch.Tensor = weighted / num_items_in_batch * self.accelerator.num_processes
        return loss

    def measured(self, sums: dict[str, float]) -> dict[str, Any]:
        """The accuracy."""
        return {"accuracy": sums["right"] / sums["loss_tokens"]}


def supervised(settings: SftSettings, rows: TrainingRows[Encoded], start: Start) -> Method:
    """Supervised fine-tuning on sequences, or on packs of them."""
    names = ("input_ids", "labels", "weights", *(["position_ids"] if settings.packing else []))
    packs = packed(rows.examples, start.max_length, settings.seed) if settings.packing else None
    taken: Sequence[Encoded | Pack] = rows.examples if packs is None else packs
    return Method(
        trainer=RowTrainer,
        config=SFTConfig,
        options={"dataset_kwargs": {"skip_prepare_dataset": True}, "loss_type": settings.objective},
        columns={name: [getattr(each, name) for each in taken] for name in names},
        lengths=list(map(len, taken)),
        collator=Collator(start.tokenizer.pad_token_id or 0, settings.packing),
        measured=("accuracy",),
        packs=len(packs) if packs else None,
        more={"packing": settings.packing},
    )
