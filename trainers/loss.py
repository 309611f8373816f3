"""TRL's SFT trainer with loss weights, a row order of ours, and an output head that sees only tokens with loss."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.utils.data import Sampler
from trl.trainer.sft_trainer import SFTTrainer

from trainers.batches import FixedOrder
from trainers.tokens import IGNORED


class RowTrainer(SFTTrainer):
    """Trains on ``input_ids``, ``labels`` and ``weights``; ``order`` holds the row numbers of the whole training.

    TRL's fused output head leaves out the tokens without loss on GPUs only. On CPU it computes all of them, which is
    half of the work for a small model with a large vocabulary; here they are left out everywhere. The loss of a step
    is the weighted sum over its tokens with loss, divided by their number over all batches and processes.

    Each point of the loss curve also counts, since the point before, ``tokens`` and ``loss_tokens``, the share of
    ``padding`` and the ``seconds``, and says for what share of the tokens with loss the model was right (``accuracy``).
    """

    loss_is_scaled_for_ga = True  # type: ignore[assignment]

    def __init__(self, *args: Any, order: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order = order
        self._kept: torch.Tensor | None = None
        self._counts = torch.zeros(4, dtype=torch.float64)
        self._last_point = time.monotonic()
        model: Any = self.model
        causal_model = model.get_base_model() if hasattr(model, "peft_config") else model
        causal_model.base_model.register_forward_hook(self._keep_tokens_with_loss)

    def create_accelerator_and_postprocess(self) -> None:
        """Also turn on FSDP between CPU processes: accelerate ignores its own setting there, though all else works."""
        super().create_accelerator_and_postprocess()
        wanted = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        if wanted and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            for state in (PartialState(), self.accelerator.state):
                state._shared_state["distributed_type"] = DistributedType.FSDP
            self.accelerator.state._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
            self.is_fsdp_enabled = True

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one batch of a step; see the class."""
        if return_outputs or num_items_in_batch is None:
            raise NotImplementedError("only for training")
        attended = inputs["attention_mask"]
        labels = inputs["labels"][:, 1:]
        kept = labels != IGNORED
        self._kept = kept
        try:
            outputs = model(
                input_ids=inputs["input_ids"],
                attention_mask=attended,
                shift_labels=labels[kept],
                fused_lm_head=True,
            )
        finally:
            self._kept = None
        right, trained = outputs.is_top1.sum().item(), outputs.log_probs.numel()
        self._counts += torch.tensor([right, trained, attended.sum().item(), attended.numel()], dtype=torch.float64)
        weighted = -(outputs.log_probs * inputs["weights"][:, 1:][kept]).sum()
        # Gradients are averaged over processes, while the number of tokens is summed over them.
        loss: torch.Tensor = weighted / num_items_in_batch * self.accelerator.num_processes
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what is counted to a point of the loss curve."""
        if "loss" in logs:
            counts = self.accelerator.reduce(self._counts.to(self.accelerator.device, torch.float32), "sum")
            right, trained, tokens, places = counts.tolist()
            now = time.monotonic()
            logs |= {"accuracy": right / trained, "loss_tokens": int(trained), "tokens": int(tokens)}
            logs |= {"padding": 1 - tokens / places, "seconds": now - self._last_point}
            self._counts.zero_()
            self._last_point = now
        super().log(logs, start_time)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the card is written once, with the finished model."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:  # noqa: ARG002
        return FixedOrder(self._order)

    def _keep_tokens_with_loss(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self._kept is not None:
            output.last_hidden_state = output.last_hidden_state[:, :-1][self._kept]
